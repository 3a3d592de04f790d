//! The OCI bundle of one sandbox: `config.json` and the memory size it is shown.

use std::io;
use std::path::Path;

use hearth_runtime::StartPlan;
use serde_json::json;

/// File that is laid over `/proc/meminfo` for `runsc`.
pub(crate) const MEMINFO: &str = "meminfo";
/// Where the agent's program is inside.
const AGENT: &str = "/.hearth/agent";

/// Root inside the sandbox has them all: they are capabilities over gVisor's kernel, not the host's.
const CAPABILITIES: [&str; 26] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_KILL",
    "CAP_LEASE",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MKNOD",
    "CAP_NET_ADMIN",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_CHROOT",
    "CAP_SYS_NICE",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RESOURCE",
];

/// Writes the bundle into the sandbox's folder.
pub(crate) fn write(plan: &StartPlan, netns: &Path) -> io::Result<()> {
    let config = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": [AGENT],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES },
            "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 65536, "hard": 1_048_576 }],
            "noNewPrivileges": false,
        },
        "root": { "path": plan.root, "readonly": false },
        "hostname": plan.hostname,
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"] },
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup" },
            { "destination": AGENT, "type": "bind", "source": plan.agent, "options": ["bind", "ro"] },
        ],
        "linux": {
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
                { "type": "network", "path": netns },
            ],
        },
    });
    std::fs::create_dir_all(super::state_dir(&plan.dir))?;
    std::fs::write(plan.dir.join("config.json"), serde_json::to_vec(&config)?)?;
    std::fs::write(plan.dir.join(MEMINFO), meminfo(plan.size.memory_mib))
}

fn meminfo(mib: u64) -> String {
    let kib = mib * 1024;
    format!("MemTotal:       {kib} kB\nMemFree:        {kib} kB\nMemAvailable:   {kib} kB\n")
}
