//! What a start finds: the store's sandboxes against those the node still holds.
//!
//! The decisions are one pure table, [`plan`]; carrying them out is the rest.

use std::collections::HashSet;
use std::sync::Arc;

use hearth_model::end::{Actor, EndCause, EndReason};
use hearth_model::id::SandboxId;
use hearth_model::state::State;

use crate::app::App;
use crate::clock::now_ms;
use crate::store::StoreError;
use crate::store::sandboxes::Guard;

/// What was found, for the log and for the one who waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Running before and still running: served again.
    pub adopted: usize,
    /// Running before, and gone.
    pub lost: usize,
    /// Interrupted while being created.
    pub unfinished: usize,
    /// Interrupted while being ended: finished in the background.
    pub ending: usize,
    /// On the node, with no record that it should run: removed in the background.
    pub strangers: usize,
}

/// What is to be done about one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Adopt,
    DeclareLost,
    GiveUpCreate,
    FinishEnd,
    KillStranger,
}

/// Decides from both lists. Pure.
fn plan(stored: &[(SandboxId, State)], on_node: &[SandboxId]) -> Vec<(SandboxId, Action)> {
    let held: HashSet<&SandboxId> = on_node.iter().collect();
    let known: HashSet<&SandboxId> = stored.iter().map(|(id, _)| id).collect();
    let of_store = stored.iter().filter_map(|(id, state)| {
        let action = match state {
            State::Running if held.contains(id) => Action::Adopt,
            State::Running => Action::DeclareLost,
            State::Creating => Action::GiveUpCreate,
            State::Ending => Action::FinishEnd,
            State::Ended => {
                return held
                    .contains(id)
                    .then(|| (id.clone(), Action::KillStranger));
            }
        };
        Some((id.clone(), action))
    });
    let strangers = on_node
        .iter()
        .filter(|id| !known.contains(id))
        .map(|id| (id.clone(), Action::KillStranger));
    of_store.chain(strangers).collect()
}

impl App {
    /// Brings store and node together. Call once, before anything is served. What needs the
    /// node to end something goes on in tasks after this returns.
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<Recovered, StoreError> {
        let on_node = self.node.adopted().await;
        let stored = self.store.unfinished().await?;
        let mut found = Recovered::default();
        for (id, action) in plan(&stored, &on_node) {
            match action {
                Action::Adopt => {
                    self.store.adopt(&id).await?;
                    found.adopted += 1;
                }
                Action::DeclareLost => {
                    self.store
                        .record_death(&id, &system(EndCause::Lost))
                        .await?;
                    found.lost += 1;
                }
                Action::GiveUpCreate => {
                    let cause = EndCause::StartFailed {
                        detail: "the server stopped while it was being created".into(),
                    };
                    self.store
                        .begin_end(&id, &system(cause.clone()), Guard::None)
                        .await?;
                    self.finish_in_background(id, cause);
                    found.unfinished += 1;
                }
                Action::FinishEnd => {
                    let cause = self
                        .store
                        .sandbox(&id)
                        .await?
                        .and_then(|sandbox| sandbox.end)
                        .map_or(EndCause::Lost, |end| end.cause);
                    self.finish_in_background(id, cause);
                    found.ending += 1;
                }
                Action::KillStranger => {
                    tracing::warn!(sandbox.id = %id, "removing a sandbox without a record");
                    let app = Arc::clone(self);
                    self.tasks
                        .spawn(async move { app.node.kill(id, EndCause::Lost).await });
                    found.strangers += 1;
                }
            }
        }
        tracing::info!(?found, "store and node agree");
        Ok(found)
    }

    fn finish_in_background(self: &Arc<Self>, id: SandboxId, cause: EndCause) {
        let app = Arc::clone(self);
        self.tasks
            .spawn(async move { app.clean_up(id, cause).await });
    }
}

fn system(cause: EndCause) -> EndReason {
    EndReason {
        at_ms: now_ms(),
        cause,
        actor: Actor::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_action() {
        let ids: Vec<SandboxId> = (0..7).map(|_| SandboxId::random()).collect();
        let stored = [
            (ids[0].clone(), State::Running),
            (ids[1].clone(), State::Running),
            (ids[2].clone(), State::Creating),
            (ids[3].clone(), State::Ending),
            (ids[4].clone(), State::Ended),
            (ids[5].clone(), State::Ended),
        ];
        let on_node = [
            ids[0].clone(),
            ids[3].clone(),
            ids[4].clone(),
            ids[6].clone(),
        ];
        assert_eq!(
            plan(&stored, &on_node),
            vec![
                (ids[0].clone(), Action::Adopt),
                (ids[1].clone(), Action::DeclareLost),
                (ids[2].clone(), Action::GiveUpCreate),
                (ids[3].clone(), Action::FinishEnd),
                (ids[4].clone(), Action::KillStranger),
                (ids[6].clone(), Action::KillStranger),
            ]
        );
    }
}
