//! What the node hands the agent: one JSON object on standard input, read to its end.
//!
//! It holds secrets, so it is never an argument, an environment variable or a file in the
//! sandbox. When the agent listens on both ports it writes [`READY_LINE`] to standard
//! output once, and then detaches from all three standard descriptors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Written by the agent, with a newline, when it serves and every fix-up succeeded.
pub const READY_LINE: &str = "hearth-agent ready";
/// Written instead, followed by a space and the reason, when a fix-up failed.
pub const FAILED_PREFIX: &str = "hearth-agent failed:";
/// Header that authorises the control port; its value is `control_secret`.
pub const CONTROL_HEADER: &str = "x-hearth-control";

/// The agent's configuration. Unknown fields are refused: both sides are the same build.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boot {
    pub sandbox_id: String,
    pub template_id: String,
    /// Port of the public protocol (49983 in a sandbox).
    pub agent_port: u16,
    /// Port of the control channel (49982 in a sandbox).
    pub control_port: u16,
    /// What clients must send as `X-Access-Token`; none opens the agent (tests on a host only).
    pub access_token: Option<String>,
    pub control_secret: String,
    /// Default environment of every process.
    pub env: BTreeMap<String, String>,
    pub default_user: String,
    /// None: the user's home.
    pub default_workdir: Option<String>,
    /// What the agent makes true of the sandbox before it serves. None leaves the machine
    /// alone: the agent's own tests run it on a host.
    pub fixups: Option<Fixups>,
}

/// Identity and limits inside the sandbox. Each is applied, or the start fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fixups {
    pub hostname: String,
    /// Own address, for `/etc/hosts`.
    pub address: String,
    /// Nameserver for `/etc/resolv.conf`.
    pub resolver: String,
    /// PEM certificates the operator added to the host, for every trust store; may be empty.
    pub ca_bundle: String,
    /// Processes and threads of all users together, held by the sandbox's kernel.
    pub pids_max: u32,
    /// Bytes; what the agent reports as total and guards.
    pub memory_bytes: u64,
    /// Bytes; what the agent reports as the disk's size.
    pub disk_bytes: u64,
}
