//! The metadata a client may attach to a file it uploads: rules for keys and values, and
//! where they are kept.
//!
//! They are extended attributes (`user.e2b.KEY`) where the file system has them. gVisor's
//! root file system refuses them (runsc 2024-07 answers `EOPNOTSUPP`), and ext4 has room
//! for little; then they are kept in the agent's memory, by inode, in a bounded table.
//! That follows the file through `Move`, through `mv` while its content is unchanged, and
//! through a pause; it does not follow a copy of the disk into another sandbox.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::fault::FileError;

/// In front of a key as an attribute's name.
const PREFIX: &str = "user.e2b.";
/// Longest key in bytes: an attribute's name may have 255, the prefix takes nine.
pub(crate) const MAX_KEY: usize = 246;
/// Keys and values of one file together, in bytes.
pub(crate) const MAX_TOTAL: usize = 4096;
/// Longest list of attribute names the kernel gives (`XATTR_LIST_MAX`).
const MAX_LIST: usize = 64 * 1024;
/// What the table in memory may hold, in bytes of paths, keys and values.
const MAX_TABLE: usize = 8 * 1024 * 1024;

/// Keys and values, checked.
pub(crate) type Pairs = BTreeMap<String, String>;

/// Checks what a client sent. Keys are lower-cased.
///
/// # Errors
/// [`FileError::Invalid`] that names the key and the limit.
pub(crate) fn parse<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<Pairs, FileError> {
    let mut out = Pairs::new();
    let mut total = 0;
    for (key, value) in pairs {
        let key = key.to_ascii_lowercase();
        if key.is_empty() {
            return Err(FileError::Invalid("metadata key is empty".into()));
        }
        if key.len() > MAX_KEY {
            return Err(FileError::Invalid(format!(
                "metadata key has {} bytes; the limit is {MAX_KEY}",
                key.len()
            )));
        }
        let value = std::str::from_utf8(value)
            .ok()
            .filter(|value| is_printable(value) && is_printable(&key))
            .ok_or_else(|| {
                FileError::Invalid(format!(
                    "metadata '{}' has a character that is not printable ASCII",
                    key.escape_default()
                ))
            })?;
        total += key.len() + value.len();
        if total > MAX_TOTAL {
            return Err(FileError::Invalid(format!(
                "metadata has more than {MAX_TOTAL} bytes of keys and values together"
            )));
        }
        out.insert(key, value.to_owned());
    }
    Ok(out)
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Whether the file system took the pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// As attributes of the file, which carries them wherever it goes.
    OnFile,
    /// Not at all: [`MetadataStore::put`] has to.
    Nowhere,
}

/// Replaces all metadata of an open file.
pub(crate) fn attach(file: &File, pairs: &Pairs) -> Kept {
    match try_attach(file, pairs) {
        Ok(()) => Kept::OnFile,
        // Not supported, or no room for attributes on this inode: memory has some. Remove
        // what was set, so that there is one truth.
        Err(_) => {
            for key in pairs.keys() {
                let _absent_is_fine = rustix::fs::fremovexattr(file, format!("{PREFIX}{key}"));
            }
            Kept::Nowhere
        }
    }
}

fn try_attach(file: &File, pairs: &Pairs) -> Result<(), Errno> {
    let mut list = Vec::new();
    match list_names(|buffer| rustix::fs::flistxattr(file, buffer), &mut list) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP) if pairs.is_empty() => return Ok(()),
        Err(errno) => return Err(errno),
    }
    for name in ours(&list).filter(|name| !pairs.contains_key(&name[PREFIX.len()..])) {
        rustix::fs::fremovexattr(file, name)?;
    }
    for (key, value) in pairs {
        rustix::fs::fsetxattr(
            file,
            format!("{PREFIX}{key}"),
            value.as_bytes(),
            XattrFlags::empty(),
        )?;
    }
    Ok(())
}

fn list_names(
    list: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    into: &mut Vec<u8>,
) -> Result<(), Errno> {
    into.resize(MAX_LIST, 0);
    let length = list(into)?;
    into.truncate(length);
    Ok(())
}

/// The names of ours in a list of NUL-ended ones.
fn ours(list: &[u8]) -> impl Iterator<Item = &str> {
    list.split(|byte| *byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| name.starts_with(PREFIX))
}

/// The table in memory, for file systems without attributes.
#[derive(Debug, Default)]
pub(crate) struct MetadataStore {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    records: HashMap<Inode, Record>,
    by_path: HashMap<PathBuf, Inode>,
    bytes: usize,
}

/// Device and inode number.
type Inode = (u64, u64);

#[derive(Debug)]
struct Record {
    path: PathBuf,
    pairs: Pairs,
    /// Size and time of change when recorded: how a file moved by others is known to be
    /// the same, since inode numbers are used again.
    print: (u64, i64, i64),
}

