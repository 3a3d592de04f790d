//! Takes connections, as many as the limit says, and ends with what it started.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{EdgeConfig, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use crate::connection::{self, Shared};
use crate::pool::Pool;
use crate::routes::Routes;

/// Pause after `accept` failed, so that a host out of descriptors is not also out of CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a client beyond the limit reads.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
content-length: 40\r\nretry-after: 1\r\nconnection: close\r\n\r\nthe server has too many open connections";

/// Everything one request needs.
pub(crate) struct Edge {
    pub(crate) config: EdgeConfig,
    pub(crate) routes: Arc<dyn Routes>,
    pub(crate) control: axum::Router,
    pub(crate) pool: Pool,
    pub(crate) tasks: TaskTracker,
    /// Cancelled when draining took long enough: what still runs is reset.
    pub(crate) abort: CancellationToken,
}

/// Serves until `cancel`, then lets running requests end for `config.drain` and resets the
/// rest. Accept errors are logged and waited out; they never end it.
///
/// # Cancel safety
/// Dropping it stops accepting; connections already taken go on until they end by themselves.
///
/// # Errors
/// When the listener itself cannot be read.
pub async fn serve(
    listener: TcpListener,
    config: EdgeConfig,
    routes: Arc<dyn Routes>,
    control: axum::Router,
    cancel: CancellationToken,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let room = Arc::new(Semaphore::new(config.max_connections));
    let edge = Arc::new(Edge {
        config,
        routes,
        control,
        pool: Pool::default(),
        tasks: TaskTracker::new(),
        abort: CancellationToken::new(),
    });
    tracing::info!(%address, "edge serves");
    loop {
        let accepted = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            () = edge.pool.sweep_when_due() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, peer)) => take(&edge, &room, socket, peer, &cancel),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    edge.tasks.close();
    if tokio::time::timeout(edge.config.drain, edge.tasks.wait())
        .await
        .is_err()
    {
        tracing::info!(
            left = edge.tasks.len(),
            "resetting what did not end in time"
        );
        edge.abort.cancel();
        edge.tasks.wait().await;
    }
    Ok(())
}

fn take(
    edge: &Arc<Edge>,
    room: &Arc<Semaphore>,
    socket: TcpStream,
    peer: SocketAddr,
    cancel: &CancellationToken,
) {
    let Ok(permit) = Arc::clone(room).try_acquire_owned() else {
        // A fresh socket has room for these bytes; where it does not, closing says enough.
        if let Err(error) = socket.try_write(FULL) {
            tracing::debug!(%error, "cannot tell a client that the server is full");
        }
        tracing::warn!(limit = edge.config.max_connections, "too many connections");
        return;
    };
    if let Err(error) = prepare(&socket) {
        tracing::debug!(%peer, %error, "client left before it was served");
        return;
    }
    let shared = Shared::new(permit, peer, edge);
    edge.tasks.spawn(connection::run(
        socket,
        shared,
        Arc::clone(edge),
        cancel.clone(),
    ));
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_a_complete_answer() {
        let text = std::str::from_utf8(FULL).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
    }
}
