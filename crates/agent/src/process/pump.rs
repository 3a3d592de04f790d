//! The task of one process: carries its output into the ring, kills it at its timeout,
//! sees its end.
//!
//! The end is told when the process is gone and everything that was in its pipes then is
//! in the ring, so the last microsecond's output is never lost. Children it left behind
//! may hold the pipes open; their output goes on into the ring, unread, so that they never
//! meet a broken pipe. A terminal hangs up instead, as terminals do.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ending::{Cause, Ending};
use super::output::{Channel, Output, PIECE};
use super::table::{Process, Table};
use crate::procfs::Stat;
use crate::sys::Exit;

/// Most that is carried after the end, in bytes: what the largest pipe holds
/// (`/proc/sys/fs/pipe-max-size`). A child that goes on writing must not delay the end.
const MAX_LAST: usize = 1024 * 1024 + PIECE;

/// Tries at killing all of a group or a session, and the shortest pause between them.
const KILL_ROUNDS: u32 = 128;
const KILL_PAUSE: Duration = Duration::from_millis(1);

/// When a process is killed, and what its client is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeout {
    pub(crate) at: Instant,
    pub(crate) length: Duration,
}

/// One pipe or terminal of a process.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) channel: Channel,
    pub(crate) fd: Arc<AsyncFd<OwnedFd>>,
}

/// What one read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Bytes(usize),
    Nothing,
    End,
}

/// Runs until nobody holds the pipes any more.
pub(crate) async fn run(
    table: Arc<Table>,
    process: Arc<Process>,
    sources: Vec<Source>,
    exit: oneshot::Receiver<Exit>,
    timeout: Option<Timeout>,
) {
    let output = Arc::clone(&process.output);
    let exit = {
        let mut carrying: FuturesUnordered<_> = sources
            .iter()
            .map(|source| carry(source, &output))
            .collect();
        let mut exit = std::pin::pin!(exit);
        let mut alarm = std::pin::pin!(alarm(timeout));
        let mut armed = true;
        loop {
            tokio::select! {
                exit = &mut exit => break exit,
                Some(()) = carrying.next() => {}
                limit = &mut alarm, if armed => {
                    armed = false;
                    process.blame(Cause::Timeout(limit));
                    tracing::info!(pid = process.pid, limit_ms = millis(limit), "process timed out");
                    tokio::spawn(kill(Arc::clone(&table), Arc::clone(&process)));
                }
            }
        }
    };
    // The reaper lives as long as the agent, so this is only the agent's own end.
    let Ok(exit) = exit else { return };
    process.input.end().await;
    let mut open = Vec::new();
    for source in sources {
        let found = carry_last(&source, &output).await;
        // A terminal hangs up with the process it was made for.
        if found != Found::End && source.channel != Channel::Terminal {
            open.push(source);
        }
    }
    let ending = Ending {
        exit,
        cause: process.cause(),
    };
    tracing::info!(
        pid = process.pid,
        status = ending.status(),
        error = ending.error(),
        "process ended"
    );
    table.end(&process, ending);
    drop(process);
    let carrying: FuturesUnordered<_> = open.iter().map(|source| carry(source, &output)).collect();
    carrying.count().await;
}

/// Kills a process, its group and its session: the jobs of a shell are in groups of their
/// own. Does so again until nobody is left, because processes fork while they are killed.
pub(crate) async fn kill(table: Arc<Table>, process: Arc<Process>) {
    for round in 0..KILL_ROUNDS {
        if !table.kill(&process) {
            break;
        }
        tokio::time::sleep(KILL_PAUSE * (1 + round / 16)).await;
    }
    for _ in 0..KILL_ROUNDS {
        let session = process.pid;
        let left = match tokio::task::spawn_blocking(move || kill_session(session)).await {
            Ok(Ok(left)) => left,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the processes of a session cannot be found");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "killing a session did not finish");
                return;
            }
        };
        if left == 0 {
            return;
        }
        tokio::time::sleep(KILL_PAUSE).await;
    }
    tracing::warn!(pid = process.pid, "processes of a killed command live on");
}

/// Kills everybody in a session and tells how many there were. Those that only wait to be
/// reaped have no memory.
fn kill_session(session: u32) -> io::Result<usize> {
    let everyone = Stat::all()?;
    let members = everyone
        .iter()
        .filter(|stat| stat.session == session && stat.pages > 0);
    let mut count = 0;
    for member in members {
        count += 1;
        if let Ok(pid) = i32::try_from(member.pid)
            && let Err(error) = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL)
        {
            tracing::debug!(pid, %error, "a process of a session was not killed");
        }
    }
    Ok(count)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

async fn alarm(timeout: Option<Timeout>) -> Duration {
    match timeout {
        None => std::future::pending().await,
        Some(timeout) => {
            tokio::time::sleep_until(timeout.at).await;
            timeout.length
        }
    }
}

/// Carries until the end of the pipe.
async fn carry(source: &Source, output: &Output) {
    loop {
        output.room().await;
        let mut ready = match source.fd.readable().await {
            Ok(ready) => ready,
            Err(error) => {
                tracing::warn!(%error, "a process's output can no longer be read");
                return;
            }
        };
        // The wait may have been long: other pipes share the room.
        match ready.try_io(|fd| read(fd.get_ref(), source.channel, output)) {
            Ok(Ok(Found::End)) => return,
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "reading a process's output failed");
                return;
            }
        }
    }
}

/// Carries what is there now. `Nothing`: the pipe is still open.
async fn carry_last(source: &Source, output: &Output) -> Found {
    let mut carried = 0;
    while carried < MAX_LAST {
        output.room().await;
        match read(source.fd.get_ref(), source.channel, output) {
            Ok(Found::Bytes(count)) => carried += count,
            Ok(found) => return found,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Found::Nothing,
            Err(error) => {
                tracing::warn!(%error, "reading a process's last output failed");
                return Found::End;
            }
        }
    }
    Found::Nothing
}

/// One read, straight into the ring.
fn read(fd: &OwnedFd, channel: Channel, output: &Output) -> io::Result<Found> {
    let mut buffer = [0u8; PIECE];
    loop {
        return match nix::unistd::read(fd, &mut buffer) {
            Ok(0) => Ok(Found::End),
            Ok(count) => {
                output.push(channel, buffer.get(..count).unwrap_or_default());
                Ok(Found::Bytes(count))
            }
            Err(Errno::EINTR) => continue,
            // The last holder of a terminal closed it.
            Err(Errno::EIO) if channel == Channel::Terminal => Ok(Found::End),
            Err(error) => Err(error.into()),
        };
    }
}
