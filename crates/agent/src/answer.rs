//! Answers of the plain HTTP routes. Connect answers are the services' own.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use serde::Serialize;

#[derive(Serialize)]
struct Refusal<'a> {
    code: u16,
    message: &'a str,
}

/// `{"code","message"}` under `status`.
pub(crate) fn refusal(status: StatusCode, message: &str) -> Response {
    let body = Refusal {
        code: status.as_u16(),
        message,
    };
    (status, Json(body)).into_response()
}
