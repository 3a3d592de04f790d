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

/// Rows of one statement; SQLite takes 32,766 values in one.
const ROWS_AT_ONCE: usize = 500;

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
        // Many rows per statement: a create may be waiting for the writer.
        for some in readings.chunks(ROWS_AT_ONCE) {
            let mut query = QueryBuilder::new(
                "INSERT OR REPLACE INTO metrics (keep, sandbox, at_ms, vcpu, cpu_pct, mem_used,
                     mem_total, mem_cache, disk_used, disk_total) ",
            );
            query.push_values(some, |mut row, (id, usage)| {
                // A reading that is not a number (a broken counter) is stored as zero.
                let cpu_pct = if usage.cpu_pct.is_finite() {
                    usage.cpu_pct
                } else {
                    0.0
                };
                row.push_bind(keep == Keep::Day)
                    .push_bind(id.as_str().to_owned())
                    .push_bind(usage.at_ms)
                    .push_bind(usage.vcpu)
                    .push_bind(cpu_pct)
                    .push_bind(to_i64(usage.mem_used))
                    .push_bind(to_i64(usage.mem_total))
                    .push_bind(to_i64(usage.mem_cache))
                    .push_bind(to_i64(usage.disk_used))
                    .push_bind(to_i64(usage.disk_total));
            });
            query
                .build()
                .execute(&mut *tx)
                .await
                .during("store readings")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(at_ms: i64) -> Usage {
        Usage {
            at_ms,
            vcpu: 1,
            cpu_pct: f64::NAN,
            mem_used: u64::MAX,
            mem_total: 1,
            mem_cache: 1,
            disk_used: 1,
            disk_total: 1,
        }
    }

    #[tokio::test]
    async fn old_readings_thin_out_and_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("hearth.db"))
            .await
            .expect("it opens");
        let id = SandboxId::random();
        let now = 10 * COARSE_MS;
        let ages_ms = [0, FINE_MS - 1, FINE_MS + 1, COARSE_MS - 1, COARSE_MS + 1];
        for (shift, keep) in [(0, Keep::Hour), (100, Keep::Day)] {
            let round: Vec<_> = ages_ms
                .iter()
                .map(|age| (id.clone(), usage(now - age - shift)))
                .collect();
            store.insert_readings(&round, keep).await.expect("stored");
        }
        store.prune_readings(now).await.expect("pruned");
        let left: Vec<i64> = store
            .readings(&id, 0, i64::MAX)
            .await
            .expect("readable")
            .iter()
            .map(|reading| now - reading.at_ms)
            .collect();
        // Of the fine ones the last hour, of the coarse ones the last day.
        assert_eq!(
            left,
            [FINE_MS + 101, FINE_MS + 99, FINE_MS - 1, 100, 0],
            "ages"
        );
        let last = store.last_readings(&[id, SandboxId::random()]).await;
        let last = last.expect("readable");
        assert_eq!(last.len(), 1);
        assert_eq!((last[0].at_ms, last[0].mem_used), (now, i64::MAX));
        assert!(last[0].cpu_pct.abs() < f64::EPSILON);
    }

    #[tokio::test]
    async fn a_thousand_sandboxes_are_one_round() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("hearth.db"))
            .await
            .expect("it opens");
        let round: Vec<_> = (0..1001).map(|n| (SandboxId::random(), usage(n))).collect();
        store
            .insert_readings(&round, Keep::Hour)
            .await
            .expect("stored");
        let ids: Vec<_> = round.iter().map(|(id, _)| id.clone()).collect();
        let last = store.last_readings(&ids).await.expect("readable");
        assert_eq!(last.len(), 1001);
    }
}
