//! Writes to the table of sandboxes, but for ends (`end`): intent, start, deadline, pruning.

use hearth_model::end::Actor;
use hearth_model::id::{SandboxId, TeamId};
use hearth_model::sandbox::Internet;
use hearth_model::state::{Event, State, Step, step};
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};

use super::{COLUMNS, NewSandboxRow, Sandbox, to_json};
use crate::store::events::{NewEvent, append};
use crate::store::idempotency::{self, Claimed};
use crate::store::{During as _, Store, StoreError, WRITE, to_i64};

/// What became of an intent that was not refused.
#[derive(Debug)]
pub(crate) enum Inserted {
    /// It is recorded; the node may start.
    Recorded,
    /// The same request was answered before, with this body.
    Repeat(String),
}

/// Why an intent was refused. All but `Store` are the caller's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InsertError {
    #[error("team {team} has {live} live sandboxes and its limit is {limit}")]
    TeamFull { team: TeamId, live: u64, limit: u64 },
    #[error("the idempotency key was used for a different request")]
    KeyMismatch,
    #[error("a create with this idempotency key is going on")]
    KeyInProgress,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What an event did to a sandbox. The sandbox is as it is afterwards.
#[derive(Debug)]
pub(crate) enum Moved {
    To(Sandbox),
    /// It was so already, or the guard did not hold: nothing changed.
    Unchanged(Sandbox),
    /// The state machine refused.
    Refused(Sandbox),
    Missing,
}

/// How a deadline is changed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deadline {
    /// To this time, earlier or later.
    At(i64),
    /// To this time when that is later.
    NoEarlierThan(i64),
}

/// A change of a running sandbox's deadline, with what the event table says of it.
#[derive(Debug)]
pub(crate) struct DeadlineChange<'a> {
    pub(crate) deadline: Deadline,
    /// `timeout_set`, `refreshed` or `connected`.
    pub(crate) kind: &'static str,
    pub(crate) actor: &'a Actor,
    pub(crate) now_ms: i64,
}

impl Store {
    /// Records the intent to create: from here on the sandbox exists. The team's limit and
    /// the idempotency key are looked at in the same transaction.
    pub(crate) async fn insert_sandbox(
        &self,
        new: NewSandboxRow<'_>,
        actor: &Actor,
    ) -> Result<Inserted, InsertError> {
        let spec = new.spec;
        let (env, metadata) = (to_json(&spec.env)?, to_json(new.metadata)?);
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;

        if let Some(claim) = &new.claim {
            match idempotency::claim(&mut tx, claim, spec, new.now_ms).await? {
                Claimed::Fresh => {}
                Claimed::Answered(body) => return Ok(Inserted::Repeat(body)),
                Claimed::Mismatch => return Err(InsertError::KeyMismatch),
                Claimed::InProgress => return Err(InsertError::KeyInProgress),
            }
        }
        if let Some(limit) = Self::max_live(&mut tx, &spec.team).await? {
            let live = Self::count_live(&mut tx, &spec.team).await?;
            if live >= limit {
                return Err(InsertError::TeamFull {
                    team: spec.team.clone(),
                    live,
                    limit,
                });
            }
        }
        sqlx::query(
            "INSERT INTO sandboxes (id, team, template, alias, envd_version, state, generation,
                 execution, vcpu, memory_mib, disk_mib, internet, internet_choice, env, metadata,
                 access_token, timeout_s, created_ms, deadline_ms)
             VALUES (?, ?, ?, ?, ?, ?, 1, lower(hex(randomblob(16))), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(spec.id.as_str())
        .bind(spec.team.as_str())
        .bind(spec.template.as_str())
        .bind(new.alias)
        .bind(new.envd_version)
        .bind(State::Creating.as_str())
        .bind(spec.size.vcpu)
        .bind(to_i64(spec.size.memory_mib))
        .bind(to_i64(spec.size.disk_mib))
        .bind(match spec.internet {
            Internet::Open => "open",
            Internet::Closed => "closed",
        })
        .bind(new.internet_choice)
        .bind(env)
        .bind(metadata)
        .bind(spec.access_token.expose())
        .bind(to_i64(new.timeout_s))
        .bind(new.now_ms)
        .bind(new.give_up_ms)
        .execute(&mut *tx)
        .await
        .during("record a sandbox")?;
        append(
            &mut tx,
            NewEvent {
                at_ms: new.now_ms,
                team: Some(&spec.team),
                sandbox: Some(&spec.id),
                kind: "created",
                cause: None,
                actor,
                data: json!({
                    "template": spec.template,
                    "vcpu": spec.size.vcpu,
                    "memoryMiB": spec.size.memory_mib,
                    "diskMiB": spec.size.disk_mib,
                    "timeoutS": new.timeout_s,
                }),
            },
        )
        .await?;
        tx.commit().await.during("commit a sandbox")?;
        Ok(Inserted::Recorded)
    }

    /// The node confirmed: the sandbox runs, and its timeout counts from now. `answer` is
    /// kept for repeats of the same request.
    pub(crate) async fn mark_running(
        &self,
        id: &SandboxId,
        tier: &str,
        now_ms: i64,
        answer: &str,
    ) -> Result<Moved, StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        let moved = advance(&mut tx, id, Event::Started).await?;
        let Moved::To(mut sandbox) = moved else {
            return Ok(moved);
        };
        sandbox.tier = Some(tier.to_owned());
        sandbox.started_ms = Some(now_ms);
        sandbox.deadline_ms = sqlx::query_scalar(
            "UPDATE sandboxes SET tier = ?1, started_ms = ?2, deadline_ms = ?2 + timeout_s * 1000
             WHERE id = ?3 RETURNING deadline_ms",
        )
        .bind(tier)
        .bind(now_ms)
        .bind(id.as_str())
        .fetch_one(&mut *tx)
        .await
        .during("store a start")?;
        idempotency::settle(&mut tx, id, answer).await?;
        append(
            &mut tx,
            NewEvent {
                at_ms: now_ms,
                team: Some(&sandbox.team),
                sandbox: Some(id),
                kind: "started",
                cause: None,
                actor: &Actor::System,
                data: json!({"tier": tier, "endAtMs": sandbox.deadline_ms}),
            },
        )
        .await?;
        tx.commit().await.during("commit a start")?;
        self.live().insert(id, &sandbox.team, &sandbox.access_token);
        Ok(Moved::To(sandbox))
    }

