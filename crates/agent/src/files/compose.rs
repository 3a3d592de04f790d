//! `POST /files/compose`: several files become one, in order, and are gone afterwards.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::filesystem::fault::{Doing as _, FileError};
use crate::filesystem::metadata::{MetadataStore, Pairs};
use crate::filesystem::open_plain;
use crate::filesystem::path::{Caller, resolve};

use super::staged::StagedFile;

/// Sources of one request.
pub(crate) const MAX_SOURCES: usize = 10_000;
/// Bytes copied at once.
const CHUNK: usize = 256 * 1024;

/// Tells a copy that nobody waits for it any more, when dropped.
#[derive(Debug, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Concatenates `sources` into `destination` and removes them. Blocks. The destination is
/// whole or as it was; sources are removed only once it is whole.
///
/// # Errors
/// [`FileError::NotFound`] for a source that is missing; [`FileError::Invalid`] for one
/// that is no regular file, for none and for too many.
pub(crate) fn compose(
    sources: &[String],
    destination: &str,
    caller: &Caller,
    store: &MetadataStore,
    abandoned: &AtomicBool,
) -> Result<PathBuf, FileError> {
    if sources.is_empty() {
        return Err(FileError::Invalid("source_paths is empty".into()));
    }
    if sources.len() > MAX_SOURCES {
        return Err(FileError::Invalid(format!(
            "source_paths has {} entries; the limit is {MAX_SOURCES}",
            sources.len()
        )));
    }
    let destination = resolve(destination, caller)?;
    let sources = sources
        .iter()
        .map(|source| resolve(source, caller))
        .collect::<Result<Vec<_>, _>>()?;
    // All are looked at before anything is written.
    for source in &sources {
        let found = std::fs::metadata(source).doing("read", source)?;
        if !found.is_file() {
            return Err(FileError::Invalid(format!(
                "path '{}' is not a regular file",
                source.display()
            )));
        }
    }
    let mut staged = StagedFile::begin(&destination, caller)?;
    let target = staged.target().to_owned();
    let mut buffer = vec![0; CHUNK];
    for source in &sources {
        let mut file = open_plain(source).doing("read", source)?;
        loop {
            if abandoned.load(Ordering::Relaxed) {
                return Err(FileError::Precondition("the request was given up".into()));
            }
            let read = file.read(&mut buffer).doing("read", source)?;
            if read == 0 {
                break;
            }
            staged.write(&buffer[..read])?;
        }
    }
    staged.commit(&Pairs::new(), store)?;
    for source in &sources {
        // One of the sources may be the destination itself, by this name or another.
        if std::fs::canonicalize(source).is_ok_and(|real| real == target) {
            continue;
        }
        match std::fs::remove_file(source) {
            // Named twice.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.doing("remove", source)?,
        }
        store.removed(source);
    }
    Ok(destination)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(
        dir: &std::path::Path,
        sources: &[&str],
        destination: &str,
    ) -> Result<PathBuf, FileError> {
        let caller = Caller {
            uid: 0,
            gid: 0,
            home: dir.to_owned(),
            workdir: None,
        };
        let sources: Vec<String> = sources.iter().map(|text| (*text).to_owned()).collect();
        compose(
            &sources,
            destination,
            &caller,
            &MetadataStore::default(),
            &AtomicBool::new(false),
        )
    }

    #[test]
    fn in_order_and_sources_are_gone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        fs::write(dir.path().join("b"), "2").unwrap();
        let made = run(dir.path(), &["b", "a", "b"], "new/c").unwrap();
        assert_eq!(fs::read(made).unwrap(), b"212");
        assert!(!dir.path().join("a").exists() && !dir.path().join("b").exists());
    }

    #[test]
    fn destination_may_be_a_source() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        fs::write(dir.path().join("b"), "2").unwrap();
        run(dir.path(), &["a", "b"], "a").unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"12");
        assert!(!dir.path().join("b").exists());
    }

    #[test]
    fn a_missing_source_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        fs::write(dir.path().join("c"), "old").unwrap();
        assert!(matches!(
            run(dir.path(), &["a", "no"], "c"),
            Err(FileError::NotFound(_))
        ));
        assert!(matches!(
            run(dir.path(), &[], "c"),
            Err(FileError::Invalid(_))
        ));
        assert!(matches!(
            run(dir.path(), &["a", "."], "c"),
            Err(FileError::Invalid(_))
        ));
        assert_eq!(fs::read(dir.path().join("c")).unwrap(), b"old");
        assert!(dir.path().join("a").exists());
    }
}
