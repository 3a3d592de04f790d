//! One inotify instance and the names behind its numbers. (inotify and not fanotify:
//! gVisor has only the former.)
//!
//! Everything here blocks; the caller runs it on a thread for that.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::queue::Queue;
use super::{
    Budget, Change, Detail, Event, MAX_DIRECTORIES, NetworkMounts, Reach, Spec, is_network_mount,
    take,
};
use crate::files::staged::{self, Staged};
use crate::filesystem::entry::Entry;
use crate::filesystem::fault::{Doing as _, FileError};
use crate::filesystem::metadata::MetadataStore;
use crate::filesystem::names::Names;

/// Events read before the queue's reader gets a say.
const BATCH: usize = 4096;
/// Names remembered of directories that were looked through; see [`Engine::seen`].
const MAX_SEEN: usize = 65_536;

const MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR);

/// How a [`Engine::drain`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// The kernel has no more for now.
    Empty,
    /// The same, but the second half of a directory's rename may be about to come.
    Unsettled,
    /// There may be more.
    More,
    /// The watched directory is gone.
    Over,
}

#[derive(Debug)]
pub(crate) struct Engine {
    inotify: Arc<OwnedFd>,
    spec: Spec,
    root: i32,
    /// Path of each watched directory, relative to the root.
    directories: HashMap<i32, PathBuf>,
    /// Names that were reported because a new directory was looked through, and whose own
    /// event may still be queued. Emptied whenever the kernel's queue is.
    seen: HashSet<(i32, OsString)>,
    /// A directory whose old name is gone and whose new one is not known yet.
    leaving: Option<(u32, PathBuf)>,
    /// A finished upload that is about to get its real name.
    upload: Option<(u32, Staged)>,
    budget: Arc<Budget>,
    store: Arc<MetadataStore>,
    over: bool,
}

