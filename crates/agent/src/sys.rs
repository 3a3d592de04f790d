//! The one file of the agent with `unsafe`: starting a program, and the few kernel calls
//! that have no safe face here. Policy (which user, which directory) is decided elsewhere.
//!
//! Start with [`spawn`]. It exists because `std` forks as soon as a child must change its
//! user, and a fork copies the address space: on gVisor that costs 10 ms and more, growing
//! with the agent's memory. `clone(CLONE_VM | CLONE_VFORK)` copies nothing.

#![allow(
    unsafe_code,
    reason = "clone and raw system calls; std has no way to set a user without fork"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use tokio::io::unix::AsyncFd;

/// Stack of the child between clone and exec, in bytes. It calls no deep code.
const CHILD_STACK: usize = 64 * 1024;
/// What [`spawn`] sets for the child: files are made readable, writable by the owner only.
const CHILD_UMASK: libc::mode_t = 0o022;

/// Signals the agent ignores: the first by Rust's own start, the others by
/// [`ignore_requests_to_end`].
const IGNORED: [c_int; 4] = [libc::SIGPIPE, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// A program to start. All of it is made before the clone.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// Files to try, in this order; the first that is there runs.
    pub(crate) candidates: &'a [CString],
    pub(crate) arguments: &'a [CString],
    /// `NAME=value` each.
    pub(crate) environment: &'a [CString],
    pub(crate) directory: &'a CStr,
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// Whether `stdin` becomes the controlling terminal.
    pub(crate) terminal: Terminal,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: &'a [u32],
    pub(crate) confines: &'a Confines,
}

/// Whether the program gets a controlling terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Terminal {
    None,
    Stdin,
}

/// What every program enters or gets back before it runs.
#[derive(Debug, Default)]
pub(crate) struct Confines {
    /// `cgroup.procs` of the group that bounds processes.
    pub(crate) group: Option<OwnedFd>,
    /// The open-file limit the agent was started with (it raises its own).
    pub(crate) open_files: Option<libc::rlimit>,
    /// The agent protected itself from the kernel's memory killer; its children are not.
    pub(crate) unprotect: bool,
}

/// The step at which a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Clone,
    Session,
    Terminal,
    Group,
    Descriptors,
    User,
    Directory,
    Execute,
}

/// The program did not start.
#[derive(Debug, thiserror::Error)]
#[error("{step:?}: {source}")]
pub(crate) struct SpawnError {
    pub(crate) step: Step,
    #[source]
    pub(crate) source: io::Error,
}

/// What the child reads, and where it leaves the reason of a failure. It shares our memory
/// until exec.
struct Plan<'a> {
    program: &'a Program<'a>,
    candidates: &'a [*const c_char],
    arguments: *const *const c_char,
    environment: *const *const c_char,
    failed: Option<(Step, c_int)>,
}

