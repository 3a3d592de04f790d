//! The way into a process: a pipe, a terminal, or nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

/// Where a process's input comes from.
#[derive(Debug)]
pub(crate) enum Input {
    /// Empty from the start.
    Nothing,
    /// Writers take turns; none: closed.
    Pipe(Mutex<Option<AsyncFd<OwnedFd>>>),
    Terminal {
        master: Arc<AsyncFd<OwnedFd>>,
        turn: Mutex<()>,
    },
}

/// What kind of input a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Stdin,
    Terminal,
}

/// Input that did not arrive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("the process was started without standard input")]
    Nothing,
    #[error("the standard input of the process is closed")]
    Closed,
    #[error("the process has no terminal")]
    NoTerminal,
    #[error("the process has a terminal: send input of kind 'pty'")]
    HasTerminal,
    #[error("a terminal's input cannot be closed; send it the end-of-file character")]
    Endless,
    #[error("the process no longer reads its input")]
    Deaf,
    #[error("writing to the process failed: {0}")]
    Write(#[source] io::Error),
}

impl Input {
    /// Writes all of `bytes`, waiting as long as the process takes.
    ///
    /// # Errors
    /// [`InputError`].
    ///
    /// # Cancel safety
    /// What is written by then stays written.
    pub(crate) async fn write(&self, kind: Kind, bytes: &[u8]) -> Result<(), InputError> {
        match (self, kind) {
            (Self::Nothing, _) => Err(InputError::Nothing),
            (Self::Pipe(_), Kind::Terminal) => Err(InputError::NoTerminal),
            (Self::Terminal { .. }, Kind::Stdin) => Err(InputError::HasTerminal),
            (Self::Pipe(pipe), Kind::Stdin) => {
                let pipe = pipe.lock().await;
                write_all(pipe.as_ref().ok_or(InputError::Closed)?, bytes).await
            }
            (Self::Terminal { master, turn }, Kind::Terminal) => {
                let _turn = turn.lock().await;
                write_all(master, bytes).await
            }
        }
    }

    /// Ends the input of a pipe; closing twice is no error.
    ///
    /// # Errors
    /// [`InputError`] for what has no pipe.
    pub(crate) async fn close(&self) -> Result<(), InputError> {
        match self {
            Self::Nothing => Err(InputError::Nothing),
            Self::Terminal { .. } => Err(InputError::Endless),
            Self::Pipe(pipe) => {
                pipe.lock().await.take();
                Ok(())
            }
        }
    }

    /// Sets the terminal's size.
    ///
    /// # Errors
    /// [`InputError`].
    pub(crate) fn resize(&self, cols: u16, rows: u16) -> Result<(), InputError> {
        match self {
            Self::Terminal { master, .. } => {
                crate::sys::resize_terminal(master.get_ref().as_fd(), cols, rows)
                    .map_err(InputError::Write)
            }
            _ => Err(InputError::NoTerminal),
        }
    }
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> Result<(), InputError> {
    while !bytes.is_empty() {
        let mut ready = fd.writable().await.map_err(InputError::Write)?;
        let outcome =
            ready.try_io(|fd| nix::unistd::write(fd.get_ref(), bytes).map_err(Into::into));
        match outcome {
            Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => {
                return Err(match error.raw_os_error() {
                    Some(libc::EPIPE | libc::EIO) => InputError::Deaf,
                    _ => InputError::Write(error),
                });
            }
            Err(_would_block) => {}
        }
    }
    Ok(())
}
