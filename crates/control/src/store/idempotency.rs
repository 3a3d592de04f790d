//! Idempotency keys: the same create asked twice is answered once.
//!
//! A claim is made in the transaction of the intent, settled in that of the start, and
//! forgotten in that of a failed start, so that no key is left claimed by nothing.

use hearth_model::id::{SandboxId, TeamId};
use hearth_model::sandbox::SandboxSpec;
use sqlx::SqliteConnection;

use super::{During as _, StoreError};

/// A key with the request it stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) key: &'a str,
    /// SHA-256 of the request.
    pub(crate) request: &'a [u8],
}

/// What became of a claim.
#[derive(Debug)]
pub(crate) enum Claimed {
    Fresh,
    Answered(String),
    Mismatch,
    InProgress,
}

/// Claims a key for a new sandbox, unless it is taken.
pub(super) async fn claim(
    conn: &mut SqliteConnection,
    claim: &Claim<'_>,
    spec: &SandboxSpec,
    now_ms: i64,
) -> Result<Claimed, StoreError> {
    let team: &TeamId = &spec.team;
    let found: Option<(Vec<u8>, Option<String>)> =
        sqlx::query_as("SELECT request, answer FROM idempotency WHERE team = ? AND key = ?")
            .bind(team.as_str())
            .bind(claim.key)
            .fetch_optional(&mut *conn)
            .await
            .during("look up an idempotency key")?;
    match found {
        Some((request, _)) if request != claim.request => return Ok(Claimed::Mismatch),
        Some((_, None)) => return Ok(Claimed::InProgress),
        Some((_, Some(answer))) => return Ok(Claimed::Answered(answer)),
        None => {}
    }
    sqlx::query(
        "INSERT INTO idempotency (team, key, request, sandbox, created_ms) VALUES (?, ?, ?, ?, ?)",
    )
    .bind(team.as_str())
    .bind(claim.key)
    .bind(claim.request)
    .bind(spec.id.as_str())
    .bind(now_ms)
    .execute(conn)
    .await
    .during("claim an idempotency key")?;
    Ok(Claimed::Fresh)
}

/// Keeps the answer for repeats.
pub(super) async fn settle(
    conn: &mut SqliteConnection,
    sandbox: &SandboxId,
    answer: &str,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE idempotency SET answer = ? WHERE sandbox = ? AND answer IS NULL")
        .bind(answer)
        .bind(sandbox.as_str())
        .execute(conn)
        .await
        .during("keep an answer")?;
    Ok(())
}

/// Frees the key of a create that failed: the client may try again with it.
pub(super) async fn forget_unsettled(
    conn: &mut SqliteConnection,
    sandbox: &SandboxId,
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM idempotency WHERE sandbox = ? AND answer IS NULL")
        .bind(sandbox.as_str())
        .execute(conn)
        .await
        .during("free an idempotency key")?;
    Ok(())
}
