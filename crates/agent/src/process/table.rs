//! Every process that runs, and for a while those that ended: their exit status, and their
//! output for the control channel.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hearth_wire::rpc::process::ProcessConfig;
use nix::sys::signal::Signal;

use super::ending::{Cause, Ending};
use super::input::Input;
use super::output::{Budget, Output};
use crate::reaper::Reaper;

/// How long a client may still connect to a process that ended (E2B's agent: the same).
pub(crate) const LATE: Duration = Duration::from_secs(30);
/// How long the end and the output are kept for the control channel.
const KEPT: Duration = Duration::from_secs(600);
/// How many processes that ended are kept.
const MAX_KEPT: usize = 512;

/// A process started for a client.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) tag: Option<String>,
    pub(crate) config: ProcessConfig,
    pub(crate) user: String,
    pub(crate) started: SystemTime,
    pub(crate) input: Input,
    pub(crate) output: Arc<Output>,
    fate: Mutex<Fate>,
}

#[derive(Debug, Clone, Copy)]
struct Fate {
    cause: Cause,
    ended: Option<Instant>,
}

impl Process {
    pub(crate) fn new(
        pid: u32,
        tag: Option<String>,
        config: ProcessConfig,
        user: String,
        input: Input,
        output: Arc<Output>,
    ) -> Self {
        Self {
            pid,
            tag,
            config,
            user,
            started: SystemTime::now(),
            input,
            output,
            fate: Mutex::new(Fate {
                cause: Cause::Itself,
                ended: None,
            }),
        }
    }

    /// Why it is about to be killed. The first cause stands.
    pub(crate) fn blame(&self, cause: Cause) {
        let mut fate = self.fate();
        if fate.cause == Cause::Itself {
            fate.cause = cause;
        }
    }

    pub(crate) fn cause(&self) -> Cause {
        self.fate().cause
    }

    /// How long ago it ended; none while it runs.
    fn age(&self) -> Option<Duration> {
        self.fate().ended.map(|at| at.elapsed())
    }

    fn fate(&self) -> MutexGuard<'_, Fate> {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a client names a process.
#[derive(Debug, Clone)]
pub(crate) enum Selector {
    Pid(u32),
    Tag(String),
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "process with pid {pid}"),
            Self::Tag(tag) => write!(f, "process with tag '{tag}'"),
        }
    }
}

/// There is no such process, or not any more. Clients see `not_found`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    #[error("{0} not found")]
    Unknown(Selector),
    #[error("{selector} ended {} s ago: {reason}", .age.as_secs())]
    Ended {
        selector: Selector,
        age: Duration,
        reason: String,
    },
}

/// The processes.
#[derive(Debug)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Inner {
    live: BTreeMap<u32, Arc<Process>>,
    /// Oldest first.
    ended: VecDeque<Arc<Process>>,
}

impl Table {
    pub(crate) fn new(reaper: Arc<Reaper>) -> Self {
        Self {
            inner: Mutex::default(),
            reaper,
            budget: Arc::default(),
        }
    }

    pub(crate) fn insert(&self, process: Arc<Process>) {
        let mut inner = self.inner();
        self.sweep(&mut inner);
        inner.live.insert(process.pid, process);
    }

    /// Moves a process to those that ended and tells its readers.
    pub(crate) fn end(&self, process: &Arc<Process>, ending: Ending) {
        process.fate().ended = Some(Instant::now());
        let mut inner = self.inner();
        let same = inner
            .live
            .get(&process.pid)
            .is_some_and(|live| Arc::ptr_eq(live, process));
        if same {
            inner.live.remove(&process.pid);
        }
        inner.ended.push_back(Arc::clone(process));
        self.sweep(&mut inner);
        drop(inner);
        process.output.finish(Arc::new(ending));
    }

    /// Running processes, by pid.
    pub(crate) fn live(&self) -> Vec<Arc<Process>> {
        self.inner().live.values().cloned().collect()
    }

    /// Running and ended processes, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Process>> {
        let mut inner = self.inner();
        self.sweep(&mut inner);
        inner
            .ended
            .iter()
            .chain(inner.live.values())
            .cloned()
            .collect()
    }

    /// A running process. Of several with one tag, the newest.
    ///
    /// # Errors
    /// [`FindError`].
    pub(crate) fn running(&self, selector: &Selector) -> Result<Arc<Process>, FindError> {
        let inner = self.inner();
        inner
            .find_live(selector)
            .ok_or_else(|| inner.refuse(selector))
    }

    /// A running process or one that ended within [`LATE`].
    ///
    /// # Errors
    /// [`FindError`].
    pub(crate) fn recent(&self, selector: &Selector) -> Result<Arc<Process>, FindError> {
        let inner = self.inner();
        inner
            .find_live(selector)
            .or_else(|| {
                let process = inner.find_ended(selector)?;
                (process.age()? <= LATE).then_some(process)
            })
            .ok_or_else(|| inner.refuse(selector))
    }

    /// A running process or one that is still kept.
    pub(crate) fn kept(&self, pid: u32) -> Option<Arc<Process>> {
        let inner = self.inner();
        let selector = Selector::Pid(pid);
        inner
            .find_live(&selector)
            .or_else(|| inner.find_ended(&selector))
    }

    /// Signals a process and its group. False when it has ended meanwhile.
    pub(crate) fn signal(&self, process: &Process, signal: Signal) -> bool {
        i32::try_from(process.pid).is_ok_and(|pid| self.reaper.signal(pid, signal))
    }

    /// Kills a process and its group, or what is left of the group. False when nobody is.
    pub(crate) fn kill(&self, process: &Process) -> bool {
        i32::try_from(process.pid)
            .is_ok_and(|pid| self.reaper.signal(pid, Signal::SIGKILL) || self.reaper.kill_left(pid))
    }

    fn sweep(&self, inner: &mut Inner) {
        let old = |process: &Arc<Process>| process.age().is_some_and(|age| age > KEPT);
        while inner.ended.len() > MAX_KEPT || inner.ended.front().is_some_and(old) {
            inner.ended.pop_front();
        }
        for process in &inner.ended {
            if !self.budget.is_tight() {
                break;
            }
            process.output.discard();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn find_live(&self, selector: &Selector) -> Option<Arc<Process>> {
        match selector {
            Selector::Pid(pid) => self.live.get(pid).cloned(),
            Selector::Tag(_) => {
                let tagged = self.live.values().filter(|p| selector.is(p));
                tagged.max_by_key(|process| process.started).cloned()
            }
        }
    }

    fn find_ended(&self, selector: &Selector) -> Option<Arc<Process>> {
        self.ended.iter().rev().find(|p| selector.is(p)).cloned()
    }

    fn refuse(&self, selector: &Selector) -> FindError {
        let ended = self.find_ended(selector).and_then(|process| {
            let ending = process.output.ending()?;
            Some((process.age()?, ending))
        });
        match ended {
            None => FindError::Unknown(selector.clone()),
            Some((age, ending)) => FindError::Ended {
                selector: selector.clone(),
                age,
                reason: ending.error().unwrap_or_else(|| ending.status()),
            },
        }
    }
}

impl Selector {
    fn is(&self, process: &Process) -> bool {
        match self {
            Self::Pid(pid) => process.pid == *pid,
            Self::Tag(tag) => process.tag.as_ref() == Some(tag),
        }
    }
}
