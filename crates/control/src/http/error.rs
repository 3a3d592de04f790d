//! Faults to answers: the one place. The body is JSON and its `code` is the HTTP status.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hearth_wire::e2b::ErrorBody;

use crate::app::{CreateFailed, EndFailed, FindError};
use crate::clock::rfc3339;
use crate::parse::{Fault, shorten};
use crate::store::StoreError;
use crate::store::sandboxes::InsertError;

/// Read by Python's SDK before it repeats a request.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// An answer of 4xx or 5xx.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
    retry: Retry,
}

/// What the client may do with the same request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// As the status says.
    Unsaid,
    /// Again after this many seconds.
    After(u16),
    /// Not by itself.
    Never,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            error_code: None,
            retry: Retry::Unsaid,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    fn code(mut self, error_code: &'static str) -> Self {
        self.error_code = Some(error_code);
        self
    }

    fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error").code("internal_server_error")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            code: self.status.as_u16(),
            message: self.message,
            error_code: self.error_code.map(str::to_owned),
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self.retry {
            Retry::Unsaid => {}
            Retry::After(seconds) => {
                headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Retry::Never => {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
        }
        response
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self::bad_request(fault.to_string())
    }
}

impl From<StoreError> for ApiError {
    fn from(fault: StoreError) -> Self {
        let source = std::error::Error::source(&fault).map(ToString::to_string);
        tracing::error!(error = %fault, source, "a request failed on the store");
        Self::internal()
    }
}

impl From<FindError> for ApiError {
    fn from(fault: FindError) -> Self {
        match fault {
            FindError::Unknown { .. } => Self::new(StatusCode::NOT_FOUND, fault.to_string()),
            FindError::Gone { id, reason } => Self::new(
                StatusCode::NOT_FOUND,
                format!(
                    "sandbox \"{id}\" not found: it ended at {}: {} (by {})",
                    rfc3339(reason.at_ms),
                    reason.cause.describe(),
                    reason.actor.describe(),
                ),
            ),
            FindError::Creating { .. } => Self::new(StatusCode::CONFLICT, fault.to_string()),
            FindError::Store(fault) => fault.into(),
        }
    }
}

impl From<EndFailed> for ApiError {
    fn from(fault: EndFailed) -> Self {
        match fault {
            EndFailed::Gone => Self::new(StatusCode::NOT_FOUND, "sandbox not found"),
            EndFailed::Store(fault) => fault.into(),
        }
    }
}

impl From<CreateFailed> for ApiError {
    fn from(fault: CreateFailed) -> Self {
        let message = fault.to_string();
        match fault {
            CreateFailed::NoTemplate { name } => Self::new(
                StatusCode::NOT_FOUND,
                format!("template {:?} not found", shorten(&name)),
            ),
            CreateFailed::Refused(refusal) => match refusal {
                InsertError::TeamFull { .. } => {
                    Self::new(StatusCode::TOO_MANY_REQUESTS, message).retry(Retry::After(1))
                }
                InsertError::KeyMismatch => {
                    Self::new(StatusCode::CONFLICT, message).code("idempotency_request_mismatch")
                }
                InsertError::KeyInProgress => {
                    Self::new(StatusCode::CONFLICT, message).code("idempotency_in_progress")
                }
                InsertError::Store(fault) => fault.into(),
            },
            CreateFailed::NoCapacity { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
                .code("sandbox_capacity_unavailable")
                .retry(Retry::After(1)),
            CreateFailed::StartFailed { .. } | CreateFailed::Ended { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("sandbox_create_failed")
            }
            // The client has waited for a minute already.
            CreateFailed::TooLate { .. } => Self::new(StatusCode::GATEWAY_TIMEOUT, message)
                .code("sandbox_placement_timeout")
                .retry(Retry::Never),
            CreateFailed::Store(fault) => fault.into(),
        }
    }
}
