//! The node's channel into the sandbox: tunnels to loopback ports, the agent's log, and
//! what processes wrote. Every route asks for the control secret.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use hearth_wire::boot::CONTROL_HEADER;
use http::StatusCode;
use serde::Deserialize;

use crate::agent::Agent;
use crate::answer::refusal;
use crate::log;

mod processes;
mod tunnel;

/// Entries of the log in one answer.
const MAX_LOGS: usize = 1000;

/// Everything on the control port.
pub(crate) fn router(agent: &Arc<Agent>) -> Router {
    Router::new()
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
        .route("/tunnel", get(tunnel::open))
        .route("/logs", get(logs))
        .route("/processes", get(list))
        .route("/processes/{pid}/output", get(output))
        .fallback(|| async { refusal(StatusCode::NOT_FOUND, "no such route") })
        .layer(from_fn_with_state(Arc::clone(agent), require_secret))
        .with_state(Arc::clone(agent))
}

async fn require_secret(State(agent): State<Arc<Agent>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(CONTROL_HEADER);
    let matches = shown
        .and_then(|value| value.to_str().ok())
        .is_some_and(|shown| agent.control_secret().matches(shown));
    if matches {
        next.run(request).await
    } else {
        refusal(
            StatusCode::UNAUTHORIZED,
            "the x-hearth-control header is missing or wrong",
        )
    }
}

#[derive(Debug, Deserialize)]
struct LogsQuery {
    #[serde(default)]
    start_ms: i64,
    limit: Option<usize>,
}

async fn logs(Query(query): Query<LogsQuery>) -> Json<Vec<log::Entry>> {
    let limit = query.limit.unwrap_or(MAX_LOGS).min(MAX_LOGS);
    Json(log::read(query.start_ms, limit))
}

async fn list(State(agent): State<Arc<Agent>>) -> Response {
    Json(processes::list(&agent.processes)).into_response()
}

#[derive(Debug, Deserialize)]
struct OutputQuery {
    #[serde(default)]
    offset: u64,
}

async fn output(
    State(agent): State<Arc<Agent>>,
    Path(pid): Path<u32>,
    Query(query): Query<OutputQuery>,
) -> Response {
    match processes::output(&agent.processes, pid, query.offset) {
        Some(output) => Json(output).into_response(),
        None => refusal(
            StatusCode::NOT_FOUND,
            &format!("process with pid {pid} not found"),
        ),
    }
}