/// Starts `program` in a session of its own and gives its pid. The caller must hold off
/// reaping until the pid is recorded.
///
/// # Errors
/// The step that failed; the child that failed is left to the reaper.
pub(crate) fn spawn(program: &Program<'_>) -> Result<i32, SpawnError> {
    let clone_error = |source| SpawnError {
        step: Step::Clone,
        source,
    };
    let candidates: Vec<_> = program
        .candidates
        .iter()
        .map(|path| path.as_ptr())
        .collect();
    let arguments = null_ended(program.arguments);
    let environment = null_ended(program.environment);
    let mut plan = Plan {
        program,
        candidates: &candidates,
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        failed: None,
    };
    let mut stack = Box::<[MaybeUninit<u8>]>::new_uninit_slice(CHILD_STACK);
    // SAFETY: one past the end of an allocation is a valid pointer; rounding down to 16
    // bytes, which the ABI asks of a stack, stays inside it.
    let top = unsafe {
        let end = stack.as_mut_ptr().cast::<u8>().add(CHILD_STACK);
        end.sub(end.align_offset(16).wrapping_neg() & 15)
    };

    // No handler of ours may run in the child: it shares our memory, not our threads.
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours and written by these calls before they are read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        let code = libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        if code != 0 {
            return Err(clone_error(io::Error::from_raw_os_error(code)));
        }
    }
    // SAFETY: with CLONE_VFORK this thread stands still until the child has called exec or
    // exit, so `plan`, everything it borrows and `stack` outlive the child's use of them,
    // and nobody else writes to them. `child` only makes async-signal-safe calls, never
    // returns, and takes a `*mut Plan`, which is what it is given. The child has a stack of
    // its own; thread-local `errno` is shared, and this thread is not looking.
    let pid = unsafe {
        libc::clone(
            child,
            top.cast::<c_void>(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            ptr::from_mut(&mut plan).cast::<c_void>(),
        )
    };
    let outcome = if pid < 0 {
        Err(clone_error(io::Error::last_os_error()))
    } else {
        Ok(pid)
    };
    // SAFETY: `before` was written by the first call.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
    drop(stack);
    let pid = outcome?;
    // SAFETY: `plan` is ours; the read is volatile because the child wrote to it behind the
    // compiler's back.
    match unsafe { ptr::read_volatile(&raw const plan.failed) } {
        None => Ok(pid),
        Some((step, errno)) => Err(SpawnError {
            step,
            source: io::Error::from_raw_os_error(errno),
        }),
    }
}

fn null_ended(texts: &[CString]) -> Vec<*const c_char> {
    texts
        .iter()
        .map(|text| text.as_ptr())
        .chain([ptr::null()])
        .collect()
}

extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a `Plan` and stands still while we use it.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    // SAFETY: this is the child of a clone.
    let failed = unsafe { become_program(plan) };
    plan.failed = Some(failed);
    // SAFETY: ends this process only; no handlers, no buffers.
    unsafe { libc::_exit(127) }
}

/// Everything between clone and exec. Returns only when a step failed.
///
/// # Safety
/// Only in the child of a clone with its own signal table and descriptor table. Nothing
/// here may allocate, lock or panic: another thread of the agent may hold any lock.
unsafe fn become_program(plan: &Plan<'_>) -> (Step, c_int) {
    let program = plan.program;
    // SAFETY: async-signal-safe calls on numbers and on memory that `spawn`
    // keeps alive. Users are set by raw calls, because the C library's wrappers would try
    // to make every thread of the agent follow.
    unsafe {
        // Caught signals are reset by exec, ignored ones are not.
        for number in IGNORED {
            libc::signal(number, libc::SIG_DFL);
        }
        if libc::setsid() < 0 {
            return (Step::Session, errno());
        }
        if program.terminal == Terminal::Stdin
            && libc::ioctl(program.stdin.as_raw_fd(), libc::TIOCSCTTY, 0) < 0
        {
            return (Step::Terminal, errno());
        }
        if let Some(group) = &program.confines.group {
            // "0" is whoever writes.
            if libc::write(group.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1 {
                return (Step::Group, errno());
            }
        }
        if program.confines.unprotect {
            let path = c"/proc/self/oom_score_adj".as_ptr();
            let fd = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
            if fd >= 0 {
                libc::write(fd, c"0".as_ptr().cast(), 1);
            }
        }
        let wanted: [(RawFd, RawFd); 3] = [
            (program.stdin.as_raw_fd(), 0),
            (program.stdout.as_raw_fd(), 1),
            (program.stderr.as_raw_fd(), 2),
        ];
        for (from, to) in wanted {
            if libc::dup2(from, to) < 0 {
                return (Step::Descriptors, errno());
            }
        }
        // The rest closes at exec. All of it is opened that way; this is for what is not,
        // and a kernel without the call loses only the second line.
        libc::syscall(
            libc::SYS_close_range,
            3,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
        if let Some(limit) = &program.confines.open_files {
            libc::setrlimit(libc::RLIMIT_NOFILE, limit);
        }
        let groups = program.groups;
        if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) < 0
            || libc::syscall(libc::SYS_setgid, program.gid) < 0
            || libc::syscall(libc::SYS_setuid, program.uid) < 0
        {
            return (Step::User, errno());
        }
        libc::umask(CHILD_UMASK);
        if libc::chdir(program.directory.as_ptr()) < 0 {
            return (Step::Directory, errno());
        }
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());

        let mut reason = libc::ENOENT;
        for path in plan.candidates {
            libc::execve(*path, plan.arguments, plan.environment);
            match errno() {
                // As execvp: a file without permission is remembered, the search goes on.
                libc::EACCES => reason = libc::EACCES,
                libc::ENOENT | libc::ENOTDIR => {}
                other => return (Step::Execute, other),
            }
        }
        (Step::Execute, reason)
    }
}

