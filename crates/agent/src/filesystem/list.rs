//! Listing a directory to a depth: each directory's entries sorted by name, a directory
//! before what is in it. Links inside are shown and not entered.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::fault::{Doing as _, FileError};
use super::metadata::MetadataStore;
use super::names::Names;

/// Entries of one answer. An answer is one message and so lives in memory, about a
/// kilobyte each with its text.
pub(crate) const MAX_ENTRIES: usize = 50_000;

/// Everything below `root` down to `depth` levels; 0 means 1, as clients have it. A root
/// that is a link is followed, and entries are reported below the path asked for.
///
/// # Errors
/// [`FileError::NotFound`]; [`FileError::Invalid`] for what is no directory;
/// [`FileError::Precondition`] for a cycle of links; [`FileError::Exhausted`] for more
/// than [`MAX_ENTRIES`] entries.
pub(crate) fn list(
    root: &Path,
    depth: u32,
    store: &MetadataStore,
) -> Result<Vec<Entry>, FileError> {
    let found = std::fs::metadata(root).doing("list", root)?;
    if !found.is_dir() {
        return Err(FileError::Invalid(format!(
            "path '{}' is not a directory",
            root.display()
        )));
    }
    let depth = usize::try_from(depth.max(1)).unwrap_or(usize::MAX);
    let names = Names::load();
    let mut entries = Vec::new();
    // One sorted list of names per open level, last name first.
    let mut levels = vec![Level::read(root.to_owned(), 0)?];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            levels.pop();
            continue;
        };
        let path = level.path.join(name);
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            // Gone since it was listed.
            continue;
        };
        if entries.len() == MAX_ENTRIES {
            return Err(too_many(root));
        }
        entries.push(Entry::describe(&path, &found, &names, store));
        if found.is_dir() && levels.len() < depth {
            // Names still waiting become entries too, so they count.
            let waiting: usize = levels.iter().map(|level| level.names.len()).sum();
            match Level::read(path, entries.len() + waiting) {
                Ok(level) => levels.push(level),
                // Gone since, or deeper than a path can say: it is listed, not entered.
                Err(FileError::NotFound(_) | FileError::Invalid(_)) => {}
                Err(other) => return Err(other),
            }
        }
    }
    Ok(entries)
}

struct Level {
    path: PathBuf,
    /// Sorted backwards, so that the next one is popped.
    names: Vec<OsString>,
}

impl Level {
    fn read(path: PathBuf, before: usize) -> Result<Self, FileError> {
        let mut names = Vec::new();
        for item in std::fs::read_dir(&path).doing("list", &path)? {
            if before + names.len() == MAX_ENTRIES {
                return Err(too_many(&path));
            }
            names.push(item.doing("list", &path)?.file_name());
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { path, names })
    }
}

fn too_many(path: &Path) -> FileError {
    FileError::Exhausted(format!(
        "listing '{}' has more than {MAX_ENTRIES} entries; ask for less depth or for a directory in it",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn paths(root: &Path, depth: u32) -> Vec<String> {
        list(root, depth, &MetadataStore::default())
            .unwrap()
            .into_iter()
            .map(|entry| {
                entry
                    .path
                    .strip_prefix(&format!("{}/", root.display()))
                    .expect("below the root asked for")
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn order_depth_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("r");
        fs::create_dir_all(root.join("b/c")).unwrap();
        fs::write(root.join("b/c/deep"), "").unwrap();
        fs::write(root.join("b.txt"), "").unwrap();
        fs::write(root.join("a"), "").unwrap();
        fs::write(root.join("Z"), "").unwrap();
        symlink("b", root.join("link")).unwrap();
        assert_eq!(paths(&root, 0), ["Z", "a", "b", "b.txt", "link"]);
        assert_eq!(paths(&root, 1), paths(&root, 0));
        assert_eq!(paths(&root, 2), ["Z", "a", "b", "b/c", "b.txt", "link"]);
        assert_eq!(
            paths(&root, u32::MAX),
            ["Z", "a", "b", "b/c", "b/c/deep", "b.txt", "link"]
        );

        symlink(&root, dir.path().join("to-root")).unwrap();
        assert_eq!(paths(&dir.path().join("to-root"), 1).len(), 5);
    }

    #[test]
    fn refusals() {
        let dir = tempfile::tempdir().unwrap();
        let list = |name: &str| list(&dir.path().join(name), 1, &MetadataStore::default());
        fs::write(dir.path().join("f"), "").unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(matches!(list("no"), Err(FileError::NotFound(_))));
        assert!(matches!(list("f"), Err(FileError::Invalid(_))));
        assert!(matches!(list("f/x"), Err(FileError::Invalid(_))));
        assert!(matches!(list("loop"), Err(FileError::Precondition(_))));
    }

    #[test]
    fn name_that_is_not_text_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(OsString::from_vec(vec![b'a', 0xff])), "").unwrap();
        assert_eq!(paths(dir.path(), 1), ["a\u{fffd}"]);
    }

    #[test]
    fn too_many_entries_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..=MAX_ENTRIES {
            std::os::unix::fs::symlink("x", dir.path().join(number.to_string())).unwrap();
        }
        let refused = list(dir.path(), 1, &MetadataStore::default()).unwrap_err();
        assert!(refused.to_string().contains("50000"), "{refused}");
    }
}
