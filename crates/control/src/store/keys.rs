//! Teams and API keys in the store. Keys are hashed before they come here.

use hearth_model::end::Actor;
use hearth_model::id::TeamId;
use serde_json::json;
use sqlx::{Connection as _, FromRow, SqliteConnection};

use super::events::{NewEvent, append};
use super::{During as _, Store, StoreError, WRITE, to_u64};

/// A key as the operator sees it: never the key itself.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct KeyRecord {
    /// Public id, `key_` and 12 hex digits.
    pub id: String,
    pub team: String,
    pub name: String,
    /// First and last characters.
    pub mask: String,
    pub created_ms: i64,
    pub revoked_ms: Option<i64>,
    /// To within the server's writing interval.
    pub last_used_ms: Option<i64>,
}

/// A key to store.
#[derive(Debug)]
pub(crate) struct NewKeyRow<'a> {
    pub(crate) id: &'a str,
    pub(crate) team: &'a TeamId,
    pub(crate) name: &'a str,
    pub(crate) hash: &'a [u8],
    pub(crate) mask: &'a str,
    pub(crate) now_ms: i64,
}

/// What a valid key stands for.
#[derive(Debug, Clone)]
pub(crate) struct KeyOwner {
    pub(crate) key_id: String,
    pub(crate) team: TeamId,
    pub(crate) max_timeout_h: Option<u64>,
}

/// What a revoke found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    Now,
    Before,
    /// No key has this id (in this team, when one was named).
    Unknown,
}

/// Limits of one team; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TeamLimits {
    /// Sandboxes alive at once.
    pub max_live: Option<u32>,
    /// Longest timeout, in hours.
    pub max_timeout_h: Option<u32>,
}

impl Store {
    /// Stores a key, and its team when that is new.
    pub(crate) async fn insert_key(&self, key: NewKeyRow<'_>) -> Result<(), StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        ensure_team(&mut tx, key.team, key.now_ms).await?;
        sqlx::query(
            "INSERT INTO api_keys (id, team, name, hash, mask, created_ms) VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(key.id)
        .bind(key.team.as_str())
        .bind(key.name)
        .bind(key.hash)
        .bind(key.mask)
        .bind(key.now_ms)
        .execute(&mut *tx)
        .await
        .during("store a key")?;
        append(
            &mut tx,
            NewEvent {
                at_ms: key.now_ms,
                team: Some(key.team),
                sandbox: None,
                kind: "key_created",
                cause: None,
                actor: &Actor::Operator,
                data: json!({"key": key.id, "name": key.name}),
            },
        )
        .await?;
        tx.commit().await.during("commit a key")
    }

    /// Keys of one team or of all, oldest first, revoked ones too.
    pub(crate) async fn keys(&self, team: Option<&TeamId>) -> Result<Vec<KeyRecord>, StoreError> {
        sqlx::query_as(
            "SELECT id, team, name, mask, created_ms, revoked_ms, last_used_ms FROM api_keys
             WHERE ?1 IS NULL OR team = ?1 ORDER BY created_ms, id",
        )
        .bind(team.map(TeamId::as_str))
        .fetch_all(self.readers())
        .await
        .during("list keys")
    }

    /// Whether any key still opens anything.
    pub(crate) async fn has_valid_key(&self) -> Result<bool, StoreError> {
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM api_keys WHERE revoked_ms IS NULL)")
            .fetch_one(self.readers())
            .await
            .during("look for a key")
    }

