//! Who may talk to the public port, and what browsers may do with the answers. `/health`
//! is open; `/files` lets a signature stand for the token and checks both itself.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use crate::agent::Agent;
use crate::answer::refusal;
use crate::users::UserError;

const TOKEN_HEADER: &str = "x-access-token";
/// Seconds a browser may remember a preflight's answer.
const PREFLIGHT_MAX_AGE: &str = "7200";

pub(crate) fn shown_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(TOKEN_HEADER)?.to_str().ok()
}

/// The user name in `Authorization: Basic`, without the password, which is not used.
///
/// # Errors
/// [`UserError::Header`] when the header is there and says something else.
pub(crate) fn basic_user(headers: &HeaderMap) -> Result<Option<String>, UserError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(None);
    };
    let (scheme, coded) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .ok_or(UserError::Header)?;
    if !scheme.eq_ignore_ascii_case("basic") {
        // Another scheme is meant for somebody else on the way.
        return Ok(None);
    }
    let plain = STANDARD
        .decode(coded.trim())
        .map_err(|_| UserError::Header)?;
    let plain = String::from_utf8(plain).map_err(|_| UserError::Header)?;
    let (user, _password) = plain.split_once(':').unwrap_or((&plain, ""));
    Ok(Some(user.to_owned()))
}

/// Refuses what does not show the access token.
pub(crate) async fn require_token(
    State(agent): State<Arc<Agent>>,
    request: Request,
    next: Next,
) -> Response {
    let open = matches!(request.uri().path(), "/health" | "/files");
    if open || agent.has_token(request.headers()) {
        next.run(request).await
    } else {
        refusal(
            StatusCode::UNAUTHORIZED,
            "the X-Access-Token header is missing or wrong",
        )
    }
}

/// Lets any web page use the agent (the token is the guard), and keeps proxies on the way
/// from holding streams back.
pub(crate) async fn open_to_browsers(request: Request, next: Next) -> Response {
    let any = HeaderValue::from_static("*");
    let preflight = request.method() == Method::OPTIONS
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight {
        // `*` does not cover Authorization, so the wish is repeated word for word.
        let wished = request
            .headers()
            .get(header::ACCESS_CONTROL_REQUEST_HEADERS)
            .cloned()
            .unwrap_or_else(|| any.clone());
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wished);
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE"),
        );
        headers.insert(
            header::ACCESS_CONTROL_MAX_AGE,
            HeaderValue::from_static(PREFLIGHT_MAX_AGE),
        );
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, any.clone());
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, any);
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: Result<Option<&str>, ()>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        let found = basic_user(&headers).map_err(|_| ());
        assert_eq!(
            found,
            expected.map(|name| name.map(str::to_owned)),
            "{value}"
        );
    }

    #[test]
    fn names_come_from_basic_only() {
        check("Basic cm9vdDo=", Ok(Some("root")));
        check("basic cm9vdDpzZWNyZXQ=", Ok(Some("root")));
        check("Basic cm9vdA==", Ok(Some("root")));
        check("Basic Og==", Ok(Some("")));
        check("Bearer abc", Ok(None));
        check("Basic", Err(()));
        check("Basic !!!", Err(()));
        check("Basic /w==", Err(()));
        assert_eq!(basic_user(&HeaderMap::new()).unwrap(), None);
    }
}
