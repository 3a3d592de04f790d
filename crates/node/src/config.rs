//! What a node is told at its start.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use hearth_host::cgroup::{DetectError, GroupError};
use hearth_host::firewall::PrivateEgress;

/// The node's part of the server's configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Folder of everything that outlives the server.
    pub state_dir: PathBuf,
    /// The network slots are cut from. A /16 gives 16,383 of them.
    pub sandbox_net: (Ipv4Addr, u8),
    /// Where the sandboxes' resolver asks; empty: what the host's `/etc/resolv.conf` names.
    pub dns_upstream: Vec<SocketAddr>,
    pub private_egress: PrivateEgress,
    /// Certificates (PEM) the operator added to the host, for every sandbox; may be empty.
    pub ca_bundle: String,
    /// The agent's program.
    pub agent: &'static [u8],
    /// Slots kept ready.
    pub ready_slots: usize,
    /// Throughput of a sandbox's disk, bytes per second each way.
    pub disk_bps: u64,
}

/// The node cannot work on this host.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{action}")]
    Io {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Cgroups(#[from] DetectError),
    #[error("making the instance's control groups")]
    Group(#[source] GroupError),
    #[error(
        "sandboxes of the last start are alive in --sandbox-net {last}, and {asked} was asked for; end them first with `hearth down`"
    )]
    NetChanged { last: String, asked: String },
    #[error(
        "another hearth has the addresses of --sandbox-net {net} (link {link}); choose another network"
    )]
    NetInUse { net: String, link: String },
}

impl OpenError {
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}
