//! Runs sandboxes on one machine: one driver task per sandbox, slots made ahead of need,
//! adoption after a restart, and the sweep that removes what belongs to nobody.
//!
//! The node owns what a sandbox holds on the host (slot, disk, folder) and its observed
//! state while it lives. It does not decide that a sandbox should exist or end: control
//! does. Start with [`Node`].

mod adopt;
mod agent_client;
mod config;
mod driver;
mod instance;
mod record;
mod registry;
mod slot;
mod sweep;
mod usage;

pub use agent_client::{Field, LogLine, LogsError};
pub use config::{NodeConfig, OpenError};
pub use instance::Instance;
pub use registry::{Node, Reached};
