//! The one place that waits for children. As PID 1 the agent inherits every orphan of the
//! sandbox, so nobody else may wait: a second waiter would steal exit codes.
//!
//! A thread of its own blocks in `waitid`. Starting and reaping hold the same lock, so a
//! pid is always recorded before it can be reaped and never signalled after.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use crate::sys::{self, Exit, Program, SpawnError};

/// Stack of the waiting thread, in bytes.
const STACK: usize = 64 * 1024;
/// Pause after a failure of the kernel that nothing explains.
const FAULT_PAUSE: Duration = Duration::from_secs(1);

/// Starts, signals and reaps processes.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    children: Mutex<Children>,
    born: Condvar,
}

#[derive(Debug, Default)]
struct Children {
    /// Started here and not reaped.
    waited: HashMap<i32, oneshot::Sender<Exit>>,
    /// Clones ever tried: tells the waiting thread that `waitid` is worth asking again.
    births: u64,
}

impl Reaper {
    /// Starts the waiting thread.
    ///
    /// # Errors
    /// The kernel's, when there is no thread to be had.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let reaper = Arc::new(Self::default());
        let waiting = Arc::clone(&reaper);
        std::thread::Builder::new()
            .name("reaper".into())
            .stack_size(STACK)
            .spawn(move || waiting.run())?;
        Ok(reaper)
    }

    /// Starts `program`; the receiver gets its end.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub(crate) fn spawn(
        &self,
        program: &Program<'_>,
    ) -> Result<(i32, oneshot::Receiver<Exit>), SpawnError> {
        let mut children = self.children();
        let outcome = sys::spawn(program).map(|pid| {
            let (tell, told) = oneshot::channel();
            children.waited.insert(pid, tell);
            (pid, told)
        });
        // Also after a failure: the child that failed waits to be reaped.
        children.births += 1;
        self.born.notify_one();
        outcome
    }

    /// Signals the group of a process that was started here and has not been reaped. False
    /// when it is gone.
    pub(crate) fn signal(&self, pid: i32, signal: Signal) -> bool {
        let children = self.children();
        if !children.waited.contains_key(&pid) {
            return false;
        }
        if let Err(error) = killpg(Pid::from_raw(pid), signal) {
            tracing::debug!(pid, %error, "a signal was not delivered");
        }
        true
    }

    /// Kills what is left of a group whose leader was started here and has been reaped.
    /// False when nobody is, or the number has come to mean a newer process.
    pub(crate) fn kill_left(&self, pid: i32) -> bool {
        let children = self.children();
        !children.waited.contains_key(&pid) && killpg(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
    }

    fn run(&self) {
        loop {
            let births = self.children().births;
            // Looks without taking, so that the lock is held only while taking.
            match sys::wait_any() {
                Ok(pid) => self.reap(pid),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ECHILD) => self.wait_for_birth(births),
                    Some(Errno::EINTR) => {}
                    _ => {
                        tracing::error!(%error, "waiting for processes failed");
                        std::thread::sleep(FAULT_PAUSE);
                    }
                },
            }
        }
    }

    fn reap(&self, pid: i32) {
        let mut children = self.children();
        match sys::reap(pid) {
            Ok(exit) => {
                if let Some(tell) = children.waited.remove(&pid) {
                    // Nobody listens any more when the runtime is being torn down.
                    let _ = tell.send(exit);
                }
            }
            Err(error) => {
                tracing::error!(pid, %error, "a process could not be reaped");
                drop(children);
                std::thread::sleep(FAULT_PAUSE);
            }
        }
    }

    /// Without children there are no orphans either, so the next child is one started here.
    fn wait_for_birth(&self, seen: u64) {
        let mut children = self.children();
        while children.births == seen {
            children = self
                .born
                .wait(children)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
