//! The event table: one row per change of lifecycle, key or team, with cause and actor.
//! Rows are only ever added, in the transaction of the change they describe.

use hearth_model::end::Actor;
use hearth_model::id::{SandboxId, TeamId};
use sqlx::{FromRow, SqliteConnection};

use super::{During as _, Store, StoreError};

/// A row to append.
#[derive(Debug)]
pub(crate) struct NewEvent<'a> {
    pub(crate) at_ms: i64,
    pub(crate) team: Option<&'a TeamId>,
    pub(crate) sandbox: Option<&'a SandboxId>,
    /// `created`, `started`, `timeout_set`, `killed`, `ended`, `key_created`, ...
    pub(crate) kind: &'a str,
    pub(crate) cause: Option<&'a str>,
    pub(crate) actor: &'a Actor,
    pub(crate) data: serde_json::Value,
}

/// A row as it is read.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct Event {
    pub(crate) seq: i64,
    pub(crate) ts_ms: i64,
    pub(crate) kind: String,
    pub(crate) cause: Option<String>,
    pub(crate) actor: String,
    pub(crate) actor_id: Option<String>,
    pub(crate) data: String,
}

/// The actor as the table holds it.
pub(crate) fn actor_columns(actor: &Actor) -> (&'static str, Option<&str>) {
    match actor {
        Actor::Key { id } => ("key", Some(id)),
        Actor::System => ("system", None),
        Actor::Operator => ("operator", None),
        Actor::Guest => ("guest", None),
    }
}

/// Adds a row, inside the caller's transaction.
pub(crate) async fn append(
    conn: &mut SqliteConnection,
    event: NewEvent<'_>,
) -> Result<(), StoreError> {
    let (actor, actor_id) = actor_columns(event.actor);
    sqlx::query(
        "INSERT INTO events (ts_ms, team, sandbox, kind, cause, actor, actor_id, data)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(event.at_ms)
    .bind(event.team.map(TeamId::as_str))
    .bind(event.sandbox.map(SandboxId::as_str))
    .bind(event.kind)
    .bind(event.cause)
    .bind(actor)
    .bind(actor_id)
    .bind(event.data.to_string())
    .execute(conn)
    .await
    .during("append an event")?;
    Ok(())
}

/// Which end of a sandbox's history a read starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Oldest first, at and after this time.
    Start(i64),
    /// Newest first, at and before this time.
    End(i64),
}

impl Store {
    /// Events of one sandbox in the order of the window.
    pub(crate) async fn events_of(
        &self,
        sandbox: &SandboxId,
        window: Window,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        const COLUMNS: &str = "SELECT seq, ts_ms, kind, cause, actor, actor_id, data FROM events";
        let (text, at) = match window {
            Window::Start(at) => (
                format!("{COLUMNS} WHERE sandbox = ? AND ts_ms >= ? ORDER BY seq ASC LIMIT ?"),
                at,
            ),
            Window::End(at) => (
                format!("{COLUMNS} WHERE sandbox = ? AND ts_ms <= ? ORDER BY seq DESC LIMIT ?"),
                at,
            ),
        };
        sqlx::query_as(&text)
            .bind(sandbox.as_str())
            .bind(at)
            .bind(limit)
            .fetch_all(self.readers())
            .await
            .during("read events")
    }
}
