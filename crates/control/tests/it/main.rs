//! The control plane through its router, over a real database file.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod life;
mod limits;
mod list;
mod mixture;
mod node;
mod observe;
mod recovery;
mod refusals;
mod repeat;
mod server;
