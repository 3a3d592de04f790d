//! Ends: a decision in the store, the node's work, the release in the store. A decision
//! that was stored is always carried out: after a crash, `recover` does it.

use std::sync::Arc;
use std::time::Duration;

use hearth_model::end::{Actor, EndCause, EndReason};
use hearth_model::id::SandboxId;
use tokio::task::JoinHandle;

use super::App;
use crate::clock::now_ms;
use crate::store::StoreError;
use crate::store::sandboxes::{Guard, Moved};

/// How long a kill's caller waits for the node; after that the end goes on without it.
const WAIT: Duration = Duration::from_secs(30);
/// Between two attempts to record what must be recorded.
const RETRY: Duration = Duration::from_millis(500);

/// Why an end was not decided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndFailed {
    /// Somebody else ended it, or it does not exist.
    #[error("it is gone")]
    Gone,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl App {
    /// Ends a sandbox and returns when its resources are given back.
    pub(crate) async fn end(
        self: &Arc<Self>,
        id: &SandboxId,
        cause: EndCause,
        actor: Actor,
        guard: Guard,
    ) -> Result<(), EndFailed> {
        let app = Arc::clone(self);
        let id = id.clone();
        // A task: once decided, it is carried out whatever becomes of the caller.
        let work = self.tasks.spawn(async move {
            let rest = app.decide_end(&id, cause, actor, guard).await?;
            rest.await.map_err(|panic| {
                EndFailed::Store(StoreError::Damaged {
                    what: panic.to_string(),
                })
            })
        });
        match tokio::time::timeout(WAIT, work).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(EndFailed::Store(StoreError::Damaged {
                what: panic.to_string(),
            })),
            // Decided and going on; the sandbox is unreachable already.
            Err(_) => Ok(()),
        }
    }

    /// Stores the decision to end, and has it carried out by the task it returns. Not to be
    /// cancelled: call it from a task.
    pub(crate) async fn decide_end(
        self: &Arc<Self>,
        id: &SandboxId,
        cause: EndCause,
        actor: Actor,
        guard: Guard,
    ) -> Result<JoinHandle<()>, EndFailed> {
        let reason = EndReason {
            at_ms: now_ms(),
            cause,
            actor,
        };
        match self.store.begin_end(id, &reason, guard).await? {
            Moved::To(sandbox) => {
                tracing::info!(
                    sandbox.id = %id,
                    team.id = %sandbox.team,
                    cause = %reason.cause.describe(),
                    "sandbox ends"
                );
                let (app, id) = (Arc::clone(self), id.clone());
                Ok(self
                    .tasks
                    .spawn(async move { app.clean_up(id, reason.cause).await }))
            }
            Moved::Unchanged(_) | Moved::Refused(_) | Moved::Missing => Err(EndFailed::Gone),
        }
    }

    /// Has the node give everything back and records it, for a sandbox whose end is stored.
    pub(crate) async fn clean_up(self: &Arc<Self>, id: SandboxId, cause: EndCause) {
        self.node.kill(id.clone(), cause).await;
        // A create that was overtaken removes what it made before it returns.
        self.create_is_over(&id).await;
        self.release(&id).await;
    }

    /// The same for a sandbox whose end could not be stored yet.
    pub(crate) fn clean_up_later(self: &Arc<Self>, id: SandboxId, cause: EndCause) {
        let app = Arc::clone(self);
        self.tasks.spawn(async move {
            let reason = EndReason {
                at_ms: now_ms(),
                cause,
                actor: Actor::System,
            };
            app.node.kill(id.clone(), reason.cause.clone()).await;
            app.create_is_over(&id).await;
            while let Err(error) = app.store.begin_end(&id, &reason, Guard::None).await {
                tracing::error!(sandbox.id = %id, %error, "could not record an end");
                if app.pause_or_stop(RETRY).await == Pause::Stopped {
                    return;
                }
            }
            app.release(&id).await;
        });
    }

    /// Records that the node gave everything back, however often it takes.
    pub(super) async fn release(&self, id: &SandboxId) {
        loop {
            match self.store.finish_end(id, now_ms()).await {
                Ok(Moved::Refused(_)) => {
                    tracing::error!(sandbox.id = %id, "released without a decided end");
                    return;
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::error!(sandbox.id = %id, %error, "could not record a release");
                    // At the next start `recover` finds it ending and finishes.
                    if self.pause_or_stop(RETRY).await == Pause::Stopped {
                        return;
                    }
                }
            }
        }
    }

    /// The node found it dead and has given everything back.
    pub(crate) async fn died(&self, id: &SandboxId, cause: EndCause) {
        let actor = match &cause {
            EndCause::OutOfMemory => Actor::Guest,
            EndCause::Down => Actor::Operator,
            EndCause::Killed
            | EndCause::Timeout
            | EndCause::Crashed { .. }
            | EndCause::StartFailed { .. }
            | EndCause::Lost => Actor::System,
        };
        let reason = EndReason {
            at_ms: now_ms(),
            cause,
            actor,
        };
        loop {
            match self.store.record_death(id, &reason).await {
                Ok(Moved::To(sandbox)) => {
                    tracing::warn!(
                        sandbox.id = %id,
                        team.id = %sandbox.team,
                        cause = %reason.cause.describe(),
                        "sandbox died"
                    );
                    return;
                }
                Ok(Moved::Unchanged(_) | Moved::Refused(_)) => return,
                Ok(Moved::Missing) => {
                    tracing::warn!(sandbox.id = %id, "a sandbox without a record died");
                    return;
                }
                Err(error) => {
                    tracing::error!(sandbox.id = %id, %error, "could not record a death");
                    if self.pause_or_stop(RETRY).await == Pause::Stopped {
                        return;
                    }
                }
            }
        }
    }

    /// Waits, unless the server stops.
    pub(crate) async fn pause_or_stop(&self, time: Duration) -> Pause {
        tokio::select! {
            () = self.stop.cancelled() => Pause::Stopped,
            () = tokio::time::sleep(time) => Pause::Over,
        }
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    Over,
    Stopped,
}
