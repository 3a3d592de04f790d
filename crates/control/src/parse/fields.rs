//! A JSON object whose fields are taken out one by one, each with its type.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hearth_model::limits::{MAX_MAP_ENTRIES, MAX_MAP_KEY, MAX_MAP_TOTAL, MAX_MAP_VALUE};
use serde_json::{Map, Value};

/// Most characters of a bad value that are shown back.
const SHOWN: usize = 60;

/// What is wrong with a request, in words for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Fault(String);

impl Fault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A parsed body.
#[derive(Debug, Default)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body. Nesting deeper than 127 is refused by the parser.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Fault> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(other) => Err(Fault::new(format!(
                "the body must be a JSON object, got {}",
                kind(&other)
            ))),
            Err(fault) => Err(Fault::new(format!("malformed JSON: {fault}"))),
        }
    }

    /// The whole body as canonical text, to compare two requests.
    pub(crate) fn canonical(&self) -> String {
        let sorted: BTreeMap<&String, &Value> = self.0.iter().collect();
        let mut text = String::new();
        for (name, value) in sorted {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}:{value};", Value::String(name.clone()));
        }
        text
    }

    /// The value of a field; null is absent.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Fault> {
        self.get(name)
            .map(|value| value.as_str().ok_or_else(|| wrong(name, "a string", value)))
            .transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, Fault> {
        self.get(name)
            .map(|value| {
                value
                    .as_bool()
                    .ok_or_else(|| wrong(name, "true or false", value))
            })
            .transpose()
    }

    /// A whole number. `1.0` and `1e2` are not: their JSON type is a float.
    pub(crate) fn whole(&self, name: &str) -> Result<Option<i64>, Fault> {
        self.get(name)
            .map(|value| {
                value
                    .as_i64()
                    .or_else(|| value.is_u64().then_some(i64::MAX))
                    .ok_or_else(|| wrong(name, "a whole number", value))
            })
            .transpose()
    }

    /// An object inside the object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, Fault> {
        self.get(name)
            .map(|value| {
                value
                    .as_object()
                    .ok_or_else(|| wrong(name, "an object", value))
            })
            .transpose()
    }

    /// A map of texts within the limits; empty when absent.
    pub(crate) fn text_map(&self, name: &str) -> Result<BTreeMap<String, String>, Fault> {
        let Some(map) = self.object(name)? else {
            return Ok(BTreeMap::new());
        };
        if map.len() > MAX_MAP_ENTRIES {
            return Err(Fault::new(format!(
                "{name} has {} entries, the limit is {MAX_MAP_ENTRIES}",
                map.len()
            )));
        }
        let mut total = 0usize;
        let mut out = BTreeMap::new();
        for (key, value) in map {
            let shown = shorten(key);
            let text = value
                .as_str()
                .ok_or_else(|| wrong(&format!("{name}.{shown}"), "a string", value))?;
            if key.len() > MAX_MAP_KEY {
                return Err(Fault::new(format!(
                    "{name} has a key of {} bytes ({shown}), the limit is {MAX_MAP_KEY}",
                    key.len()
                )));
            }
            if text.len() > MAX_MAP_VALUE {
                return Err(Fault::new(format!(
                    "{name}.{shown} has {} bytes, the limit is {MAX_MAP_VALUE}",
                    text.len()
                )));
            }
            if key.contains('\0') || text.contains('\0') {
                return Err(Fault::new(format!(
                    "{name}.{shown} must not contain the character NUL"
                )));
            }
            total += key.len() + text.len();
            out.insert(key.clone(), text.to_owned());
        }
        if total > MAX_MAP_TOTAL {
            return Err(Fault::new(format!(
                "{name} has {total} bytes in all, the limit is {MAX_MAP_TOTAL}"
            )));
        }
        Ok(out)
    }
}

/// A fault of type.
pub(crate) fn wrong(name: &str, want: &str, got: &Value) -> Fault {
    Fault::new(format!(
        "{name} must be {want}, got {}",
        shorten(&got.to_string())
    ))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A text from outside, short and without control characters.
pub(crate) fn shorten(text: &str) -> String {
    let mut out: String = text
        .chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        out.push_str("...");
    }
    out
}
