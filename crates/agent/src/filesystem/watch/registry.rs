//! Watchers that are read by polling and known by an id.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Event, MAX_WATCHERS, Watch};
use crate::filesystem::fault::FileError;

/// A watcher nobody read for this long is removed. Long, because a program may think for
/// hours between two looks.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// What makes a watcher removable when a new one needs its place.
const IDLE_UNDER_PRESSURE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(crate) struct Registry {
    watchers: Mutex<HashMap<String, Polled>>,
}

#[derive(Debug)]
struct Polled {
    watch: Watch,
    read_at: Instant,
}

impl Registry {
    /// Removes watchers nobody uses, harder when places are short. Called before a new
    /// one is started.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut watchers = self.lock();
        watchers.retain(|_, polled| now.duration_since(polled.read_at) < IDLE);
        // One place is for the new one.
        if watchers.len() + 1 >= MAX_WATCHERS {
            let oldest = watchers
                .iter()
                .filter(|(_, polled)| now.duration_since(polled.read_at) >= IDLE_UNDER_PRESSURE)
                .min_by_key(|(_, polled)| polled.read_at)
                .map(|(id, _)| id.clone());
            if let Some(id) = oldest {
                watchers.remove(&id);
            }
        }
    }

    /// Keeps a watcher and names it.
    pub(crate) fn insert(&self, watch: Watch, now: Instant) -> String {
        let id = hearth_model::secret::Secret::random().expose()[..32].to_owned();
        let polled = Polled {
            watch,
            read_at: now,
        };
        self.lock().insert(id.clone(), polled);
        id
    }

    /// Takes the events that wait for watcher `id`.
    ///
    /// # Errors
    /// [`UnknownWatcher`], or the loss of events as [`Watch::drain`] says.
    pub(crate) fn read(&self, id: &str, now: Instant) -> Result<Vec<Event>, ReadError> {
        let mut watchers = self.lock();
        let polled = watchers.get_mut(id).ok_or(UnknownWatcher)?;
        polled.read_at = now;
        Ok(polled.watch.drain()?)
    }

    /// Ends watcher `id`.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn remove(&self, id: &str) -> Result<(), UnknownWatcher> {
        self.lock().remove(id).map(drop).ok_or(UnknownWatcher)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Polled>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("watcher not found")]
pub(crate) struct UnknownWatcher;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Unknown(#[from] UnknownWatcher),
    #[error(transparent)]
    Lost(#[from] FileError),
}
