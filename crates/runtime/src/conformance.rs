//! What every tier must do, as one list of checks. A tier's tests bring a [`Subject`]; the
//! list is the same for all. Nothing here knows which tier it looks at.
//!
//! Each check starts sandboxes of its own and says in its error what it saw.

use hearth_host::cgroup::Group;
use hearth_model::sandbox::Size;

use crate::BoxFuture;

/// A tier under test, with everything around it that a node gives.
pub trait Subject: Send + Sync {
    /// Starts a sandbox with a writable root disk, as the node would.
    fn start(&self, size: Size) -> BoxFuture<'_, Result<Box<dyn Live>, String>>;
}

/// A sandbox under test.
pub trait Live: Send + Sync {
    /// Runs `script` by `/bin/bash -c` as root inside.
    fn sh(&self, script: &str) -> BoxFuture<'_, Result<Output, String>>;
    /// Its control group on the host.
    fn group(&self) -> Group;
    /// Sets the throughput limit of its disk, bytes per second each way.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn limit_io(&self, bps: u64) -> Result<(), String>;
    /// Pid on the host of the process whose end is its end.
    fn pid(&self) -> i32;
    /// Whether the node still has it.
    fn is_running(&self) -> bool;
    /// Ends it and returns when everything was given back.
    fn end(&self) -> BoxFuture<'_, ()>;
    /// Returns when the node found it dead and gave everything back.
    fn died(&self) -> BoxFuture<'_, ()>;
}

/// What a script printed and how it ended: 128 + n for signal n.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A check's name and what it does.
pub type Check = (
    &'static str,
    fn(&dyn Subject) -> BoxFuture<'_, Result<(), String>>,
);

/// The list.
pub const CHECKS: &[Check] = &[
    ("runs commands and keeps their status", |s| {
        Box::pin(runs(s))
    }),
    (
        "shows its own processes, kernel, memory and CPUs, not the host's",
        |s| Box::pin(shows_its_own(s)),
    ),
    ("limits read back as asked", |s| {
        Box::pin(limits_read_back(s))
    }),
    ("the CPU limit is hit", |s| Box::pin(cpu_is_hit(s))),
    ("a fork bomb gets EAGAIN and the sandbox lives", |s| {
        Box::pin(fork_bomb(s))
    }),
    ("a full disk is ENOSPC and passes", |s| {
        Box::pin(full_disk(s))
    }),
    ("the disk's throughput limit is hit", |s| {
        Box::pin(io_is_hit(s))
    }),
    (
        "a memory hog is stopped and a neighbour does not notice",
        |s| Box::pin(memory_hog(s)),
    ),
    ("an end leaves no process and no group", |s| {
        Box::pin(end_leaves_nothing(s))
    }),
    ("a death from outside is noticed", |s| {
        Box::pin(death_is_noticed(s))
    }),
];

const SMALL: Size = Size {
    vcpu: 1,
    memory_mib: 512,
    disk_mib: 0,
};

fn ensure(holds: bool, saw: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(saw()) }
}

async fn runs(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    let out = sandbox.sh("echo out; echo err >&2; id -u; exit 7").await?;
    ensure(
        out.status == 7 && out.stdout == "out\n0\n" && out.stderr == "err\n",
        || format!("{out:?}"),
    )?;
    let killed = sandbox.sh("kill -9 $$").await?;
    ensure(killed.status == 137, || {
        format!("after SIGKILL: {killed:?}")
    })?;
    sandbox.end().await;
    Ok(())
}

async fn shows_its_own(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    let processes = sandbox.sh("ls -d /proc/[0-9]* | wc -l").await?;
    let count: usize = processes
        .stdout
        .trim()
        .parse()
        .map_err(|_| format!("{processes:?}"))?;
    ensure(count < 20, || format!("{count} processes are seen inside"))?;
    let memory = sandbox.sh("grep MemTotal /proc/meminfo").await?;
    ensure(memory.stdout.contains(&(512 * 1024).to_string()), || {
        format!("{memory:?}")
    })?;
    let cpus = sandbox.sh("nproc").await?;
    ensure(cpus.stdout == "1\n", || {
        format!("CPUs of a sandbox with one: {cpus:?}")
    })?;
    let host = std::fs::read_to_string("/proc/version").map_err(|e| e.to_string())?;
    let kernel = sandbox.sh("cat /proc/version").await?;
    ensure(kernel.stdout != host, || {
        "the host's kernel answers inside".into()
    })?;
    sandbox.end().await;
    Ok(())
}

async fn limits_read_back(subject: &dyn Subject) -> Result<(), String> {
    let size = Size {
        vcpu: 2,
        memory_mib: 768,
        ..SMALL
    };
    let sandbox = subject.start(size).await?;
    let limits = sandbox.group().read_back().map_err(|e| e.to_string())?;
    ensure(limits.cpu_milli == 2000, || format!("{limits:?}"))?;
    // Above the size, for what carries the sandbox; less than twice it.
    let mib = limits.memory_bytes >> 20;
    ensure((768..2 * 768).contains(&mib), || {
        format!("memory of {mib} MiB")
    })?;
    ensure((1000..1_000_000).contains(&limits.pids), || {
        format!("{limits:?}")
    })?;
    ensure(sandbox.group().pids().contains(&sandbox.pid()), || {
        "its process is not in its group".into()
    })?;
    sandbox.end().await;
    Ok(())
}

