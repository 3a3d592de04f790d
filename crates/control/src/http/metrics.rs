//! Readings of use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use hearth_model::id::SandboxId;
use hearth_wire::e2b::{SandboxMetric, SandboxesWithMetrics};

use super::body::{Name, Params};
use super::error::ApiError;
use crate::app::{App, Caller};
use crate::clock::rfc3339;
use crate::parse::shorten;
use crate::store::metrics::Reading;
use crate::store::to_u64;

/// Sandboxes of one question.
const MAX_IDS: usize = 100;
/// Seconds since the epoch that still fit as milliseconds.
const MAX_SECONDS: i64 = i64::MAX / 1000;

pub(super) async fn of_one(
    State(app): State<Arc<App>>,
    caller: Caller,
    Name(name): Name,
    params: Params,
) -> Result<Json<Vec<SandboxMetric>>, ApiError> {
    let sandbox = app.find(&caller, &name).await?;
    let start = params.number("start", 0, MAX_SECONDS)?;
    let end = params.number("end", 0, MAX_SECONDS)?;
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(ApiError::bad_request(format!(
            "start ({start}) must not be later than end ({end})"
        )));
    }
    let from_ms = start.unwrap_or(0) * 1000;
    // The whole last second belongs to the range.
    let to_ms = end.map_or(i64::MAX, |end| end.saturating_mul(1000).saturating_add(999));
    let readings = app.store.readings(&sandbox.id, from_ms, to_ms).await?;
    Ok(Json(readings.into_iter().map(metric).collect()))
}

/// The last reading of each; ids of nobody, or of another team, have none.
pub(super) async fn of_many(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: Params,
) -> Result<Json<SandboxesWithMetrics>, ApiError> {
    let items = params
        .items("sandbox_ids")
        .ok_or_else(|| ApiError::bad_request("sandbox_ids is required"))?;
    if items.len() > MAX_IDS {
        return Err(ApiError::bad_request(format!(
            "sandbox_ids has {} ids, the limit is {MAX_IDS}",
            items.len()
        )));
    }
    let mut own = Vec::new();
    for text in items {
        let id = SandboxId::parse(text).map_err(|fault| {
            ApiError::bad_request(format!("sandbox_ids has {:?}: {fault}", shorten(text)))
        })?;
        let is_own = app
            .store
            .live()
            .get(&id)
            .is_some_and(|sandbox| sandbox.team == caller.team);
        if is_own {
            own.push(id);
        }
    }
    let readings = app.store.last_readings(&own).await?;
    Ok(Json(SandboxesWithMetrics {
        sandboxes: readings
            .into_iter()
            .map(|reading| (reading.sandbox.clone(), metric(reading)))
            .collect(),
    }))
}

fn metric(reading: Reading) -> SandboxMetric {
    SandboxMetric {
        timestamp: rfc3339(reading.at_ms),
        timestamp_unix: reading.at_ms.div_euclid(1000),
        cpu_count: reading.vcpu,
        cpu_used_pct: reading.cpu_pct,
        mem_used: to_u64(reading.mem_used),
        mem_total: to_u64(reading.mem_total),
        mem_cache: to_u64(reading.mem_cache),
        disk_used: to_u64(reading.disk_used),
        disk_total: to_u64(reading.disk_total),
    }
}
