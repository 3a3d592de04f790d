//! The edge's own answers, word for word as clients expect them (`e2b.md` B.8).
//!
//! Programs get JSON, browsers a small page with the same status. Every text that can hold
//! something from outside is escaped.

use hearth_model::end::EndReason;
use hearth_model::id::SandboxId;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::body::AnswerBody;

/// Something the edge says instead of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Unknown, or ended with a reason.
    NotFound(Option<Box<EndReason>>),
    Changing,
    PortClosed(u16),
    /// The port was open, and what came was not an HTTP answer.
    BadAnswer(u16),
    NoAnswer(u16),
    TooManyStreams(usize),
    /// The agent's internal routes and its control port.
    Hidden,
    /// The host ran out of something.
    Overloaded,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Json<'a> {
    sandbox_id: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    code: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
}

impl Refusal {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) | Self::PortClosed(_) | Self::BadAnswer(_) => StatusCode::BAD_GATEWAY,
            Self::Changing => StatusCode::CONFLICT,
            Self::NoAnswer(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::TooManyStreams(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Hidden => StatusCode::NOT_FOUND,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NotFound(_) => "The sandbox was not found".into(),
            Self::Changing => "The sandbox is changing its state, try again".into(),
            Self::PortClosed(_) => "The sandbox is running but port is not open".into(),
            Self::BadAnswer(_) => {
                "The sandbox is running but what its port answered is not HTTP".into()
            }
            Self::NoAnswer(_) => {
                "The sandbox is running but its port did not answer in time".into()
            }
            Self::TooManyStreams(limit) => {
                format!("The sandbox has {limit} open requests, which is the limit")
            }
            Self::Hidden => "Not found".into(),
            Self::Overloaded => "The server cannot open another connection, try again".into(),
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            Self::PortClosed(port) | Self::BadAnswer(port) | Self::NoAnswer(port) => Some(*port),
            _ => None,
        }
    }

    fn may_retry(&self) -> bool {
        matches!(
            self,
            Self::Changing | Self::TooManyStreams(_) | Self::Overloaded
        )
    }

    /// The answer, for the client whose request headers are `asked`.
    pub(crate) fn answer(&self, sandbox: &SandboxId, asked: &HeaderMap) -> Response<AnswerBody> {
        let message = self.message();
        let end = match self {
            Self::NotFound(Some(end)) => Some(end),
            _ => None,
        };
        let json = Json {
            sandbox_id: sandbox.as_str(),
            message: &message,
            port: self.port(),
            code: self.status().as_u16(),
            ended_at: end.and_then(|end| rfc3339(end.at_ms)),
            reason: end.map(|end| end.cause.describe()),
            by: end.map(|end| end.actor.describe()),
        };
        let mut answer = if is_browser(asked) {
            page(self.status(), &json)
        } else {
            let text = serde_json::to_vec(&json).expect("plain fields always serialise");
            with_type(self.status(), "application/json", AnswerBody::whole(text))
        };
        if self.may_retry() {
            answer
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

/// 400 with a plain text, for requests that name nothing.
pub(crate) fn bad_request(text: &str) -> Response<AnswerBody> {
    with_type(
        StatusCode::BAD_REQUEST,
        "text/plain; charset=utf-8",
        AnswerBody::whole(text.to_owned()),
    )
}

/// 401 as the agent gives it, for a signature no live sandbox made.
pub(crate) fn bad_signature() -> Response<AnswerBody> {
    with_type(
        StatusCode::UNAUTHORIZED,
        "application/json",
        AnswerBody::whole(r#"{"code":401,"message":"no running sandbox made this signature"}"#),
    )
}

fn with_type(status: StatusCode, kind: &'static str, body: AnswerBody) -> Response<AnswerBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    // Browser programs must be able to read why a sandbox does not answer; nothing here
    // depends on who asks.
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        HeaderValue::from_static("*"),
    );
    answer
}

fn is_browser(asked: &HeaderMap) -> bool {
    let has = |name, needle: &str| {
        asked
            .get(name)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.contains(needle))
    };
    has(header::USER_AGENT, "Mozilla") && has(header::ACCEPT, "text/html")
}

fn page(status: StatusCode, json: &Json<'_>) -> Response<AnswerBody> {
    let mut rows = format!("<p>{}</p>", escape(json.message));
    let port = json.port.map(|port| port.to_string());
    for (name, value) in [
        ("Sandbox", Some(json.sandbox_id)),
        ("Port", port.as_deref()),
        ("Ended at", json.ended_at.as_deref()),
        ("Reason", json.reason.as_deref()),
        ("By", json.by.as_deref()),
    ] {
        if let Some(value) = value {
            rows.push_str(&format!("<p>{name}: <code>{}</code></p>", escape(value)));
        }
    }
    let text = format!(
        "<!doctype html><meta charset=utf-8><title>{status}</title>\
         <style>body{{font:16px sans-serif;max-width:40em;margin:4em auto}}</style>\
         <h1>{status}</h1>{rows}"
    );
    let mut answer = with_type(status, "text/html; charset=utf-8", AnswerBody::whole(text));
    answer.headers_mut().insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    answer
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn rfc3339(at_ms: i64) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000).ok()?;
    at.format(&Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_model::end::{Actor, EndCause};
    use http_body_util::BodyExt as _;

    async fn text(answer: Response<AnswerBody>) -> String {
        let body = answer.into_body().collect().await.expect("whole");
        String::from_utf8(body.to_bytes().to_vec()).expect("text")
    }

    fn id() -> SandboxId {
        SandboxId::parse("i0123456789abcdefghijklmno").expect("valid")
    }

    #[tokio::test]
    async fn the_words_clients_pin_down() {
        let plain = HeaderMap::new();
        let gone = Refusal::NotFound(None).answer(&id(), &plain);
        assert_eq!(gone.status(), 502);
        assert_eq!(
            text(gone).await,
            r#"{"sandboxId":"i0123456789abcdefghijklmno","message":"The sandbox was not found","code":502}"#
        );
        let closed = Refusal::PortClosed(8080).answer(&id(), &plain);
        assert_eq!(closed.status(), 502);
        assert_eq!(
            text(closed).await,
            r#"{"sandboxId":"i0123456789abcdefghijklmno","message":"The sandbox is running but port is not open","port":8080,"code":502}"#
        );
        let changing = Refusal::Changing.answer(&id(), &plain);
        assert_eq!(changing.status(), 409);
        assert_eq!(changing.headers()["retry-after"], "1");
    }

    #[tokio::test]
    async fn an_end_says_when_why_and_by_whom() {
        let end = EndReason {
            at_ms: 1_700_000_000_000,
            cause: EndCause::Timeout,
            actor: Actor::System,
        };
        let answer = Refusal::NotFound(Some(Box::new(end))).answer(&id(), &HeaderMap::new());
        assert_eq!(
            text(answer).await,
            r#"{"sandboxId":"i0123456789abcdefghijklmno","message":"The sandbox was not found","code":502,"endedAt":"2023-11-14T22:13:20Z","reason":"its timeout passed","by":"hearth"}"#
        );
    }

    #[tokio::test]
    async fn browsers_get_an_escaped_page() {
        let mut asked = HeaderMap::new();
        asked.insert("user-agent", HeaderValue::from_static("Mozilla/5.0"));
        asked.insert("accept", HeaderValue::from_static("text/html,*/*"));
        let end = EndReason {
            at_ms: 0,
            cause: EndCause::Crashed {
                detail: "<script>'\"&".into(),
            },
            actor: Actor::Guest,
        };
        let answer = Refusal::NotFound(Some(Box::new(end))).answer(&id(), &asked);
        assert_eq!(answer.status(), 502);
        assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
        let page = text(answer).await;
        assert!(!page.contains("<script>"), "{page}");
        assert!(page.contains("&lt;script&gt;&#39;&quot;&amp;"), "{page}");
        // A program that only calls itself Mozilla gets JSON.
        asked.remove("accept");
        let answer = Refusal::NotFound(None).answer(&id(), &asked);
        assert_eq!(answer.headers()["content-type"], "application/json");
    }
}
