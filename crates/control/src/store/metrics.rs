//! Readings of use. Every reading is kept for an hour, one in a minute for a day: at most
//! about 2,200 rows for a sandbox, however long it lives.

use hearth_model::id::SandboxId;
use hearth_model::node::Usage;
use sqlx::{Connection as _, FromRow, QueryBuilder};

use super::{During as _, Store, StoreError, WRITE, to_i64};

/// How long every reading is kept.
const FINE_MS: i64 = 3600 * 1000;
/// How long one reading in a minute is kept.
const COARSE_MS: i64 = 24 * FINE_MS;

/// Whether a round of readings is among those kept for a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Hour,
    Day,
}

/// A stored reading.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct Reading {
    pub(crate) sandbox: String,
    pub(crate) at_ms: i64,
    pub(crate) vcpu: u32,
    pub(crate) cpu_pct: f64,
    pub(crate) mem_used: i64,
    pub(crate) mem_total: i64,
    pub(crate) mem_cache: i64,
    pub(crate) disk_used: i64,
    pub(crate) disk_total: i64,
}

const COLUMNS: &str = "sandbox, at_ms, vcpu, cpu_pct, mem_used, mem_total, mem_cache, disk_used, \
     disk_total";

impl Store {
    /// Stores one round of readings.
    pub(crate) async fn insert_readings(
        &self,
        readings: &[(SandboxId, Usage)],
        keep: Keep,
    ) -> Result<(), StoreError> {
        let mut conn = self.writer().await?;
        let mut tx = conn.begin_with(WRITE).await.during("begin a write")?;
        for (id, usage) in readings {
            // A reading that is not a number (a broken counter) is stored as zero.
            let cpu_pct = if usage.cpu_pct.is_finite() {
                usage.cpu_pct
            } else {
                0.0
            };
            sqlx::query(
                "INSERT OR REPLACE INTO metrics (sandbox, at_ms, keep, vcpu, cpu_pct, mem_used,
                     mem_total, mem_cache, disk_used, disk_total)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(id.as_str())
            .bind(usage.at_ms)
            .bind(keep == Keep::Day)
            .bind(usage.vcpu)
            .bind(cpu_pct)
            .bind(to_i64(usage.mem_used))
            .bind(to_i64(usage.mem_total))
            .bind(to_i64(usage.mem_cache))
            .bind(to_i64(usage.disk_used))
            .bind(to_i64(usage.disk_total))
            .execute(&mut *tx)
            .await
            .during("store a reading")?;
        }
        tx.commit().await.during("commit readings")
    }

    /// Readings of one sandbox in a range, oldest first.
    pub(crate) async fn readings(
        &self,
        sandbox: &SandboxId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<Reading>, StoreError> {
        sqlx::query_as(&format!(
            "SELECT {COLUMNS} FROM metrics WHERE sandbox = ? AND at_ms BETWEEN ? AND ?
             ORDER BY at_ms"
        ))
        .bind(sandbox.as_str())
        .bind(from_ms)
        .bind(to_ms)
        .fetch_all(self.readers())
        .await
        .during("read readings")
    }

    /// The last reading of each of these sandboxes that has one.
    pub(crate) async fn last_readings(
        &self,
        sandboxes: &[SandboxId],
    ) -> Result<Vec<Reading>, StoreError> {
        if sandboxes.is_empty() {
            return Ok(Vec::new());
        }
        // One look-up by primary key per id, whatever number of readings it has.
        let mut query = QueryBuilder::new("WITH wanted (id) AS (");
        query.push_values(sandboxes, |mut row, id| {
            row.push_bind(id.as_str().to_owned());
        });
        query.push(format!(
            ") SELECT {COLUMNS} FROM wanted JOIN metrics ON sandbox = id AND at_ms =
                 (SELECT max(n.at_ms) FROM metrics AS n WHERE n.sandbox = id)"
        ));
        query
            .build_query_as()
            .fetch_all(self.readers())
            .await
            .during("read last readings")
    }

    /// Removes what is kept no longer.
    pub(crate) async fn prune_readings(&self, now_ms: i64) -> Result<(), StoreError> {
        let mut conn = self.writer().await?;
        // `keep` is written into the text so that each statement finds its partial index.
        for (statement, before_ms) in [
            (
                "DELETE FROM metrics WHERE keep = 0 AND at_ms < ?",
                now_ms - FINE_MS,
            ),
            (
                "DELETE FROM metrics WHERE keep = 1 AND at_ms < ?",
                now_ms - COARSE_MS,
            ),
        ] {
            sqlx::query(statement)
                .bind(before_ms)
                .execute(&mut *conn)
                .await
                .during("remove old readings")?;
        }
        Ok(())
    }
}
