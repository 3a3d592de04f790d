//! `sudo` for sandboxes whose kernel knows no set-uid programs: gVisor's builds of 2024 take
//! every process to have "no new privileges", so the distribution's own `sudo` refuses.
//!
//! The agent's program, called by the name `sudo`, is a [`client`]: it hands the command, its
//! standard files and its terminal's size over a socket to the [`broker`] in the agent, which
//! runs as root, starts the command and tells how it ended. Who may: root, and members of the
//! groups that administer by custom (`sudo`, `wheel`, `admin`), without a password.
//!
//! This gives nothing away that a set-uid `sudo` would not: the sandbox's wall is around the
//! sandbox, not between its users. What of sudo's own options is known is in [`options`];
//! `sudoers` is not read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

pub(crate) mod broker;
pub(crate) mod client;
mod options;
mod request;

/// Where the broker listens. The folder is root's, so nobody else can listen there.
const SOCKET: &str = "/.hearth/sudo";

/// What the broker answers with, each followed by four bytes.
mod answer {
    /// It runs; with a terminal's master side attached when one was asked for.
    pub(super) const STARTED: u8 = b'S';
    /// It ended with this status.
    pub(super) const EXITED: u8 = b'X';
    /// It ended by this signal.
    pub(super) const KILLED: u8 = b'K';
    /// It was not started; a text of that length follows.
    pub(super) const REFUSED: u8 = b'E';
}

/// Whether this process was started as `sudo`.
pub(crate) fn is_called() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|name| name.as_bytes().rsplit(|b| *b == b'/').next() == Some(b"sudo"))
}

fn shown(text: &[u8]) -> String {
    OsStr::from_bytes(text).to_string_lossy().into_owned()
}
