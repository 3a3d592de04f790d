//! Who calls: `X-API-KEY` to a team. The refusal has one text, whatever was wrong.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use hearth_wire::e2b::API_KEY_HEADER;

use super::error::ApiError;
use crate::app::{App, Caller};
use crate::clock::now_ms;

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let key = parts
            .headers
            .get(API_KEY_HEADER)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let owner = app.keys.owner_of(key).await?.ok_or_else(|| {
            ApiError::new(
                StatusCode::UNAUTHORIZED,
                "a valid API key is required in the header X-API-KEY",
            )
        })?;
        app.note_use(&owner.key_id, now_ms());
        Ok(Self {
            team: owner.team,
            key_id: owner.key_id,
            max_timeout_h: owner.max_timeout_h,
        })
    }
}
