//! `process.Process`, the control port and the small routes of the real agent, over real
//! connections. Needs root (users, a pid namespace) as all of `make test` does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bounds;
mod control;
mod input;
mod life;
mod open;
mod output;
mod signals;
mod stand;
mod start;
mod terminal;
// The other half's reader of HTTP answers, byte by byte.
#[path = "../files/harness.rs"]
#[allow(dead_code, reason = "only its reader of answers is used here")]
mod wire;
