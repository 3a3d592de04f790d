//! Why a file operation failed, in the words both protocols are answered from: the Connect
//! service maps a [`FileError`] to a code, `/files` maps it to a status.
//!
//! Not for refusals of the HTTP layer itself (auth, encodings): those are `files`' own.

use std::io;
use std::path::{Path, PathBuf};

/// A failed file operation. The text names the path and the limit, and is safe to show:
/// the caller owns the sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The caller asked for something that can never work.
    #[error("{0}")]
    Invalid(String),
    #[error("path '{}' does not exist", .0.display())]
    NotFound(PathBuf),
    #[error("path '{}' already exists", .0.display())]
    AlreadyExists(PathBuf),
    /// The file tree is in a state that forbids it; the same request may work later.
    #[error("{0}")]
    Precondition(String),
    #[error("not enough space on the disk to write '{}'", .0.display())]
    NoSpace(PathBuf),
    /// A bound of the agent or of the sandbox's kernel was hit.
    #[error("{0}")]
    Exhausted(String),
    #[error("cannot {doing} '{}': permission denied", .path.display())]
    Denied {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {doing} '{}'", .path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl FileError {
    /// Sorts an error of the kernel. `doing` is a verb phrase such as "read".
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        use rustix::io::Errno;
        let shown = path.display();
        let Some(errno) = source.raw_os_error().map(Errno::from_raw_os_error) else {
            return Self::Io {
                doing,
                path: path.to_owned(),
                source,
            };
        };
        match errno {
            Errno::NOENT => Self::NotFound(path.to_owned()),
            Errno::EXIST => Self::AlreadyExists(path.to_owned()),
            Errno::NOTDIR => Self::Invalid(format!(
                "cannot {doing} '{shown}': a part of the path is not a directory"
            )),
            Errno::ISDIR => Self::Invalid(format!("path '{shown}' is a directory")),
            Errno::NAMETOOLONG => Self::Invalid(format!(
                "cannot {doing} '{shown}': the path or a name in it is too long (limits: {} bytes of path, {} bytes of name)",
                super::path::MAX_PATH,
                super::path::MAX_NAME
            )),
            Errno::INVAL => Self::Invalid(format!("cannot {doing} '{shown}': invalid argument")),
            Errno::LOOP => Self::Precondition(format!(
                "cannot {doing} '{shown}': too many levels of symbolic links"
            )),
            Errno::NOTEMPTY => {
                Self::Precondition(format!("cannot {doing} '{shown}': directory not empty"))
            }
            Errno::BUSY | Errno::TXTBSY => {
                Self::Precondition(format!("cannot {doing} '{shown}': it is in use"))
            }
            Errno::XDEV => Self::Precondition(format!(
                "cannot {doing} '{shown}': source and destination are on different file systems"
            )),
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace(path.to_owned()),
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                Self::Exhausted(format!("cannot {doing} '{shown}': {source}"))
            }
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied {
                doing,
                path: path.to_owned(),
                source,
            },
            _ => Self::Io {
                doing,
                path: path.to_owned(),
                source,
            },
        }
    }

    /// The text for a client: the message and, where there is one, the kernel's reason.
    pub(crate) fn public_text(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            other => other.to_string(),
        }
    }
}

/// `map_err` for results of the kernel: `.doing("read", path)`.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FileError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FileError> {
        self.map_err(|source| FileError::io(doing, path, source))
    }
}

impl<T> Doing<T> for Result<T, rustix::io::Errno> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, FileError> {
        self.map_err(|errno| FileError::io(doing, path, errno.into()))
    }
}
