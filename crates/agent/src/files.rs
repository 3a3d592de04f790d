//! `/files`: whole files in and out over HTTP. Start from [`router`]; the file operations
//! themselves are shared with the Connect service and live in [`crate::filesystem`].

use std::sync::Arc;

use ::http::HeaderMap;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::{get, post};

use self::http::Files;
use crate::agent::Agent;

pub(crate) mod compose;
pub(crate) mod download;
pub(crate) mod http;
pub(crate) mod kind;
pub(crate) mod multipart;
pub(crate) mod query;
pub(crate) mod range;
mod respond;
pub(crate) mod staged;
pub(crate) mod upload;

/// The routes. `/files` checks token and signature itself; `/files/compose` relies on the
/// token having been checked.
pub(crate) fn router(agent: Arc<Agent>) -> Router {
    Router::new()
        .route("/files", get(download).post(upload))
        .route("/files/compose", post(compose))
        .with_state(Arc::new(Files::new(agent)))
}

async fn download(
    State(files): State<Arc<Files>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    files.get(&headers, query.as_deref()).await
}

async fn upload(
    State(files): State<Arc<Files>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    files.post(&headers, query.as_deref(), body).await
}

async fn compose(State(files): State<Arc<Files>>, headers: HeaderMap, body: Body) -> Response {
    files.post_compose(&headers, body).await
}
