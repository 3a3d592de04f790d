//! Reading what a request brings: the body, the path, the query. Bounded in size and time;
//! every refusal is a JSON answer.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use futures::StreamExt as _;
use hearth_model::limits::MAX_JSON_BODY;

use super::error::ApiError;
use crate::parse::Fields;

/// A client that sends a small body for longer than this is cut off.
const BODY_TIME: Duration = Duration::from_secs(60);

/// A body that must be there.
#[derive(Debug)]
pub(super) struct JsonBody(pub(super) Fields);

/// A body that may be absent: then it has no fields.
#[derive(Debug)]
pub(super) struct OptionalJsonBody(pub(super) Fields);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = read(request).await?;
        Ok(Self(Fields::read(&bytes)?))
    }
}

impl<S: Send + Sync> FromRequest<S> for OptionalJsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let bytes = read(request).await?;
        if bytes.is_empty() {
            return Ok(Self(Fields::default()));
        }
        Ok(Self(Fields::read(&bytes)?))
    }
}

async fn read(request: Request) -> Result<Vec<u8>, ApiError> {
    let (parts, body) = request.into_parts();
    refuse_compressed(&parts.headers)?;
    let announced = parts
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok());
    if announced.is_some_and(|length| length > MAX_JSON_BODY) {
        return Err(too_large());
    }
    tokio::time::timeout(BODY_TIME, collect(body))
        .await
        .map_err(|_| {
            ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body did not arrive within {} s", BODY_TIME.as_secs()),
            )
        })?
}

async fn collect(body: Body) -> Result<Vec<u8>, ApiError> {
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk =
            chunk.map_err(|_| ApiError::bad_request("the body ended before it was complete"))?;
        if bytes.len() + chunk.len() > MAX_JSON_BODY {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn too_large() -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is larger than the limit of {MAX_JSON_BODY} bytes"),
    )
}

fn refuse_compressed(headers: &HeaderMap) -> Result<(), ApiError> {
    let plain = headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity"));
    if plain {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "compressed request bodies are not accepted here",
    ))
}

/// The one variable part of a path, decoded. What is not text names nothing.
#[derive(Debug)]
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Path::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .ok()
            .and_then(|Path(values)| values.into_iter().next())
            .map(|(_, value)| Self(value))
            .ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "not found"))
    }
}

/// The query, decoded once.
#[derive(Debug)]
pub(super) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Query::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map(|Query(pairs)| Self(pairs))
            .map_err(|fault| ApiError::bad_request(format!("malformed query: {fault}")))
    }
}

impl Params {
    /// A parameter; empty is absent.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    /// Every item of a comma-joined or repeated parameter; none when it is absent.
    pub(super) fn items(&self, name: &str) -> Option<Vec<&str>> {
        let items: Vec<&str> = self
            .0
            .iter()
            .filter(|(key, _)| key == name)
            .flat_map(|(_, value)| value.split(','))
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .collect();
        (!items.is_empty()).then_some(items)
    }

    /// A whole number in a range.
    pub(super) fn number(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        self.get(name)
            .map(|text| {
                text.parse::<i64>()
                    .ok()
                    .filter(|number| (min..=max).contains(number))
                    .ok_or_else(|| {
                        ApiError::bad_request(format!(
                            "{name} must be a whole number from {min} to {max}, got {:?}",
                            crate::parse::shorten(text)
                        ))
                    })
            })
            .transpose()
    }
}
