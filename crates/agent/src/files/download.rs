//! Reading a file for `GET /files`: how long the answer is, and its bytes piece by piece.
//! A slow client holds one piece in memory and no thread.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream::{self, Stream};

use crate::filesystem::fault::{Doing as _, FileError};
use crate::filesystem::{blocking, open_plain};

/// Bytes read at once. Files shorter than this are read before the answer begins.
const CHUNK: usize = 128 * 1024;
/// Bytes enough to tell text from something else.
const SNIFF: usize = 512;

/// An opened file and what is known of its length.
#[derive(Debug)]
pub(crate) struct Source {
    file: Arc<File>,
    pub(crate) modified: SystemTime,
    pub(crate) content: Content,
    /// For telling the media type.
    pub(crate) start: Bytes,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// The whole of it. The size in its inode may be a lie, as in `/proc` and `/sys`.
    Read(Bytes),
    Size(u64),
    /// It is longer than its inode says: only its end tells.
    Unknown,
}

impl Content {
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Self::Read(bytes) => u64::try_from(bytes.len()).ok(),
            Self::Size(size) => Some(*size),
            Self::Unknown => None,
        }
    }
}

impl Source {
    /// Opens `path`. Blocks.
    ///
    /// # Errors
    /// [`FileError::NotFound`]; [`FileError::Invalid`] for what is no regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        // Asked before opening too: to open a device can do something to it.
        check_kind(path, &std::fs::metadata(path).doing("read", path)?)?;
        let file = open_plain(path).doing("read", path)?;
        let found = file.metadata().doing("read", path)?;
        check_kind(path, &found)?;
        let size = found.len();
        let chunk = u64::try_from(CHUNK).unwrap_or(u64::MAX);
        let mut start = Vec::new();
        let content = if size < chunk {
            (&file)
                .take(chunk)
                .read_to_end(&mut start)
                .doing("read", path)?;
            if start.len() < CHUNK {
                Content::Read(Bytes::new())
            } else {
                Content::Unknown
            }
        } else {
            start.resize(SNIFF, 0);
            let read = file.read_at(&mut start, 0).doing("read", path)?;
            start.truncate(read);
            Content::Size(size)
        };
        let start = Bytes::from(start);
        Ok(Self {
            file: Arc::new(file),
            modified: found.modified().unwrap_or(UNIX_EPOCH),
            content: match content {
                Content::Read(_) => Content::Read(start.clone()),
                other => other,
            },
            start: start.slice(..start.len().min(SNIFF)),
        })
    }

    /// The bytes from `offset` on: `length` of them exactly, or all there are.
    pub(crate) fn stream(
        self,
        offset: u64,
        length: Option<u64>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        let cursor = Cursor {
            source: self,
            offset,
            left: length,
        };
        stream::try_unfold(cursor, |mut cursor| async move {
            blocking(move || {
                let bytes = cursor.next()?;
                Ok((!bytes.is_empty()).then_some((bytes, cursor)))
            })
            .await
            .map_err(io::Error::other)?
        })
    }

    /// The whole file, compressed.
    pub(crate) fn gzip_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        let left = self.content.size();
        let cursor = Cursor {
            source: self,
            offset: 0,
            left,
        };
        // The fastest level: the wire is nearer than the next core.
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        stream::try_unfold(Some((cursor, encoder)), |state| async move {
            let Some((mut cursor, mut encoder)) = state else {
                return Ok(None);
            };
            blocking(move || {
                loop {
                    let bytes = cursor.next()?;
                    if bytes.is_empty() {
                        let rest = encoder.finish()?;
                        return Ok(Some((Bytes::from(rest), None)));
                    }
                    encoder.write_all(&bytes)?;
                    let ready = std::mem::take(encoder.get_mut());
                    if !ready.is_empty() {
                        return Ok(Some((Bytes::from(ready), Some((cursor, encoder)))));
                    }
                }
            })
            .await
            .map_err(io::Error::other)?
        })
    }
}

