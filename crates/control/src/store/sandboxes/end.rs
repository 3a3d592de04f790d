//! Ends in the store: the decision, then the release. Both are events of the state machine.

use hearth_model::end::{Actor, EndReason};
use hearth_model::id::SandboxId;
use hearth_model::state::Event;
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};

use super::change::{Moved, advance, load};
use super::{cause_word, decision_kind, to_json};
use crate::store::events::{NewEvent, append};
use crate::store::{During as _, Store, StoreError, WRITE, idempotency};

/// A condition for an end, looked at inside the transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Guard {
    None,
    /// Only when its deadline is at or before this time.
    DueAt(i64),
}

impl Store {
    /// Decides an end, once: the first reason stays.
    pub(crate) async fn begin_end(
        &self,
        id: &SandboxId,
        reason: &EndReason,
        guard: Guard,
    ) -> Result<Moved, StoreError> {
        self.end_steps(id, Event::End, reason, guard, AndRelease::No)
            .await
    }

    /// A sandbox was found dead, with everything given back: both steps at once.
    pub(crate) async fn record_death(
        &self,
        id: &SandboxId,
        reason: &EndReason,
    ) -> Result<Moved, StoreError> {
        self.end_steps(id, Event::Died, reason, Guard::None, AndRelease::Yes)
            .await
    }

    /// The node gave everything back.
    pub(crate) async fn finish_end(
        &self,
        id: &SandboxId,
        now_ms: i64,
    ) -> Result<Moved, StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        let moved = release(&mut tx, id, now_ms).await?;
        tx.commit().await.during("commit an end")?;
        Ok(moved)
    }

    async fn end_steps(
        &self,
        id: &SandboxId,
        event: Event,
        reason: &EndReason,
        guard: Guard,
        and_release: AndRelease,
    ) -> Result<Moved, StoreError> {
        let text = to_json(reason)?;
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        if let Guard::DueAt(now_ms) = guard {
            match load(&mut tx, id).await? {
                Some(sandbox) if sandbox.deadline_ms > now_ms => {
                    return Ok(Moved::Unchanged(sandbox));
                }
                _ => {}
            }
        }
        let moved = advance(&mut tx, id, event).await?;
        let Moved::To(mut sandbox) = moved else {
            return Ok(moved);
        };
        sqlx::query("UPDATE sandboxes SET end_reason = ? WHERE id = ?")
            .bind(text)
            .bind(id.as_str())
            .execute(&mut *tx)
            .await
            .during("store a reason")?;
        idempotency::forget_unsettled(&mut tx, id).await?;
        append(
            &mut tx,
            NewEvent {
                at_ms: reason.at_ms,
                team: Some(&sandbox.team),
                sandbox: Some(id),
                kind: decision_kind(&reason.cause),
                cause: Some(cause_word(&reason.cause)),
                actor: &reason.actor,
                data: json!({"reason": reason.cause.describe()}),
            },
        )
        .await?;
        sandbox.end = Some(reason.clone());
        if and_release == AndRelease::Yes
            && let Moved::To(ended) = release(&mut tx, id, reason.at_ms).await?
        {
            sandbox = ended;
        }
        tx.commit().await.during("commit an end")?;
        self.live().remove(id);
        Ok(Moved::To(sandbox))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AndRelease {
    Yes,
    No,
}

/// `Released`, inside a transaction. Its secrets go with it; the tombstone stays.
async fn release(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    now_ms: i64,
) -> Result<Moved, StoreError> {
    let moved = advance(conn, id, Event::Released).await?;
    if let Moved::To(sandbox) = &moved {
        sqlx::query(
            "UPDATE sandboxes SET ended_ms = ?, env = '{}', access_token = '' WHERE id = ?",
        )
        .bind(now_ms)
        .bind(id.as_str())
        .execute(&mut *conn)
        .await
        .during("store an end")?;
        append(
            conn,
            NewEvent {
                at_ms: now_ms,
                team: Some(&sandbox.team),
                sandbox: Some(id),
                kind: "ended",
                cause: sandbox.end.as_ref().map(|end| cause_word(&end.cause)),
                actor: sandbox
                    .end
                    .as_ref()
                    .map_or(&Actor::System, |end| &end.actor),
                data: json!({}),
            },
        )
        .await?;
    }
    Ok(moved)
}
