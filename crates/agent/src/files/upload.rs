//! One `POST /files`, from its first byte to the files it names. Blocks; it is fed piece
//! by piece, holds one piece at most, and drops without a trace.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use flate2::write::MultiGzDecoder;

use super::multipart::{MultipartError, Parser, Piece};
use super::staged::StagedFile;
use crate::filesystem::fault::FileError;
use crate::filesystem::metadata::{MetadataStore, Pairs};
use crate::filesystem::path::{Caller, resolve};

/// Bytes of the paths of one request: what is held for each file until the last arrived.
const MAX_PATHS: usize = 4 * 1024 * 1024;
/// The one name of a form's part that we take.
const PART: &str = "file";

#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Multipart(#[from] MultipartError),
    #[error("gzip body is corrupt or ends too early")]
    Gzip,
    #[error("path '{}' is named twice in one upload", .0.display())]
    Twice(PathBuf),
    #[error("multipart part has no filename and the request has no path")]
    NoPath,
    #[error("multipart body has no part named '{PART}'")]
    NoPart,
    #[error("paths of one upload have more than {MAX_PATHS} bytes together")]
    TooManyPaths,
}

/// What an upload is for.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) caller: Caller,
    /// As the request gave it.
    pub(crate) path: Option<String>,
    pub(crate) pairs: Pairs,
    pub(crate) store: Arc<MetadataStore>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
}

/// An upload in progress.
#[derive(Debug)]
pub(crate) struct Upload {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Plain(Box<Receiver>),
    Gzip {
        decoder: Box<MultiGzDecoder<Receiver>>,
        is_empty: bool,
    },
}

impl Upload {
    /// An upload whose whole body is the file.
    ///
    /// # Errors
    /// As [`StagedFile::begin`], and without a path.
    pub(crate) fn octets(order: Order, encoding: Encoding) -> Result<Self, UploadError> {
        let path = order.path.clone().ok_or(UploadError::NoPath)?;
        let mut receiver = Receiver::new(order, None);
        receiver.begin(&path)?;
        Ok(Self::new(receiver, encoding))
    }

    /// An upload whose body is a form.
    pub(crate) fn form(order: Order, boundary: &str, encoding: Encoding) -> Self {
        Self::new(Receiver::new(order, Some(Parser::new(boundary))), encoding)
    }

    fn new(receiver: Receiver, encoding: Encoding) -> Self {
        Self {
            stage: match encoding {
                Encoding::Identity => Stage::Plain(Box::new(receiver)),
                Encoding::Gzip => Stage::Gzip {
                    decoder: Box::new(MultiGzDecoder::new(receiver)),
                    is_empty: true,
                },
            },
        }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        match &mut self.stage {
            Stage::Plain(receiver) => receiver.take(bytes),
            Stage::Gzip { decoder, is_empty } => {
                *is_empty &= bytes.is_empty();
                match decoder.write_all(bytes) {
                    Ok(()) => Ok(()),
                    Err(_) => Err(decoder
                        .get_mut()
                        .failure
                        .take()
                        .unwrap_or(UploadError::Gzip)),
                }
            }
        }
    }

    /// Ends the upload and gives the files their names, all or none of them as far as the
    /// kernel allows: renames come last.
    pub(crate) fn finish(self) -> Result<Vec<PathBuf>, UploadError> {
        let mut receiver = match self.stage {
            Stage::Plain(receiver) => *receiver,
            Stage::Gzip { is_empty: true, .. } => return Err(UploadError::Gzip),
            Stage::Gzip { mut decoder, .. } => match decoder.try_finish() {
                Ok(()) => decoder.finish().map_err(|_| UploadError::Gzip)?,
                Err(_) => {
                    return Err(decoder
                        .get_mut()
                        .failure
                        .take()
                        .unwrap_or(UploadError::Gzip));
                }
            },
        };
        receiver.finish()
    }
}

/// The end of the pipe: the decoded body.
#[derive(Debug)]
struct Receiver {
    order: Order,
    /// None: the body is the file.
    parser: Option<Parser>,
    current: Option<StagedFile>,
    complete: Vec<StagedFile>,
    /// Where the files of this upload really are.
    targets: HashSet<PathBuf>,
    path_bytes: usize,
    /// Why a write of the decoder failed, since it can only pass on an `io::Error`.
    failure: Option<UploadError>,
}