/// # Safety
/// None needed; marked so that it is only used beside the call it belongs to.
unsafe fn errno() -> c_int {
    // SAFETY: the C library's own address of this thread's `errno`.
    unsafe { *libc::__errno_location() }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal { number: i32, dumped: bool },
}

/// Blocks until a child of the agent has ended, and gives its pid without reaping it.
/// (nix cannot: it refuses real-time signals, with which any process may end itself.)
///
/// # Errors
/// The kernel's: ECHILD when there are no children.
pub(crate) fn wait_any() -> io::Result<i32> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is ours, and zeroed is a valid value of it; `si_pid` is the field that
    // waitid fills.
    unsafe {
        let options = libc::WEXITED | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.assume_init_ref().si_pid())
    }
}

/// Reaps the ended child `pid`.
///
/// # Errors
/// The kernel's, when it is no child or has not ended.
pub(crate) fn reap(pid: i32) -> io::Result<Exit> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        0 => Err(io::Error::from(io::ErrorKind::WouldBlock)),
        code if code < 0 => Err(io::Error::last_os_error()),
        _ if libc::WIFSIGNALED(status) => Ok(Exit::Signal {
            number: libc::WTERMSIG(status),
            dumped: libc::WCOREDUMP(status),
        }),
        _ => Ok(Exit::Code(libc::WEXITSTATUS(status))),
    }
}

/// Makes file 0, 1 and 2 `/dev/null`: the agent keeps nothing of who started it.
///
/// # Errors
/// The kernel's.
pub(crate) fn detach_standard_files() -> io::Result<()> {
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    for fd in 0..=2 {
        // SAFETY: dup2 onto the standard numbers, which std uses by number only.
        if unsafe { libc::dup2(null.as_raw_fd(), fd) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Hands a descriptor to the event loop; to be called inside the runtime.
///
/// # Errors
/// The kernel's.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and the same descriptor until it is dropped, and the
    // result owns it; nobody gets it mutably.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// A sandbox ends by its node's word, not because something inside asked PID 1 to end.
pub(crate) fn ignore_requests_to_end() {
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring runs no code of ours.
        unsafe {
            libc::signal(number, libc::SIG_IGN);
        }
    }
}

/// Keeps the C library from making an arena of memory for each thread.
pub(crate) fn one_arena() {
    // SAFETY: sets a number inside the allocator; called before threads are started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives memory that is free back to the kernel.
pub(crate) fn trim_memory() {
    // SAFETY: the allocator's own call, safe from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sets a terminal's size.
///
/// # Errors
/// The kernel's.
pub(crate) fn resize_terminal(master: BorrowedFd<'_>, cols: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCSWINSZ reads one `winsize`.
    let code = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A new terminal: the master and the slave, neither inherited by programs.
///
/// # Errors
/// The kernel's.
pub(crate) fn open_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    // SAFETY: plain calls; each descriptor is checked and owned at once.
    unsafe {
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        let master = owned(libc::open(c"/dev/ptmx".as_ptr(), flags))?;
        let unlock: c_int = 0;
        if libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut number: libc::c_uint = 0;
        if libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &raw mut number) < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = CString::new(format!("/dev/pts/{number}"))?;
        let slave = owned(libc::open(path.as_ptr(), flags))?;
        Ok((master, slave))
    }
}

/// # Safety
/// `fd` is fresh from the kernel and nobody else's, or negative.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
