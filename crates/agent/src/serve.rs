//! The two listeners and the routes on them: one loop that hands connections to hyper,
//! with limits axum's own loop does not set.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::agent::Agent;
use crate::answer::refusal;
use crate::{auth, files, filesystem, process};

/// Connections open at once on one port. A running command holds one.
const MAX_CONNECTIONS: usize = 8192;
/// How long a connection may take over the next request's headers, idling included. Longer
/// than any proxy keeps idle connections, so that the other side closes first.
const HEADERS_DEADLINE: Duration = Duration::from_secs(20 * 60);
/// What hyper buffers of one connection, in bytes.
const MAX_BUFFER: usize = 128 * 1024;
/// Largest Connect message taken, in bytes. Standard input arrives base64-coded in one.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// Pause after the kernel had no descriptor or memory for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Everything on the public port.
pub(crate) fn public(agent: &Arc<Agent>) -> Router {
    let connect = connectrpc::Router::new();
    let connect = filesystem::register(connect, Arc::clone(agent));
    let connect = process::register(connect, Arc::clone(agent));
    let limits = connectrpc::Limits::default()
        .with_max_request_body_size(MAX_MESSAGE)
        .with_max_message_size(MAX_MESSAGE);
    Router::new()
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
        .route("/metrics", get(metrics))
        .route("/envs", get(envs))
        .with_state(Arc::clone(agent))
        .merge(files::router(Arc::clone(agent)))
        .fallback_service(connect.into_axum_service().with_limits(limits))
        .layer(from_fn_with_state(Arc::clone(agent), auth::require_token))
        .layer(from_fn(auth::open_to_browsers))
}

async fn metrics(State(agent): State<Arc<Agent>>) -> Response {
    let read = tokio::task::spawn_blocking(move || agent.meter.read(&agent.boot)).await;
    let reason = match read {
        Ok(Ok(metrics)) => return Json(metrics).into_response(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(reason, "metrics could not be read");
    refusal(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("reading metrics failed: {reason}"),
    )
}

async fn envs(State(agent): State<Arc<Agent>>) -> Json<BTreeMap<String, String>> {
    Json(agent.boot.env.clone())
}

/// Listens on every address of the sandbox.
///
/// # Errors
/// The kernel's, when the port is taken.
pub(crate) async fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
}

/// Serves `router` on `listener` for ever.
pub(crate) async fn run(listener: TcpListener, router: Router) -> Infallible {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            // Nobody closes the semaphore.
            std::future::pending::<Infallible>().await;
            continue;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let router = router.clone();
        tokio::spawn(async move {
            connection(stream, router).await;
            drop(slot);
        });
    }
}

async fn connection(stream: TcpStream, router: Router) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection stays with delayed sends");
    }
    let outcome = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_DEADLINE)
        .max_buf_size(MAX_BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades()
        .await;
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection ended early");
    }
}
