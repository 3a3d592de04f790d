//! `/files`: whole files in and out over HTTP.

pub(crate) mod compose;
pub(crate) mod download;
pub(crate) mod gate;
pub(crate) mod http;
pub(crate) mod kind;
pub(crate) mod multipart;
pub(crate) mod query;
pub(crate) mod range;
pub(crate) mod staged;
pub(crate) mod upload;

/// The `/files` routes.
pub(crate) fn router(_agent: std::sync::Arc<crate::agent::Agent>) -> axum::Router {
    axum::Router::new()
}
