//! `GET /metrics`: what the sandbox uses, in the words of E2B's agent.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hearth_wire::boot::Boot;
use serde::Serialize;

use crate::procfs::{Memory, Stat};

/// Two samples nearer than this say nothing about load; the last answer stands.
const MIN_SPAN: Duration = Duration::from_millis(200);
/// Ticks per second in `/proc` (USER_HZ, 100 wherever Linux runs today).
const TICKS: f64 = 100.0;
const MIB: u64 = 1024 * 1024;

/// The answer's body. Sizes are bytes where the name does not say otherwise.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Metrics {
    /// Seconds since the epoch.
    ts: u64,
    cpu_count: usize,
    /// Of all processors together, 0 to 100.
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Measures load between two questions.
#[derive(Debug)]
pub(crate) struct Meter(Mutex<Sample>);

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    ticks: u64,
    percent: f64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Sample {
            at: Instant::now(),
            ticks: 0,
            percent: 0.0,
        }))
    }

    /// Reads the kernel's numbers; blocks for a moment.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn read(&self, boot: &Boot) -> io::Result<Metrics> {
        let memory = Memory::read()?;
        let disk = rustix::fs::statvfs("/")?;
        let cpu_count = std::thread::available_parallelism().map_or(1, usize::from);
        let mem_total = boot
            .fixups
            .as_ref()
            .map_or(memory.total, |f| f.memory_bytes);
        let disk_used = disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize;
        let disk_size = disk.f_blocks * disk.f_frsize;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Metrics {
            ts: since.map_or(0, |since| since.as_secs()),
            cpu_count,
            cpu_used_pct: self.load(cpu_count)?,
            mem_total,
            mem_used: memory.used(),
            mem_cache: memory.cached,
            mem_total_mib: mem_total / MIB,
            mem_used_mib: memory.used() / MIB,
            disk_used,
            disk_total: boot.fixups.as_ref().map_or(disk_size, |f| f.disk_bytes),
        })
    }

    /// Sums processes, because gVisor's `/proc/stat` counts no time.
    fn load(&self, cpu_count: usize) -> io::Result<f64> {
        let ticks = Stat::all()?.iter().map(|stat| stat.ticks).sum();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let span = last.at.elapsed();
        if span >= MIN_SPAN {
            last.percent = if last.ticks == 0 {
                0.0
            } else {
                percent(ticks, last.ticks, span, cpu_count)
            };
            last.ticks = ticks;
            last.at = Instant::now();
        }
        Ok(last.percent)
    }
}

fn percent(ticks: u64, before: u64, span: Duration, cpu_count: usize) -> f64 {
    let count = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let processors = count(u64::try_from(cpu_count).unwrap_or(1));
    let seconds = count(ticks.saturating_sub(before)) / TICKS;
    let share = seconds / (span.as_secs_f64() * processors) * 100.0;
    (share.clamp(0.0, 100.0) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_of_all_processors() {
        let second = Duration::from_secs(1);
        assert!((percent(105, 5, second, 2) - 50.0).abs() < f64::EPSILON);
        assert!((percent(5, 9, second, 2)).abs() < f64::EPSILON);
        assert!((percent(900, 0, second, 1) - 100.0).abs() < f64::EPSILON);
    }
}
