//! Sandboxes in the store: the intent, each change of state, the deadline, the tombstone.
//!
//! Every change of state goes through `advance`, which asks `model::state::step`, raises
//! the generation and writes nothing when the step is refused or changes nothing.

mod change;
mod end;
mod read;

use std::collections::BTreeMap;

use hearth_model::end::{EndCause, EndReason};
use hearth_model::id::{SandboxId, TeamId, TemplateId};
use hearth_model::sandbox::{SandboxSpec, Size};
use hearth_model::secret::Secret;
use hearth_model::state::State;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};

pub(crate) use change::{Deadline, DeadlineChange, InsertError, Inserted, Moved};
pub(crate) use end::Guard;
pub(crate) use read::{Cursor, Filter, Order};

use super::idempotency::Claim;
use super::{StoreError, to_u64};

/// A sandbox as stored. Its environment is not here: only the node needs it, once.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) team: TeamId,
    pub(crate) template: TemplateId,
    pub(crate) alias: Option<String>,
    pub(crate) envd_version: String,
    pub(crate) state: State,
    pub(crate) generation: i64,
    pub(crate) size: Size,
    pub(crate) internet_choice: Option<bool>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Empty once it ended.
    pub(crate) access_token: Secret,
    pub(crate) tier: Option<String>,
    pub(crate) started_ms: Option<i64>,
    pub(crate) deadline_ms: i64,
    /// There as soon as the end is decided.
    pub(crate) end: Option<EndReason>,
}

/// A create to be recorded as intent.
#[derive(Debug)]
pub(crate) struct NewSandboxRow<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) alias: Option<&'a str>,
    pub(crate) envd_version: &'a str,
    pub(crate) internet_choice: Option<bool>,
    pub(crate) metadata: &'a BTreeMap<String, String>,
    pub(crate) timeout_s: u64,
    pub(crate) now_ms: i64,
    /// When the create is given up.
    pub(crate) give_up_ms: i64,
    pub(crate) claim: Option<Claim<'a>>,
}

/// Columns of [`Sandbox`].
const COLUMNS: &str = "id, team, template, alias, envd_version, state, generation, vcpu, \
     memory_mib, disk_mib, internet_choice, metadata, access_token, tier, started_ms, \
     deadline_ms, end_reason";

fn damaged(what: &str, value: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("column {what} holds {value:.80?}").into())
}

impl FromRow<'_, SqliteRow> for Sandbox {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let id: String = row.try_get("id")?;
        let team: String = row.try_get("team")?;
        let template: String = row.try_get("template")?;
        let state: String = row.try_get("state")?;
        let metadata: String = row.try_get("metadata")?;
        let end: Option<String> = row.try_get("end_reason")?;
        let vcpu: i64 = row.try_get("vcpu")?;
        Ok(Self {
            id: SandboxId::parse(&id).map_err(|_| damaged("id", &id))?,
            team: TeamId::parse(&team).map_err(|_| damaged("team", &team))?,
            template: TemplateId::parse(&template).map_err(|_| damaged("template", &template))?,
            alias: row.try_get("alias")?,
            envd_version: row.try_get("envd_version")?,
            state: State::from_str_opt(&state).ok_or_else(|| damaged("state", &state))?,
            generation: row.try_get("generation")?,
            size: Size {
                vcpu: u32::try_from(vcpu).map_err(|_| damaged("vcpu", &vcpu.to_string()))?,
                memory_mib: to_u64(row.try_get("memory_mib")?),
                disk_mib: to_u64(row.try_get("disk_mib")?),
            },
            internet_choice: row.try_get("internet_choice")?,
            metadata: serde_json::from_str(&metadata)
                .map_err(|_| damaged("metadata", &metadata))?,
            access_token: Secret::new(row.try_get::<String, _>("access_token")?),
            tier: row.try_get("tier")?,
            started_ms: row.try_get("started_ms")?,
            deadline_ms: row.try_get("deadline_ms")?,
            end: end
                .map(|text| serde_json::from_str(&text).map_err(|_| damaged("end_reason", &text)))
                .transpose()?,
        })
    }
}

