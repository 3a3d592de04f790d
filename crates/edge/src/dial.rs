//! Opens a connection to a port inside a sandbox: directly, or through the agent when the
//! server there listens on the sandbox's loopback only.
//!
//! Nothing is remembered between two dials: a port may open or close at any moment.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use hearth_model::limits::{AGENT_PORT, CONTROL_PORT};
use hearth_model::node::Endpoint;
use hearth_wire::boot::CONTROL_HEADER;
use http::header::{self, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::config::{MAX_BUFFER, MAX_HEAD};

/// The protocol name the agent's tunnel answers to.
const TUNNEL_PROTOCOL: &str = "hearth-tunnel";

/// An open way to a port.
pub(crate) enum Dialled {
    Direct(TcpStream),
    Tunnel(Upgraded),
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("nothing listens on the port")]
    Refused,
    #[error("the port did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("the sandbox's address cannot be reached")]
    Unreachable(#[source] io::Error),
    #[error("the agent did not open the tunnel: {0}")]
    Tunnel(String),
    /// Ours, not the sandbox's: out of descriptors or local ports.
    #[error("the host cannot open a connection")]
    Host(#[source] io::Error),
}

/// Opens `port`, within `limit` in all.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    port: u16,
    limit: Duration,
) -> Result<Dialled, DialError> {
    tokio::time::timeout(limit, async {
        match direct(endpoint.address, port).await {
            Ok(socket) => Ok(Dialled::Direct(socket)),
            Err(DialError::Refused) if port != AGENT_PORT => {
                tunnel(endpoint, port).await.map(Dialled::Tunnel)
            }
            Err(error) => Err(error),
        }
    })
    .await
    .unwrap_or(Err(DialError::TimedOut(limit)))
}

async fn direct(address: Ipv4Addr, port: u16) -> Result<TcpStream, DialError> {
    let socket = TcpStream::connect((address, port))
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => DialError::Refused,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::TimedOut => DialError::Unreachable(error),
            _ => DialError::Host(error),
        })?;
    // Fails only when the peer is gone already; the first use then says so.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "cannot switch off Nagle's algorithm");
    }
    Ok(socket)
}

async fn tunnel(endpoint: &Endpoint, port: u16) -> Result<Upgraded, DialError> {
    let broken = |error: hyper::Error| DialError::Tunnel(error.to_string());
    let socket = direct(endpoint.address, CONTROL_PORT).await?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_BUFFER)
        .max_header_size(MAX_HEAD)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(socket))
        .await
        .map_err(broken)?;
    let mut secret = HeaderValue::from_str(endpoint.control_secret.expose())
        .map_err(|_| DialError::Tunnel("the control secret is not a header value".into()))?;
    secret.set_sensitive(true);
    let request = Request::get(format!("/tunnel?port={port}"))
        .header(header::HOST, "agent")
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, TUNNEL_PROTOCOL)
        .header(CONTROL_HEADER, secret)
        .body(Empty::new())
        .map_err(|error| DialError::Tunnel(error.to_string()))?;
    // The connection is driven here, not in a task: giving up the dial gives up the socket.
    let mut connection = std::pin::pin!(connection.with_upgrades());
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        match answer.status() {
            StatusCode::SWITCHING_PROTOCOLS => hyper::upgrade::on(answer).await.map_err(broken),
            StatusCode::BAD_GATEWAY => Err(DialError::Refused),
            status => Err(DialError::Tunnel(format!("it answered {status}"))),
        }
    };
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        result = exchange.as_mut() => result,
        driven = connection.as_mut() => {
            driven.map_err(broken)?;
            exchange.await
        }
    }
}
