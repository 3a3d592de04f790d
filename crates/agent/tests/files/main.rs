//! The file side of the real agent, over real connections: `/files` and
//! `filesystem.Filesystem`. Needs root (ownership, a mount) as all of `make test` does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod download;
mod harness;
mod hostile;
mod rpc;
mod signed;
mod upload;
mod watch;
