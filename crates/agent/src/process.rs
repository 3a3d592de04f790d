//! Processes the agent starts for clients: the service `process.Process`.
//!
//! A process outlives the request that started it. [`table`] knows them all, [`launch`]
//! makes one, [`pump`] is the task that carries its output and sees its end, [`output`] is
//! where the output waits for readers, [`service`] is the wire.

use std::sync::Arc;

use hearth_wire::rpc::process::ProcessExt as _;

use crate::agent::Agent;

pub(crate) mod ending;
mod input;
mod launch;
pub(crate) mod output;
mod pump;
mod service;
pub(crate) mod table;

/// Adds the Connect service.
pub(crate) fn register(router: connectrpc::Router, agent: Arc<Agent>) -> connectrpc::Router {
    Arc::new(service::Service::new(agent)).register(router)
}