async fn cpu_is_hit(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    let group = sandbox.group();
    let before = group.counters().map_err(|e| e.to_string())?.cpu_ns;
    let begun = std::time::Instant::now();
    let out = sandbox
        .sh("for i in 1 2 3 4; do timeout 2 bash -c 'while :; do :; done' & done; wait; echo done")
        .await?;
    let wall = begun.elapsed().as_nanos();
    ensure(out.stdout == "done\n", || format!("{out:?}"))?;
    let used = u128::from(group.counters().map_err(|e| e.to_string())?.cpu_ns - before);
    // One CPU was allowed; a period's slack.
    ensure(used < wall + wall / 5, || {
        format!("{used} ns of CPU in {wall} ns with one CPU allowed")
    })?;
    sandbox.end().await;
    Ok(())
}

async fn fork_bomb(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject
        .start(Size {
            memory_mib: 1024,
            ..SMALL
        })
        .await?;
    // Small processes, so that their number is met before the memory is; it stops at the
    // first refusal and says so at once.
    let script = r#"exec python3 -S -c '
import errno, os, signal
pids = []
try:
    while len(pids) < 6000:
        pids.append(os.posix_spawn("/bin/sleep", ["sleep", "600"], {}))
    print("never refused", flush=True)
except OSError as e:
    print(errno.errorcode[e.errno], len(pids) > 900, flush=True)
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pid in pids:
    os.waitpid(pid, 0)
'"#;
    let out = sandbox.sh(script).await?;
    ensure(out.stdout == "EAGAIN True\n", || format!("{out:?}"))?;
    let after = sandbox.sh("echo alive").await?;
    ensure(after.stdout == "alive\n", || {
        format!("afterwards: {after:?}")
    })?;
    sandbox.end().await;
    Ok(())
}

async fn full_disk(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    // What is left is taken in one piece first: the limit is met in seconds at any size.
    let script = r#"python3 -c '
import os, errno
s = os.statvfs("/")
free = s.f_bavail * s.f_frsize
f = os.open("/big", os.O_CREAT | os.O_WRONLY)
try:
    os.posix_fallocate(f, 0, max(0, free - (64 << 20)))
except OSError as e:
    print("fallocate", errno.errorcode[e.errno])
g = open("/rest", "wb", buffering=0)
try:
    for _ in range(256):
        g.write(b"x" * (1 << 20))
    print("never full")
except OSError as e:
    print(errno.errorcode[e.errno])
os.unlink("/big"); os.unlink("/rest")
'; echo more > /more && cat /more"#;
    let out = sandbox.sh(script).await?;
    ensure(out.stdout == "ENOSPC\nmore\n", || format!("{out:?}"))?;
    sandbox.end().await;
    Ok(())
}

async fn io_is_hit(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    // 48 MiB, synced, at the 16 MiB/s the subject sets for this check take 3 s; without a
    // limit a fraction of one. Slower is never wrong here.
    sandbox.limit_io(16 << 20)?;
    let begun = std::time::Instant::now();
    let out = sandbox
        .sh("dd if=/dev/zero of=/f bs=1M count=48 conv=fsync status=none && echo ok")
        .await?;
    let took = begun.elapsed();
    ensure(out.stdout == "ok\n", || format!("{out:?}"))?;
    ensure(took.as_millis() > 2000, || {
        format!("48 MiB were written in {took:?} at a limit of 16 MiB/s")
    })?;
    sandbox.end().await;
    Ok(())
}

async fn memory_hog(subject: &dyn Subject) -> Result<(), String> {
    let (hog, neighbour) = (subject.start(SMALL).await?, subject.start(SMALL).await?);
    let script = r#"python3 -c '
b = bytearray(2 << 30)
for i in range(0, len(b), 4096): b[i] = 1
print("kept 2 GiB")
'"#;
    // Either the process is killed and the sandbox lives, or the sandbox dies of it.
    if let Ok(out) = hog.sh(script).await {
        ensure(out.status != 0 && out.stdout.is_empty(), || {
            format!("2 GiB in 512 MiB: {out:?}")
        })?;
    }
    let used = neighbour.group().counters().map_err(|e| e.to_string())?;
    ensure(used.oom_kills == 0, || format!("the neighbour: {used:?}"))?;
    let out = neighbour.sh("echo undisturbed").await?;
    ensure(out.stdout == "undisturbed\n", || {
        format!("the neighbour: {out:?}")
    })?;
    hog.end().await;
    neighbour.end().await;
    Ok(())
}

async fn end_leaves_nothing(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    sandbox
        .sh("for i in 1 2 3; do sleep 1000 >/dev/null 2>&1 & done")
        .await?;
    let group = sandbox.group();
    let pids = group.pids();
    ensure(!pids.is_empty(), || {
        "no process in its group while it ran".into()
    })?;
    sandbox.end().await;
    ensure(!sandbox.is_running(), || "the node still has it".into())?;
    ensure(group.pids().is_empty(), || {
        format!("left: {:?}", group.pids())
    })?;
    ensure(group.counters().is_err(), || {
        "its group is still there".into()
    })?;
    for pid in pids {
        ensure(!is_alive(pid), || format!("process {pid} is left"))?;
    }
    Ok(())
}

/// One that init has not reaped yet is dead too.
fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    })
}

async fn death_is_noticed(subject: &dyn Subject) -> Result<(), String> {
    let sandbox = subject.start(SMALL).await?;
    let group = sandbox.group();
    hearth_host::process::kill(sandbox.pid());
    sandbox.died().await;
    ensure(group.counters().is_err(), || {
        "its group is still there".into()
    })
}
