//! The client's side of the REST API and of the agent's unary calls: one small HTTP client
//! for all commands that talk to a server.
//!
//! Start with [`Target`], which finds the server and its key.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use hearth_wire::e2b::{API_KEY_HEADER, ErrorBody, NEXT_TOKEN_HEADER};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::env::Client;
use super::out::clean;
use super::{EXIT_USAGE, Failure};

/// Where a server keeps its state by default.
const DEFAULT_STATE: &str = "/var/lib/hearth";
/// Where a server listens by default.
const DEFAULT_URL: &str = "http://127.0.0.1:3000";
/// Largest answer read into memory, in bytes: a page of a list is far below it.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Longest wait for an answer of the API. A create may wait a minute for the node.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Pages of a list before something is wrong with the server.
const MAX_PAGES: usize = 10_000;

/// Which server is asked: the one of `--state-dir`; else the one that the environment names, as
/// for any SDK; else the one of the default state folder.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Target {
    /// State folder of the server to ask. Default: the server that E2B_API_KEY, E2B_API_URL and
    /// E2B_SANDBOX_URL name, else the one of HEARTH_STATE_DIR or /var/lib/hearth.
    #[arg(long)]
    state_dir: Option<PathBuf>,
}

/// A server and the key to it.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    key: String,
    url: String,
    sandbox_url: String,
}

impl Api {
    pub(crate) fn open(target: &Target) -> Result<Self, Failure> {
        let var = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        let (key, url, sandbox_url) = match (&target.state_dir, var("E2B_API_KEY")) {
            (None, Some(key)) => {
                let url = var("E2B_API_URL").unwrap_or_else(|| DEFAULT_URL.into());
                let sandbox_url = var("E2B_SANDBOX_URL").unwrap_or_else(|| url.clone());
                (key, url, sandbox_url)
            }
            // Never the key of one server to the address of another.
            (state, _) => {
                let state = state
                    .clone()
                    .or_else(|| var("HEARTH_STATE_DIR").map(PathBuf::from))
                    .unwrap_or_else(|| DEFAULT_STATE.into());
                let Client { api_key, api_url } = Client::load(&state).map_err(|e| {
                    let what = format!("looking for an API key in {}", state.display());
                    Failure::from_error(&what, &e).hint(
                        "set E2B_API_KEY and E2B_API_URL, or run this as root on the server's host after `hearth serve` was started once",
                    )
                })?;
                (api_key, api_url.clone(), api_url)
            }
        };
        for (name, url) in [("E2B_API_URL", &url), ("E2B_SANDBOX_URL", &sandbox_url)] {
            if !url.starts_with("http://") {
                return Err(Failure::new(format!(
                    "{name} is {url:?}; this command speaks plain http only"
                ))
                .hint("run it on the server's host with http://127.0.0.1:PORT")
                .code(EXIT_USAGE));
            }
        }
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        Ok(Self {
            http,
            key,
            url: trimmed(&url),
            sandbox_url: trimmed(&sandbox_url),
        })
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        self.http.request(request).await.map_err(|e| {
            let connect = e.is_connect();
            let failure = Failure::from_error("reaching the server", &e);
            if connect {
                failure.hint(format!(
                    "is it up at {}? start it with `hearth serve`",
                    self.url
                ))
            } else {
                failure
            }
        })
    }

