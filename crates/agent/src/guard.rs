//! The memory guard: before the sandbox reaches its limit, where its kernel and with it
//! everything inside would be killed from outside, the largest process is.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::process::ending::Cause;
use crate::process::table::Table;
use crate::procfs::{Memory, Stat};

/// Use at which a process is killed, in percent of the limit.
const LIMIT_PERCENT: u64 = 95;
/// Between looks while there is plenty, while it gets tight, and while it is.
const CALM: Duration = Duration::from_millis(500);
const ALERT: Duration = Duration::from_millis(150);
const CLOSE: Duration = Duration::from_millis(50);
/// Looks at which the killed process may still be there before the next one is taken.
const PATIENCE: u32 = 40;

/// Watches for ever over `limit` bytes.
pub(crate) async fn run(table: Arc<Table>, limit: u64) {
    let mut is_blind = false;
    loop {
        let used = match Memory::read() {
            Ok(memory) => {
                is_blind = false;
                memory.used()
            }
            Err(error) => {
                if !is_blind {
                    tracing::error!(%error, "the memory guard cannot see");
                }
                is_blind = true;
                0
            }
        };
        let share = share(used, limit);
        if share >= LIMIT_PERCENT {
            relieve(&table, used, limit).await;
        }
        sleep(pause(share)).await;
    }
}

fn share(used: u64, limit: u64) -> u64 {
    used.saturating_mul(100).checked_div(limit).unwrap_or(0)
}

fn pause(share: u64) -> Duration {
    match share {
        0..60 => CALM,
        60..80 => ALERT,
        _ => CLOSE,
    }
}

/// Kills the largest process and waits until it is gone.
async fn relieve(table: &Table, used: u64, limit: u64) {
    let stats = match Stat::all() {
        Ok(stats) => stats,
        Err(error) => {
            tracing::error!(%error, "the memory guard cannot see processes");
            return;
        }
    };
    let Some(largest) = largest(&stats, std::process::id()) else {
        return;
    };
    let Ok(pid) = i32::try_from(largest.pid) else {
        return;
    };
    // A command is told the reason. When it was a child of a command, its shell says so.
    for process in table.live() {
        if process.pid == largest.pid {
            process.blame(Cause::Memory);
        }
    }
    tracing::warn!(
        pid = largest.pid,
        pages = largest.pages,
        used_bytes = used,
        limit_bytes = limit,
        "killing the largest process, memory is nearly used up"
    );
    if let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL) {
        tracing::warn!(pid, %error, "the largest process was not killed");
        return;
    }
    for _ in 0..PATIENCE {
        sleep(CLOSE).await;
        let is_there = Stat::all().is_ok_and(|stats| {
            let mut same = stats.iter().filter(|stat| stat.pid == largest.pid);
            same.any(|stat| stat.pages > 0)
        });
        if !is_there {
            return;
        }
    }
}

fn largest(stats: &[Stat], own: u32) -> Option<Stat> {
    let others = stats.iter().filter(|stat| stat.pid != own && stat.pid != 1);
    others.max_by_key(|stat| stat.pages).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_other_is_taken() {
        let stat = |pid, pages| Stat {
            pid,
            session: pid,
            ticks: 0,
            threads: 1,
            started: 0,
            pages,
        };
        let stats = [stat(1, 900), stat(5, 10), stat(6, 20), stat(7, 800)];
        assert_eq!(largest(&stats, 7), Some(stat(6, 20)));
        assert_eq!(largest(&[stat(1, 9)], 1), None);
    }

    #[test]
    fn the_nearer_the_more_often() {
        assert_eq!(share(95, 100), 95);
        assert_eq!(share(1, 0), 0);
        assert!(pause(10) > pause(70) && pause(70) > pause(90));
    }
}
