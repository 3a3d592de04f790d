//! Copying a tree to another file system, for a move that `rename(2)` cannot do. Keeps
//! modes, owners, times of change and links; refuses what cannot be copied.

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::fault::{Doing as _, FileError};
use super::tree;

/// Copies `source` to `destination`, which must not be a directory. A failure leaves no
/// destination behind.
pub(crate) fn copy_tree(source: &Path, destination: &Path) -> Result<(), FileError> {
    if fs::symlink_metadata(destination).is_ok_and(|found| found.is_dir()) {
        return Err(FileError::Precondition(format!(
            "'{}' is a directory on another file system than '{}'",
            destination.display(),
            source.display()
        )));
    }
    let outcome = copy_all(source, destination);
    if outcome.is_err() {
        tree::remove(destination)?;
    }
    outcome
}

fn copy_all(source: &Path, destination: &Path) -> Result<(), FileError> {
    let mut todo: Vec<(PathBuf, PathBuf)> = vec![(source.to_owned(), destination.to_owned())];
    // Directories get their times and modes last, when nothing is added to them any more.
    let mut made: Vec<(PathBuf, Metadata)> = Vec::new();
    while let Some((from, to)) = todo.pop() {
        let found = fs::symlink_metadata(&from).doing("copy", &from)?;
        if found.is_dir() {
            fs::create_dir(&to).doing("copy to", &to)?;
            for item in fs::read_dir(&from).doing("copy", &from)? {
                let name = item.doing("copy", &from)?.file_name();
                if todo.len() == super::list::MAX_ENTRIES {
                    return Err(FileError::Exhausted(format!(
                        "'{}' has too many entries to move between file systems",
                        source.display()
                    )));
                }
                todo.push((from.join(&name), to.join(&name)));
            }
            made.push((to, found));
        } else if found.is_symlink() {
            let target = fs::read_link(&from).doing("copy", &from)?;
            match fs::remove_file(&to) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(FileError::io("copy to", &to, error));
                }
                _ => {}
            }
            std::os::unix::fs::symlink(target, &to).doing("copy to", &to)?;
            std::os::unix::fs::lchown(&to, Some(found.uid()), Some(found.gid()))
                .doing("own", &to)?;
        } else if found.is_file() {
            copy_file(&from, &to, &found)?;
        } else {
            return Err(FileError::Invalid(format!(
                "cannot move '{}' to another file system: it is a device, a FIFO or a socket",
                from.display()
            )));
        }
    }
    for (to, found) in made.iter().rev() {
        let dir = File::open(to).doing("copy to", to)?;
        keep(&dir, to, found)?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, found: &Metadata) -> Result<(), FileError> {
    let mut reader = super::open_plain(from).doing("copy", from)?;
    let mut writer = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(to)
        .doing("copy to", to)?;
    std::io::copy(&mut reader, &mut writer).doing("copy to", to)?;
    keep(&writer, to, found)
}

/// Gives the copy the owner, mode and time of change of the original, in that order: a
/// change of owner clears mode bits.
fn keep(copy: &File, path: &Path, found: &Metadata) -> Result<(), FileError> {
    std::os::unix::fs::fchown(copy, Some(found.uid()), Some(found.gid())).doing("own", path)?;
    copy.set_permissions(found.permissions())
        .doing("own", path)?;
    let modified = found.modified().doing("copy", path)?;
    copy.set_modified(modified).doing("copy to", path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn keeps_what_matters() {
        let dir = tempfile::tempdir().unwrap();
        // Another file system than the temporary directory's, as a sandbox's /dev/shm is.
        let other = tempfile::tempdir_in("/dev/shm").unwrap();
        let from = dir.path().join("d");
        fs::create_dir_all(from.join("e")).unwrap();
        fs::write(from.join("e/f"), "content").unwrap();
        fs::set_permissions(from.join("e/f"), fs::Permissions::from_mode(0o4751)).unwrap();
        std::os::unix::fs::chown(from.join("e"), Some(7), Some(8)).unwrap();
        symlink("nowhere", from.join("l")).unwrap();
        let caller = super::super::path::Caller {
            uid: 1,
            gid: 1,
            home: "/".into(),
            workdir: None,
        };
        let store = super::super::metadata::MetadataStore::default();
        let to = other.path().join("x/d");
        let time = fs::metadata(from.join("e")).unwrap().modified().unwrap();
        super::super::change::move_entry(&from, &to, &caller, &store).unwrap();
        assert!(!from.exists());
        assert_eq!(fs::read(to.join("e/f")).unwrap(), b"content");
        assert_eq!(
            fs::metadata(to.join("e/f")).unwrap().mode() & 0o7777,
            0o4751
        );
        let inner = fs::metadata(to.join("e")).unwrap();
        assert_eq!((inner.uid(), inner.gid()), (7, 8));
        assert_eq!(inner.modified().unwrap(), time);
        assert_eq!(fs::read_link(to.join("l")).unwrap(), Path::new("nowhere"));
    }

    #[test]
    fn failure_leaves_nothing_and_the_source_whole() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir_in("/dev/shm").unwrap();
        let from = dir.path().join("d");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("f"), "x").unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            from.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let to = other.path().join("d");
        assert!(matches!(copy_tree(&from, &to), Err(FileError::Invalid(_))));
        assert!(!to.exists());
        assert!(from.join("f").exists());
    }
}
