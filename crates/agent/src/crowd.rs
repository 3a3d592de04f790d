//! Holds the bound on processes and threads where the sandbox's kernel only half does.
//!
//! gVisor's build of July 2024 refuses only about every seventh clone beyond `pids.max`: it
//! asks one control group of the task, whichever comes first, and only one of its seven
//! counts processes (seen with a program that tries again: 800 processes under a bound of
//! 512, 37 refusals). Most programs give up at the first refusal; what does not is cut back
//! here, the youngest first, so that a fork bomb loses its last children and nobody else.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::sleep;

use crate::fixups::PIDS_GROUP;
use crate::procfs::Stat;

/// Between looks while there are few, and while there are many.
const CALM: Duration = Duration::from_millis(250);
const CLOSE: Duration = Duration::from_millis(50);
/// A bomb that goes on is told once in this time.
const QUIET: Duration = Duration::from_secs(10);

/// Watches for ever over `max` processes and threads.
pub(crate) async fn run(max: u32) {
    let path = format!("{PIDS_GROUP}/pids.current");
    let max = u64::from(max);
    let mut told: Option<Instant> = None;
    let mut is_blind = false;
    loop {
        let read = std::fs::read_to_string(&path).map(|text| text.trim().parse::<u64>());
        let Ok(Ok(count)) = read else {
            if !is_blind {
                tracing::error!(path, "the number of processes cannot be read");
            }
            is_blind = true;
            sleep(CALM).await;
            continue;
        };
        is_blind = false;
        if count > max {
            let killed = cut_back(max).await;
            if killed > 0 && told.is_none_or(|told| told.elapsed() > QUIET) {
                told = Some(Instant::now());
                tracing::warn!(
                    count,
                    max,
                    killed,
                    "killed the youngest of too many processes"
                );
            }
        }
        sleep(if count > max / 2 { CLOSE } else { CALM }).await;
    }
}

/// Kills what is too many and tells how many were.
async fn cut_back(max: u64) -> usize {
    // Thousands of small reads; other requests go on meanwhile.
    let all = match tokio::task::spawn_blocking(Stat::all).await {
        Ok(Ok(all)) => all,
        Ok(Err(error)) => {
            tracing::error!(%error, "processes cannot be seen, and there are too many");
            return 0;
        }
        Err(error) => {
            tracing::error!(%error, "looking at processes did not finish");
            return 0;
        }
    };
    let victims = victims(&all, std::process::id(), max);
    for pid in &victims {
        if let Err(error) = kill(Pid::from_raw(*pid), Signal::SIGKILL) {
            tracing::debug!(pid, %error, "one of too many was not killed");
        }
    }
    victims.len()
}

/// Whom to kill so that at most `max` threads are left: first who holds more than half of
/// what there may be, then the youngest.
fn victims(all: &[Stat], own: u32, max: u64) -> Vec<i32> {
    let mut others: Vec<&Stat> = all
        .iter()
        .filter(|stat| stat.pid != own && stat.pid != 1 && stat.pages > 0)
        .collect();
    let total: u64 = others.iter().map(|stat| stat.threads).sum();
    let mut over = total.saturating_sub(max);
    let age = |stat: &&Stat| {
        let hoard = if stat.threads > max / 2 {
            stat.threads
        } else {
            0
        };
        std::cmp::Reverse((hoard, stat.started, stat.pid))
    };
    others.sort_unstable_by_key(age);
    let mut victims = Vec::new();
    for stat in others {
        if over == 0 {
            break;
        }
        if let Ok(pid) = i32::try_from(stat.pid) {
            over = over.saturating_sub(stat.threads);
            victims.push(pid);
        }
    }
    victims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: u32, threads: u64, started: u64) -> Stat {
        Stat {
            pid,
            session: pid,
            ticks: 0,
            threads,
            started,
            pages: 1,
        }
    }

    #[test]
    fn the_youngest_go_and_no_more_than_needed() {
        let all = [
            stat(1, 90, 0),
            stat(2, 10, 50),
            stat(3, 10, 10),
            stat(4, 10, 30),
            stat(5, 10, 30),
            stat(9, 90, 90),
        ];
        assert_eq!(victims(&all, 9, 40), [] as [i32; 0]);
        assert_eq!(victims(&all, 9, 39), [2]);
        assert_eq!(victims(&all, 9, 30), [2]);
        assert_eq!(victims(&all, 9, 25), [2, 5]);
        assert_eq!(victims(&all, 9, 0).len(), 4);
    }

    #[test]
    fn who_hoards_threads_goes_first() {
        let all = [stat(2, 80, 10), stat(3, 1, 50), stat(4, 30, 60)];
        assert_eq!(victims(&all, 1, 100), [2]);
    }

    #[test]
    fn the_dead_do_not_count() {
        let dead = Stat {
            pages: 0,
            ..stat(3, 1, 50)
        };
        assert_eq!(victims(&[stat(2, 1, 10), dead], 1, 1), [] as [i32; 0]);
    }
}