impl Engine {
    pub(crate) fn start(
        spec: Spec,
        budget: Arc<Budget>,
        store: Arc<MetadataStore>,
        queue: &Queue,
    ) -> Result<Self, FileError> {
        let path = spec.path.clone();
        let found = std::fs::metadata(&path).doing("watch", &path)?;
        if !found.is_dir() {
            return Err(FileError::Invalid(format!(
                "path '{}' is not a directory",
                path.display()
            )));
        }
        if spec.network_mounts == NetworkMounts::Refuse
            && is_network_mount(&path).doing("watch", &path)?
        {
            return Err(FileError::Invalid(format!(
                "path '{}' is on a network mount, where events of other machines are not seen; allow network mounts to watch it all the same",
                path.display()
            )));
        }
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).doing("watch", &path)?;
        let mut engine = Self {
            inotify: Arc::new(inotify),
            spec,
            root: 0,
            directories: HashMap::new(),
            seen: HashSet::new(),
            leaving: None,
            upload: None,
            budget,
            store,
            over: false,
        };
        engine.root = engine.add(Path::new(""))?;
        if engine.spec.reach == Reach::Tree {
            engine.enter(engine.root, Path::new(""), None, queue)?;
        }
        Ok(engine)
    }

    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.inotify)
    }

    /// Moves what the kernel has to the queue.
    pub(crate) fn drain(&mut self, queue: &Queue) -> Drained {
        let inotify = Arc::clone(&self.inotify);
        let mut buffer = [MaybeUninit::<u8>::uninit(); 16 * 1024];
        let mut reader = inotify::Reader::new(&*inotify, &mut buffer);
        let mut names = None;
        for _ in 0..BATCH {
            if self.over || queue.is_closed() {
                return Drained::Over;
            }
            match reader.next() {
                Ok(event) => {
                    let raw = Raw {
                        watch: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: event
                            .file_name()
                            .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                    };
                    self.take(
                        raw,
                        &mut Sink {
                            queue,
                            names: &mut names,
                        },
                    );
                }
                Err(Errno::WOULDBLOCK) => {
                    self.seen.clear();
                    return if self.leaving.is_some() {
                        Drained::Unsettled
                    } else {
                        Drained::Empty
                    };
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "a watcher cannot be read any more");
                    return Drained::Over;
                }
            }
        }
        // What the reader has buffered must not be lost with it.
        while !reader.is_buffer_empty() {
            let Ok(event) = reader.next() else { break };
            let raw = Raw {
                watch: event.wd(),
                flags: event.events(),
                cookie: event.cookie(),
                name: event
                    .file_name()
                    .map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
            };
            self.take(
                raw,
                &mut Sink {
                    queue,
                    names: &mut names,
                },
            );
        }
        Drained::More
    }

    /// Gives up waiting for the new name of a directory: it left the tree.
    pub(crate) fn settle(&mut self) {
        if let Some((_, path)) = self.leaving.take() {
            self.forget(&path);
        }
    }

    fn take(&mut self, raw: Raw, sink: &mut Sink<'_>) {
        if raw.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            sink.queue.lose();
            return;
        }
        if raw.flags.contains(ReadFlags::IGNORED) {
            if self.directories.remove(&raw.watch).is_some() {
                self.budget.directories.fetch_sub(1, Ordering::Relaxed);
            }
            self.over |= raw.watch == self.root;
            return;
        }
        let Some(directory) = self.directories.get(&raw.watch).cloned() else {
            return;
        };
        let Some(name) = raw.name else {
            // Of the directory itself. Its parent's watch says the same, if it has one.
            if raw.watch == self.root {
                self.take_root(raw.flags, sink);
            }
            return;
        };
        if let Some((cookie, _)) = self.leaving
            && !(cookie == raw.cookie && raw.flags.contains(ReadFlags::MOVED_TO))
        {
            self.settle();
        }
        if let Some(staged) = staged::recognise(&name) {
            // An upload in progress is nobody's business; its end is.
            if raw.flags.contains(ReadFlags::MOVED_FROM) {
                self.upload = Some((raw.cookie, staged));
            }
            return;
        }
        let path = directory.join(&name);
        let is_directory = raw.flags.contains(ReadFlags::ISDIR);
        let key = (raw.watch, name);
        if raw.flags.contains(ReadFlags::CREATE) {
            if self.seen.remove(&key) {
                return;
            }
            self.emit(&path, Change::Create, sink);
            self.enter_new(&path, is_directory, sink);
        }
        if raw.flags.contains(ReadFlags::MOVED_FROM) {
            self.seen.remove(&key);
            self.emit(&path, Change::Rename, sink);
            if is_directory && self.spec.reach == Reach::Tree {
                self.leaving = Some((raw.cookie, path.clone()));
            }
        }
        if raw.flags.contains(ReadFlags::MOVED_TO) {
            self.take_moved_to(&path, &key, raw.cookie, is_directory, sink);
        }
        if raw.flags.contains(ReadFlags::DELETE) {
            self.seen.remove(&key);
            self.emit(&path, Change::Remove, sink);
        } else if raw.flags.contains(ReadFlags::MODIFY) {
            self.emit(&path, Change::Write, sink);
        } else if raw.flags.contains(ReadFlags::ATTRIB) {
            self.emit(&path, Change::Chmod, sink);
        }
    }

    fn take_root(&mut self, flags: ReadFlags, sink: &mut Sink<'_>) {
        let here = Path::new(".");
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT) {
            self.emit(here, Change::Remove, sink);
        } else if flags.contains(ReadFlags::MOVE_SELF) {
            self.emit(here, Change::Rename, sink);
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.emit(here, Change::Chmod, sink);
        }
    }

    fn take_moved_to(
        &mut self,
        path: &Path,
        key: &(i32, OsString),
        cookie: u32,
        is_directory: bool,
        sink: &mut Sink<'_>,
    ) {
        let was_seen = self.seen.remove(key);
        if let Some((_, staged)) = self.upload.take_if(|upload| upload.0 == cookie) {
            // Seen from outside, an upload creates the file if need be, and writes it.
            if staged == Staged::New && !was_seen {
                self.emit(path, Change::Create, sink);
            }
            self.emit(path, Change::Write, sink);
            return;
        }
        if let Some((_, from)) = self.leaving.take_if(|leaving| leaving.0 == cookie) {
            self.emit(path, Change::Create, sink);
            for directory in self.directories.values_mut() {
                if let Ok(rest) = directory.strip_prefix(&from) {
                    *directory = if rest.as_os_str().is_empty() {
                        path.to_owned()
                    } else {
                        path.join(rest)
                    };
                }
            }
            return;
        }
        if !was_seen {
            self.emit(path, Change::Create, sink);
            self.enter_new(path, is_directory, sink);
        }
    }

    fn enter_new(&mut self, path: &Path, is_directory: bool, sink: &mut Sink<'_>) {
        if !is_directory || self.spec.reach != Reach::Tree {
            return;
        }
        let outcome = match self.add(path) {
            Ok(watch) => {
                let queue = sink.queue;
                self.enter(watch, path, Some(sink), queue)
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) | Err(FileError::NotFound(_) | FileError::Invalid(_)) => {}
            Err(error) => {
                // From here on events are missing, and the client has to know.
                tracing::warn!(error = %error.public_text(), "a new directory is not watched");
                sink.queue.lose();
            }
        }
    }

    /// Watches every directory below `start`, which is watched already. With a sink, what
    /// is found is reported as new: it came into being before we looked.
    fn enter(
        &mut self,
        watch: i32,
        start: &Path,
        mut sink: Option<&mut Sink<'_>>,
        queue: &Queue,
    ) -> Result<(), FileError> {
        let mut todo = vec![(watch, start.to_owned())];
        while let Some((watch, directory)) = todo.pop() {
            if queue.is_closed() {
                return Ok(());
            }
            let full = self.spec.path.join(&directory);
            let Ok(items) = std::fs::read_dir(&full) else {
                continue;
            };
            for item in items {
                let Ok(item) = item else { break };
                let name = item.file_name();
                if staged::recognise(&name).is_some() {
                    continue;
                }
                let path = directory.join(&name);
                let kind = item.file_type().ok();
                if let Some(sink) = sink.as_deref_mut() {
                    self.emit(&path, Change::Create, sink);
                    if kind.is_some_and(|kind| kind.is_file())
                        && item.metadata().is_ok_and(|found| found.len() > 0)
                    {
                        self.emit(&path, Change::Write, sink);
                    }
                    if self.seen.len() < MAX_SEEN {
                        self.seen.insert((watch, name));
                    }
                }
                if kind.is_some_and(|kind| kind.is_dir()) {
                    match self.add(&path) {
                        Ok(watch) => todo.push((watch, path)),
                        Err(FileError::NotFound(_) | FileError::Invalid(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, relative: &Path) -> Result<i32, FileError> {
        // Joining with an empty path would end in a slash.
        let (full, flags) = if relative.as_os_str().is_empty() {
            (self.spec.path.clone(), MASK)
        } else {
            (
                self.spec.path.join(relative),
                MASK.union(WatchFlags::DONT_FOLLOW),
            )
        };
        if !take(&self.budget.directories, 1, MAX_DIRECTORIES) {
            return Err(FileError::Exhausted(format!(
                "cannot watch '{}': {MAX_DIRECTORIES} directories are watched already, which is the limit of a sandbox",
                full.display()
            )));
        }
        match inotify::add_watch(&*self.inotify, &full, flags) {
            Ok(watch) => {
                if self
                    .directories
                    .insert(watch, relative.to_owned())
                    .is_some()
                {
                    self.budget.directories.fetch_sub(1, Ordering::Relaxed);
                }
                Ok(watch)
            }
            Err(errno) => {
                self.budget.directories.fetch_sub(1, Ordering::Relaxed);
                // The kernel's own bound on watches answers with this.
                if errno == Errno::NOSPC {
                    return Err(FileError::Exhausted(format!(
                        "cannot watch '{}': the kernel has no more inotify watches",
                        full.display()
                    )));
                }
                Err(errno).doing("watch", &full)
            }
        }
    }

    /// Stops watching `path` and everything below it.
    fn forget(&mut self, path: &Path) {
        let gone: Vec<i32> = self
            .directories
            .iter()
            .filter(|(_, directory)| directory.starts_with(path))
            .map(|(watch, _)| *watch)
            .collect();
        for watch in gone {
            self.directories.remove(&watch);
            self.budget.directories.fetch_sub(1, Ordering::Relaxed);
            if let Err(error) = inotify::remove_watch(&*self.inotify, watch) {
                // Deleted meanwhile, and so removed by the kernel.
                tracing::debug!(%error, "watch was gone");
            }
        }
    }

    fn emit(&self, relative: &Path, change: Change, sink: &mut Sink<'_>) {
        let is_described = matches!(change, Change::Create | Change::Write | Change::Chmod);
        let entry = if self.spec.detail == Detail::Entry && is_described {
            let names = sink.names.get_or_insert_with(Names::load);
            let full = if relative == Path::new(".") {
                self.spec.path.clone()
            } else {
                self.spec.path.join(relative)
            };
            Entry::read(&full, names, &self.store).ok()
        } else {
            None
        };
        sink.queue.push(Event {
            name: relative.to_string_lossy().into_owned(),
            change,
            entry,
        });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.budget
            .directories
            .fetch_sub(self.directories.len(), Ordering::Relaxed);
    }
}

/// The kernel's event, apart from the buffer it was read into.
struct Raw {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<OsString>,
}

/// Where events go, with the names of users once they are needed.
struct Sink<'a> {
    queue: &'a Queue,
    names: &'a mut Option<Arc<Names>>,
}
