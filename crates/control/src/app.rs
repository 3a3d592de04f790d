//! What control does, behind the HTTP handlers: create, end, extend, find.
//!
//! Every operation that changes something runs as a task of its own, so that a client that
//! goes away cannot leave it half done.

mod create;
mod end;
mod find;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hearth_model::end::Actor;
use hearth_model::id::{SandboxId, TeamId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::keys::Keys;
use crate::ports::Node;
use crate::store::Store;

pub(crate) use create::CreateFailed;
pub(crate) use create::RepeatKey;
pub(crate) use end::EndFailed;
pub(crate) use end::Pause;
pub(crate) use find::{Extend, FindError};

/// How control is set up.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// The database file; made when missing.
    pub db_path: PathBuf,
    /// What `domain` says in answers; none leaves clients their own (one plain origin).
    pub domain: Option<String>,
    /// How long a node may take to create. Default 60 s.
    pub create_deadline: Duration,
    /// How long a gone sandbox can be asked about. Default 7 days.
    pub tombstones_kept: Duration,
    /// Time between two readings of use. Default 5 s.
    pub sample_every: Duration,
}

impl ControlConfig {
    /// The defaults over one database file.
    pub fn new(db_path: impl Into<PathBuf>) -> Self {
        Self {
            db_path: db_path.into(),
            domain: None,
            create_deadline: Duration::from_secs(60),
            tombstones_kept: Duration::from_secs(7 * 24 * 3600),
            sample_every: Duration::from_secs(5),
        }
    }
}

/// Who calls, as a valid key says.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) team: TeamId,
    pub(crate) key_id: String,
    pub(crate) max_timeout_h: Option<u64>,
}

impl Caller {
    pub(crate) fn actor(&self) -> Actor {
        Actor::Key {
            id: self.key_id.clone(),
        }
    }
}

/// The parts every operation uses.
pub(crate) struct App {
    pub(crate) config: ControlConfig,
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) node: Arc<dyn Node>,
    pub(crate) tasks: TaskTracker,
    /// Woken when a deadline was set.
    pub(crate) deadline_set: Notify,
    /// Cancelled when the server stops.
    pub(crate) stop: CancellationToken,
    ready: AtomicBool,
    /// Creates going on: a kill waits for the one it overtakes.
    creating: Mutex<HashMap<SandboxId, CancellationToken>>,
    /// When keys were used, until it is written: a write per request would be too many.
    used: Mutex<HashMap<String, i64>>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl App {
    pub(crate) fn new(config: ControlConfig, store: Store, node: Arc<dyn Node>) -> Self {
        Self {
            config,
            keys: Keys::over(store.clone()),
            store,
            node,
            tasks: TaskTracker::new(),
            deadline_set: Notify::new(),
            stop: CancellationToken::new(),
            ready: AtomicBool::new(false),
            creating: Mutex::default(),
            used: Mutex::default(),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Remembers that a key was used, until [`Self::take_used`].
    pub(crate) fn note_use(&self, key_id: &str, now_ms: i64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        match used.get_mut(key_id) {
            Some(at_ms) => *at_ms = now_ms,
            None => {
                used.insert(key_id.to_owned(), now_ms);
            }
        }
    }

    pub(crate) fn take_used(&self) -> Vec<(String, i64)> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.drain().collect()
    }

    /// Notes that a create is going on, until the guard is dropped.
    fn begin_create(self: &Arc<Self>, id: &SandboxId) -> Creating {
        let done = CancellationToken::new();
        self.lock_creating().insert(id.clone(), done.clone());
        Creating {
            app: Arc::clone(self),
            id: id.clone(),
            done,
        }
    }

    /// Returns when no create of this sandbox is going on.
    async fn create_is_over(&self, id: &SandboxId) {
        let done = self.lock_creating().get(id).cloned();
        if let Some(done) = done {
            done.cancelled().await;
        }
    }

    fn lock_creating(&self) -> std::sync::MutexGuard<'_, HashMap<SandboxId, CancellationToken>> {
        self.creating.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A create going on.
struct Creating {
    app: Arc<App>,
    id: SandboxId,
    done: CancellationToken,
}

impl Drop for Creating {
    fn drop(&mut self) {
        self.app.lock_creating().remove(&self.id);
        self.done.cancel();
    }
}
