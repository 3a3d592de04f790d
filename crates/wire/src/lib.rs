//! Wire formats at the edge of each process. Types only: conversions to and from
//! `hearth-model` are written by the room that speaks the format.
//!
//! - [`e2b`]: the REST API of E2B, served by control and called by the CLI.
//! - [`boot`]: what the node hands the agent on its standard input.
//! - [`rpc`]: the agent's Connect services, generated from `proto/`.

pub mod boot;
pub mod e2b;
pub mod rpc;
