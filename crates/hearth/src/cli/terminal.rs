//! The operator's own terminal: raw while a command inside a sandbox has it, and its size.

use std::io;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// A terminal in raw mode; dropping it brings the old mode back.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// # Errors
    /// When standard input is no terminal.
    pub(crate) fn enter() -> io::Result<Self> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Err(io::Error::other("standard input is not a terminal"));
        }
        let before = tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (u16, u16) {
        size().unwrap_or((80, 24))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before) {
            tracing::debug!(%error, "the terminal keeps its mode");
        }
    }
}

/// Columns and rows of the terminal at standard input.
pub(crate) fn size() -> Option<(u16, u16)> {
    tcgetwinsize(rustix::stdio::stdin())
        .ok()
        .map(|s| (s.ws_col, s.ws_row))
}
