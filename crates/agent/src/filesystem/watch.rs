//! Watching a directory: what clients get to see, and when they are told that they missed
//! something. Start from [`Watches::start`].
//!
//! The kernel's side is in [`engine`], the queue between it and a client in [`queue`], and
//! watchers that are polled by id in [`registry`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use super::entry::Entry;
use super::fault::{Doing as _, FileError};
use super::metadata::MetadataStore;

pub(crate) mod engine;
pub(crate) mod queue;
pub(crate) mod registry;

use engine::{Drained, Engine};
use queue::{Next, Queue};

/// Directories watched by all watchers together. Each holds memory of the sandbox's
/// kernel, and under gVisor a descriptor of the whole sandbox (measured: about 20,000 are
/// left, then every open fails).
pub(crate) const MAX_DIRECTORIES: usize = 8192;
/// Events waiting in all queues together, in bytes.
pub(crate) const MAX_QUEUED_BYTES: usize = 16 * 1024 * 1024;
/// Watchers of both sorts together.
pub(crate) const MAX_WATCHERS: usize = 1024;
/// How long the second half of a rename may be behind the first, which the kernel queues
/// apart.
const RENAME_GAP: Duration = Duration::from_millis(10);

/// What happened to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Create,
    Write,
    Remove,
    /// The old name of something renamed or moved away.
    Rename,
    Chmod,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    /// Relative to the watched directory, which itself is `.`.
    pub(crate) name: String,
    pub(crate) change: Change,
    /// Only when asked for, and only while it exists.
    pub(crate) entry: Option<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The directory's own entries.
    Directory,
    /// Everything below it, directories made later too.
    Tree,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    Name,
    /// With an [`Entry`] for what was created, written or changed in mode.
    Entry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkMounts {
    Refuse,
    Allow,
}

/// What to watch and how.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) path: PathBuf,
    pub(crate) reach: Reach,
    pub(crate) detail: Detail,
    pub(crate) network_mounts: NetworkMounts,
}

/// The bounds that all watchers share.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    directories: AtomicUsize,
    queued_bytes: AtomicUsize,
    watchers: AtomicUsize,
}

/// Takes `amount` of a bound, unless that would pass `limit`.
fn take(counter: &AtomicUsize, amount: usize, limit: usize) -> bool {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(amount).filter(|sum| *sum <= limit)
        })
        .is_ok()
}

/// Starts watchers.
#[derive(Debug, Clone)]
pub(crate) struct Watches {
    budget: Arc<Budget>,
    store: Arc<MetadataStore>,
}

impl Watches {
    pub(crate) fn new(store: Arc<MetadataStore>) -> Self {
        Self {
            budget: Arc::default(),
            store,
        }
    }

    /// Watches from the moment this returns.
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] for what is no directory, and for a
    /// network mount without leave; [`FileError::Exhausted`] for one of the bounds.
    pub(crate) async fn start(&self, spec: Spec) -> Result<Watch, FileError> {
        if !take(&self.budget.watchers, 1, MAX_WATCHERS) {
            return Err(FileError::Exhausted(format!(
                "there are {MAX_WATCHERS} watchers already, which is the limit"
            )));
        }
        let place = Place(Arc::clone(&self.budget));
        let queue = Arc::new(Queue::new(Arc::clone(&self.budget)));
        let budget = Arc::clone(&self.budget);
        let store = Arc::clone(&self.store);
        let for_engine = Arc::clone(&queue);
        let path = spec.path.clone();
        let engine = blocking(move || Engine::start(spec, budget, store, &for_engine)).await??;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for the sake of types that give up their descriptor; ours keeps it"
        )]
        let readable = AsyncFd::with_interest(engine.descriptor(), Interest::READABLE)
            .doing("watch", &path)?;
        let task = tokio::spawn(run(engine, readable, Arc::clone(&queue)));
        Ok(Watch {
            queue,
            task: task.abort_handle(),
            _place: place,
        })
    }
}

/// One watcher. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    queue: Arc<Queue>,
    task: AbortHandle,
    _place: Place,
}

/// One of [`MAX_WATCHERS`].
#[derive(Debug)]
struct Place(Arc<Budget>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch {
    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&self) -> Next {
        self.queue.next().await
    }

    /// Takes all events that wait.
    ///
    /// # Errors
    /// [`FileError::Exhausted`], once, after events were dropped; the watcher goes on.
    pub(crate) fn drain(&self) -> Result<Vec<Event>, FileError> {
        self.queue.drain()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.queue.close();
        self.task.abort();
    }
}

/// Moves events from the kernel's queue to ours as they come. Looking at files blocks, so
/// it is done on a thread made for that.
async fn run(mut engine: Engine, readable: AsyncFd<Arc<std::os::fd::OwnedFd>>, queue: Arc<Queue>) {
    let mut unsettled = false;
    loop {
        let mut guard = None;
        if unsettled {
            tokio::time::sleep(RENAME_GAP).await;
        } else {
            match readable.readable().await {
                Ok(ready) => guard = Some(ready),
                Err(error) => {
                    tracing::warn!(%error, "a watcher cannot be read any more");
                    queue.end();
                    return;
                }
            }
        }
        let for_engine = Arc::clone(&queue);
        let settle = unsettled;
        let drained = blocking(move || {
            let drained = engine.drain(&for_engine);
            if settle && drained == Drained::Unsettled {
                engine.settle();
                return (engine, Drained::Empty);
            }
            (engine, drained)
        })
        .await;
        let Ok((returned, drained)) = drained else {
            queue.end();
            return;
        };
        engine = returned;
        unsettled = false;
        match drained {
            Drained::Empty => {}
            Drained::Unsettled => unsettled = true,
            Drained::More => continue,
            Drained::Over => {
                queue.end();
                return;
            }
        }
        if let Some(mut guard) = guard {
            guard.clear_ready();
        }
    }
}

/// Runs what blocks on a thread for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FileError> {
    super::blocking(work).await
}

/// Whether `path` lies on another machine, where changes made by others raise no events.
/// (gVisor shows its own root as 9p, which is as local as can be.)
fn is_network_mount(path: &Path) -> std::io::Result<bool> {
    /// File system numbers from `linux/magic.h` and the file systems' own sources: NFS,
    /// SMB, CIFS, SMB2, FUSE, AFS, CODA, Ceph.
    const REMOTE: [i64; 8] = [
        0x6969,
        0x517b,
        0xff53_4d42,
        0xfe53_4d42,
        0x6573_5546,
        0x6b41_4653,
        0x7375_7245,
        0x00c3_6400,
    ];
    let found = rustix::fs::statfs(path)?;
    Ok(REMOTE.contains(&(found.f_type & 0xffff_ffff)))
}

#[cfg(test)]
mod tests;
