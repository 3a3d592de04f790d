//! The agent's own log: the last events of [`tracing`], for the node to read. There is no
//! file and no console to write to inside a sandbox.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Entries kept at most.
const MAX_ENTRIES: usize = 2000;
/// What all entries together may take, in bytes, counted roughly.
const MAX_BYTES: usize = 512 * 1024;
/// Longest text of one field or message, in bytes; the guest has a say in some.
const MAX_TEXT: usize = 1024;

static RING: Mutex<Ring> = Mutex::new(Ring {
    entries: VecDeque::new(),
    bytes: 0,
});

struct Ring {
    entries: VecDeque<(usize, Entry)>,
    bytes: usize,
}

/// One event, as the control port gives it out.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) timestamp_ms: i64,
    pub(crate) level: &'static str,
    pub(crate) message: String,
    pub(crate) fields: Map<String, Value>,
}

/// Starts keeping events. Only the first call counts.
pub(crate) fn start() {
    // A second subscriber is refused and the first goes on: that is what is wanted.
    let _ = tracing::subscriber::set_global_default(Keeper);
}

/// The oldest kept entries that are not before `start_ms`, at most `limit` of them.
pub(crate) fn read(start_ms: i64, limit: usize) -> Vec<Entry> {
    let ring = ring();
    let wanted = ring.entries.iter().map(|(_, entry)| entry);
    wanted
        .filter(|entry| entry.timestamp_ms >= start_ms)
        .take(limit)
        .cloned()
        .collect()
}

fn ring() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(entry: Entry) {
    let texts: usize = entry
        .fields
        .iter()
        .map(|(name, value)| name.len() + value.as_str().map_or(8, str::len) + 64)
        .sum();
    let cost = std::mem::size_of::<Entry>() + entry.message.len() + texts;
    let mut ring = ring();
    ring.bytes += cost;
    ring.entries.push_back((cost, entry));
    while ring.entries.len() > MAX_ENTRIES || ring.bytes > MAX_BYTES {
        let Some((cost, _)) = ring.entries.pop_front() else {
            break;
        };
        ring.bytes = ring.bytes.saturating_sub(cost);
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

fn clip(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let mut end = MAX_TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The subscriber: events of this crate from `info` up; spans are not kept.
struct Keeper;

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("hearth_agent")
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::INFO)
    }

    fn new_span(&self, _attributes: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut gather = Gather::default();
        event.record(&mut gather);
        let level = event.metadata().level();
        keep(Entry {
            timestamp_ms: now_ms(),
            level: match *level {
                Level::ERROR => "error",
                Level::WARN => "warn",
                Level::INFO => "info",
                Level::DEBUG | Level::TRACE => "debug",
            },
            message: clip(gather.message),
            fields: gather.fields,
        });
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Gather {
    message: String,
    fields: Map<String, Value>,
}

impl Gather {
    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }

    fn put_text(&mut self, field: &Field, text: String) {
        if field.name() == "message" {
            self.message = text;
        } else {
            self.put(field, clip(text).into());
        }
    }
}

impl Visit for Gather {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_text(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_events_in_bounds_and_in_order() {
        start();
        let before = now_ms();
        let long = "ä".repeat(MAX_TEXT);
        tracing::info!(pid = 7, name = "x", long, "a thing happened");
        tracing::debug!("not kept");
        let entries = read(before, 1000);
        let entry = entries.iter().find(|e| e.message == "a thing happened");
        let entry = entry.unwrap();
        assert_eq!(entry.level, "info");
        assert_eq!(entry.fields["pid"], 7);
        assert_eq!(entry.fields["name"], "x");
        assert!(entry.fields["long"].as_str().unwrap().len() <= MAX_TEXT + '…'.len_utf8());
        assert!(!entries.iter().any(|e| e.message == "not kept"));

        for number in 0..MAX_ENTRIES * 2 {
            tracing::info!(number, "flood");
        }
        let ring = ring();
        assert!(ring.entries.len() <= MAX_ENTRIES && ring.bytes <= MAX_BYTES);
        let last = ring.entries.back().unwrap().1.fields["number"].clone();
        assert_eq!(last, MAX_ENTRIES * 2 - 1);
        drop(ring);
        assert_eq!(read(0, 3).len(), 3);
        assert!(read(i64::MAX, 3).is_empty());
    }
}
