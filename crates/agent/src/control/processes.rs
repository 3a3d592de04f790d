//! Processes and their output as the node sees them.

use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::process::ending::Ending;
use crate::process::output::Channel;
use crate::process::table::{Process, Table};

/// Output in one answer, in bytes before coding.
const MAX_OUTPUT: usize = 1024 * 1024;

/// One process, running or ended not long ago.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    pid: u32,
    tag: Option<String>,
    user: String,
    command: String,
    arguments: Vec<String>,
    started_ms: i64,
    /// None while it runs.
    end: Option<End>,
}

#[derive(Debug, Serialize)]
struct End {
    exit_code: i32,
    exited: bool,
    status: String,
    error: Option<String>,
}

/// Kept output from the asked offset on.
#[derive(Debug, Serialize)]
pub(crate) struct Output {
    pid: u32,
    /// Offset of the oldest byte that is kept; what was before is gone.
    first: u64,
    /// Offset after the newest byte.
    last: u64,
    pieces: Vec<Piece>,
    end: Option<End>,
}

#[derive(Debug, Serialize)]
struct Piece {
    channel: &'static str,
    offset: u64,
    /// Base64.
    data: String,
}

/// Oldest first.
pub(crate) fn list(table: &Table) -> Vec<Item> {
    let item = |process: &Process| Item {
        pid: process.pid,
        tag: process.tag.clone(),
        user: process.user.clone(),
        command: process.config.cmd.clone(),
        arguments: process.config.args.clone(),
        started_ms: process
            .started
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_millis()).ok())
            .unwrap_or(0),
        end: process.output.ending().map(|ending| end(&ending)),
    };
    table.all().iter().map(|process| item(process)).collect()
}

/// None: no such process, or not any more.
pub(crate) fn output(table: &Table, pid: u32, offset: u64) -> Option<Output> {
    let process = table.kept(pid)?;
    // Before the output, so that an answer with an end has all there is.
    let ending = process.output.ending();
    let kept = process.output.kept(offset, MAX_OUTPUT);
    let pieces = kept
        .pieces
        .into_iter()
        .map(|(channel, offset, bytes)| Piece {
            channel: match channel {
                Channel::Stdout => "stdout",
                Channel::Stderr => "stderr",
                Channel::Terminal => "pty",
            },
            offset,
            data: STANDARD.encode(bytes),
        });
    Some(Output {
        pid,
        first: kept.first,
        last: kept.end,
        pieces: pieces.collect(),
        end: ending.map(|ending| end(&ending)),
    })
}

fn end(ending: &Ending) -> End {
    End {
        exit_code: ending.code(),
        exited: ending.is_exit(),
        status: ending.status(),
        error: ending.error(),
    }
}
