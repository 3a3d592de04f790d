//! What passes between control and a node: commands down, reports up. Plain data; who
//! carries it (a function call today, a connection later) is wired in the binary.

use std::net::Ipv4Addr;

use crate::end::EndCause;
use crate::id::SandboxId;
use crate::secret::Secret;

/// A node's answer to a create: the sandbox runs and its agent confirmed.
#[derive(Debug, Clone)]
pub struct Started {
    pub address: Ipv4Addr,
    /// The isolation tier that carries it: `gvisor`.
    pub tier: &'static str,
}

/// Why a create failed on the node. Nothing of the sandbox is left in any of these cases.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CreateError {
    /// The node has no room: clients are told to try again.
    #[error("no capacity: {what}")]
    NoCapacity { what: String },
    #[error("template {template} is not on this node")]
    NoTemplate { template: String },
    #[error("the sandbox did not start: {detail}")]
    StartFailed { detail: String },
    /// A kill overtook the create.
    #[error("the sandbox was ended while it was being created")]
    Ended,
}

/// What a node reports without being asked.
#[derive(Debug, Clone)]
pub enum Report {
    /// A sandbox ended that nobody asked to end, and its resources are given back.
    Died { id: SandboxId, cause: EndCause },
}

/// One reading of a sandbox's use, taken outside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Milliseconds since the epoch.
    pub at_ms: i64,
    pub vcpu: u32,
    /// Share of one CPU, in percent: 200 is two CPUs busy.
    pub cpu_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// How the edge reaches a running sandbox.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub address: Ipv4Addr,
    /// Authorises the agent's control channel (tunnels to loopback ports).
    pub control_secret: Secret,
}
