//! What the edge asks control: does this sandbox run, and whose is this signed URL. The
//! edge decides what to answer.

use std::sync::Arc;

use hearth_model::end::EndReason;
use hearth_model::id::SandboxId;
use hearth_model::secret::Secret;
use hearth_model::state::State;

use crate::app::App;
use crate::store::StoreError;

pub use crate::live::Running;

/// Most sandboxes whose token is tried on one signed URL: about 20 ms of one CPU.
const MAX_TRIED: usize = 20_000;

/// Where a sandbox is, for routing.
#[derive(Debug, Clone)]
pub enum Lookup {
    Running(Arc<Running>),
    /// Its end is decided or done; remembered for some days.
    Ended(EndReason),
    /// Being created: no client knows it yet.
    Creating,
    Unknown,
}

/// The edge's view of the store.
#[derive(Debug, Clone)]
pub struct Routes {
    pub(crate) app: Arc<App>,
}

impl Routes {
    /// Finds a sandbox of whatever team. A running one is found in memory.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn lookup(&self, id: &SandboxId) -> Result<Lookup, StoreError> {
        if let Some(running) = self.app.store.live().get(id) {
            return Ok(Lookup::Running(running));
        }
        let Some(sandbox) = self.app.store.sandbox(id).await? else {
            return Ok(Lookup::Unknown);
        };
        Ok(match (sandbox.state, sandbox.end) {
            (_, Some(reason)) => Lookup::Ended(reason),
            (State::Creating, None) => Lookup::Creating,
            // It began to run between the two looks.
            (State::Running, None) => self
                .app
                .store
                .live()
                .get(id)
                .map_or(Lookup::Unknown, Lookup::Running),
            (State::Ending | State::Ended, None) => Lookup::Unknown,
        })
    }

    /// Finds the running sandbox whose access token satisfies `signed`: whose signed URL it is.
    pub fn find_signed(&self, signed: impl Fn(&Secret) -> bool) -> Option<Arc<Running>> {
        self.app
            .store
            .live()
            .all()
            .into_iter()
            .take(MAX_TRIED)
            .find(|running| signed(&running.access_token))
    }
}
