//! The kernel and the programs of the host.

use std::path::Path;

use hearth_host::cgroup::Layout;

use super::{Finding, chain};

/// LOOP_CONFIGURE came with 5.8; clone3 into a group with 5.7.
const OLDEST_KERNEL: (u32, u32) = (5, 8);
/// `cgroup.kill` came with 5.14; without it a group is killed process by process.
const GOOD_KERNEL: (u32, u32) = (5, 14);
/// What the server and the build of `base` start, with their Debian packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("tar", "tar"),
    ("cp", "coreutils"),
];

pub(super) fn check() -> Vec<Finding> {
    let mut findings = vec![root(), kernel(), cgroups()];
    findings.extend(io_limit());
    findings.push(programs());
    if rustix::process::geteuid().is_root() {
        findings.push(loop_devices());
    }
    findings
}

fn root() -> Finding {
    if rustix::process::geteuid().is_root() {
        Finding::ok("root", "running as root")
    } else {
        Finding::fail(
            "root",
            "not running as root, so most cannot be tried",
            "run it with sudo",
        )
    }
}

fn kernel() -> Finding {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let Some(version) = version_of(&release) else {
        return Finding::warn(
            "kernel",
            format!("{release:?} has no version in it"),
            "5.8 or later is needed",
        );
    };
    let text = format!("Linux {release}");
    if version < OLDEST_KERNEL {
        Finding::fail(
            "kernel",
            text,
            "5.8 or later is needed; install a newer kernel",
        )
    } else if version < GOOD_KERNEL {
        Finding::warn("kernel", text, "sandboxes end quicker on 5.14 or later")
    } else {
        Finding::ok("kernel", text)
    }
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn cgroups() -> Finding {
    match Layout::detect() {
        Ok(layout) => Finding::ok(
            "cgroups",
            format!("layout {}, with cpu, memory and pids", layout.name()),
        ),
        Err(e) => Finding::fail(
            "cgroups",
            chain(&e),
            "mount the controller, or boot with systemd.unified_cgroup_hierarchy=1",
        ),
    }
}

fn io_limit() -> Option<Finding> {
    let limited = match Layout::detect().ok()? {
        Layout::V1 { trees, .. } => trees.blkio.is_some(),
        Layout::V2 { root } => std::fs::read_to_string(root.join("cgroup.controllers"))
            .is_ok_and(|have| have.split_whitespace().any(|c| c == "io")),
    };
    Some(if limited {
        Finding::ok(
            "disk speed",
            "the kernel can limit each sandbox's disk throughput",
        )
    } else {
        Finding::warn(
            "disk speed",
            "no io (v2) or blkio (v1) controller: one sandbox may take all of the disk's throughput",
            "boot a kernel with CONFIG_BLK_CGROUP and mount the controller",
        )
    })
}

fn programs() -> Finding {
    let missing: Vec<_> = PROGRAMS
        .iter()
        .filter(|(program, _)| !is_in_path(program))
        .collect();
    let names = |which: fn(&(&'static str, &'static str)) -> &'static str| {
        missing
            .iter()
            .map(|pair| which(pair))
            .collect::<Vec<_>>()
            .join(" ")
    };
    if missing.is_empty() {
        Finding::ok("programs", PROGRAMS.map(|(program, _)| program).join(", "))
    } else {
        Finding::fail(
            "programs",
            format!("not in PATH: {}", names(|p| p.0)),
            format!(
                "apt-get install {} (or `make up`); /usr/sbin has to be in PATH",
                names(|p| p.1)
            ),
        )
    }
}

fn is_in_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn loop_devices() -> Finding {
    let control = Path::new("/dev/loop-control");
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(control)
    {
        Ok(_) => Finding::ok("loop devices", "/dev/loop-control opens"),
        Err(e) => Finding::fail(
            "loop devices",
            format!("{}: {e}", control.display()),
            "`modprobe loop`; in a container, pass the loop devices in",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases() {
        assert_eq!(version_of("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version_of("5.10.0"), Some((5, 10)));
        assert!(version_of("5.8").is_some_and(|v| v >= OLDEST_KERNEL));
        assert!(version_of("5.10").is_some_and(|v| v > OLDEST_KERNEL && v < GOOD_KERNEL));
        assert_eq!(version_of("unknown"), None);
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(is_in_path("sh"));
        assert!(!is_in_path("no-such-program"));
    }
}
