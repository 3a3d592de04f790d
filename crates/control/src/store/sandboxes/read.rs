//! Every read of the table of sandboxes.

use hearth_model::id::{SandboxId, TeamId, TemplateId};
use hearth_model::state::State;
use sqlx::{QueryBuilder, Sqlite};

use super::{COLUMNS, Sandbox};
use crate::store::{During as _, Store, StoreError, to_u64};

/// Order of a list, by start and then by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    OldestFirst,
    NewestFirst,
}

/// The last sandbox of the page before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) started_ms: i64,
    pub(crate) id: SandboxId,
}

/// Which running sandboxes of a team a list is about.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// All pairs must match exactly.
    pub(crate) metadata: Vec<(String, String)>,
    pub(crate) started_at_or_after_ms: Option<i64>,
    pub(crate) template: Option<TemplateId>,
}

impl Filter {
    fn push(&self, query: &mut QueryBuilder<'_, Sqlite>, team: &TeamId) {
        query
            .push(" FROM sandboxes WHERE state = 'running' AND team = ")
            .push_bind(team.as_str().to_owned());
        if let Some(at_ms) = self.started_at_or_after_ms {
            query.push(" AND started_ms >= ").push_bind(at_ms);
        }
        if let Some(template) = &self.template {
            query
                .push(" AND template = ")
                .push_bind(template.as_str().to_owned());
        }
        for (key, value) in &self.metadata {
            query
                .push(" AND EXISTS (SELECT 1 FROM json_each(metadata) AS m WHERE m.key = ")
                .push_bind(key.clone())
                .push(" AND m.value = ")
                .push_bind(value.clone())
                .push(")");
        }
    }
}

impl Store {
    pub(crate) async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>, StoreError> {
        sqlx::query_as(&format!("SELECT {COLUMNS} FROM sandboxes WHERE id = ?"))
            .bind(id.as_str())
            .fetch_optional(self.readers())
            .await
            .during("read a sandbox")
    }

    /// At most `limit` running sandboxes of a team, after the cursor.
    pub(crate) async fn page(
        &self,
        team: &TeamId,
        filter: &Filter,
        order: Order,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Vec<Sandbox>, StoreError> {
        let (compare, direction) = match order {
            Order::OldestFirst => (">", "ASC"),
            Order::NewestFirst => ("<", "DESC"),
        };
        let mut query = QueryBuilder::new(format!("SELECT {COLUMNS}"));
        filter.push(&mut query, team);
        if let Some(cursor) = after {
            query
                .push(format!(" AND (started_ms, id) {compare} ("))
                .push_bind(cursor.started_ms)
                .push(", ")
                .push_bind(cursor.id.as_str().to_owned())
                .push(")");
        }
        query
            .push(format!(
                " ORDER BY started_ms {direction}, id {direction} LIMIT "
            ))
            .push_bind(limit);
        query
            .build_query_as()
            .fetch_all(self.readers())
            .await
            .during("list sandboxes")
    }

    /// How many running sandboxes of a team match.
    pub(crate) async fn count_running(
        &self,
        team: &TeamId,
        filter: &Filter,
    ) -> Result<u64, StoreError> {
        let mut query = QueryBuilder::new("SELECT count(*)");
        filter.push(&mut query, team);
        let count: i64 = query
            .build_query_scalar()
            .fetch_one(self.readers())
            .await
            .during("count sandboxes")?;
        Ok(to_u64(count))
    }

    /// The earliest deadline of a running sandbox.
    pub(crate) async fn next_deadline(&self) -> Result<Option<i64>, StoreError> {
        sqlx::query_scalar("SELECT min(deadline_ms) FROM sandboxes WHERE state = 'running'")
            .fetch_one(self.readers())
            .await
            .during("find the next deadline")
    }

    /// Running sandboxes whose deadline has passed, a bounded number.
    pub(crate) async fn due(&self, now_ms: i64) -> Result<Vec<SandboxId>, StoreError> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT id FROM sandboxes WHERE state = 'running' AND deadline_ms <= ?
             ORDER BY deadline_ms LIMIT 1000",
        )
        .bind(now_ms)
        .fetch_all(self.readers())
        .await
        .during("find what is due")?;
        ids.iter().map(|id| read_id(id)).collect()
    }

    /// Every sandbox that has not ended.
    pub(crate) async fn unfinished(&self) -> Result<Vec<(SandboxId, State)>, StoreError> {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SELECT id, state FROM sandboxes WHERE state IN ('creating', 'running', 'ending')",
        )
        .fetch_all(self.readers())
        .await
        .during("list what has not ended")?;
        rows.iter()
            .map(|(id, state)| {
                let state = State::from_str_opt(state).ok_or_else(|| StoreError::Damaged {
                    what: format!("state {state:?} of {id:?}"),
                })?;
                Ok((read_id(id)?, state))
            })
            .collect()
    }
}

fn read_id(text: &str) -> Result<SandboxId, StoreError> {
    SandboxId::parse(text).map_err(|fault| StoreError::Damaged {
        what: format!("sandbox id {text:?}: {fault}"),
    })
}
