//! Writing a file so that nobody ever sees half of it: into a file beside it, which takes
//! the real name when everything has arrived. What is dropped before leaves no trace.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::filesystem::change::ensure_dir;
use crate::filesystem::fault::{Doing as _, FileError};
use crate::filesystem::metadata::{self, Kept, MetadataStore, Pairs};
use crate::filesystem::path::{Caller, clean};

/// Start of the names of unfinished files. Watchers do not show them.
const PREFIX: &str = ".hearth-upload-";
/// Mode of a new file.
const MODE: u32 = 0o644;
/// Links followed from one name before it counts as a cycle, as the kernel has it.
const MAX_LINKS: usize = 40;

/// What the unfinished file with a certain name will do, when it gets its real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staged {
    New,
    Replacement,
}

/// Whether `name` is that of an unfinished file.
pub(crate) fn recognise(name: &OsStr) -> Option<Staged> {
    match name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?.0 {
        "new" => Some(Staged::New),
        "replacement" => Some(Staged::Replacement),
        _ => None,
    }
}

/// A file on its way.
#[derive(Debug)]
pub(crate) struct StagedFile {
    /// As the client named it.
    path: PathBuf,
    /// Where it really is: links followed.
    target: PathBuf,
    owner: (u32, u32),
    mode: u32,
    place: Place,
    file: Option<File>,
    kept: Kept,
}

#[derive(Debug)]
enum Place {
    /// In a file of its own, which is removed on drop.
    Beside(PathBuf),
    /// In the file itself: where no file can be made, as in `/proc`, or after the rename.
    Itself,
}

