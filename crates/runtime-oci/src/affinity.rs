//! How many CPUs a sandbox is shown.
//!
//! gVisor's kernel shows as many as the process may run on when it starts. Its use is held
//! by a quota, not by pinning, so the narrow set is widened again once it runs.

use std::io;

use hearth_host::cgroup::Group;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Lets this process run on `cpus` of its CPUs, another choice for each process.
pub(crate) fn narrow(cpus: u32) -> io::Result<()> {
    let may = sched_getaffinity(None)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|n| may.is_set(*n)).collect();
    let want = usize::try_from(cpus).unwrap_or(usize::MAX);
    if want == 0 || want >= all.len() {
        return Ok(());
    }
    let from = usize::try_from(std::process::id()).unwrap_or(0);
    let mut few = CpuSet::new();
    for step in 0..want {
        few.set(all[(from + step) % all.len()]);
    }
    sched_setaffinity(None, &few)?;
    Ok(())
}

/// Lets every thread of the group run where this process may. A thread that ends meanwhile
/// needs nothing; one that is born meanwhile is met in the next round.
pub(crate) fn widen(group: &Group) {
    let Ok(all) = sched_getaffinity(None) else {
        return;
    };
    let mut seen = std::collections::HashSet::new();
    loop {
        let tasks: Vec<i32> = group
            .pids()
            .iter()
            .filter_map(|pid| std::fs::read_dir(format!("/proc/{pid}/task")).ok())
            .flatten()
            .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
            .filter(|task| !seen.contains(task))
            .collect();
        if tasks.is_empty() {
            return;
        }
        for task in tasks {
            seen.insert(task);
            if let Some(task) = Pid::from_raw(task)
                && let Err(error) = sched_setaffinity(Some(task), &all)
            {
                tracing::debug!(%error, "a thread ended before it was given all CPUs");
            }
        }
    }
}
