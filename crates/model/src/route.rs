//! How a request names a sandbox and a port: routing headers or the host label
//! (`e2b.md` D.4). Pure; used by the edge, tested with odd input.

use crate::id::SandboxId;

/// A sandbox and a port in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub sandbox: SandboxId,
    pub port: u16,
}
