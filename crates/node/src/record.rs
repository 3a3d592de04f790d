//! What the node keeps on disk of each sandbox, so that the next start of the server can
//! prove which processes are whose. One file per sandbox, readable by root only: it holds
//! the tokens.

use std::io;
use std::path::Path;

use hearth_model::sandbox::SandboxSpec;
use hearth_model::secret::Secret;
use serde::{Deserialize, Serialize};

const FILE: &str = "record.json";

/// One sandbox on this host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) spec: SandboxSpec,
    pub(crate) slot: u32,
    pub(crate) control_secret: Secret,
    /// None until its agent answered; a record without is of a start that did not finish.
    pub(crate) process: Option<Proof>,
}

/// Names one process of this boot of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proof {
    pub(crate) pid: i32,
    pub(crate) start: u64,
    pub(crate) boot_id: String,
}

/// The kernel's id of this boot.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

impl Record {
    /// Writes it in place of an older one; a reader sees the old or the new one whole.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        hearth_host::file::replace_private(&dir.join(FILE), &serde_json::to_vec(self)?)
    }

    /// Reads it; one that cannot be read is an error the caller treats as "nobody's".
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(FILE))?)?)
    }
}
