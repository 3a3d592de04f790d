//! A process born in its control group.
//!
//! `clone3(CLONE_INTO_CGROUP)` needs no move afterwards, so nobody waits for the RCU grace
//! period that a write to `cgroup.procs` costs. std's `Command` cannot do it.
#![allow(
    unsafe_code,
    reason = "clone3 with a control group has no safe wrapper"
)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;

/// A child and the descriptor that names it.
#[derive(Debug)]
pub struct Child {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// Starts `program` with `args` (without the name) and the three standard descriptors, in
/// the v2 group at `group` when there is one. All other descriptors of this process are
/// close-on-exec already (Rust opens them so).
///
/// # Errors
/// When the kernel refuses. That `program` could not be run shows as exit status 127.
pub fn spawn(
    program: &Path,
    args: &[&str],
    stdio: [BorrowedFd<'_>; 3],
    group: Option<&Path>,
) -> io::Result<Child> {
    let text = |s: &str| CString::new(s).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let path = text(&program.to_string_lossy())?;
    let mut argv_owned = vec![path.clone()];
    for a in args {
        argv_owned.push(text(a)?);
    }
    let mut argv: Vec<*const libc::c_char> = argv_owned.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    // The child needs no environment beyond a path: nothing leaks into sandboxes.
    let env_owned = [c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];
    let envp: [*const libc::c_char; 2] = [env_owned[0].as_ptr(), std::ptr::null()];
    let group = group.map(File::open).transpose()?;
    let fds = stdio.map(|fd| fd.as_raw_fd());

    let mut pidfd: libc::c_int = -1;
    // SAFETY: an all-zero clone_args is valid: every field is an integer.
    let mut a: libc::clone_args = unsafe { std::mem::zeroed() };
    a.flags = u64::try_from(libc::CLONE_PIDFD).unwrap_or(0);
    a.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    a.exit_signal = u64::try_from(libc::SIGCHLD).unwrap_or(0);
    if let Some(g) = &group {
        a.flags |= 0x2_0000_0000; // CLONE_INTO_CGROUP, clone(2)
        a.cgroup = u64::try_from(g.as_raw_fd()).unwrap_or(0);
    }
    // SAFETY: without CLONE_VM the child has its own copy of memory, and until exec it only
    // makes raw system calls on values prepared above: no allocation, no lock.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_mut(&mut a),
            size_of::<libc::clone_args>(),
        )
    };
    if pid == 0 {
        // SAFETY: async-signal-safe calls on valid pointers; `_exit` never returns.
        unsafe {
            // First out of the way of 0-2, so that no dup2 overwrites a source.
            let mut high = [-1; 3];
            for (slot, fd) in high.iter_mut().zip(fds) {
                *slot = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 10);
                if *slot < 0 {
                    libc::_exit(126);
                }
            }
            for (n, fd) in (0..3).zip(high) {
                if libc::dup2(fd, n) < 0 {
                    libc::_exit(126);
                }
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::setsid();
            libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            libc::_exit(127);
        }
    }
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel put a new descriptor there, owned by nobody else.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child {
        pid: i32::try_from(pid).unwrap_or(-1),
        pidfd,
    })
}

/// Waits until a process descriptor says that its process has exited.
pub(crate) async fn readable(pidfd: &OwnedFd) -> io::Result<()> {
    // SAFETY: the copy is owned by the AsyncFd alone, which never hands it out, so it stays
    // open and the same file for as long as it is registered.
    let fd = unsafe {
        tokio::io::unix::AsyncFd::register_with_interest(
            pidfd.try_clone()?,
            tokio::io::Interest::READABLE,
        )
    }?;
    fd.readable().await?.retain_ready();
    Ok(())
}

impl Child {
    /// Waits for the exit and reaps. Returns the exit status, 128+n after signal n.
    ///
    /// # Errors
    /// When it cannot be watched or was reaped by somebody else.
    pub async fn wait(&self) -> io::Result<i32> {
        readable(&self.pidfd).await?;
        let status = rustix::process::waitid(
            rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&self.pidfd)),
            rustix::process::WaitIdOptions::EXITED,
        )?
        .ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        Ok(status
            .exit_status()
            .or_else(|| status.terminating_signal().map(|s| 128 + s))
            .unwrap_or(-1))
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        if let Err(e) =
            rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL)
        {
            tracing::debug!(pid = self.pid, error = %e, "nothing to kill");
        }
    }
}