fn print(found: &Metadata) -> (u64, i64, i64) {
    (found.len(), found.mtime(), found.mtime_nsec())
}

impl MetadataStore {
    /// The metadata of the file `found` at `path`.
    pub(crate) fn get(&self, path: &Path, found: &Metadata) -> Pairs {
        let on_file = read_attributes(path);
        if !on_file.is_empty() {
            return on_file;
        }
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        match table.records.get(&(found.dev(), found.ino())) {
            Some(record) if record.path == path || record.print == print(found) => {
                record.pairs.clone()
            }
            _ => Pairs::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.records.is_empty()
    }

    /// Records the pairs of a file just written at `path`, in place of all it had.
    ///
    /// # Errors
    /// [`FileError::Exhausted`] when the table is full of files that still exist.
    pub(crate) fn put(
        &self,
        path: &Path,
        found: &Metadata,
        pairs: &Pairs,
    ) -> Result<(), FileError> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = (found.dev(), found.ino());
        table.remove(inode);
        if let Some(former) = table.by_path.get(path).copied() {
            table.remove(former);
        }
        if pairs.is_empty() {
            return Ok(());
        }
        let record = Record {
            path: path.to_owned(),
            pairs: pairs.clone(),
            print: print(found),
        };
        if table.bytes + record.bytes() > MAX_TABLE {
            table.sweep();
        }
        if table.bytes + record.bytes() > MAX_TABLE {
            return Err(FileError::Exhausted(format!(
                "the metadata of all files together would pass the limit of {MAX_TABLE} bytes"
            )));
        }
        table.insert(inode, record);
        Ok(())
    }

    /// Follows a file or a whole directory to its new path.
    pub(crate) fn moved(&self, from: &Path, to: &Path) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for inode in table.below(from) {
            let Some(mut record) = table.remove(inode) else {
                continue;
            };
            if let Ok(rest) = record.path.strip_prefix(from) {
                record.path = if rest.as_os_str().is_empty() {
                    to.to_owned()
                } else {
                    to.join(rest)
                };
            }
            table.insert(inode, record);
        }
    }

    /// Forgets what was at and below `path`.
    pub(crate) fn removed(&self, path: &Path) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for inode in table.below(path) {
            table.remove(inode);
        }
    }
}

impl Table {
    fn insert(&mut self, inode: Inode, record: Record) {
        if let Some(former) = self.by_path.get(&record.path).copied() {
            self.remove(former);
        }
        self.bytes += record.bytes();
        self.by_path.insert(record.path.clone(), inode);
        self.records.insert(inode, record);
    }

    fn remove(&mut self, inode: Inode) -> Option<Record> {
        let record = self.records.remove(&inode)?;
        self.bytes -= record.bytes();
        self.by_path.remove(&record.path);
        Some(record)
    }

    fn below(&self, path: &Path) -> Vec<Inode> {
        self.records
            .iter()
            .filter(|(_, record)| record.path.starts_with(path))
            .map(|(inode, _)| *inode)
            .collect()
    }

    /// Drops the records of files that are no longer where they were.
    fn sweep(&mut self) {
        let gone: Vec<Inode> = self
            .records
            .iter()
            .filter(|(inode, record)| {
                std::fs::symlink_metadata(&record.path)
                    .map_or(true, |found| (found.dev(), found.ino()) != **inode)
            })
            .map(|(inode, _)| *inode)
            .collect();
        for inode in gone {
            self.remove(inode);
        }
    }
}

impl Record {
    fn bytes(&self) -> usize {
        // The path is held twice; the rest is a guess at the maps' own share.
        256 + 2 * self.path.as_os_str().len()
            + self
                .pairs
                .iter()
                .map(|(key, value)| key.len() + value.len() + 64)
                .sum::<usize>()
    }
}

