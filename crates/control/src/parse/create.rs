//! The body of a create.

use std::collections::BTreeMap;

use hearth_model::limits::{DEFAULT_TIMEOUT_S, DEFAULT_TIMEOUT_V1_S};
use hearth_model::sandbox::Internet;
use serde_json::Value;

use super::fields::wrong;
use super::{Fault, Fields, required, timeout_within};
use crate::names::TemplateName;

/// Which route was called; their defaults differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// A create that may be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreateRequest {
    pub(crate) template: TemplateName,
    /// The template as the client wrote it, for messages.
    pub(crate) template_text: String,
    pub(crate) timeout_s: u64,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    /// What the client chose; none is the default.
    pub(crate) internet_choice: Option<bool>,
}

impl CreateRequest {
    /// Open unless the client closed it.
    pub(crate) fn internet(&self) -> Internet {
        match self.internet_choice {
            Some(false) => Internet::Closed,
            Some(true) | None => Internet::Open,
        }
    }
}

/// Reads a create. `secure` is ignored: every sandbox is.
pub(crate) fn create(
    fields: &Fields,
    version: Version,
    team_max_h: Option<u64>,
) -> Result<CreateRequest, Fault> {
    refuse_later_options(fields)?;
    let text = required(fields.text("templateID")?, "templateID")?;
    let template =
        TemplateName::parse(text).map_err(|fault| Fault::new(format!("templateID {fault}")))?;
    let env = fields.text_map("envVars")?;
    if let Some(name) = env.keys().find(|k| k.is_empty() || k.contains('=')) {
        return Err(Fault::new(format!(
            "envVars has the name {name:?}: it must not be empty and not contain ="
        )));
    }
    Ok(CreateRequest {
        template,
        template_text: text.to_owned(),
        timeout_s: timeout(fields, version, team_max_h)?,
        metadata: fields.text_map("metadata")?,
        env,
        internet_choice: fields.flag("allow_internet_access")?,
    })
}

fn timeout(fields: &Fields, version: Version, team_max_h: Option<u64>) -> Result<u64, Fault> {
    let default = match version {
        Version::V1 => DEFAULT_TIMEOUT_V1_S,
        Version::V2 => DEFAULT_TIMEOUT_S,
    };
    match fields.whole("timeout")? {
        // A default is held to the team's limit too: refused, not cut.
        None => timeout_within(default, team_max_h),
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if seconds > 0 => timeout_within(seconds, team_max_h),
            _ => Err(Fault::new("Timeout must be greater than 0")),
        },
    }
}

/// Options that this server does not have yet are refused by name, never ignored. What
/// clients send to say "no" is accepted.
fn refuse_later_options(fields: &Fields) -> Result<(), Fault> {
    if fields.flag("autoPause")? == Some(true) {
        return Err(later("autoPause"));
    }
    // True is the default and changes nothing without `autoPause`.
    if fields.flag("autoPauseMemory")? == Some(false) {
        return Err(later("autoPauseMemory"));
    }
    if let Some(resume) = fields.object("autoResume")? {
        match resume.get("enabled") {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => return Err(later("autoResume")),
            Some(other) => return Err(wrong("autoResume.enabled", "true or false", other)),
        }
    }
    for name in ["network", "mcp", "iam"] {
        if let Some(object) = fields.object(name)?
            // A server of `mcp` without options is asked for by its name alone.
            && (name == "mcp" && !object.is_empty() || !object.values().all(is_empty))
        {
            return Err(later(name));
        }
    }
    match fields.get("volumeMounts") {
        None => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(Value::Array(_)) => Err(later("volumeMounts")),
        Some(other) => Err(wrong("volumeMounts", "an array", other)),
    }
}

fn later(field: &str) -> Fault {
    Fault::new(format!("{field} is not supported by this server yet"))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