/// The cause as one word, for the event table.
fn cause_word(cause: &EndCause) -> &'static str {
    match cause {
        EndCause::Killed => "killed",
        EndCause::Timeout => "timeout",
        EndCause::OutOfMemory => "out_of_memory",
        EndCause::Crashed { .. } => "crashed",
        EndCause::StartFailed { .. } => "start_failed",
        EndCause::Down => "down",
        EndCause::Lost => "lost",
    }
}

/// The kind of the event that records the decision to end.
fn decision_kind(cause: &EndCause) -> &'static str {
    match cause {
        EndCause::Killed => "killed",
        EndCause::Timeout => "expired",
        EndCause::StartFailed { .. } => "start_failed",
        EndCause::Down => "down",
        EndCause::OutOfMemory | EndCause::Crashed { .. } | EndCause::Lost => "died",
    }
}

/// Text of maps and reasons; these types always have a JSON form.
fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|fault| StoreError::Damaged {
        what: fault.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use hearth_model::end::Actor;
    use hearth_model::sandbox::Internet;

    use super::*;
    use crate::store::Store;
    use crate::store::keys::NewKeyRow;

    async fn ended_at(store: &Store, ended_ms: i64) -> SandboxId {
        let spec = SandboxSpec {
            id: SandboxId::random(),
            team: TeamId::parse("default").expect("a team"),
            template: TemplateId::parse("base").expect("a template"),
            size: Size {
                vcpu: 1,
                memory_mib: 1,
                disk_mib: 1,
            },
            env: [("SECRET".to_owned(), "s3cret".to_owned())].into(),
            internet: Internet::Open,
            access_token: Secret::new("t0ken"),
        };
        let row = NewSandboxRow {
            spec: &spec,
            alias: None,
            envd_version: "1",
            internet_choice: None,
            metadata: &BTreeMap::new(),
            timeout_s: 1,
            now_ms: 1,
            give_up_ms: 2,
            claim: None,
        };
        let reason = EndReason {
            at_ms: ended_ms,
            cause: EndCause::Lost,
            actor: Actor::System,
        };
        store
            .insert_sandbox(row, &Actor::System)
            .await
            .expect("recorded");
        store.record_death(&spec.id, &reason).await.expect("ended");
        spec.id
    }

    #[tokio::test]
    async fn an_end_drops_secrets_and_a_pruning_keeps_events() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("hearth.db"))
            .await
            .expect("it opens");
        let key = NewKeyRow {
            id: "key_1",
            team: &TeamId::parse("default").expect("a team"),
            name: "",
            hash: b"h",
            mask: "m",
            now_ms: 1,
        };
        store.insert_key(key).await.expect("a team");
        let (old, new) = (ended_at(&store, 1000).await, ended_at(&store, 3000).await);
        let secrets: Vec<(String, String)> =
            sqlx::query_as("SELECT env, access_token FROM sandboxes")
                .fetch_all(store.readers())
                .await
                .expect("readable");
        assert_eq!(secrets, vec![("{}".to_owned(), String::new()); 2]);

        assert_eq!(store.prune(2000, 0).await.expect("pruned"), 1);
        assert!(store.sandbox(&old).await.expect("readable").is_none());
        assert!(store.sandbox(&new).await.expect("readable").is_some());
        let window = crate::store::events::Window::Start(0);
        let events = store.events_of(&old, window, 10).await.expect("readable");
        assert_eq!(events.len(), 3);
    }

    #[test]
    fn end_reasons_survive_the_store() {
        let causes = [
            EndCause::Killed,
            EndCause::Timeout,
            EndCause::OutOfMemory,
            EndCause::Crashed {
                detail: "exit 137".into(),
            },
            EndCause::StartFailed { detail: "x".into() },
            EndCause::Down,
            EndCause::Lost,
        ];
        let actors = [
            Actor::Key { id: "key_1".into() },
            Actor::System,
            Actor::Operator,
            Actor::Guest,
        ];
        for cause in &causes {
            for actor in &actors {
                let reason = EndReason {
                    at_ms: 17,
                    cause: cause.clone(),
                    actor: actor.clone(),
                };
                let text = to_json(&reason).expect("it has a JSON form");
                let back: EndReason = serde_json::from_str(&text).expect("it reads back");
                assert_eq!(back, reason, "{text}");
            }
        }
    }
}
