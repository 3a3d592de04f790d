//! Making, moving and removing. What is created belongs to the caller; the operations run
//! as the sandbox's root, as E2B's agent does.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::fault::{Doing as _, FileError};
use super::metadata::MetadataStore;
use super::path::Caller;
use super::{copy, tree};

/// Mode of a new directory.
const DIRECTORY_MODE: u32 = 0o755;

/// Makes the directory `path` and the parents it lacks, all of them the caller's.
///
/// # Errors
/// [`FileError::AlreadyExists`] for a directory that is there; [`FileError::Invalid`] when
/// it or a parent is something else.
pub(crate) fn make_dir(path: &Path, caller: &Caller) -> Result<(), FileError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(FileError::AlreadyExists(path.to_owned())),
        Ok(_) => return Err(not_a_directory(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::io("make directory", path, error)),
    }
    ensure_dir(path, caller)
}

/// Makes `path` a directory if it is none yet, with its parents.
pub(crate) fn ensure_dir(path: &Path, caller: &Caller) -> Result<(), FileError> {
    let mut missing: Vec<PathBuf> = Vec::new();
    for ancestor in path.ancestors() {
        match fs::metadata(ancestor) {
            Ok(found) if found.is_dir() => break,
            Ok(_) => return Err(not_a_directory(ancestor)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                missing.push(ancestor.to_owned());
            }
            Err(error) => return Err(FileError::io("make directory", ancestor, error)),
        }
    }
    for dir in missing.iter().rev() {
        match DirBuilder::new().mode(DIRECTORY_MODE).create(dir) {
            Ok(()) => {
                give(dir, caller)?;
                // The agent's umask and a parent's bits are not the client's business.
                let found = fs::symlink_metadata(dir).doing("own", dir)?;
                if found.mode() & 0o7777 != DIRECTORY_MODE {
                    fs::set_permissions(dir, Permissions::from_mode(DIRECTORY_MODE))
                        .doing("own", dir)?;
                }
            }
            // Made by another request meanwhile; a dangling link is found here too.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                if !dir.is_dir() {
                    return Err(not_a_directory(dir));
                }
            }
            Err(error) => return Err(FileError::io("make directory", dir, error)),
        }
    }
    Ok(())
}

/// Makes `path` itself, not what it may link to, the caller's.
fn give(path: &Path, caller: &Caller) -> Result<(), FileError> {
    std::os::unix::fs::lchown(path, Some(caller.uid), Some(caller.gid)).doing("own", path)
}

fn not_a_directory(path: &Path) -> FileError {
    FileError::Invalid(format!(
        "path '{}' exists and is not a directory",
        path.display()
    ))
}

/// Moves `source` to `destination`, whose parents are made. As `rename(2)`: a file takes
/// the place of a file. Between file systems it is copied, then removed.
///
/// # Errors
/// [`FileError::NotFound`] for a missing source; [`FileError::Invalid`] for a directory
/// into itself; [`FileError::Precondition`] for a destination that is a directory with
/// something in it.
pub(crate) fn move_entry(
    source: &Path,
    destination: &Path,
    caller: &Caller,
    store: &MetadataStore,
) -> Result<(), FileError> {
    fs::symlink_metadata(source).doing("move", source)?;
    if let Some(parent) = destination.parent() {
        ensure_dir(parent, caller)?;
    }
    match fs::rename(source, destination) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
            copy::copy_tree(source, destination)?;
            tree::remove(source)?;
        }
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            return Err(FileError::Invalid(format!(
                "cannot move '{}' into itself, to '{}'",
                source.display(),
                destination.display()
            )));
        }
        Err(error) => return Err(FileError::io("move to", destination, error)),
    }
    store.moved(source, destination);
    Ok(())
}

