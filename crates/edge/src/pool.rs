//! Connections to agents kept between requests, and the count of streams per sandbox.
//!
//! Only the agent's connections are kept: it is ours and made for it, while a user's server
//! may serve one connection at a time. A kept connection dies with its sandbox.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hearth_model::id::SandboxId;
use hyper::client::conn::http1::SendRequest;
use tokio::time::Instant;

use crate::body::UploadBody;
use crate::config::{MAX_AGENT_CONNECTIONS, MAX_UNUSED_SWEEPS, SWEEP};

/// All lanes. A lane lives while it has a stream or a kept connection.
#[derive(Default)]
pub(crate) struct Pool {
    lanes: Mutex<HashMap<SandboxId, Arc<Lane>>>,
    last_sweep: Mutex<Option<Instant>>,
}

/// One sandbox's share.
#[derive(Default)]
struct Lane {
    streams: AtomicUsize,
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    address: Ipv4Addr,
    sender: SendRequest<UploadBody>,
    unused_sweeps: u8,
}

/// One of a sandbox's streams; dropping it makes room for another.
pub(crate) struct StreamSlot(Arc<Lane>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// Room for one more stream, or `None` at the limit.
    pub(crate) fn enter(&self, id: &SandboxId, limit: usize) -> Option<StreamSlot> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = Arc::clone(lanes.entry(id.clone()).or_default());
        // Counted under the lock, so the limit holds exactly.
        if lane.streams.load(Ordering::Relaxed) >= limit {
            return None;
        }
        lane.streams.fetch_add(1, Ordering::Relaxed);
        Some(StreamSlot(lane))
    }

    /// Looks the kept connections over once per [`SWEEP`]; never returns before one was due.
    ///
    /// # Cancel safety
    /// The time of the next sweep is kept in the pool.
    pub(crate) async fn sweep_when_due(&self) {
        let last = *self
            .last_sweep
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(Instant::now);
        tokio::time::sleep_until(last + SWEEP).await;
        *self
            .last_sweep
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.sweep();
    }

    fn sweep(&self) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|_, lane| {
            let mut kept = lane.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.retain_mut(|one| {
                if one.sender.is_closed() {
                    return false;
                }
                if one.sender.is_ready() {
                    one.unused_sweeps += 1;
                }
                one.unused_sweeps < MAX_UNUSED_SWEEPS
            });
            let empty = kept.is_empty();
            drop(kept);
            !empty || Arc::strong_count(lane) > 1
        });
    }
}

impl StreamSlot {
    /// A kept connection to the agent at `address` that waits for a request.
    pub(crate) fn take(&self, address: Ipv4Addr) -> Option<SendRequest<UploadBody>> {
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| !one.sender.is_closed() && one.address == address);
        let at = kept.iter().rposition(|one| one.sender.is_ready())?;
        Some(kept.swap_remove(at).sender)
    }

    /// Keeps a connection. It may still carry an answer; it is ready again after its last byte.
    pub(crate) fn keep(&self, address: Ipv4Addr, sender: SendRequest<UploadBody>) {
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_AGENT_CONNECTIONS {
            kept.push(Kept {
                address,
                sender,
                unused_sweeps: 0,
            });
        }
    }
}
