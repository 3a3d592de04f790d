//! The way into a process: a pipe, a terminal, or nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// Where a process's input comes from. Writers take turns.
#[derive(Debug)]
pub(crate) struct Input {
    line: Mutex<Line>,
    /// The process is gone; writers that wait for it are told.
    over: CancellationToken,
}

/// What input goes through.
#[derive(Debug)]
pub(crate) enum Line {
    /// Empty from the start.
    Nothing,
    Pipe(AsyncFd<OwnedFd>),
    /// Shared with whoever reads its output.
    Terminal(Arc<AsyncFd<OwnedFd>>),
    /// A pipe, ended by a client or with the process.
    Closed,
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
    pub(crate) fn new(line: Line) -> Self {
        Self {
            line: Mutex::new(line),
            over: CancellationToken::new(),
        }
    }

    /// Writes all of `bytes`, waiting as long as the process takes.
    ///
    /// # Errors
    /// [`InputError`].
    ///
    /// # Cancel safety
    /// What is written by then stays written.
    pub(crate) async fn write(&self, kind: Kind, bytes: &[u8]) -> Result<(), InputError> {
        let write = async {
            match (&*self.line.lock().await, kind) {
                (Line::Nothing, _) => Err(InputError::Nothing),
                (Line::Closed, _) => Err(InputError::Closed),
                (Line::Pipe(_), Kind::Terminal) => Err(InputError::NoTerminal),
                (Line::Terminal(_), Kind::Stdin) => Err(InputError::HasTerminal),
                (Line::Pipe(pipe), Kind::Stdin) => write_all(pipe, bytes).await,
                (Line::Terminal(master), Kind::Terminal) => write_all(master, bytes).await,
            }
        };
        tokio::select! {
            outcome = write => outcome,
            () = self.over.cancelled() => Err(InputError::Deaf),
        }
    }

    /// Ends the input of a pipe; closing twice is no error.
    ///
    /// # Errors
    /// [`InputError`] for what has no pipe.
    pub(crate) async fn close(&self) -> Result<(), InputError> {
        let mut line = self.line.lock().await;
        match *line {
            Line::Nothing => Err(InputError::Nothing),
            Line::Terminal(_) => Err(InputError::Endless),
            Line::Pipe(_) | Line::Closed => {
                *line = Line::Closed;
                Ok(())
            }
        }
    }

    /// Sets the terminal's size.
    ///
    /// # Errors
    /// [`InputError`].
    pub(crate) async fn resize(&self, cols: u16, rows: u16) -> Result<(), InputError> {
        match &*self.line.lock().await {
            Line::Terminal(master) => {
                crate::sys::resize_terminal(master.get_ref().as_fd(), cols, rows)
                    .map_err(InputError::Write)
            }
            Line::Nothing | Line::Pipe(_) | Line::Closed => Err(InputError::NoTerminal),
        }
    }

    /// The process is gone: tells writers and lets go of the descriptor.
    pub(crate) async fn end(&self) {
        self.over.cancel();
        *self.line.lock().await = Line::Closed;
    }
}

async fn write_all(fd: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> Result<(), InputError> {
    while !bytes.is_empty() {
        let mut ready = fd.writable().await.map_err(InputError::Write)?;
        let outcome = ready.try_io(|fd| Ok(nix::unistd::write(fd.get_ref(), bytes)?));
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