    pub(crate) async fn revoke_key(
        &self,
        id: &str,
        team: Option<&TeamId>,
        now_ms: i64,
    ) -> Result<Revoked, StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        let found: Option<(String, Option<i64>)> = sqlx::query_as(
            "SELECT team, revoked_ms FROM api_keys WHERE id = ?1 AND (?2 IS NULL OR team = ?2)",
        )
        .bind(id)
        .bind(team.map(TeamId::as_str))
        .fetch_optional(&mut *tx)
        .await
        .during("find a key")?;
        let owner = match found {
            None => return Ok(Revoked::Unknown),
            Some((_, Some(_))) => return Ok(Revoked::Before),
            Some((owner, None)) => read_team(&owner)?,
        };
        sqlx::query("UPDATE api_keys SET revoked_ms = ? WHERE id = ?")
            .bind(now_ms)
            .bind(id)
            .execute(&mut *tx)
            .await
            .during("revoke a key")?;
        append(
            &mut tx,
            NewEvent {
                at_ms: now_ms,
                team: Some(&owner),
                sandbox: None,
                kind: "key_revoked",
                cause: None,
                actor: &Actor::Operator,
                data: json!({"key": id}),
            },
        )
        .await?;
        tx.commit().await.during("commit a revoke")?;
        Ok(Revoked::Now)
    }

    /// Whom a key stands for; none when it is unknown or revoked.
    pub(crate) async fn owner_of(&self, hash: &[u8]) -> Result<Option<KeyOwner>, StoreError> {
        let row: Option<(String, String, Option<i64>)> = sqlx::query_as(
            "SELECT k.id, k.team, t.max_timeout_h FROM api_keys k JOIN teams t ON t.id = k.team
             WHERE k.hash = ? AND k.revoked_ms IS NULL",
        )
        .bind(hash)
        .fetch_optional(self.readers())
        .await
        .during("look up a key")?;
        row.map(|(key_id, team, hours)| {
            Ok(KeyOwner {
                key_id,
                team: read_team(&team)?,
                max_timeout_h: hours.map(to_u64),
            })
        })
        .transpose()
    }

    /// Notes when keys were last used.
    pub(crate) async fn touch_keys(&self, used: &[(String, i64)]) -> Result<(), StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        for (id, at_ms) in used {
            sqlx::query(
                "UPDATE api_keys SET last_used_ms = max(ifnull(last_used_ms, 0), ?) WHERE id = ?",
            )
            .bind(at_ms)
            .bind(id)
            .execute(&mut *tx)
            .await
            .during("note a key's use")?;
        }
        tx.commit().await.during("commit the keys' use")
    }

    /// Sets both limits of a team, which is made when it is new.
    pub(crate) async fn set_limits(
        &self,
        team: &TeamId,
        limits: TeamLimits,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        ensure_team(&mut tx, team, now_ms).await?;
        sqlx::query("UPDATE teams SET max_live = ?, max_timeout_h = ? WHERE id = ?")
            .bind(limits.max_live)
            .bind(limits.max_timeout_h)
            .bind(team.as_str())
            .execute(&mut *tx)
            .await
            .during("set a team's limits")?;
        append(
            &mut tx,
            NewEvent {
                at_ms: now_ms,
                team: Some(team),
                sandbox: None,
                kind: "limits_set",
                cause: None,
                actor: &Actor::Operator,
                data: json!({"maxLive": limits.max_live, "maxTimeoutHours": limits.max_timeout_h}),
            },
        )
        .await?;
        tx.commit().await.during("commit a team's limits")
    }

    /// The limits of a team; none for a team that does not exist.
    pub(crate) async fn limits(&self, team: &TeamId) -> Result<Option<TeamLimits>, StoreError> {
        let row: Option<(Option<i64>, Option<i64>)> =
            sqlx::query_as("SELECT max_live, max_timeout_h FROM teams WHERE id = ?")
                .bind(team.as_str())
                .fetch_optional(self.readers())
                .await
                .during("read a team's limits")?;
        Ok(row.map(|(live, hours)| TeamLimits {
            max_live: live.and_then(|n| u32::try_from(n).ok()),
            max_timeout_h: hours.and_then(|n| u32::try_from(n).ok()),
        }))
    }

    /// A named value the server keeps for itself.
    pub(crate) async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("SELECT value FROM settings WHERE name = ?")
            .bind(name)
            .fetch_optional(self.readers())
            .await
            .during("read a setting")
    }

    pub(crate) async fn set_setting(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let mut conn = self.writer().await?;
        sqlx::query(
            "INSERT INTO settings (name, value) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET value = ?2",
        )
        .bind(name)
        .bind(value)
        .execute(&mut *conn)
        .await
        .during("store a setting")?;
        Ok(())
    }

    /// How many sandboxes of a team count against its limit.
    pub(crate) async fn count_live(
        conn: &mut SqliteConnection,
        team: &TeamId,
    ) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM sandboxes
             WHERE team = ? AND state IN ('creating', 'running', 'ending')",
        )
        .bind(team.as_str())
        .fetch_one(conn)
        .await
        .during("count a team's sandboxes")?;
        Ok(to_u64(count))
    }

    /// The limit a create is held to.
    pub(crate) async fn max_live(
        conn: &mut SqliteConnection,
        team: &TeamId,
    ) -> Result<Option<u64>, StoreError> {
        let limit: Option<Option<i64>> =
            sqlx::query_scalar("SELECT max_live FROM teams WHERE id = ?")
                .bind(team.as_str())
                .fetch_optional(conn)
                .await
                .during("read a team's limit")?;
        Ok(limit.flatten().map(to_u64))
    }
}

async fn ensure_team(
    conn: &mut SqliteConnection,
    team: &TeamId,
    now_ms: i64,
) -> Result<(), StoreError> {
    let made =
        sqlx::query("INSERT INTO teams (id, created_ms) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind(team.as_str())
            .bind(now_ms)
            .execute(&mut *conn)
            .await
            .during("make a team")?
            .rows_affected();
    if made > 0 {
        append(
            conn,
            NewEvent {
                at_ms: now_ms,
                team: Some(team),
                sandbox: None,
                kind: "team_created",
                cause: None,
                actor: &Actor::Operator,
                data: json!({}),
            },
        )
        .await?;
    }
    Ok(())
}

pub(crate) fn read_team(text: &str) -> Result<TeamId, StoreError> {
    TeamId::parse(text).map_err(|fault| StoreError::Damaged {
        what: format!("team {text:?}: {fault}"),
    })
}
