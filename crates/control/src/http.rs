//! The REST API (`e2b.md` A): routes and what they have in common.
//!
//! A handler checks the caller, reads its input with `parse` or `page`, calls one operation
//! of `App`, and writes a wire object. Faults become answers in `error` and nowhere else.

mod auth;
mod body;
mod error;
mod extend;
mod later;
mod list;
mod logs;
mod metrics;
mod sandboxes;
mod templates;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, delete, get, post, put};

use crate::app::App;
use error::ApiError;

/// The whole API. Serves any caller with a valid key; `GET /health` needs none.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/sandboxes", get(list::v1).post(sandboxes::create_v1))
        .route("/v2/sandboxes", get(list::v2).post(sandboxes::create_v2))
        .route("/sandboxes/metrics", get(metrics::of_many))
        .route(
            "/sandboxes/{id}",
            get(sandboxes::detail).delete(sandboxes::kill),
        )
        .route("/sandboxes/{id}/connect", post(extend::connect_v1))
        .route("/v2/sandboxes/{id}/connect", post(extend::connect_v2))
        .route("/sandboxes/{id}/timeout", post(extend::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(extend::refresh))
        .route("/sandboxes/{id}/metrics", get(metrics::of_one))
        .route("/sandboxes/{id}/logs", get(logs::v1))
        .route("/v2/sandboxes/{id}/logs", get(logs::v2))
        .route("/sandboxes/{id}/resume", post(later::resume))
        .route("/sandboxes/{id}/pause", post(later::pause))
        .route("/sandboxes/{id}/fork", post(later::fork))
        .route("/sandboxes/{id}/snapshots", post(later::snapshot))
        .route("/sandboxes/{id}/network", put(later::network))
        .route("/snapshots", get(later::snapshots))
        .route("/templates", get(templates::list).post(later::old_build))
        .route("/v2/templates", get(templates::list))
        .route("/default-templates", get(templates::list))
        .route("/v3/templates", post(later::build))
        .route(
            "/templates/{id}",
            get(templates::one)
                .delete(later::change_template)
                .patch(later::change_template)
                .post(later::old_build),
        )
        .route(
            "/v2/templates/{id}",
            axum::routing::patch(later::change_template),
        )
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/templates/tags", post(later::tags).delete(later::tags))
        .route("/templates/{id}/tags", get(later::template_tags))
        .route("/templates/{id}/files/{hash}", get(later::template_build))
        .route("/templates/{id}/builds/{build}", post(later::old_build))
        .route(
            "/v2/templates/{id}/builds/{build}",
            post(later::template_build),
        )
        .route(
            "/templates/{id}/builds/{build}/status",
            get(later::template_build),
        )
        .route(
            "/templates/{id}/builds/{build}/logs",
            get(later::template_build),
        )
        .route("/volumes", any(later::volumes))
        .route("/volumes/{id}", any(later::volumes))
        .route("/secrets", any(later::secrets))
        .route("/secrets/{id}", any(later::secrets))
        .route("/teams", get(later::teams))
        .route("/api-keys", any(later::api_keys))
        .route(
            "/api-keys/{id}",
            delete(later::api_keys).patch(later::api_keys),
        )
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

/// 204 when this server can create.
async fn health(State(app): State<Arc<App>>) -> Response {
    if app.is_ready() {
        StatusCode::NO_CONTENT.into_response()
    } else {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is starting").into_response()
    }
}

async fn unknown_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no such route")
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this route has no such method",
    )
}
