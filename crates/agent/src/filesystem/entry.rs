//! What is said about one file: the fields of `EntryInfo`, independent of its wire form.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::fault::{Doing as _, FileError};
use super::metadata::MetadataStore;
use super::names::Names;

/// Type of an entry. A symbolic link that resolves has the type of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    /// Dangling, or part of a cycle.
    Symlink,
    /// Device, FIFO or socket; clients have no word for these.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) path: String,
    pub(crate) size: i64,
    /// The nine permission bits.
    pub(crate) mode: u32,
    /// Like `-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`.
    pub(crate) permissions: String,
    pub(crate) owner: String,
    pub(crate) group: String,
    /// Seconds and nanoseconds since the epoch.
    pub(crate) modified: (i64, i32),
    pub(crate) symlink_target: Option<String>,
    pub(crate) is_symlink: bool,
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Entry {
    /// Describes what is at `path`, a link itself rather than what it points to.
    ///
    /// # Errors
    /// [`FileError::NotFound`] when nothing is there, and what the kernel says otherwise.
    pub(crate) fn read(
        path: &Path,
        names: &Names,
        store: &MetadataStore,
    ) -> Result<Self, FileError> {
        let found = std::fs::symlink_metadata(path).doing("look at", path)?;
        Ok(Self::describe(path, &found, names, store))
    }

    /// The same from an `lstat` already made.
    pub(crate) fn describe(
        path: &Path,
        found: &Metadata,
        names: &Names,
        store: &MetadataStore,
    ) -> Self {
        let is_symlink = found.file_type().is_symlink();
        let target = if is_symlink {
            std::fs::metadata(path).ok()
        } else {
            None
        };
        let kind = match (&target, is_symlink) {
            (Some(target), _) => kind_of(target),
            (None, true) => Kind::Symlink,
            (None, false) => kind_of(found),
        };
        let symlink_target = is_symlink.then(|| link_target(path, target.is_some()));
        // Metadata lives on the file, so a link shows that of its target.
        let metadata = match kind {
            Kind::File => store.get(path, target.as_ref().unwrap_or(found)),
            Kind::Directory | Kind::Symlink | Kind::Other => BTreeMap::new(),
        };
        Self {
            name: path.file_name().map_or_else(
                || "/".to_owned(),
                |name| name.to_string_lossy().into_owned(),
            ),
            kind,
            path: path.to_string_lossy().into_owned(),
            size: i64::try_from(found.len()).unwrap_or(i64::MAX),
            mode: found.mode() & 0o777,
            permissions: permissions(found),
            owner: names.user(found.uid()),
            group: names.group(found.gid()),
            modified: (
                found.mtime(),
                i32::try_from(found.mtime_nsec()).unwrap_or(0),
            ),
            symlink_target: symlink_target.map(|target| target.to_string_lossy().into_owned()),
            is_symlink,
            metadata,
        }
    }
}

/// The resolved target of a link that leads somewhere; else what the link says, made
/// absolute.
fn link_target(path: &Path, resolves: bool) -> PathBuf {
    if resolves && let Ok(target) = std::fs::canonicalize(path) {
        return target;
    }
    let said = std::fs::read_link(path).unwrap_or_default();
    let parent = path.parent().unwrap_or(Path::new("/"));
    super::path::clean(&parent.join(said))
}

fn kind_of(found: &Metadata) -> Kind {
    let kind = found.file_type();
    if kind.is_file() {
        Kind::File
    } else if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Symlink
    } else {
        Kind::Other
    }
}

/// Mode as text in the notation of Go's `FileMode`, which clients were written against:
/// the type and the special bits in front, `-` when there are none, then nine letters.
fn permissions(found: &Metadata) -> String {
    let mode = found.mode();
    let kind = found.file_type();
    let mut text = String::with_capacity(11);
    let marks = [
        (kind.is_dir(), "d"),
        (kind.is_symlink(), "L"),
        (kind.is_block_device(), "D"),
        (kind.is_fifo(), "p"),
        (kind.is_socket(), "S"),
        (mode & 0o4000 != 0, "u"),
        (mode & 0o2000 != 0, "g"),
        (kind.is_char_device(), "Dc"),
        (mode & 0o1000 != 0, "t"),
    ];
    for (holds, mark) in marks {
        if holds {
            text.push_str(mark);
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for bit in (0..9).rev() {
        let letter = ['x', 'w', 'r'][bit % 3];
        text.push(if mode & (1 << bit) == 0 { '-' } else { letter });
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn read(path: &Path) -> Entry {
        Entry::read(path, &Names::load(), &MetadataStore::default()).unwrap()
    }

    #[test]
    fn file_directory_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let file = root.join("a.txt");
        fs::write(&file, "hello").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let entry = read(&file);
        assert_eq!(
            (entry.kind, entry.size, entry.mode, &*entry.permissions),
            (Kind::File, 5, 0o644, "-rw-r--r--")
        );
        assert_eq!(
            (&*entry.name, Path::new(&entry.path), &*entry.owner),
            ("a.txt", &*file, "root")
        );
        assert_eq!((entry.is_symlink, entry.symlink_target), (false, None));

        fs::create_dir(root.join("d")).unwrap();
        fs::set_permissions(root.join("d"), Permissions::from_mode(0o1755)).unwrap();
        let entry = read(&root.join("d"));
        assert_eq!(
            (entry.kind, &*entry.permissions),
            (Kind::Directory, "dtrwxr-xr-x")
        );

        symlink("a.txt", root.join("l")).unwrap();
        let entry = read(&root.join("l"));
        assert_eq!(
            (entry.kind, &*entry.permissions, entry.is_symlink),
            (Kind::File, "Lrwxrwxrwx", true)
        );
        assert_eq!(entry.symlink_target.as_deref(), file.to_str());

        symlink("gone", root.join("dangling")).unwrap();
        let entry = read(&root.join("dangling"));
        assert_eq!(entry.kind, Kind::Symlink);
        assert_eq!(entry.symlink_target.as_deref(), root.join("gone").to_str());

        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(read(&root.join("loop")).kind, Kind::Symlink);

        let missing = Entry::read(
            &root.join("no"),
            &Names::default(),
            &MetadataStore::default(),
        );
        assert!(matches!(missing, Err(FileError::NotFound(_))));
    }

    #[test]
    fn devices_have_no_kind() {
        let entry = read(Path::new("/dev/null"));
        assert_eq!(
            (entry.kind, &*entry.permissions),
            (Kind::Other, "Dcrw-rw-rw-")
        );
        assert_eq!(read(Path::new("/")).name, "/");
    }
}
