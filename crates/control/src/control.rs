//! [`Control`]: what the binary holds.

use std::sync::Arc;

use axum::Router;
use hearth_model::end::{Actor, EndCause};
use hearth_model::node::Report;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::app::{App, ControlConfig, EndFailed};
use crate::background;
use crate::http;
use crate::keys::Keys;
use crate::ports::Node;
use crate::recover::Recovered;
use crate::routes::Routes;
use crate::store::sandboxes::Guard;
use crate::store::{OpenStoreError, Store, StoreError};

/// The control plane of one server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Control {
    app: Arc<App>,
}

/// Why some sandboxes were not ended.
#[derive(Debug, thiserror::Error)]
#[error("{failed} of {asked} sandboxes were not ended")]
pub struct EndAllError {
    pub asked: usize,
    pub failed: usize,
    #[source]
    pub source: StoreError,
}

impl Control {
    /// Opens the store. Nothing is served and no timer runs yet.
    ///
    /// # Errors
    /// When the database cannot be opened or brought up to date.
    pub async fn open(config: ControlConfig, node: Arc<dyn Node>) -> Result<Self, OpenStoreError> {
        let store = Store::open(&config.db_path).await?;
        Ok(Self {
            app: Arc::new(App::new(config, store, node)),
        })
    }

    /// Brings the store and the node's sandboxes together. Call once, when the node knows
    /// what it holds and before anything else here; after it `GET /health` is 204.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn recover(&self) -> Result<Recovered, StoreError> {
        let recovered = self.app.recover().await?;
        self.app.set_ready();
        Ok(recovered)
    }

    /// The REST API.
    pub fn router(&self) -> Router {
        http::router(Arc::clone(&self.app))
    }

    /// Starts timers, reports, readings and pruning. They stop when `stop` is cancelled.
    pub fn spawn_background(&self, reports: mpsc::Receiver<Report>, stop: &CancellationToken) {
        let (stop, own) = (stop.clone(), self.app.stop.clone());
        self.app.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => own.cancel(),
                () = own.cancelled() => {}
            }
        });
        background::spawn(&self.app, reports);
    }

    /// Teams and keys.
    pub fn keys(&self) -> Keys {
        self.app.keys.clone()
    }

    /// What the edge asks.
    pub fn routes(&self) -> Routes {
        Routes {
            app: Arc::clone(&self.app),
        }
    }

    /// Ends every sandbox there is (`hearth down`) and returns how many, when all are gone.
    ///
    /// # Errors
    /// When the store fails for some of them; the others are ended.
    pub async fn end_all(&self, cause: EndCause, actor: Actor) -> Result<usize, EndAllError> {
        let fault = |asked, failed, source| EndAllError {
            asked,
            failed,
            source,
        };
        let all = self
            .app
            .store
            .unfinished()
            .await
            .map_err(|source| fault(0, 0, source))?;
        let ends = all
            .iter()
            .map(|(id, _)| self.app.end(id, cause.clone(), actor.clone(), Guard::None));
        let (mut ended, mut failed, mut last) = (0, 0, None);
        for end in futures::future::join_all(ends).await {
            match end {
                Ok(()) => ended += 1,
                Err(EndFailed::Gone) => {}
                Err(EndFailed::Store(error)) => {
                    failed += 1;
                    last = Some(error);
                }
            }
        }
        match last {
            None => Ok(ended),
            Some(source) => Err(fault(all.len(), failed, source)),
        }
    }

    /// Waits for what is going on (creates, ends), then closes the store. Cancel the token of
    /// [`Self::spawn_background`] first, and bound the wait: what is cut off is finished by
    /// the next `recover`. Sandboxes are left running.
    pub async fn shutdown(&self) {
        self.app.stop.cancel();
        self.app.tasks.close();
        self.app.tasks.wait().await;
        self.app.store.close().await;
    }
}