impl Receiver {
    fn new(order: Order, parser: Option<Parser>) -> Self {
        Self {
            order,
            parser,
            current: None,
            complete: Vec::new(),
            targets: HashSet::new(),
            path_bytes: 0,
            failure: None,
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        let Some(mut parser) = self.parser.take() else {
            return self.data(bytes);
        };
        let outcome = parser.feed(bytes, &mut |piece| match piece {
            Piece::Begin(part) if part.name != PART => Ok(()),
            Piece::Begin(part) => {
                // An explicit path wins; else the part's filename is the whole path.
                let path = self
                    .order
                    .path
                    .clone()
                    .or(part.filename)
                    .filter(|path| !path.is_empty())
                    .ok_or(UploadError::NoPath)?;
                self.begin(&path)
            }
            Piece::Data(data) => self.data(data),
            Piece::End => self.end(),
        });
        self.parser = Some(parser);
        outcome
    }

    fn begin(&mut self, path: &str) -> Result<(), UploadError> {
        let path = resolve(path, &self.order.caller)?;
        self.path_bytes += 3 * path.as_os_str().len() + 256;
        if self.path_bytes > MAX_PATHS {
            return Err(UploadError::TooManyPaths);
        }
        let staged = StagedFile::begin(&path, &self.order.caller)?;
        if !self.targets.insert(staged.target().to_owned()) {
            return Err(UploadError::Twice(path));
        }
        self.current = Some(staged);
        Ok(())
    }

    /// Parts of other names have no file to go to.
    fn data(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        match &mut self.current {
            Some(staged) => Ok(staged.write(bytes)?),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), UploadError> {
        if let Some(mut staged) = self.current.take() {
            staged.seal(&self.order.pairs)?;
            self.complete.push(staged);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<PathBuf>, UploadError> {
        match &self.parser {
            Some(parser) => parser.finish()?,
            None => self.end()?,
        }
        if self.complete.is_empty() {
            return Err(UploadError::NoPart);
        }
        let mut written = Vec::with_capacity(self.complete.len());
        for staged in std::mem::take(&mut self.complete) {
            let path = staged.path().to_owned();
            staged.commit(&self.order.pairs, &self.order.store)?;
            written.push(path);
        }
        Ok(written)
    }
}

impl Write for Receiver {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.take(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.failure = Some(error);
                Err(io::Error::other("upload refused"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn order(home: &Path, path: Option<&str>) -> Order {
        Order {
            caller: Caller {
                uid: 0,
                gid: 0,
                home: home.to_owned(),
                workdir: None,
            },
            path: path.map(str::to_owned),
            pairs: Pairs::new(),
            store: Arc::default(),
        }
    }

    fn run(mut upload: Upload, body: &[u8], step: usize) -> Result<Vec<PathBuf>, UploadError> {
        for bytes in body.chunks(step) {
            upload.feed(bytes)?;
        }
        upload.finish()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn octets(home: &Path, body: &[u8], encoding: Encoding) -> Result<Vec<PathBuf>, UploadError> {
        run(Upload::octets(order(home, Some("f")), encoding)?, body, 7)
    }

    fn form(
        home: &Path,
        path: Option<&str>,
        parts: &[(&str, &str)],
    ) -> Result<Vec<PathBuf>, UploadError> {
        let mut body = String::new();
        for (disposition, data) in parts {
            body.push_str(&format!(
                "--B\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{data}\r\n"
            ));
        }
        body.push_str("--B--\r\n");
        run(
            Upload::form(order(home, path), "B", Encoding::Identity),
            body.as_bytes(),
            5,
        )
    }

    fn only(home: &Path, expected: &[&str]) {
        let mut names: Vec<String> = fs::read_dir(home)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, expected);
    }

    #[test]
    fn octets_plain_gzip_and_empty() {
        let dir = tempfile::tempdir().unwrap();
        let read = || fs::read(dir.path().join("f")).unwrap();
        let written = octets(dir.path(), b"hello", Encoding::Identity).unwrap();
        assert_eq!(written, [dir.path().join("f")]);
        assert_eq!(read(), b"hello");
        octets(dir.path(), b"", Encoding::Identity).unwrap();
        assert_eq!(read(), b"");
        octets(dir.path(), &gzip(b"zipped"), Encoding::Gzip).unwrap();
        assert_eq!(read(), b"zipped");
        octets(dir.path(), &gzip(b""), Encoding::Gzip).unwrap();
        assert_eq!(read(), b"");
        // Two members one after the other are one file (RFC 1952 2.2).
        let two = [gzip(b"one "), gzip(b"two")].concat();
        octets(dir.path(), &two, Encoding::Gzip).unwrap();
        assert_eq!(read(), b"one two");
        let big = vec![0u8; 3_000_000];
        octets(dir.path(), &gzip(&big), Encoding::Gzip).unwrap();
        assert_eq!(read(), big);
        assert!(matches!(
            Upload::octets(order(dir.path(), None), Encoding::Identity),
            Err(UploadError::NoPath)
        ));
    }

    #[test]
    fn broken_gzip_leaves_the_target_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        octets(dir.path(), b"old", Encoding::Identity).unwrap();
        let good = gzip(&b"some text to compress ".repeat(50));
        for length in 0..good.len() {
            let outcome = octets(dir.path(), &good[..length], Encoding::Gzip);
            assert!(
                matches!(outcome, Err(UploadError::Gzip)),
                "{length}: {outcome:?}"
            );
        }
        for at in [0, 1, 2, 15, 30, good.len() - 8, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x5a;
            let outcome = octets(dir.path(), &bad, Encoding::Gzip);
            assert!(
                matches!(outcome, Err(UploadError::Gzip)),
                "{at}: {outcome:?}"
            );
        }
        let outcome = octets(dir.path(), b"not gzip at all, but long", Encoding::Gzip);
        assert!(matches!(outcome, Err(UploadError::Gzip)));
        let trailing = [&good[..], b"trailing rubbish"].concat();
        let outcome = octets(dir.path(), &trailing, Encoding::Gzip);
        assert!(matches!(outcome, Err(UploadError::Gzip)), "{outcome:?}");
        assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"old");
        only(dir.path(), &["f"]);
    }

    #[test]
    fn forms() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let written = form(
            dir.path(),
            None,
            &[
                (r#"name="file"; filename="a/b.txt""#, "one"),
                (r#"name="note""#, "ignored"),
                (r#"name="file"; filename="c""#, ""),
            ],
        )
        .unwrap();
        assert_eq!(written, [dir.path().join("a/b.txt"), dir.path().join("c")]);
        assert_eq!((read("a/b.txt"), read("c")), ("one".into(), String::new()));
        form(dir.path(), Some("p"), &[("name=file", "plain field")]).unwrap();
        assert_eq!(read("p"), "plain field");
        form(
            dir.path(),
            Some("p"),
            &[(r#"name="file"; filename="other""#, "path wins")],
        )
        .unwrap();
        assert_eq!(read("p"), "path wins");
        only(dir.path(), &["a", "c", "p"]);
    }

    #[test]
    fn refused_forms_write_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x"), "old").unwrap();
        std::os::unix::fs::symlink("x", dir.path().join("l")).unwrap();
        let x = (r#"name="file"; filename="x""#, "new");
        let check = |parts: &[(&str, &str)], expected: fn(&UploadError) -> bool| {
            let outcome = form(dir.path(), None, parts);
            assert!(
                outcome.as_ref().is_err_and(expected),
                "{parts:?}: {outcome:?}"
            );
            only(dir.path(), &["l", "x"]);
            assert_eq!(fs::read(dir.path().join("x")).unwrap(), b"old");
        };
        check(&[x, x], |error| matches!(error, UploadError::Twice(_)));
        check(&[x, (r#"name="file"; filename="./y/../x""#, "")], |error| {
            matches!(error, UploadError::Twice(_))
        });
        check(&[x, (r#"name="file"; filename="l""#, "")], |error| {
            matches!(error, UploadError::Twice(_))
        });
        check(&[x, ("name=file", "")], |error| {
            matches!(error, UploadError::NoPath)
        });
        check(&[("name=other", "")], |error| {
            matches!(error, UploadError::NoPart)
        });
        check(&[], |error| matches!(error, UploadError::NoPart));
        check(&[x, (r#"name="file"; filename="/""#, "")], |error| {
            matches!(error, UploadError::File(FileError::Invalid(_)))
        });
        check(&[x, ("name=file; filename=a\0b", "")], |error| {
            matches!(error, UploadError::File(FileError::Invalid(_)))
        });
        let body =
            "--B\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\nnew\r\n--B\r\n";
        let outcome = run(
            Upload::form(order(dir.path(), None), "B", Encoding::Identity),
            body.as_bytes(),
            100,
        );
        assert!(matches!(
            outcome,
            Err(UploadError::Multipart(MultipartError::Truncated))
        ));
        only(dir.path(), &["l", "x"]);
    }

    #[test]
    fn form_in_gzip_with_its_own_error() {
        let dir = tempfile::tempdir().unwrap();
        let body =
            b"--B\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\nnew\r\n--B--";
        let upload = |body: &[u8]| {
            run(
                Upload::form(order(dir.path(), None), "B", Encoding::Gzip),
                &gzip(body),
                9,
            )
        };
        upload(body).unwrap();
        assert_eq!(fs::read(dir.path().join("x")).unwrap(), b"new");
        let outcome = upload(&body[..body.len() - 2]);
        assert!(
            matches!(outcome, Err(UploadError::Multipart(_))),
            "{outcome:?}"
        );
        let outcome = upload(b"--Bx");
        assert!(
            matches!(
                outcome,
                Err(UploadError::Multipart(MultipartError::BadDelimiter))
            ),
            "{outcome:?}"
        );
    }
}
