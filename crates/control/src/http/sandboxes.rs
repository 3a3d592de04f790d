//! Create, look at, kill.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use hearth_model::end::EndCause;
use hearth_wire::e2b::{
    CLIENT_ID, IDEMPOTENCY_HEADER, Lifecycle, ListedSandbox, SandboxDetail, SandboxState,
};

use super::body::{JsonBody, Name};
use super::error::ApiError;
use crate::app::{App, Caller, EndFailed, FindError, RepeatKey};
use crate::clock::rfc3339;
use crate::parse::{self, Version};
use crate::store::StoreError;
use crate::store::sandboxes::{Guard, Sandbox};

/// Longest idempotency key.
const MAX_REPEAT_KEY: usize = 255;

pub(super) async fn create_v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(fields): JsonBody,
) -> Result<Response, ApiError> {
    create(app, caller, Version::V1, &fields, None).await
}

pub(super) async fn create_v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(fields): JsonBody,
) -> Result<Response, ApiError> {
    let key = repeat_key(&headers, &fields)?;
    create(app, caller, Version::V2, &fields, key).await
}

async fn create(
    app: Arc<App>,
    caller: Caller,
    version: Version,
    fields: &parse::Fields,
    repeat: Option<RepeatKey>,
) -> Result<Response, ApiError> {
    let request = parse::create(fields, version, caller.max_timeout_h)?;
    let work = Arc::clone(&app).create(caller, request, repeat);
    // A task: a client that goes away leaves a sandbox that lives until its timeout.
    let body = app.tasks.spawn(work).await.map_err(broke)??;
    Ok((
        StatusCode::CREATED,
        [(CONTENT_TYPE, "application/json")],
        body,
    )
        .into_response())
}

fn repeat_key(headers: &HeaderMap, fields: &parse::Fields) -> Result<Option<RepeatKey>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_HEADER) else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let good = (1..=MAX_REPEAT_KEY).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    if !good {
        return Err(ApiError::bad_request(format!(
            "Idempotency-Key must be 1 to {MAX_REPEAT_KEY} characters of [a-z0-9-]"
        )));
    }
    let key = String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(RepeatKey::new(key, &fields.canonical())))
}

pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> Result<Json<SandboxDetail>, ApiError> {
    let sandbox = app.find(&caller, &name).await?;
    Ok(Json(SandboxDetail {
        envd_access_token: Some(sandbox.access_token.expose().to_owned()),
        allow_internet_access: sandbox.internet_choice,
        domain: app.config.domain.clone(),
        lifecycle: Some(Lifecycle {
            on_timeout: "kill".into(),
            auto_resume: false,
        }),
        listed: listed(sandbox),
    }))
}

pub(super) async fn kill(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
) -> Result<StatusCode, ApiError> {
    // One that is being created can be killed too.
    let id = match app.find(&caller, &name).await {
        Ok(sandbox) => sandbox.id,
        Err(FindError::Creating { id }) => id,
        Err(fault) => return Err(fault.into()),
    };
    let ended = app
        .end(&id, EndCause::Killed, caller.actor(), Guard::None)
        .await;
    match ended {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        // Somebody was faster: say who and why.
        Err(EndFailed::Gone) => match app.find(&caller, &name).await {
            Err(fault) => Err(fault.into()),
            Ok(_) => Err(EndFailed::Gone.into()),
        },
        Err(fault) => Err(fault.into()),
    }
}

/// The list form of a running sandbox.
pub(super) fn listed(sandbox: Sandbox) -> ListedSandbox {
    ListedSandbox {
        template_id: sandbox.template.to_string(),
        alias: sandbox.alias,
        sandbox_id: sandbox.id.to_string(),
        client_id: CLIENT_ID.to_owned(),
        started_at: rfc3339(sandbox.started_ms.unwrap_or(0)),
        end_at: rfc3339(sandbox.deadline_ms),
        cpu_count: sandbox.size.vcpu,
        memory_mb: sandbox.size.memory_mib,
        disk_size_mb: sandbox.size.disk_mib,
        metadata: sandbox.metadata,
        state: SandboxState::Running,
        envd_version: sandbox.envd_version,
        tier: sandbox.tier,
    }
}

/// A task of ours that panicked.
fn broke(panic: tokio::task::JoinError) -> ApiError {
    StoreError::Damaged {
        what: panic.to_string(),
    }
    .into()
}
