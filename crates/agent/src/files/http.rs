//! The HTTP side of `/files`: who may, what was asked, and how an outcome is said. The
//! work itself is in the neighbours.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::FutureExt as _;
use hearth_model::signature::{self, Claim, Operation};
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::compose::{Abandoned, compose};
use super::download::Source;
use super::multipart;
use super::query::{self, Query};
use super::respond::answer;
use super::upload::{Encoding, Order, Upload, UploadError};
use crate::agent::Agent;
use crate::answer::refusal;
use crate::filesystem::blocking;
use crate::filesystem::fault::FileError;
use crate::filesystem::metadata::{self, Pairs};
use crate::filesystem::path::{Caller, resolve};
use crate::users::UserError;

/// Transfers at a time. Each holds up to a quarter of a megabyte.
const MAX_TRANSFERS: usize = 256;
/// Bytes of an upload handed over at once; what has arrived beyond one piece waits in the
/// connection.
const BATCH: usize = 256 * 1024;
/// An upload that brings no byte for this long is given up.
const IDLE: Duration = Duration::from_secs(120);
/// How long a refused upload is still read, so that its client gets to read the answer.
const DRAIN: Duration = Duration::from_secs(60);
/// Bytes of a `POST /files/compose`.
const MAX_COMPOSE: usize = 4 * 1024 * 1024;

const TOKEN_HEADER: &str = "x-access-token";
const METADATA_PREFIX: &str = "x-metadata-";

/// State shared by all `/files` requests.
#[derive(Debug)]
pub(crate) struct Files {
    agent: Arc<Agent>,
    transfers: Arc<Semaphore>,
}

/// A refusal, which is an answer too.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) StatusCode, pub(super) String);

impl Refusal {
    fn bad(text: impl ToString) -> Self {
        Self(StatusCode::BAD_REQUEST, text.to_string())
    }

    pub(super) fn into_response(self) -> Response {
        let Self(status, message) = self;
        if status.is_server_error() {
            tracing::warn!(%status, %message, "a file request failed");
        }
        refusal(status, &message)
    }
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Self {
        let status = match error {
            FileError::Invalid(_) | FileError::Precondition(_) => StatusCode::BAD_REQUEST,
            FileError::NotFound(_) => StatusCode::NOT_FOUND,
            FileError::AlreadyExists(_) => StatusCode::CONFLICT,
            FileError::NoSpace(_) => StatusCode::INSUFFICIENT_STORAGE,
            FileError::Exhausted(_) => StatusCode::TOO_MANY_REQUESTS,
            FileError::Denied { .. } => StatusCode::FORBIDDEN,
            FileError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.public_text())
    }
}

impl From<UploadError> for Refusal {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::File(error) => error.into(),
            UploadError::Multipart(_)
            | UploadError::Gzip
            | UploadError::Twice(_)
            | UploadError::NoPath
            | UploadError::NoPart
            | UploadError::TooManyPaths => Self::bad(error),
        }
    }
}

impl Files {
    pub(crate) fn new(agent: Arc<Agent>) -> Self {
        Self {
            agent,
            transfers: Arc::new(Semaphore::new(MAX_TRANSFERS)),
        }
    }

    /// `GET /files`.
    pub(crate) async fn get(&self, headers: &HeaderMap, query: Option<&str>) -> Response {
        self.try_get(headers, query)
            .await
            .unwrap_or_else(Refusal::into_response)
    }

    /// `POST /files`.
    pub(crate) async fn post(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        mut body: Body,
    ) -> Response {
        match self.try_post(headers, query, &mut body).await {
            Ok(response) => response,
            Err(refusal) => {
                drain(body).await;
                refusal.into_response()
            }
        }
    }

    /// `POST /files/compose`.
    pub(crate) async fn post_compose(&self, headers: &HeaderMap, body: Body) -> Response {
        self.try_compose(headers, body)
            .await
            .unwrap_or_else(Refusal::into_response)
    }

    async fn try_get(&self, headers: &HeaderMap, query: Option<&str>) -> Result<Response, Refusal> {
        let query = query::parse(query.unwrap_or("")).map_err(Refusal::bad)?;
        authorise(&self.agent, headers, &query, Operation::Read)?;
        let caller = caller(&self.agent, headers, query.username.as_deref())?;
        let path = resolve(query.path.as_deref().unwrap_or(""), &caller)?;
        let permit = self.transfer()?;
        let to_open = path.clone();
        let source = blocking(move || Source::open(&to_open)).await??;
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        answer(source, &name, headers, permit)
    }

