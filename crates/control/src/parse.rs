//! Requests, from JSON to checked values: the one place where a body is judged.
//!
//! Each fault names the field, the rule or limit, and the value. Unknown fields are
//! ignored, as E2B does; `null` is the same as absent. Pure.

mod create;
mod fields;

use hearth_model::limits::MAX_TIMEOUT_S;

pub(crate) use create::{CreateRequest, Version, create};
pub(crate) use fields::{Fault, Fields, shorten};

/// Seconds of `refreshes` when the client names none, as E2B does.
const REFRESH_DEFAULT_S: u64 = 15;
/// Longest refresh, in seconds.
const REFRESH_MAX_S: u64 = 3600;

/// A lifetime the server accepts, in seconds.
pub(crate) fn timeout_within(seconds: u64, team_max_h: Option<u64>) -> Result<u64, Fault> {
    let server_h = MAX_TIMEOUT_S / 3600;
    let hours = team_max_h.map_or(server_h, |h| h.min(server_h));
    if seconds > hours * 3600 {
        let unit = if hours == 1 { "hour" } else { "hours" };
        return Err(Fault::new(format!(
            "Timeout cannot be greater than {hours} {unit}"
        )));
    }
    Ok(seconds)
}

/// A `timeout` of connect or of `POST /timeout`: 0 and more.
pub(crate) fn timeout_from_now(
    fields: &Fields,
    team_max_h: Option<u64>,
) -> Result<Option<u64>, Fault> {
    fields
        .whole("timeout")?
        .map(|seconds| {
            let seconds = u64::try_from(seconds)
                .map_err(|_| Fault::new(format!("timeout must be 0 or more, got {seconds}")))?;
            timeout_within(seconds, team_max_h)
        })
        .transpose()
}

/// The `duration` of a refresh.
pub(crate) fn refresh_duration(fields: &Fields) -> Result<u64, Fault> {
    let Some(given) = fields.whole("duration")? else {
        return Ok(REFRESH_DEFAULT_S);
    };
    u64::try_from(given)
        .ok()
        .filter(|seconds| *seconds <= REFRESH_MAX_S)
        .ok_or_else(|| {
            Fault::new(format!(
                "duration must be from 0 to {REFRESH_MAX_S} seconds, got {given}"
            ))
        })
}

/// A required `timeout`.
pub(crate) fn required<T>(value: Option<T>, field: &str) -> Result<T, Fault> {
    value.ok_or_else(|| Fault::new(format!("{field} is required")))
}

#[cfg(test)]
mod tests;