/// Removes `path` and all below it; nothing there is success.
///
/// # Errors
/// [`FileError::Invalid`] for the root directory; [`FileError::Precondition`] for what is
/// mounted or in use.
pub(crate) fn remove(path: &Path, store: &MetadataStore) -> Result<(), FileError> {
    if path == Path::new("/") {
        return Err(FileError::Invalid(
            "the root directory cannot be removed".into(),
        ));
    }
    tree::remove(path)?;
    store.removed(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const CALLER_ID: u32 = 4242;

    fn caller(home: &Path) -> Caller {
        Caller {
            uid: CALLER_ID,
            gid: CALLER_ID,
            home: home.to_owned(),
            workdir: None,
        }
    }

    #[test]
    fn made_with_parents_and_owned() {
        let dir = tempfile::tempdir().unwrap();
        let caller = caller(dir.path());
        let target = dir.path().join("a/b/c");
        make_dir(&target, &caller).unwrap();
        for made in ["a", "a/b", "a/b/c"] {
            let found = fs::metadata(dir.path().join(made)).unwrap();
            assert_eq!(
                (found.uid(), found.gid(), found.mode() & 0o7777),
                (CALLER_ID, CALLER_ID, 0o755)
            );
        }
        assert_eq!(fs::metadata(dir.path()).unwrap().uid(), 0);
        assert!(matches!(
            make_dir(&target, &caller),
            Err(FileError::AlreadyExists(_))
        ));
        fs::write(dir.path().join("f"), "").unwrap();
        for bad in ["f", "f/x", "f/x/y"] {
            let made = make_dir(&dir.path().join(bad), &caller);
            assert!(
                matches!(made, Err(FileError::Invalid(_))),
                "{bad}: {made:?}"
            );
        }
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let made = make_dir(&dir.path().join("dangling/x"), &caller);
        assert!(matches!(made, Err(FileError::Invalid(_))), "{made:?}");
    }

    #[test]
    fn moves() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let run = |from: &str, to: &str| {
            move_entry(
                &at(from),
                &at(to),
                &caller(dir.path()),
                &MetadataStore::default(),
            )
        };
        fs::write(at("f"), "1").unwrap();
        run("f", "new/dir/g").unwrap();
        assert_eq!(fs::read(at("new/dir/g")).unwrap(), b"1");
        assert_eq!(fs::metadata(at("new")).unwrap().uid(), CALLER_ID);
        assert!(matches!(run("f", "x"), Err(FileError::NotFound(_))));
        assert!(!at("y").exists());
        assert!(matches!(run("f", "y/z"), Err(FileError::NotFound(_))));
        assert!(!at("y").exists(), "a refused move makes no parents");
        assert!(matches!(
            run("new", "new/sub/x"),
            Err(FileError::Invalid(_))
        ));
        fs::write(at("over"), "old").unwrap();
        run("new/dir/g", "over").unwrap();
        assert_eq!(fs::read(at("over")).unwrap(), b"1");
        fs::create_dir_all(at("full/x")).unwrap();
        fs::create_dir_all(at("d")).unwrap();
        assert!(matches!(run("d", "full"), Err(FileError::Precondition(_))));
        // A dangling link is something that can be moved.
        symlink("nowhere", at("l")).unwrap();
        run("l", "l2").unwrap();
        assert_eq!(fs::read_link(at("l2")).unwrap(), Path::new("nowhere"));
    }

    #[test]
    fn removal_is_recursive_idempotent_and_keeps_to_itself() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let store = MetadataStore::default();
        fs::create_dir_all(at("keep")).unwrap();
        fs::write(at("keep/f"), "").unwrap();
        fs::create_dir_all(at("d/e")).unwrap();
        fs::write(at("d/e/f"), "").unwrap();
        symlink(at("keep"), at("d/link")).unwrap();
        remove(&at("d"), &store).unwrap();
        assert!(!at("d").exists());
        assert!(at("keep/f").exists(), "a link is removed, not followed");
        remove(&at("d"), &store).unwrap();
        remove(&at("d/x/y"), &store).unwrap();
        symlink(at("keep"), at("l")).unwrap();
        remove(&at("l"), &store).unwrap();
        assert!(at("keep/f").exists());
        remove(&at("keep/f"), &store).unwrap();
        assert!(matches!(
            remove(Path::new("/"), &store),
            Err(FileError::Invalid(_))
        ));
    }
}
