//! Connections that changed their protocol: after 101 the bytes are none of our business.

use std::sync::Arc;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::config::UPGRADE_BUFFER;
use crate::connection::Shared;
use crate::pool::StreamSlot;

/// The two ends of an upgraded connection and what its life hangs on.
pub(crate) struct Upgrade {
    pub(crate) client: OnUpgrade,
    pub(crate) sandbox: OnUpgrade,
    pub(crate) shared: Arc<Shared>,
    pub(crate) gone: CancellationToken,
    pub(crate) abort: CancellationToken,
    pub(crate) slot: StreamSlot,
}

impl Upgrade {
    /// Copies both ways until both ended, one broke, or the sandbox is gone: then the client's
    /// socket is reset.
    pub(crate) async fn run(self) {
        let _slot = self.slot;
        let copy = async {
            let (client, sandbox) = match tokio::try_join!(self.client, self.sandbox) {
                Ok(both) => both,
                Err(error) => {
                    tracing::debug!(%error, "upgrade was not completed");
                    return;
                }
            };
            let (mut client, mut sandbox) = (TokioIo::new(client), TokioIo::new(sandbox));
            let copied = tokio::io::copy_bidirectional_with_sizes(
                &mut client,
                &mut sandbox,
                UPGRADE_BUFFER,
                UPGRADE_BUFFER,
            )
            .await;
            if let Err(error) = copied {
                // One side broke off; the other must not take it for an orderly end.
                self.shared.reset_on_close();
                tracing::debug!(%error, "upgraded connection broke");
            }
        };
        // `copy` owns both sockets and is dropped after the flag is set.
        let mut copy = Box::pin(copy);
        tokio::select! {
            () = &mut copy => {}
            () = self.gone.cancelled() => self.shared.reset_on_close(),
            () = self.abort.cancelled() => self.shared.reset_on_close(),
        }
    }
}
