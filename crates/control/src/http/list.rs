//! Lists of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use hearth_wire::e2b::{ListedSandbox, NEXT_TOKEN_HEADER, TOTAL_RUNNING_HEADER};

use super::body::Params;
use super::error::ApiError;
use super::sandboxes::listed;
use crate::app::{App, Caller};
use crate::clock::parse_rfc3339_ceil;
use crate::names::TemplateName;
use crate::page::{read_metadata, read_token, write_token};
use crate::parse::shorten;
use crate::store::sandboxes::{Cursor, Filter, Order};

const MAX_PAGE: i64 = 100;
/// The v1 list has no pages: this many at most, newest first.
const V1_PAGE: u32 = 1000;

/// What a query asks for.
enum Wanted {
    Running(Filter),
    /// Nothing can match: only paused ones are wanted, or a template nobody has.
    Nothing,
}

pub(super) async fn v2(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: Params,
) -> Result<(HeaderMap, Json<Vec<ListedSandbox>>), ApiError> {
    let limit = params.number("limit", 1, MAX_PAGE)?.unwrap_or(MAX_PAGE);
    let limit = u32::try_from(limit).unwrap_or(100);
    let order = match params.get("order") {
        None | Some("desc") => Order::NewestFirst,
        Some("asc") => Order::OldestFirst,
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "order must be asc or desc, got {:?}",
                shorten(other)
            )));
        }
    };
    let after = params
        .get("nextToken")
        .map(|token| {
            read_token(token, order).ok_or_else(|| ApiError::bad_request("Invalid next token"))
        })
        .transpose()?;
    let wanted = wanted(&app, &params)?;

    let mut headers = HeaderMap::new();
    let Wanted::Running(filter) = wanted else {
        headers.insert(TOTAL_RUNNING_HEADER, HeaderValue::from(0));
        return Ok((headers, Json(Vec::new())));
    };
    let total = app.store.count_running(&caller.team, &filter).await?;
    headers.insert(TOTAL_RUNNING_HEADER, HeaderValue::from(total));
    // One more than the page tells whether another page follows.
    let mut found = app
        .store
        .page(&caller.team, &filter, order, after.as_ref(), limit + 1)
        .await?;
    if found.len() > limit as usize {
        found.truncate(limit as usize);
        let cursor = found.last().map(|last| Cursor {
            started_ms: last.started_ms.unwrap_or(0),
            id: last.id.clone(),
        });
        if let Some(cursor) = cursor
            && let Ok(token) = HeaderValue::from_str(&write_token(&cursor, order))
        {
            headers.insert(NEXT_TOKEN_HEADER, token);
        }
    }
    Ok((headers, Json(found.into_iter().map(listed).collect())))
}

pub(super) async fn v1(
    State(app): State<Arc<App>>,
    caller: Caller,
    params: Params,
) -> Result<Json<Vec<ListedSandbox>>, ApiError> {
    let Wanted::Running(filter) = wanted(&app, &params)? else {
        return Ok(Json(Vec::new()));
    };
    let found = app
        .store
        .page(&caller.team, &filter, Order::NewestFirst, None, V1_PAGE + 1)
        .await?;
    if found.len() > V1_PAGE as usize {
        return Err(ApiError::bad_request(format!(
            "more than {V1_PAGE} sandboxes match, which is the limit of this list: use GET /v2/sandboxes"
        )));
    }
    Ok(Json(found.into_iter().map(listed).collect()))
}

fn wanted(app: &App, params: &Params) -> Result<Wanted, ApiError> {
    let mut running = true;
    if let Some(states) = params.items("state") {
        running = false;
        for state in states {
            match state {
                "running" => running = true,
                "paused" => {}
                other => {
                    return Err(ApiError::bad_request(format!(
                        "state must be running or paused, got {:?}",
                        shorten(other)
                    )));
                }
            }
        }
    }
    let metadata = params
        .get("metadata")
        .map(read_metadata)
        .transpose()
        .map_err(|fault| ApiError::bad_request(fault.to_string()))?
        .unwrap_or_default();
    let started_at_or_after_ms = params
        .get("startedAfter")
        .map(|text| {
            parse_rfc3339_ceil(text).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "startedAfter must be an RFC 3339 time with an offset, got {:?}",
                    shorten(text)
                ))
            })
        })
        .transpose()?;
    let mut template = None;
    if let Some(text) = params.get("template") {
        let name = TemplateName::parse(text)
            .map_err(|fault| ApiError::bad_request(format!("template {fault}")))?;
        if name.tag.is_some() {
            return Err(ApiError::bad_request(
                "template must be an id or a name without a tag",
            ));
        }
        match name.find(&app.node.templates()) {
            Some(found) => template = Some(found.id.clone()),
            None => running = false,
        }
    }
    Ok(if running {
        Wanted::Running(Filter {
            metadata,
            started_at_or_after_ms,
            template,
        })
    } else {
        Wanted::Nothing
    })
}
