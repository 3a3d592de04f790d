//! Processes by descriptor: a pid number may be taken by another process, a descriptor not.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal};

/// A process that was alive when it was opened.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    start: u64,
    fd: OwnedFd,
}

/// Clock ticks since boot at which `pid` started: with the pid, it names one process for
/// the time since boot.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command may hold spaces and parentheses: fields count from the last one.
    // proc(5): starttime is field 22, the 20th after the command.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

impl Process {
    /// Opens a live process.
    ///
    /// # Errors
    /// When it is not alive.
    pub fn open(pid: i32) -> io::Result<Self> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let p = Pid::from_raw(pid).ok_or_else(gone)?;
        let fd = rustix::process::pidfd_open(p, PidfdFlags::NONBLOCK)?;
        let start = start_time(pid).ok_or_else(gone)?;
        Ok(Self { pid, start, fd })
    }

    /// Opens it only if it is still the process that started at `start`.
    ///
    /// # Errors
    /// When it is gone or another process has its number.
    pub fn open_same(pid: i32, start: u64) -> io::Result<Self> {
        let p = Self::open(pid)?;
        if p.start == start {
            Ok(p)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    /// Waits until it has exited. It need not be a child.
    ///
    /// # Errors
    /// When the descriptor cannot be watched.
    pub async fn exited(&self) -> io::Result<()> {
        crate::spawn::readable(&self.fd).await
    }

    /// Sends SIGKILL; a process that is gone already is no error.
    pub fn kill(&self) {
        if let Err(e) = rustix::process::pidfd_send_signal(&self.fd, Signal::KILL) {
            tracing::debug!(pid = self.pid, error = %e, "nothing to kill");
        }
    }
}

/// SIGKILL by number, for pids just read from a control group of ours.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid)
        && let Err(e) = rustix::process::kill_process(pid, Signal::KILL)
    {
        tracing::debug!(%e, "nothing to kill");
    }
}
