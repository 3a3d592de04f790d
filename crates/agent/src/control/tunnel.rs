//! `GET /tunnel?port=N`: a byte stream to a port that listens on loopback only, where the
//! edge cannot reach it from outside.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::extract::{Query, Request};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::answer::refusal;

/// The name in the `Upgrade` header.
const PROTOCOL: &str = "hearth-tunnel";
/// A loopback connection is made at once or, with a full backlog, not soon.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
pub(crate) struct TunnelQuery {
    port: u16,
}

pub(crate) async fn open(Query(query): Query<TunnelQuery>, mut request: Request) -> Response {
    let port = query.port;
    if !is_upgrade(request.headers()) {
        return refusal(
            StatusCode::UPGRADE_REQUIRED,
            "a tunnel is an upgrade to hearth-tunnel",
        );
    }
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return refusal(
            StatusCode::BAD_REQUEST,
            "this connection cannot be upgraded",
        );
    };
    let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let inside = match timeout(CONNECT_DEADLINE, connect).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let text = format!("connecting to 127.0.0.1:{port} failed: {error}");
            return refusal(StatusCode::BAD_GATEWAY, &text);
        }
        Err(_) => {
            let text = format!("connecting to 127.0.0.1:{port} took too long");
            return refusal(StatusCode::BAD_GATEWAY, &text);
        }
    };
    tokio::spawn(carry(upgrade, inside, port));
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    response
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get(header::UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|name| name.eq_ignore_ascii_case(PROTOCOL))
}

async fn carry(upgrade: OnUpgrade, mut inside: TcpStream, port: u16) {
    if let Err(error) = inside.set_nodelay(true) {
        tracing::debug!(%error, port, "a tunnel stays with delayed sends");
    }
    let outside = match upgrade.await {
        Ok(outside) => outside,
        Err(error) => {
            tracing::debug!(%error, port, "a tunnel was not taken up");
            return;
        }
    };
    // A broken tunnel is seen by both ends; here it is only an end.
    if let Err(error) = copy_bidirectional(&mut TokioIo::new(outside), &mut inside).await {
        tracing::debug!(%error, port, "a tunnel broke");
    }
}
