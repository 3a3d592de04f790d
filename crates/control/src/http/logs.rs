//! Logs of a sandbox: its lifecycle from the event table, and what its agent noted. They
//! can be read after the end too, without the agent's lines: that is when one asks why.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use hearth_wire::e2b::{LogEntry, LogLine, SandboxLogs, SandboxLogsV2};
use serde_json::Value;

use super::body::{Name, Params};
use super::error::ApiError;
use crate::app::{App, Caller};
use crate::clock::{now_ms, rfc3339};
use crate::parse::shorten;
use crate::ports;
use crate::store::events::{Event, Window};
use crate::store::sandboxes::Sandbox;

/// Lines of one answer.
const MAX_LINES: i64 = 1000;
/// Lines looked through for one answer, of each source.
const MAX_SCANNED: u32 = 10_000;
/// An agent's line is cut to this many characters, and to this many fields.
const MAX_MESSAGE: usize = 4096;
const MAX_FIELDS: usize = 32;
const MAX_SEARCH: usize = 256;
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// One line of either source.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    at_ms: i64,
    logger: &'static str,
    level: &'static str,
    message: String,
    fields: BTreeMap<String, String>,
}

pub(super) async fn v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    params: Params,
) -> Result<Json<SandboxLogs>, ApiError> {
    let sandbox = app.find_any(&caller, &name).await?;
    let start_ms = params.number("start", 0, i64::MAX)?.unwrap_or(0);
    let limit = lines_wanted(&params)?;
    let mut lines = gather(&app, &sandbox, Window::Start(start_ms), &start_of(start_ms)).await?;
    lines.truncate(limit);
    Ok(Json(SandboxLogs {
        logs: lines.iter().map(v1_line).collect(),
        log_entries: lines.into_iter().map(entry).collect(),
    }))
}

pub(super) async fn v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    params: Params,
) -> Result<Json<SandboxLogsV2>, ApiError> {
    let sandbox = app.find_any(&caller, &name).await?;
    let cursor = params.number("cursor", 0, i64::MAX)?;
    let limit = lines_wanted(&params)?;
    let backward = match params.get("direction") {
        None | Some("backward") => true,
        Some("forward") => false,
        Some(other) => return Err(choice("direction", "forward or backward", other)),
    };
    let least = match params.get("level") {
        None => 0,
        Some(text) => LEVELS
            .iter()
            .position(|level| *level == text)
            .ok_or_else(|| choice("level", "debug, info, warn or error", text))?,
    };
    let search = params.get("search").unwrap_or_default();
    if search.len() > MAX_SEARCH {
        return Err(ApiError::bad_request(format!(
            "search has {} bytes, the limit is {MAX_SEARCH}",
            search.len()
        )));
    }
    let (window, range) = if backward {
        let end_ms = cursor.unwrap_or_else(now_ms);
        (
            Window::End(end_ms),
            Range {
                start_ms: 0,
                end_ms,
            },
        )
    } else {
        let start_ms = cursor.unwrap_or(0);
        (Window::Start(start_ms), start_of(start_ms))
    };
    let mut lines = gather(&app, &sandbox, window, &range).await?;
    lines.retain(|line| {
        LEVELS.iter().position(|level| *level == line.level) >= Some(least)
            && line.message.contains(search)
    });
    if backward {
        lines.reverse();
    }
    lines.truncate(limit);
    Ok(Json(SandboxLogsV2 {
        logs: lines.into_iter().map(entry).collect(),
    }))
}

fn lines_wanted(params: &Params) -> Result<usize, ApiError> {
    let limit = params.number("limit", 0, MAX_LINES)?.unwrap_or(MAX_LINES);
    Ok(usize::try_from(limit).unwrap_or(0))
}

fn choice(name: &str, want: &str, got: &str) -> ApiError {
    ApiError::bad_request(format!("{name} must be {want}, got {:?}", shorten(got)))
}

struct Range {
    start_ms: i64,
    end_ms: i64,
}

fn start_of(start_ms: i64) -> Range {
    Range {
        start_ms,
        end_ms: i64::MAX,
    }
}

/// Lines of both sources in a range, oldest first.
async fn gather(
    app: &App,
    sandbox: &Sandbox,
    window: Window,
    range: &Range,
) -> Result<Vec<Line>, ApiError> {
    let mut events = app
        .store
        .events_of(&sandbox.id, window, MAX_SCANNED)
        .await?;
    // Oldest first before the sort, which keeps the order within one millisecond.
    events.sort_by_key(|event| event.seq);
    let mut lines: Vec<Line> = events.into_iter().map(event_line).collect();
    if app.store.live().get(&sandbox.id).is_some() {
        let most = usize::try_from(MAX_SCANNED).unwrap_or(0);
        let noted = app
            .node
            .logs(sandbox.id.clone(), range.start_ms, most)
            .await;
        lines.extend(
            noted
                .into_iter()
                .take(most)
                .filter(|line| (range.start_ms..=range.end_ms).contains(&line.timestamp_ms))
                .map(agent_line),
        );
    }
    lines.sort_by_key(|line| line.at_ms);
    Ok(lines)
}

fn event_line(event: Event) -> Line {
    let data: BTreeMap<String, Value> = serde_json::from_str(&event.data).unwrap_or_default();
    let mut fields: BTreeMap<String, String> = data
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => (name, text),
            other => (name, other.to_string()),
        })
        .collect();
    let level = match event.kind.as_str() {
        "died" | "start_failed" => "error",
        _ => "info",
    };
    let message = match fields.get("reason") {
        Some(reason) => format!("sandbox {}: {reason}", event.kind),
        None => format!("sandbox {}", event.kind.replace('_', " ")),
    };
    fields.insert("event".into(), event.kind);
    fields.insert("seq".into(), event.seq.to_string());
    fields.insert("actor".into(), event.actor_id.unwrap_or(event.actor));
    if let Some(cause) = event.cause {
        fields.insert("cause".into(), cause);
    }
    Line {
        at_ms: event.ts_ms,
        logger: "lifecycle",
        level,
        message,
        fields,
    }
}

fn agent_line(line: ports::LogLine) -> Line {
    Line {
        at_ms: line.timestamp_ms,
        logger: "agent",
        level: LEVELS
            .into_iter()
            .find(|level| *level == line.level)
            .unwrap_or("info"),
        message: line.message.chars().take(MAX_MESSAGE).collect(),
        fields: line
            .fields
            .into_iter()
            .take(MAX_FIELDS)
            .map(|(name, value)| (shorten(&name), value.chars().take(MAX_MESSAGE).collect()))
            .collect(),
    }
}

fn entry(line: Line) -> LogEntry {
    let mut fields = line.fields;
    fields.insert("logger".into(), line.logger.into());
    LogEntry {
        timestamp: rfc3339(line.at_ms),
        message: line.message,
        level: line.level.into(),
        fields,
    }
}

/// The CLI parses `line` and wants `level` and `logger` in it.
fn v1_line(line: &Line) -> LogLine {
    let mut object: serde_json::Map<String, Value> = line
        .fields
        .iter()
        .map(|(name, value)| (name.clone(), Value::String(value.clone())))
        .collect();
    let timestamp = rfc3339(line.at_ms);
    for (name, value) in [
        ("level", line.level),
        ("logger", line.logger),
        ("message", &line.message),
        ("timestamp", &timestamp),
    ] {
        object.insert(name.into(), Value::String(value.into()));
    }
    LogLine {
        timestamp,
        line: Value::Object(object).to_string(),
    }
}
