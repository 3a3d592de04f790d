//! Removing a whole tree, however deep: with two descriptors and a list of names, so that
//! a tree a guest made to exhaust the stack, the descriptors or `PATH_MAX` is removed like
//! any other. (The standard library's keeps one descriptor and one stack frame per level.)

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::fault::{Doing as _, FileError};

/// Levels below the root of a removal: what the names of the way back may take in memory.
const MAX_DEPTH: usize = 100_000;

/// Removes `path` and everything below it, following no link. Nothing there is success.
pub(crate) fn remove(path: &Path) -> Result<(), FileError> {
    match rustix::fs::unlink(path) {
        // A path through a file names nothing.
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno).doing("remove", path),
    }
    empty(path)?;
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno).doing("remove", path),
    }
}

const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Removes everything in the directory `path`.
fn empty(path: &Path) -> Result<(), FileError> {
    let mut here = rustix::fs::openat(CWD, path, OPEN, Mode::empty()).doing("remove", path)?;
    // Names from the root to `here`, each with the identity of the directory that has it.
    let mut way: Vec<(CString, (u64, u64))> = Vec::new();
    loop {
        match clear_until_directory(&here).doing("remove", path)? {
            Some(name) => {
                if way.len() == MAX_DEPTH {
                    return Err(FileError::Exhausted(format!(
                        "'{}' is more than {MAX_DEPTH} directories deep",
                        path.display()
                    )));
                }
                let identity = identity(&here).doing("remove", path)?;
                match rustix::fs::openat(&here, &name, OPEN, Mode::empty()) {
                    Ok(inner) => {
                        way.push((name, identity));
                        here = inner;
                    }
                    // Changed under us: look again.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(errno) => return Err(errno).doing("remove", path),
                }
            }
            None => {
                let Some((name, parent)) = way.pop() else {
                    return Ok(());
                };
                here =
                    rustix::fs::openat(&here, c"..", OPEN, Mode::empty()).doing("remove", path)?;
                // Someone moved the directory we were in: go on elsewhere would be to
                // remove what nobody asked for.
                if self::identity(&here).doing("remove", path)? != parent {
                    return Err(FileError::Precondition(format!(
                        "'{}' was moved while it was being removed",
                        path.display()
                    )));
                }
                match rustix::fs::unlinkat(&here, &name, AtFlags::REMOVEDIR) {
                    // Filled again meanwhile: the next look enters it once more.
                    Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => {}
                    Err(errno) => return Err(errno).doing("remove", path),
                }
            }
        }
    }
}

/// Unlinks what is in `dir` up to the first directory that is not empty, and names that;
/// none: the directory is empty.
fn clear_until_directory(dir: &OwnedFd) -> Result<Option<CString>, Errno> {
    loop {
        let mut removed = false;
        for item in Dir::read_from(dir)? {
            let item = item?;
            let name = item.file_name();
            if is_dots(name) {
                continue;
            }
            if item.file_type() != FileType::Directory {
                match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {
                        removed = true;
                        continue;
                    }
                    // The type was unknown or has changed.
                    Err(Errno::ISDIR | Errno::PERM) => {}
                    Err(errno) => return Err(errno),
                }
            }
            match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => removed = true,
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_owned())),
                Err(errno) => return Err(errno),
            }
        }
        // Removing while reading may make a read skip something: read again until a
        // whole pass found nothing.
        if !removed {
            return Ok(None);
        }
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn identity(dir: &OwnedFd) -> Result<(u64, u64), Errno> {
    let Stat { st_dev, st_ino, .. } = rustix::fs::fstat(dir)?;
    Ok((st_dev, st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeper_than_any_path_or_stack() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep");
        std::fs::create_dir(&root).unwrap();
        let mut here = rustix::fs::openat(CWD, &root, OPEN, Mode::empty()).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
            here = rustix::fs::openat(&here, "d", OPEN, Mode::empty()).unwrap();
        }
        drop(here);
        let root_for_thread = root.clone();
        std::thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || remove(&root_for_thread).unwrap())
            .unwrap()
            .join()
            .unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn wide() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("wide");
        for number in 0..200 {
            let sub = root.join(format!("s{number}"));
            std::fs::create_dir_all(&sub).unwrap();
            for file in 0..20 {
                std::fs::write(sub.join(format!("f{file}")), "").unwrap();
            }
        }
        remove(&root).unwrap();
        assert!(!root.exists());
    }
}
