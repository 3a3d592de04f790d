//! The edge against real listeners on loopback addresses, one address per sandbox.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod agent;
mod clients;
mod cut;
mod headers;
mod limits;
mod routing;
mod smuggling;
mod stand;
mod streaming;
mod tunnel;
