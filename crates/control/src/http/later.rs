//! Routes of E2B that this server does not serve yet. Each says so, after the same checks
//! as a served one: a key first, and a sandbox or template of the caller's where it names one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;

use super::body::Name;
use super::error::ApiError;
use super::templates;
use crate::app::{App, Caller};

fn not_yet(what: &str) -> ApiError {
    ApiError::bad_request(format!("{what} not supported by this server yet"))
}

async fn on_sandbox(app: &App, caller: &Caller, name: &str, what: &str) -> ApiError {
    match app.find(caller, name).await {
        Ok(_) => not_yet(what),
        Err(fault) => fault.into(),
    }
}

pub(super) async fn pause(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> ApiError {
    on_sandbox(&app, &caller, &name, "pause is").await
}

pub(super) async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> ApiError {
    on_sandbox(&app, &caller, &name, "fork is").await
}

pub(super) async fn snapshot(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> ApiError {
    on_sandbox(&app, &caller, &name, "snapshots are").await
}

pub(super) async fn network(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> ApiError {
    on_sandbox(&app, &caller, &name, "changing the network is").await
}

/// Nothing is ever paused here, so what exists is running already.
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> ApiError {
    match app.find(&caller, &name).await {
        Ok(sandbox) => ApiError::new(
            StatusCode::CONFLICT,
            format!("sandbox {} is already running", sandbox.id),
        ),
        Err(fault) => fault.into(),
    }
}

pub(super) async fn snapshots(_caller: Caller) -> ApiError {
    not_yet("snapshots are")
}

pub(super) async fn build(_caller: Caller) -> ApiError {
    not_yet("building templates is")
}

/// Builds of clients older than E2B itself serves.
pub(super) async fn old_build(_caller: Caller) -> ApiError {
    ApiError::new(
        StatusCode::GONE,
        "this way of building templates is gone: use a newer client",
    )
}

pub(super) async fn change_template(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Name(name): Name,
) -> ApiError {
    match templates::find(&app, &name) {
        Ok(_) => not_yet("changing templates is"),
        Err(fault) => fault,
    }
}

pub(super) async fn template_build(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Name(name): Name,
) -> ApiError {
    match templates::find(&app, &name) {
        Ok(_) => not_yet("building templates is"),
        Err(fault) => fault,
    }
}

pub(super) async fn template_tags(
    State(app): State<Arc<App>>,
    _caller: Caller,
    Name(name): Name,
) -> ApiError {
    match templates::find(&app, &name) {
        Ok(_) => not_yet("tags of templates are"),
        Err(fault) => fault,
    }
}

pub(super) async fn tags(_caller: Caller) -> ApiError {
    not_yet("tags of templates are")
}

pub(super) async fn volumes(_caller: Caller) -> ApiError {
    not_yet("volumes are")
}

pub(super) async fn secrets(_caller: Caller) -> ApiError {
    not_yet("secrets are")
}

pub(super) async fn teams(_caller: Caller) -> ApiError {
    not_yet("signing in as a user is")
}

pub(super) async fn api_keys(_caller: Caller) -> ApiError {
    not_yet("managing API keys over the network (use `hearth key` on the server) is")
}
