//! The edge's limits: each with a name, a unit, a default and a reason.

use std::time::Duration;

/// Largest request or response head, in bytes. Larger: 431 to the client, 502 for a sandbox.
pub(crate) const MAX_HEAD: usize = 64 * 1024;
/// Most header lines of one head: 4096 bytes of `X-Metadata-*` fit.
pub(crate) const MAX_HEADERS: usize = 256;
/// Bytes one side of one connection may hold in memory before the other side has to wait.
pub(crate) const MAX_BUFFER: usize = 128 * 1024;
/// The same for each direction of an upgraded connection.
pub(crate) const UPGRADE_BUFFER: usize = 32 * 1024;
/// Connections kept open to one sandbox's agent between requests.
pub(crate) const MAX_AGENT_CONNECTIONS: usize = 64;
/// How often kept connections are looked over.
pub(crate) const SWEEP: Duration = Duration::from_secs(5);
/// Sweeps a connection to an agent may stay unused: 15 to 20 seconds, below the 30 after which
/// HTTP servers commonly close.
pub(crate) const MAX_UNUSED_SWEEPS: u8 = 4;
/// TCP keep-alive to clients: a peer that vanished without a word is found in two minutes.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
pub(crate) const KEEPALIVE_PROBES: u32 = 3;

/// What an operator or a test may set.
#[derive(Debug, Clone)]
pub struct EdgeConfig {
    /// Client connections at once; the next one gets 503 and is closed.
    pub max_connections: usize,
    /// Requests and upgraded streams of one sandbox at once; the next one gets 429. One client
    /// process opens up to 2,000 (the JS SDK's limit).
    pub max_streams_per_sandbox: usize,
    /// From the first byte of a request's head to its last: slower clients are closed.
    pub head_timeout: Duration,
    /// How long a client's connection may stay without a request. Above the 300 seconds for
    /// which the Python SDK keeps connections, so that the client closes first.
    pub idle_timeout: Duration,
    /// To open a connection into a sandbox; a port that does not answer in it is not open.
    pub connect_timeout: Duration,
    /// From the last byte of a request to the head of its answer; then 504. Once an answer has
    /// begun there is no limit.
    pub answer_timeout: Duration,
    /// How long running requests may still take when the server stops.
    pub drain: Duration,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_streams_per_sandbox: 4_096,
            head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(620),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(600),
            drain: Duration::from_secs(2),
        }
    }
}
