//! The index of running sandboxes, in memory: what every request at the edge asks.
//!
//! The table is the truth. The store changes this index after each commit that makes a
//! sandbox run or stop running, while it is still the only writer, so the two never differ
//! for longer than that. Nobody else writes here.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use hearth_model::id::{SandboxId, TeamId};
use hearth_model::secret::Secret;
use tokio_util::sync::CancellationToken;

/// A sandbox that runs, as the edge needs it.
#[derive(Debug, Clone)]
pub struct Running {
    pub id: SandboxId,
    pub team: TeamId,
    /// What clients present to the agent.
    pub access_token: Secret,
    /// Cancelled at the moment it stops running: streams are cut by it.
    pub gone: CancellationToken,
}

/// Shared handle of the index.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live {
    running: Arc<RwLock<HashMap<SandboxId, Arc<Running>>>>,
}

impl Live {
    pub(crate) fn get(&self, id: &SandboxId) -> Option<Arc<Running>> {
        self.read().get(id).cloned()
    }

    /// Every running sandbox, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Running>> {
        self.read().values().cloned().collect()
    }

    /// Called by the store alone.
    pub(crate) fn insert(&self, id: &SandboxId, team: &TeamId, access_token: &Secret) {
        let entry = Arc::new(Running {
            id: id.clone(),
            team: team.clone(),
            access_token: access_token.clone(),
            gone: CancellationToken::new(),
        });
        self.write().insert(id.clone(), entry);
    }

    /// Called by the store alone.
    pub(crate) fn remove(&self, id: &SandboxId) {
        let removed = self.write().remove(id);
        if let Some(entry) = removed {
            entry.gone.cancel();
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<SandboxId, Arc<Running>>> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<SandboxId, Arc<Running>>> {
        self.running.write().unwrap_or_else(PoisonError::into_inner)
    }
}
