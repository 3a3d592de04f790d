//! Finding a caller's sandbox, and moving its deadline. Another team's sandbox is the same
//! as none.

use std::sync::Arc;

use hearth_model::end::EndReason;
use hearth_model::id::SandboxId;
use hearth_model::state::State;

use super::{App, Caller};
use crate::clock::now_ms;
use crate::parse::shorten;
use crate::store::StoreError;
use crate::store::sandboxes::{Deadline, DeadlineChange, Sandbox};
use crate::store::to_i64;

/// Why a caller does not get a sandbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// There is none of this name, or it is another team's.
    #[error("sandbox {shown:?} not found")]
    Unknown { shown: String },
    #[error("sandbox {id} has ended")]
    Gone { id: SandboxId, reason: EndReason },
    #[error("sandbox {id} is being created")]
    Creating { id: SandboxId },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl App {
    /// A running sandbox of the caller's team.
    pub(crate) async fn find(&self, caller: &Caller, text: &str) -> Result<Sandbox, FindError> {
        let sandbox = self.find_any(caller, text).await?;
        running(sandbox, text)
    }

    /// A sandbox of the caller's team in whatever state, while it is remembered.
    pub(crate) async fn find_any(&self, caller: &Caller, text: &str) -> Result<Sandbox, FindError> {
        let Ok(id) = SandboxId::parse(text) else {
            return Err(unknown(text));
        };
        self.store
            .sandbox(&id)
            .await?
            .filter(|sandbox| sandbox.team == caller.team)
            .ok_or_else(|| unknown(text))
    }

    /// Moves the deadline of a running sandbox to `seconds` from now.
    pub(crate) async fn extend(
        self: &Arc<Self>,
        caller: &Caller,
        text: &str,
        seconds: u64,
        how: Extend,
    ) -> Result<Sandbox, FindError> {
        let Ok(id) = SandboxId::parse(text) else {
            return Err(unknown(text));
        };
        let now_ms = now_ms();
        let at_ms = now_ms.saturating_add(to_i64(seconds.saturating_mul(1000)));
        let (deadline, kind) = match how {
            Extend::Set => (Deadline::At(at_ms), "timeout_set"),
            Extend::Refresh => (Deadline::NoEarlierThan(at_ms), "refreshed"),
            Extend::Connect => (Deadline::NoEarlierThan(at_ms), "connected"),
        };
        let app = Arc::clone(self);
        let caller = caller.clone();
        let work = self.tasks.spawn(async move {
            let actor = caller.actor();
            let change = DeadlineChange {
                deadline,
                kind,
                actor: &actor,
                now_ms,
            };
            let found = app.store.change_deadline(&id, &caller.team, change).await;
            app.deadline_set.notify_one();
            found.map(|found| found.filter(|sandbox| sandbox.team == caller.team))
        });
        let sandbox = work
            .await
            .map_err(|panic| StoreError::Damaged {
                what: panic.to_string(),
            })??
            .ok_or_else(|| unknown(text))?;
        running(sandbox, text)
    }
}

/// Which request moves a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extend {
    /// Earlier or later.
    Set,
    /// Only later.
    Refresh,
    /// Only later.
    Connect,
}

fn running(sandbox: Sandbox, text: &str) -> Result<Sandbox, FindError> {
    match (sandbox.state, sandbox.end.clone()) {
        (State::Running, _) => Ok(sandbox),
        (State::Creating, _) => Err(FindError::Creating { id: sandbox.id }),
        (State::Ending | State::Ended, Some(reason)) => Err(FindError::Gone {
            id: sandbox.id,
            reason,
        }),
        (State::Ending | State::Ended, None) => Err(unknown(text)),
    }
}

fn unknown(text: &str) -> FindError {
    FindError::Unknown {
        shown: shorten(text),
    }
}
