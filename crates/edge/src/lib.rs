//! The edge: one plain HTTP origin in front of every sandbox and of the control API.
//!
//! It finds out which sandbox and port a request names (`hearth_model::route`), asks
//! [`Routes`] where that sandbox is, and carries bytes both ways without keeping any. What
//! names no sandbox goes to the control router. It holds no truth: a sandbox that ended is
//! ended the moment `Routes` says so, and streams to it are reset, never ended cleanly.
//!
//! Called by the `hearth` binary only. Start with [`serve`]; the path of one request is
//! `accept` -> `connection` -> `proxy` -> `upstream`.

mod accept;
mod answer;
mod body;
mod config;
mod connection;
mod dial;
mod headers;
mod pool;
mod proxy;
mod routes;
mod upgrade;
mod upstream;

pub use accept::serve;
pub use config::EdgeConfig;
pub use routes::{Lookup, Routes};