    async fn try_post(
        &self,
        headers: &HeaderMap,
        query: Option<&str>,
        body: &mut Body,
    ) -> Result<Response, Refusal> {
        let query = query::parse(query.unwrap_or("")).map_err(Refusal::bad)?;
        authorise(&self.agent, headers, &query, Operation::Write)?;
        let caller = caller(&self.agent, headers, query.username.as_deref())?;
        let pairs = pairs(headers)?;
        let encoding = encoding(headers)?;
        let order = Order {
            caller,
            path: query.path,
            pairs: pairs.clone(),
            store: Arc::clone(&self.agent.metadata),
        };
        let content_type = text(headers, &header::CONTENT_TYPE).unwrap_or("");
        let _permit = self.transfer()?;
        let upload = match multipart::boundary(content_type) {
            Some(boundary) => Upload::form(order, &boundary.map_err(Refusal::bad)?, encoding),
            None if is_octets(content_type) => {
                blocking(move || Upload::octets(order, encoding)).await??
            }
            None => {
                return Err(Refusal::bad(format!(
                    "content type '{content_type}' is neither multipart/form-data nor application/octet-stream"
                )));
            }
        };
        let written = receive(upload, body).await?;
        let list: Vec<serde_json::Value> = written.iter().map(|path| said(path, &pairs)).collect();
        Ok(axum::Json(list).into_response())
    }

    async fn try_compose(&self, headers: &HeaderMap, body: Body) -> Result<Response, Refusal> {
        #[derive(serde::Deserialize)]
        struct Compose {
            source_paths: Vec<String>,
            destination: String,
            #[serde(default)]
            username: Option<String>,
        }
        // The token was asked for on the way here.
        let limited = http_body_util::Limited::new(body, MAX_COMPOSE);
        let bytes = match timeout(IDLE, limited.collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => {
                return Err(Refusal::bad(format!(
                    "body cannot be read (limit: {MAX_COMPOSE} bytes): {error}"
                )));
            }
            Err(_) => return Err(too_slow()),
        };
        let asked: Compose = serde_json::from_slice(&bytes)
            .map_err(|error| Refusal::bad(format!("body is not as expected: {error}")))?;
        let username = asked.username.as_deref().filter(|name| !name.is_empty());
        let caller = caller(&self.agent, headers, username)?;
        let _permit = self.transfer()?;
        let abandoned = Abandoned::default();
        let flag = abandoned.flag();
        let store = Arc::clone(&self.agent.metadata);
        let path = blocking(move || {
            compose(
                &asked.source_paths,
                &asked.destination,
                &caller,
                &store,
                &flag,
            )
        })
        .await??;
        Ok(axum::Json(said(&path, &Pairs::new())).into_response())
    }

    fn transfer(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.transfers)
            .try_acquire_owned()
            .map_err(|_| {
                Refusal(
                    StatusCode::TOO_MANY_REQUESTS,
                    format!("{MAX_TRANSFERS} file transfers are under way, which is the limit"),
                )
            })
    }
}

/// How clients are told of a written file.
fn said(path: &std::path::Path, pairs: &Pairs) -> serde_json::Value {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut out = serde_json::json!({
        "path": path.to_string_lossy(),
        "name": name,
        "type": "file",
    });
    if !pairs.is_empty() {
        out["metadata"] = serde_json::json!(pairs);
    }
    out
}

