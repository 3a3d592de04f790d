//! The file tree of the sandbox: the operations behind `filesystem.Filesystem` and
//! `/files`, as plain functions that block, and the Connect service over them.
//!
//! Everything runs as the sandbox's root and gives what it creates to the caller, as E2B's
//! agent does. This is no hole: the user has password-less sudo, and the agent lives
//! inside the sandbox, so no path and no link leads out of it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use hearth_wire::rpc::filesystem::FilesystemExt as _;

use crate::agent::Agent;

pub(crate) mod change;
mod copy;
pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod list;
pub(crate) mod metadata;
mod names;
pub(crate) mod path;
mod service;
mod tree;
pub(crate) mod watch;

use fault::FileError;

/// Adds the Connect service.
pub(crate) fn register(router: connectrpc::Router, agent: Arc<Agent>) -> connectrpc::Router {
    Arc::new(service::Service::new(agent)).register(router)
}

/// Opens for reading without ever waiting for the other end of a FIFO.
pub(crate) fn open_plain(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Runs what blocks on a thread for that.
///
/// # Errors
/// [`FileError::Exhausted`] when the thread did not survive it.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, FileError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| FileError::Exhausted(format!("the operation did not finish: {error}")))
}
