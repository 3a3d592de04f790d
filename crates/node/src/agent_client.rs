//! The node's calls to the agent's control port. The agent is the guest's: answers are
//! bounded in size and time and parsed, never trusted.

use std::collections::BTreeMap;
use std::time::Duration;

use hearth_model::limits;
use hearth_model::node::Endpoint;
use hearth_wire::boot::CONTROL_HEADER;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::sync::Semaphore;

const DEADLINE: Duration = Duration::from_secs(5);
/// Largest answer taken, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Answers read at once: they are in memory whole.
static READING: Semaphore = Semaphore::const_new(8);

/// One line of the agent's log.
#[derive(Debug, Clone, Deserialize)]
pub struct LogLine {
    pub timestamp_ms: i64,
    pub level: String,
    pub message: String,
    #[serde(default)]
    pub fields: BTreeMap<String, Field>,
}

/// A value of a log line. Nothing nested: a hostile answer must not grow in memory.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Field {
    Text(String),
    Number(serde_json::Number),
    Flag(bool),
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

/// The agent's log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    #[error("the sandbox is not running")]
    NotRunning,
    #[error("the agent did not answer within {} s", DEADLINE.as_secs())]
    Silent,
    #[error("asking the agent: {0}")]
    Failed(String),
}

/// Lines since `start_ms`, oldest first.
pub(crate) async fn logs(
    to: &Endpoint,
    start_ms: i64,
    limit: usize,
) -> Result<Vec<LogLine>, LogsError> {
    let path = format!("/logs?start_ms={start_ms}&limit={limit}");
    let _turn = READING
        .acquire()
        .await
        .map_err(|e| LogsError::Failed(e.to_string()))?;
    let body = tokio::time::timeout(DEADLINE, get(to, &path))
        .await
        .map_err(|_| LogsError::Silent)??;
    let mut lines: Vec<LogLine> =
        serde_json::from_slice(&body).map_err(|e| LogsError::Failed(e.to_string()))?;
    lines.truncate(limit);
    Ok(lines)
}

async fn get(to: &Endpoint, path: &str) -> Result<bytes::Bytes, LogsError> {
    fn failed(e: impl std::fmt::Display) -> LogsError {
        LogsError::Failed(e.to_string())
    }
    let stream = tokio::net::TcpStream::connect((to.address, limits::CONTROL_PORT))
        .await
        .map_err(failed)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to an agent ended");
        }
    });
    let request = http::Request::get(path)
        .header(CONTROL_HEADER, to.control_secret.expose())
        .header(http::header::HOST, "agent")
        .body(Empty::<bytes::Bytes>::new())
        .map_err(failed)?;
    let answer = sender.send_request(request).await.map_err(failed)?;
    if !answer.status().is_success() {
        return Err(LogsError::Failed(format!("status {}", answer.status())));
    }
    Ok(Limited::new(answer.into_body(), MAX_ANSWER)
        .collect()
        .await
        .map_err(failed)?
        .to_bytes())
}