/// A valid token opens everything; a signature opens what it was made for.
fn authorise(
    agent: &Agent,
    headers: &HeaderMap,
    query: &Query,
    operation: Operation,
) -> Result<(), Refusal> {
    let unauthorised = |text: &str| Refusal(StatusCode::UNAUTHORIZED, text.to_owned());
    let Some(token) = agent.access_token() else {
        return Ok(());
    };
    if headers.contains_key(TOKEN_HEADER) {
        return if agent.has_token(headers) {
            Ok(())
        } else {
            Err(unauthorised("invalid access token"))
        };
    }
    let Some(given) = &query.signature else {
        return Err(unauthorised("access token or signature is missing"));
    };
    let expiration = query.signature_expiration.as_deref();
    let claim = Claim {
        path: query.path.as_deref().unwrap_or(""),
        operation,
        user: query.username.as_deref().unwrap_or(""),
        expiration,
    };
    if !signature::verify(&claim, token, given) {
        return Err(unauthorised("invalid signature"));
    }
    let Some(expiration) = expiration else {
        return Ok(());
    };
    let expiration: i64 = expiration
        .parse()
        .map_err(|_| unauthorised("signature expiration is not a number of seconds"))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        });
    if expiration < now {
        return Err(unauthorised("signature is already expired"));
    }
    Ok(())
}

fn caller(agent: &Agent, headers: &HeaderMap, name: Option<&str>) -> Result<Caller, Refusal> {
    let unauthorised = |error: UserError| Refusal(StatusCode::UNAUTHORIZED, error.to_string());
    let user = match name {
        Some(_) => agent.user_named(name),
        None => agent.user_of(headers),
    };
    Ok(Caller::new(user.map_err(unauthorised)?, agent))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn is_octets(content_type: &str) -> bool {
    content_type
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/octet-stream"))
}

fn pairs(headers: &HeaderMap) -> Result<Pairs, Refusal> {
    let found = headers.iter().filter_map(|(name, value)| {
        let key = name.as_str().strip_prefix(METADATA_PREFIX)?;
        Some((key, value.as_bytes()))
    });
    Ok(metadata::parse(found)?)
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Refusal> {
    match text(headers, &header::CONTENT_ENCODING)
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase()
        .as_str()
    {
        "" | "identity" => Ok(Encoding::Identity),
        "gzip" | "x-gzip" => Ok(Encoding::Gzip),
        other => Err(Refusal(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("content encoding '{other}' is not supported; gzip is"),
        )),
    }
}

fn too_slow() -> Refusal {
    Refusal(
        StatusCode::REQUEST_TIMEOUT,
        format!("no byte arrived for {} seconds", IDLE.as_secs()),
    )
}

/// Takes the body as it comes. Dropped at any point, it leaves no trace of the upload.
async fn receive(mut upload: Upload, body: &mut Body) -> Result<Vec<std::path::PathBuf>, Refusal> {
    loop {
        let batch = match timeout(IDLE, next_batch(body)).await {
            Ok(batch) => batch,
            Err(_) => return Err(too_slow()),
        };
        let Batch { pieces, is_last } = batch?;
        let fed = blocking(move || {
            for piece in &pieces {
                upload.feed(piece)?;
            }
            Ok::<_, UploadError>(if is_last {
                Fed::Written(upload.finish()?)
            } else {
                Fed::More(upload)
            })
        })
        .await?;
        match fed? {
            Fed::More(same) => upload = same,
            Fed::Written(paths) => return Ok(paths),
        }
    }
}

enum Fed {
    More(Upload),
    Written(Vec<std::path::PathBuf>),
}

struct Batch {
    pieces: Vec<Bytes>,
    is_last: bool,
}

/// Waits for a piece of the body and takes what else is there already.
async fn next_batch(body: &mut Body) -> Result<Batch, Refusal> {
    let mut batch = Batch {
        pieces: Vec::new(),
        is_last: false,
    };
    let mut size = 0;
    let mut frame = body.frame().await;
    loop {
        match frame {
            None => {
                batch.is_last = true;
                return Ok(batch);
            }
            Some(Err(error)) => {
                return Err(Refusal::bad(format!("body ends too early: {error}")));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    size += data.len();
                    batch.pieces.push(data);
                }
            }
        }
        if size >= BATCH {
            return Ok(batch);
        }
        match body.frame().now_or_never() {
            Some(next) => frame = next,
            None if size == 0 => frame = body.frame().await,
            None => return Ok(batch),
        }
    }
}

/// Reads what is left, for a while: a client that is still sending when the connection
/// closes never sees the answer.
async fn drain(mut body: Body) {
    let rest = pin!(async { while let Some(Ok(_)) = body.frame().await {} });
    if timeout(DRAIN, rest).await.is_err() {
        tracing::debug!("a refused upload goes on sending");
    }
}