fn check_kind(path: &Path, found: &std::fs::Metadata) -> Result<(), FileError> {
    if found.is_dir() {
        return Err(FileError::Invalid(format!(
            "path '{}' is a directory",
            path.display()
        )));
    }
    if !found.is_file() {
        return Err(FileError::Invalid(format!(
            "path '{}' is not a regular file",
            path.display()
        )));
    }
    Ok(())
}

struct Cursor {
    source: Source,
    offset: u64,
    left: Option<u64>,
}

impl Cursor {
    /// The next bytes; empty at the end. Blocks.
    fn next(&mut self) -> io::Result<Bytes> {
        if self.left == Some(0) {
            return Ok(Bytes::new());
        }
        if let Content::Read(bytes) = &self.source.content {
            let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
            let wanted = self
                .left
                .and_then(|left| usize::try_from(left).ok())
                .unwrap_or(usize::MAX);
            let end = start.saturating_add(wanted).min(bytes.len());
            self.left = Some(0);
            return Ok(bytes.slice(start.min(end)..end));
        }
        let wanted = self
            .left
            .and_then(|left| usize::try_from(left).ok())
            .map_or(CHUNK, |left| left.min(CHUNK));
        let mut buffer = vec![0; wanted];
        let read = loop {
            match self.source.file.read_at(&mut buffer, self.offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        buffer.truncate(read);
        let count = u64::try_from(read).unwrap_or(0);
        self.offset += count;
        match &mut self.left {
            Some(_) if read == 0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file became shorter while it was sent",
                ));
            }
            Some(left) => *left -= count,
            None => {}
        }
        Ok(Bytes::from(buffer))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use flate2::read::GzDecoder;
    use futures::TryStreamExt as _;

    use super::*;

    async fn collect(stream: impl Stream<Item = io::Result<Bytes>>) -> io::Result<Vec<u8>> {
        stream
            .try_fold(Vec::new(), |mut all, bytes| async move {
                assert!(bytes.len() <= CHUNK);
                all.extend_from_slice(&bytes);
                Ok(all)
            })
            .await
    }

    #[tokio::test]
    async fn small_large_and_parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for size in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5] {
            let content: Vec<u8> = (0..size)
                .map(|at| u8::try_from(at % 251).unwrap())
                .collect();
            fs::write(&path, &content).unwrap();
            let open = || Source::open(&path).unwrap();
            assert_eq!(open().content.size(), Some(u64::try_from(size).unwrap()));
            let length = open().content.size();
            assert_eq!(collect(open().stream(0, length)).await.unwrap(), content);
            let zipped = collect(open().gzip_stream()).await.unwrap();
            let mut unzipped = Vec::new();
            GzDecoder::new(&zipped[..])
                .read_to_end(&mut unzipped)
                .unwrap();
            assert_eq!(unzipped, content);
            if size > 10 {
                let part = collect(open().stream(3, Some(5))).await.unwrap();
                assert_eq!(part, content[3..8]);
            }
        }
    }

    #[tokio::test]
    async fn files_that_say_they_are_empty_or_longer() {
        let source = Source::open(Path::new("/proc/sys/kernel/random/boot_id")).unwrap();
        assert_eq!(source.content.size(), Some(37));
        let text = collect(source.stream(0, None)).await.unwrap();
        assert_eq!(text, fs::read("/proc/sys/kernel/random/boot_id").unwrap());
    }

    #[tokio::test]
    async fn a_file_that_shrinks_breaks_the_stream() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![1; 3 * CHUNK]).unwrap();
        let source = Source::open(&path).unwrap();
        let length = source.content.size();
        fs::write(&path, b"x").unwrap();
        let error = collect(source.stream(0, length)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
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
        for bad in [dir.path(), &fifo, Path::new("/dev/zero")] {
            assert!(matches!(Source::open(bad), Err(FileError::Invalid(_))));
        }
        assert!(matches!(
            Source::open(&dir.path().join("no")),
            Err(FileError::NotFound(_))
        ));
    }
}
