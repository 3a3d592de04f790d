//! Requests that move a deadline: connect, timeout, refreshes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hearth_model::limits::DEFAULT_TIMEOUT_S;
use hearth_wire::e2b;

use super::body::{JsonBody, Name, OptionalJsonBody};
use super::error::ApiError;
use crate::app::{App, Caller, Extend};
use crate::parse::{Fields, refresh_duration, required, timeout_from_now, timeout_within};

pub(super) async fn connect_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    JsonBody(fields): JsonBody,
) -> Result<Json<e2b::Sandbox>, ApiError> {
    let seconds = required(timeout_from_now(&fields, caller.max_timeout_h)?, "timeout")?;
    connect(&app, &caller, &name, &fields, seconds).await
}

pub(super) async fn connect_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    OptionalJsonBody(fields): OptionalJsonBody,
) -> Result<Json<e2b::Sandbox>, ApiError> {
    let seconds = match timeout_from_now(&fields, caller.max_timeout_h)? {
        Some(seconds) => seconds,
        None => timeout_within(DEFAULT_TIMEOUT_S, caller.max_timeout_h)?,
    };
    connect(&app, &caller, &name, &fields, seconds).await
}

/// Answers for a running sandbox; its end is never moved earlier. `memory` chooses how a
/// paused one comes back, so it says nothing here.
async fn connect(
    app: &Arc<App>,
    caller: &Caller,
    name: &str,
    fields: &Fields,
    seconds: u64,
) -> Result<Json<e2b::Sandbox>, ApiError> {
    fields.flag("memory")?;
    let sandbox = app.extend(caller, name, seconds, Extend::Connect).await?;
    Ok(Json(app.sandbox_body(
        &sandbox.id,
        &sandbox.template,
        sandbox.alias,
        &sandbox.envd_version,
        &sandbox.access_token,
    )))
}

pub(super) async fn set_timeout(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    JsonBody(fields): JsonBody,
) -> Result<StatusCode, ApiError> {
    let seconds = required(timeout_from_now(&fields, caller.max_timeout_h)?, "timeout")?;
    app.extend(&caller, &name, seconds, Extend::Set).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    OptionalJsonBody(fields): OptionalJsonBody,
) -> Result<StatusCode, ApiError> {
    let seconds = refresh_duration(&fields)?;
    app.extend(&caller, &name, seconds, Extend::Refresh).await?;
    Ok(StatusCode::NO_CONTENT)
}