impl StagedFile {
    /// Prepares to write `path`. Parents are made; a link is followed to what it names,
    /// which need not exist; owner and mode of a file that exists stay.
    ///
    /// # Errors
    /// [`FileError::Invalid`] for a directory, a device, a FIFO or a socket, and for a
    /// parent that is no directory; [`FileError::Precondition`] for a cycle of links;
    /// [`FileError::NoSpace`].
    pub(crate) fn begin(path: &Path, caller: &Caller) -> Result<Self, FileError> {
        let mut target = path.to_owned();
        let mut found = fs::symlink_metadata(path);
        if found.as_ref().is_ok_and(fs::Metadata::is_symlink) {
            target = follow(path)?;
            found = fs::symlink_metadata(&target);
        }
        let existing = match found {
            Ok(found) if found.is_file() => Some(found),
            Ok(found) if found.is_dir() => {
                return Err(FileError::Invalid(format!(
                    "path '{}' is a directory",
                    path.display()
                )));
            }
            Ok(_) => {
                return Err(FileError::Invalid(format!(
                    "path '{}' is not a regular file",
                    path.display()
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(FileError::io("write", path, error)),
        };
        let Some(parent) = target.parent() else {
            return Err(FileError::Invalid(format!(
                "path '{}' is a directory",
                path.display()
            )));
        };
        ensure_dir(parent, caller)?;
        let word = if existing.is_some() {
            "replacement"
        } else {
            "new"
        };
        let random = hearth_model::secret::Secret::random();
        let beside = parent.join(format!("{PREFIX}{word}-{}", &random.expose()[..16]));
        let (owner, mode) = match &existing {
            Some(found) => ((found.uid(), found.gid()), found.mode() & 0o7777),
            None => ((caller.uid, caller.gid), MODE),
        };
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode & 0o777)
            .open(&beside);
        let (file, place) = match created {
            Ok(file) => (file, Place::Beside(beside)),
            Err(error) if existing.is_some() && cannot_create(&error) => {
                let file = open_in_place(&target).doing("write", path)?;
                (file, Place::Itself)
            }
            Err(error) => return Err(FileError::io("write", path, error)),
        };
        Ok(Self {
            path: path.to_owned(),
            target,
            owner,
            mode,
            place,
            file: Some(file),
            kept: Kept::OnFile,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the file really is.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        match &mut self.file {
            Some(file) => file.write_all(bytes).doing("write", &self.path),
            None => Err(FileError::Precondition(format!(
                "'{}' was already complete",
                self.path.display()
            ))),
        }
    }

    /// Completes the content: gives it owner, mode and metadata, and closes it. It still
    /// has no name.
    pub(crate) fn seal(&mut self, pairs: &Pairs) -> Result<(), FileError> {
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        if matches!(self.place, Place::Beside(_)) {
            self.give(&file)?;
        }
        self.kept = metadata::attach(&file, pairs);
        Ok(())
    }

    /// Sets owner and mode, where they are not right already: to look is cheaper.
    fn give(&self, file: &File) -> Result<(), FileError> {
        let found = file.metadata().doing("own", &self.path)?;
        let (uid, gid) = self.owner;
        let mut mode = found.mode() & 0o7777;
        if (found.uid(), found.gid()) != self.owner {
            std::os::unix::fs::fchown(file, Some(uid), Some(gid)).doing("own", &self.path)?;
            // A change of owner clears these.
            mode &= !0o6000;
        }
        if mode != self.mode {
            file.set_permissions(Permissions::from_mode(self.mode))
                .doing("own", &self.path)?;
        }
        Ok(())
    }

    /// Gives a sealed file its real name, in place of what had it.
    pub(crate) fn commit(mut self, pairs: &Pairs, store: &MetadataStore) -> Result<(), FileError> {
        self.seal(pairs)?;
        if let Place::Beside(beside) = &self.place {
            match fs::rename(beside, &self.target) {
                Ok(()) => self.place = Place::Itself,
                // Something is mounted on the file itself: only its content can change.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    let mut from = File::open(beside).doing("write", &self.path)?;
                    let mut to = open_in_place(&self.target).doing("write", &self.path)?;
                    io::copy(&mut from, &mut to).doing("write", &self.path)?;
                    self.kept = metadata::attach(&to, pairs);
                }
                Err(error) => return Err(FileError::io("write", &self.path, error)),
            }
        }
        let none = Pairs::new();
        let pairs = match self.kept {
            Kept::OnFile => &none,
            Kept::Nowhere => pairs,
        };
        if pairs.is_empty() && store.is_empty() {
            return Ok(());
        }
        let found = fs::metadata(&self.target).doing("look at", &self.path)?;
        store.put(&self.target, &found, pairs)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if let Place::Beside(beside) = &self.place
            && let Err(error) = fs::remove_file(beside)
        {
            tracing::warn!(path = %beside.display(), %error, "an unfinished file stays");
        }
    }
}

/// Opens an existing file to write over it. Never waits for a FIFO that took its place.
fn open_in_place(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)
}

/// Whether an error says that the directory takes no new files, though what is in it may
/// be writable.
fn cannot_create(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOENT | Errno::OPNOTSUPP)
    )
}

/// The path that `path` names when its last part is a link, or a link to a link, whether
/// or not something is there.
fn follow(path: &Path) -> Result<PathBuf, FileError> {
    let mut here = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&here) {
            Ok(target) => {
                // The directory is resolved first, because `..` in a link means the
                // parent of where the link really is.
                let parent = here.parent().unwrap_or(Path::new("/"));
                let parent = fs::canonicalize(parent).doing("write", path)?;
                here = match fs::canonicalize(parent.join(&target)) {
                    Ok(resolved) => return Ok(resolved),
                    Err(_) => clean(&parent.join(target)),
                };
            }
            // Not a link, or nothing: here it is.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(here);
            }
            Err(error) => return Err(FileError::io("write", path, error)),
        }
    }
    Err(FileError::io("write", path, Errno::LOOP.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn caller() -> Caller {
        Caller {
            uid: 4242,
            gid: 4243,
            home: "/".into(),
            workdir: None,
        }
    }

    fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        let mut staged = StagedFile::begin(path, &caller())?;
        staged.write(bytes)?;
        staged.commit(&Pairs::new(), &MetadataStore::default())
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn new_file_and_parents_are_the_callers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/f");
        write(&path, b"x").unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode() & 0o7777),
            (4242, 4243, 0o644)
        );
        let parent = fs::metadata(dir.path().join("a")).unwrap();
        assert_eq!((parent.uid(), parent.mode() & 0o7777), (4242, 0o755));
        assert_eq!(names(path.parent().unwrap()), ["f"]);
    }

    #[test]
    fn replaced_file_keeps_owner_and_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old and longer").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o750)).unwrap();
        write(&path, b"new").unwrap();
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o750));
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn dropped_leaves_the_old_content_and_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        let mut staged = StagedFile::begin(&path, &caller()).unwrap();
        staged.write(b"half").unwrap();
        let unfinished = names(dir.path());
        assert_eq!(unfinished.len(), 2);
        assert_eq!(
            recognise(OsStr::new(&unfinished[0])),
            Some(Staged::Replacement)
        );
        staged.seal(&Pairs::new()).unwrap();
        drop(staged);
        assert_eq!(names(dir.path()), ["f"]);
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn links_are_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("d")).unwrap();
        symlink("../real", at("d/one")).unwrap();
        symlink("d/one", at("two")).unwrap();
        symlink("d", at("dir-link")).unwrap();
        write(&at("two"), b"1").unwrap();
        assert_eq!(fs::read(at("real")).unwrap(), b"1");
        assert!(at("two").is_symlink() && at("d/one").is_symlink());
        write(&at("dir-link/one"), b"2").unwrap();
        assert_eq!(fs::read(at("real")).unwrap(), b"2");
        symlink("made/by/link", at("far")).unwrap();
        write(&at("far"), b"3").unwrap();
        assert_eq!(fs::read(at("made/by/link")).unwrap(), b"3");
        symlink("loop", at("loop")).unwrap();
        assert!(matches!(
            write(&at("loop"), b"4"),
            Err(FileError::Precondition(_))
        ));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        fs::write(dir.path().join("f"), "").unwrap();
        for bad in [
            Path::new("/"),
            Path::new("/dev/null"),
            dir.path(),
            &fifo,
            &dir.path().join("f/x"),
        ] {
            let outcome = write(bad, b"x");
            assert!(
                matches!(outcome, Err(FileError::Invalid(_))),
                "{bad:?}: {outcome:?}"
            );
        }
        assert_eq!(names(dir.path()), ["f", "fifo"]);
    }

    #[test]
    fn file_where_none_can_be_made_is_written_in_place() {
        let path = Path::new("/proc/self/comm");
        write(path, b"renamed").unwrap();
        assert_eq!(fs::read(path).unwrap(), b"renamed\n");
    }

    #[test]
    fn full_disk_is_said() {
        // 64 KiB of tmpfs in a mount namespace of this thread.
        let outcome = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            nix::mount::mount(
                None::<&str>,
                "/",
                None::<&str>,
                nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE,
                None::<&str>,
            )
            .unwrap();
            let dir = tempfile::tempdir().unwrap();
            nix::mount::mount(
                Some("none"),
                dir.path(),
                Some("tmpfs"),
                nix::mount::MsFlags::empty(),
                Some("size=64k"),
            )
            .unwrap();
            let path = dir.path().join("f");
            write(&path, b"fits").unwrap();
            let outcome = write(&path, &[0; 128 * 1024]);
            assert_eq!(fs::read(&path).unwrap(), b"fits");
            assert_eq!(names(dir.path()), ["f"]);
            nix::mount::umount(dir.path()).unwrap();
            outcome
        })
        .join()
        .unwrap();
        assert!(matches!(outcome, Err(FileError::NoSpace(_))), "{outcome:?}");
    }
}