    /// One call of the REST API; `path` starts with a slash. Answers the body and the token
    /// of the next page.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl serde::Serialize>,
    ) -> Result<Answer, Failure> {
        let build = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(API_KEY_HEADER, &self.key)
            .header("content-type", "application/json");
        let body = match body {
            Some(body) => serde_json::to_vec(body)
                .map_err(|e| Failure::from_error("writing the request", &e))?,
            None => Vec::new(),
        };
        let request = build
            .body(Full::from(body))
            .map_err(|e| Failure::from_error("building the request", &e))?;
        let whole = async {
            let answer = self.send(request).await?;
            let (status, next) = (answer.status(), header(&answer, NEXT_TOKEN_HEADER));
            Ok::<_, Failure>((status, next, collect(answer).await?))
        };
        let (status, next, bytes) =
            tokio::time::timeout(ANSWER_TIMEOUT, whole)
                .await
                .map_err(|_| {
                    let seconds = ANSWER_TIMEOUT.as_secs();
                    Failure::new(format!("{} did not answer within {seconds} s", self.url))
                        .hint("`hearth doctor` checks the server's host")
                })??;
        if status.is_success() {
            let body = if bytes.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(&bytes)
                    .map_err(|e| Failure::from_error("reading the answer", &e))?
            };
            return Ok(Answer { body, next });
        }
        Err(refused(status, &bytes))
    }

    /// The items of a paged list, up to `most`.
    pub(crate) async fn all(&self, path: &str, most: usize) -> Result<Vec<Value>, Failure> {
        let mut items = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let joint = if path.contains('?') { '&' } else { '?' };
            let page = match &token {
                Some(token) => format!("{path}{joint}nextToken={}", encode(token)),
                None => path.to_owned(),
            };
            let answer = self.call(Method::GET, &page, None::<&Value>).await?;
            match answer.body {
                Value::Array(page) => items.extend(page),
                other => {
                    return Err(Failure::new(format!(
                        "the server answered {other:.80} where a list was due"
                    )));
                }
            }
            token = answer.next;
            if token.is_none() || items.len() >= most {
                items.truncate(most);
                return Ok(items);
            }
        }
        Err(Failure::new(format!(
            "the list has more than {MAX_PAGES} pages"
        )))
    }

    /// Starts a request to the agent of a sandbox; the caller reads the answer.
    pub(crate) async fn agent(
        &self,
        to: &Agent,
        method: &str,
        kind: &str,
        deadline_ms: Option<u64>,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut build = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{method}", self.sandbox_url))
            .header("e2b-sandbox-id", &to.sandbox)
            .header("e2b-sandbox-port", hearth_model::limits::AGENT_PORT)
            .header("content-type", kind)
            .header("connect-protocol-version", "1");
        if let Some(deadline) = deadline_ms {
            build = build.header("connect-timeout-ms", deadline);
        }
        if let Some(token) = &to.token {
            build = build.header("x-access-token", token);
        }
        if let Some(user) = &to.user {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:"));
            build = build.header("authorization", format!("Basic {text}"));
        }
        let request = build
            .body(Full::from(body))
            .map_err(|e| Failure::from_error("building the request", &e))?;
        self.send(request).await
    }

    /// A unary call of the agent, its answer thrown away. That the agent says no is no
    /// failure of the call.
    pub(crate) async fn agent_call(
        &self,
        to: &Agent,
        method: &str,
        body: &Value,
    ) -> Result<Taken, Failure> {
        let body = body.to_string().into_bytes();
        let answer = self
            .agent(to, method, "application/json", None, body)
            .await?;
        let taken = if answer.status().is_success() {
            Taken::Yes
        } else {
            Taken::No
        };
        // Read to its end, so that the connection can be used again.
        collect(answer).await?;
        Ok(taken)
    }
}

/// What the agent said to a unary call.
#[derive(Debug)]
pub(crate) enum Taken {
    Yes,
    No,
}

/// What a call brought.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Value,
    pub(crate) next: Option<String>,
}

/// Whose agent, and as whom.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    pub(crate) sandbox: String,
    pub(crate) token: Option<String>,
    pub(crate) user: Option<String>,
}

/// The whole body of an answer, up to [`MAX_ANSWER`].
pub(crate) async fn collect(answer: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|e| Failure::new(format!("reading the server's answer: {e}")))
}

/// A failure in the server's own words.
pub(crate) fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let said = serde_json::from_slice::<ErrorBody>(body)
        .map(|e| e.message)
        .unwrap_or_else(|_| {
            // The agent and the edge have bodies of their own form, with the same field.
            serde_json::from_slice::<Value>(body)
                .ok()
                .and_then(|v| {
                    let message = v.get("message").and_then(Value::as_str)?;
                    // The edge tells why a sandbox is gone in a field of its own.
                    Some(match v.get("reason").and_then(Value::as_str) {
                        Some(reason) => format!("{message}: {reason}"),
                        None => message.to_owned(),
                    })
                })
                .unwrap_or_else(|| {
                    String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned()
                })
        });
    let failure = Failure::new(format!(
        "the server refused ({}): {}",
        status.as_u16(),
        clean(&said)
    ));
    match status {
        StatusCode::UNAUTHORIZED => {
            failure.hint("set E2B_API_KEY to a key of this server: `hearth key create` makes one")
        }
        StatusCode::TOO_MANY_REQUESTS => failure
            .hint("kill sandboxes of the team, or raise its limit: `hearth key create --limit`"),
        _ => failure,
    }
}

fn header(answer: &Response<Incoming>, name: &str) -> Option<String> {
    answer
        .headers()
        .get(name)
        .and_then(|v| v.to_str().ok())
        .filter(|v| !v.is_empty())
        .map(str::to_owned)
}

fn trimmed(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

/// Percent-encodes a value of a query.
pub(crate) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encode("a b&c=ü~"), "a%20b%26c%3D%C3%BC~");
    }

    #[test]
    fn the_servers_words_are_kept() {
        let failure = refused(
            StatusCode::NOT_FOUND,
            br#"{"code":404,"message":"sandbox not found"}"#,
        );
        assert_eq!(failure.what, "the server refused (404): sandbox not found");
        let agent = refused(
            StatusCode::BAD_REQUEST,
            br#"{"code":"invalid_argument","message":"no"}"#,
        );
        assert_eq!(agent.what, "the server refused (400): no");
        assert!(refused(StatusCode::UNAUTHORIZED, b"x").hint.is_some());
    }
}