    /// Changes when a running sandbox of this team ends. Any other state is untouched.
    pub(crate) async fn change_deadline(
        &self,
        id: &SandboxId,
        team: &TeamId,
        change: DeadlineChange<'_>,
    ) -> Result<Option<Sandbox>, StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        let Some(mut sandbox) = load(&mut tx, id).await? else {
            return Ok(None);
        };
        if sandbox.team != *team || sandbox.state != State::Running {
            return Ok(Some(sandbox));
        }
        let before = sandbox.deadline_ms;
        sandbox.deadline_ms = match change.deadline {
            Deadline::At(at_ms) => at_ms,
            Deadline::NoEarlierThan(at_ms) => before.max(at_ms),
        };
        if sandbox.deadline_ms != before {
            sqlx::query("UPDATE sandboxes SET deadline_ms = ? WHERE id = ?")
                .bind(sandbox.deadline_ms)
                .bind(id.as_str())
                .execute(&mut *tx)
                .await
                .during("move a deadline")?;
        }
        append(
            &mut tx,
            NewEvent {
                at_ms: change.now_ms,
                team: Some(team),
                sandbox: Some(id),
                kind: change.kind,
                cause: None,
                actor: change.actor,
                data: json!({"endAtMs": sandbox.deadline_ms, "beforeMs": before}),
            },
        )
        .await?;
        tx.commit().await.during("commit a deadline")?;
        Ok(Some(sandbox))
    }

    /// Fills the index with a sandbox that was running before this process started.
    pub(crate) async fn adopt(&self, id: &SandboxId) -> Result<Option<Sandbox>, StoreError> {
        let mut conn = self.writer().await?;
        let sandbox = load(&mut conn, id).await?;
        if let Some(found) = &sandbox
            && found.state == State::Running
        {
            self.live().insert(id, &found.team, &found.access_token);
        }
        Ok(sandbox)
    }

    /// Removes tombstones and answers older than these times, a bounded number of each.
    pub(crate) async fn prune(
        &self,
        ended_before_ms: i64,
        answers_before_ms: i64,
    ) -> Result<u64, StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        let tombstones = sqlx::query(
            "DELETE FROM sandboxes WHERE id IN (SELECT id FROM sandboxes
                 WHERE state = 'ended' AND ended_ms < ? LIMIT 1000)",
        )
        .bind(ended_before_ms)
        .execute(&mut *tx)
        .await
        .during("remove tombstones")?
        .rows_affected();
        sqlx::query("DELETE FROM idempotency WHERE created_ms < ? AND answer IS NOT NULL")
            .bind(answers_before_ms)
            .execute(&mut *tx)
            .await
            .during("remove old answers")?;
        tx.commit().await.during("commit a pruning")?;
        Ok(tombstones)
    }
}

/// The one place where a stored state changes.
pub(super) async fn advance(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    event: Event,
) -> Result<Moved, StoreError> {
    let Some(mut sandbox) = load(conn, id).await? else {
        return Ok(Moved::Missing);
    };
    let to = match step(sandbox.state, event) {
        Step::Move(to) => to,
        Step::Ignore => return Ok(Moved::Unchanged(sandbox)),
        Step::Refuse(_) => return Ok(Moved::Refused(sandbox)),
    };
    let changed = sqlx::query(
        "UPDATE sandboxes SET state = ?, generation = generation + 1
         WHERE id = ? AND generation = ?",
    )
    .bind(to.as_str())
    .bind(id.as_str())
    .bind(sandbox.generation)
    .execute(conn)
    .await
    .during("move a sandbox's state")?
    .rows_affected();
    if changed != 1 {
        return Err(StoreError::Damaged {
            what: format!("sandbox {id} changed inside a transaction"),
        });
    }
    sandbox.state = to;
    sandbox.generation += 1;
    Ok(Moved::To(sandbox))
}

pub(super) async fn load(
    conn: &mut SqliteConnection,
    id: &SandboxId,
) -> Result<Option<Sandbox>, StoreError> {
    sqlx::query_as(&format!("SELECT {COLUMNS} FROM sandboxes WHERE id = ?"))
        .bind(id.as_str())
        .fetch_optional(conn)
        .await
        .during("read a sandbox")
}
