//! Why a sandbox is gone: when, by which cause, by whom. Kept after the sandbox.

use serde::{Deserialize, Serialize};

/// What ended a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum EndCause {
    /// A client asked for it.
    Killed,
    /// Its timeout passed.
    Timeout,
    /// The host's kernel ended it for its memory limit.
    OutOfMemory,
    /// The runtime or the agent ended by itself.
    Crashed { detail: String },
    /// It never came up.
    StartFailed { detail: String },
    /// The operator ran `hearth down`.
    Down,
    /// It was gone when the server came back (a reboot, or somebody ended its processes).
    Lost,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "actor")]
pub enum Actor {
    /// A holder of an API key, by the key's public id.
    Key { id: String },
    /// Hearth itself.
    System,
    /// Somebody with root on the host.
    Operator,
    /// The sandbox's own code.
    Guest,
}

/// The end of a sandbox. `at_ms` is milliseconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReason {
    pub at_ms: i64,
    #[serde(flatten)]
    pub cause: EndCause,
    #[serde(flatten)]
    pub actor: Actor,
}

impl EndCause {
    /// The cause as a client reads it.
    pub fn describe(&self) -> String {
        match self {
            Self::Killed => "killed on request".into(),
            Self::Timeout => "its timeout passed".into(),
            Self::OutOfMemory => "it exceeded its memory limit".into(),
            Self::Crashed { detail } => format!("its runtime ended unexpectedly: {detail}"),
            Self::StartFailed { detail } => format!("it did not start: {detail}"),
            Self::Down => "the operator ended all sandboxes of this server".into(),
            Self::Lost => "its processes were gone when the server came back".into(),
        }
    }
}

impl Actor {
    /// The actor as a client reads it.
    pub fn describe(&self) -> String {
        match self {
            Self::Key { id } => format!("API key {id}"),
            Self::System => "hearth".into(),
            Self::Operator => "the operator".into(),
            Self::Guest => "the sandbox itself".into(),
        }
    }
}
