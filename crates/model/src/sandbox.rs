//! What a sandbox is asked to be: the parsed form of a create.

use std::collections::BTreeMap;

use crate::id::{SandboxId, TeamId, TemplateId};
use crate::secret::Secret;

/// Whether a sandbox may open connections to the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Internet {
    Open,
    Closed,
}

/// Sizes, all hard limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Size {
    /// Whole CPUs, 1 and more.
    pub vcpu: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
}

/// Everything the node needs to make one sandbox. Built by control, once, from checked input.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SandboxSpec {
    pub id: SandboxId,
    pub team: TeamId,
    pub template: TemplateId,
    pub size: Size,
    /// Default environment of every process in the sandbox.
    pub env: BTreeMap<String, String>,
    pub internet: Internet,
    /// What clients present to the agent as `X-Access-Token`.
    pub access_token: Secret,
}
