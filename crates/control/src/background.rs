//! The tasks that run as long as the server: the one authority over timers, the node's
//! reports, the readings of use, the pruning.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use hearth_model::end::{Actor, EndCause};
use hearth_model::node::Report;
use tokio::sync::mpsc;

use crate::app::{App, EndFailed, Pause};
use crate::clock::now_ms;
use crate::store::StoreError;
use crate::store::metrics::Keep;
use crate::store::sandboxes::Guard;

/// Longest sleep of the timers. The wall clock may jump and another process may write: the
/// store is asked again at least this often, which costs one look into an index.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// After a failure of the store.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Readings taken at once, and the longest one of them may take.
const READINGS_AT_ONCE: usize = 16;
const READING_TIME: Duration = Duration::from_secs(4);
/// One round of readings in this many is kept for a day: one in a minute at 5 s.
const ROUNDS_PER_DAY_READING: u64 = 12;
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const TOUCH_KEYS_EVERY: Duration = Duration::from_secs(5);
/// How long the answer to an idempotency key is kept.
const ANSWERS_KEPT_MS: i64 = 24 * 3600 * 1000;

/// Starts all of them; they end when `app.stop` is cancelled.
pub(crate) fn spawn(app: &Arc<App>, reports: mpsc::Receiver<Report>) {
    app.tasks.spawn(timers(Arc::clone(app)));
    app.tasks.spawn(deaths(Arc::clone(app), reports));
    app.tasks.spawn(readings(Arc::clone(app)));
    app.tasks.spawn(pruning(Arc::clone(app)));
    app.tasks.spawn(key_uses(Arc::clone(app)));
}

/// Ends every sandbox whose deadline passed.
async fn timers(app: Arc<App>) {
    loop {
        let now = now_ms();
        let wait = match due_now(&app, now).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::error!(%error, "timers could not read the store");
                AFTER_FAILURE
            }
        };
        tokio::select! {
            () = app.stop.cancelled() => return,
            () = app.deadline_set.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Decides every end that is due, without waiting for its end; says how long to sleep.
async fn due_now(app: &Arc<App>, now: i64) -> Result<Duration, StoreError> {
    let due = app.store.due(now).await?;
    for id in &due {
        // The guard looks again: the deadline may have been moved meanwhile.
        let decided = app
            .decide_end(id, EndCause::Timeout, Actor::System, Guard::DueAt(now))
            .await;
        match decided {
            Ok(_) | Err(EndFailed::Gone) => {}
            Err(EndFailed::Store(error)) => return Err(error),
        }
    }
    if !due.is_empty() {
        return Ok(Duration::ZERO);
    }
    let next = app.store.next_deadline().await?;
    let left = next.map_or(i64::MAX, |at| at.saturating_sub(now_ms()));
    let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    Ok(left.min(LONGEST_SLEEP))
}

/// Takes in what the node reports.
async fn deaths(app: Arc<App>, mut reports: mpsc::Receiver<Report>) {
    loop {
        let report = tokio::select! {
            () = app.stop.cancelled() => return,
            report = reports.recv() => report,
        };
        match report {
            Some(Report::Died { id, cause }) => app.died(&id, cause).await,
            None => {
                tracing::debug!("the node reports no more");
                return;
            }
        }
    }
}

/// Asks for the use of every running sandbox, in rounds.
async fn readings(app: Arc<App>) {
    let mut rounds = tokio::time::interval(app.config.sample_every);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count: u64 = 0;
    loop {
        tokio::select! {
            () = app.stop.cancelled() => return,
            _ = rounds.tick() => {}
        }
        let keep = if count.is_multiple_of(ROUNDS_PER_DAY_READING) {
            Keep::Day
        } else {
            Keep::Hour
        };
        count = count.wrapping_add(1);
        let running = app.store.live().all();
        let taken: Vec<_> = futures::stream::iter(running)
            .map(|sandbox| {
                let app = &app;
                async move {
                    let usage = app.node.usage(sandbox.id.clone());
                    match tokio::time::timeout(READING_TIME, usage).await {
                        Ok(usage) => usage.map(|usage| (sandbox.id.clone(), usage)),
                        Err(_) => {
                            tracing::warn!(sandbox.id = %sandbox.id, "a reading took too long");
                            None
                        }
                    }
                }
            })
            .buffer_unordered(READINGS_AT_ONCE)
            .filter_map(|reading| async move { reading })
            .collect()
            .await;
        if taken.is_empty() {
            continue;
        }
        if let Err(error) = app.store.insert_readings(&taken, keep).await {
            tracing::error!(%error, "readings were lost");
        }
    }
}

/// Removes what is kept no longer.
async fn pruning(app: Arc<App>) {
    let kept_ms = i64::try_from(app.config.tombstones_kept.as_millis()).unwrap_or(i64::MAX);
    while app.pause_or_stop(PRUNE_EVERY).await == Pause::Over {
        let now = now_ms();
        let pruned = app
            .store
            .prune(now.saturating_sub(kept_ms), now - ANSWERS_KEPT_MS)
            .await;
        if let Err(error) = pruned {
            tracing::error!(%error, "could not remove old records");
        }
        if let Err(error) = app.store.prune_readings(now).await {
            tracing::error!(%error, "could not remove old readings");
        }
    }
}

/// Writes down when keys were used.
async fn key_uses(app: Arc<App>) {
    loop {
        let pause = app.pause_or_stop(TOUCH_KEYS_EVERY).await;
        let used = app.take_used();
        if !used.is_empty()
            && let Err(error) = app.store.touch_keys(&used).await
        {
            tracing::warn!(%error, "could not note the use of keys");
        }
        if pause == Pause::Stopped {
            return;
        }
    }
}