/// What the attributes say, cut at [`MAX_TOTAL`]: processes in the sandbox write them too.
fn read_attributes(path: &Path) -> Pairs {
    let mut pairs = Pairs::new();
    let mut list = Vec::new();
    if list_names(|buffer| rustix::fs::listxattr(path, buffer), &mut list).is_err() {
        return pairs;
    }
    let mut total = 0;
    let mut buffer = [0u8; MAX_TOTAL];
    for name in ours(&list) {
        let Ok(length) = rustix::fs::getxattr(path, name, &mut buffer[..]) else {
            continue;
        };
        let key = &name[PREFIX.len()..];
        let value = String::from_utf8_lossy(&buffer[..length]);
        total += key.len() + value.len();
        if total > MAX_TOTAL {
            break;
        }
        pairs.insert(key.to_owned(), value.into_owned());
    }
    pairs
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Result<Pairs, FileError> {
        parse(list.iter().map(|(key, value)| (*key, value.as_bytes())))
    }

    #[test]
    fn keys_and_values_are_checked() {
        assert_eq!(pairs(&[("Author", "me")]).unwrap()["author"], "me");
        pairs(&[(&"k".repeat(246), "v")]).unwrap();
        let text = |list: &[(&str, &str)]| pairs(list).unwrap_err().to_string();
        assert!(text(&[(&"k".repeat(247), "v")]).contains("246"));
        assert!(text(&[("", "v")]).contains("empty"));
        assert!(text(&[("k", "caf\u{e9}")]).contains("ASCII"));
        assert!(text(&[("k", "a\tb")]).contains("ASCII"));
        pairs(&[("k", &"v".repeat(4095))]).unwrap();
        assert!(text(&[("k", &"v".repeat(4096))]).contains("4096"));
    }

    #[test]
    fn attributes_are_replaced_as_a_whole() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("f");
        let file = File::create(&path).unwrap();
        let store = MetadataStore::default();
        let look = || store.get(&path, &fs::metadata(&path).unwrap());

        let first = pairs(&[("a", "1"), ("b", "2")]).unwrap();
        assert_eq!(attach(&file, &first), Kept::OnFile);
        assert_eq!(look(), first);
        let second = pairs(&[("b", "3")]).unwrap();
        assert_eq!(attach(&file, &second), Kept::OnFile);
        assert_eq!(look(), second);
        assert_eq!(attach(&file, &Pairs::new()), Kept::OnFile);
        assert_eq!(look(), Pairs::new());
        // More than one inode of ext4 holds: nothing is left half set.
        let large = pairs(&[("a", "1"), ("b", &"v".repeat(4090))]).unwrap();
        if attach(&file, &large) == Kept::Nowhere {
            assert_eq!(look(), Pairs::new());
        }
    }

    #[test]
    fn table_follows_moves_and_knows_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = MetadataStore::default();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "x").unwrap();
        let one = pairs(&[("k", "v")]).unwrap();
        store.put(&a, &fs::metadata(&a).unwrap(), &one).unwrap();
        assert_eq!(store.get(&a, &fs::metadata(&a).unwrap()), one);

        // Content changed in place: still the same file.
        fs::write(&a, "longer").unwrap();
        assert_eq!(store.get(&a, &fs::metadata(&a).unwrap()), one);

        fs::rename(&a, &b).unwrap();
        // Not announced, and changed since: taken for another file.
        assert!(store.get(&b, &fs::metadata(&b).unwrap()).is_empty());
        store.moved(&a, &b);
        assert_eq!(store.get(&b, &fs::metadata(&b).unwrap()), one);

        // A whole directory moves.
        store.moved(dir.path(), Path::new("/elsewhere"));
        assert!(store.get(&b, &fs::metadata(&b).unwrap()).is_empty());
        store.moved(Path::new("/elsewhere"), dir.path());
        assert_eq!(store.get(&b, &fs::metadata(&b).unwrap()), one);

        store.removed(dir.path());
        assert!(store.get(&b, &fs::metadata(&b).unwrap()).is_empty());
        assert_eq!(store.table.lock().unwrap().bytes, 0);
    }

    #[test]
    fn unannounced_move_of_an_unchanged_file_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let store = MetadataStore::default();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "x").unwrap();
        let one = pairs(&[("k", "v")]).unwrap();
        store.put(&a, &fs::metadata(&a).unwrap(), &one).unwrap();
        fs::rename(&a, &b).unwrap();
        assert_eq!(store.get(&b, &fs::metadata(&b).unwrap()), one);
    }

    #[test]
    fn table_is_bounded_and_swept() {
        let dir = tempfile::tempdir().unwrap();
        let store = MetadataStore::default();
        let path = dir.path().join("f");
        fs::write(&path, "x").unwrap();
        let found = fs::metadata(&path).unwrap();
        let big = pairs(&[("k", &"v".repeat(4000))]).unwrap();
        // Records of files that do not exist fill the table, and give way.
        for number in 0..3000u64 {
            let mut table = store.table.lock().unwrap();
            let record = Record {
                path: format!("/nowhere/{number}").into(),
                pairs: big.clone(),
                print: (0, 0, 0),
            };
            if table.bytes + record.bytes() > MAX_TABLE {
                break;
            }
            table.insert((0, number), record);
        }
        store.put(&path, &found, &big).unwrap();
        assert_eq!(store.table.lock().unwrap().records.len(), 1);

        // Files that exist do not.
        let mut number = 0;
        let refused = loop {
            let path = dir.path().join(number.to_string());
            fs::write(&path, "x").unwrap();
            if let Err(error) = store.put(&path, &fs::metadata(&path).unwrap(), &big) {
                break error;
            }
            number += 1;
            assert!(number < 10_000);
        };
        assert!(matches!(refused, FileError::Exhausted(_)), "{refused}");
        assert!(store.table.lock().unwrap().bytes <= MAX_TABLE);
    }
}
