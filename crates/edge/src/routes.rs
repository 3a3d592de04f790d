//! What the edge needs to know about sandboxes; implemented by the binary.

use futures::future::BoxFuture;
use hearth_model::end::EndReason;
use hearth_model::id::SandboxId;
use hearth_model::node::Endpoint;
use hearth_model::route::SignedFile;
use tokio_util::sync::CancellationToken;

/// Where a sandbox is, for one request.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// It runs. `gone` is cancelled when its end is decided, before its processes are touched;
    /// the edge then resets every stream to it and answers as if it were ended.
    Running {
        endpoint: Endpoint,
        gone: CancellationToken,
    },
    /// It is on its way into or out of running; the client may try again.
    Changing,
    Ended {
        reason: EndReason,
    },
    Unknown,
}

/// Answers from memory: it is asked once per request.
pub trait Routes: Send + Sync + 'static {
    fn lookup<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Lookup>;

    /// The live sandbox whose access token signed this URL, if there is one.
    fn by_signature<'a>(&'a self, file: &'a SignedFile) -> BoxFuture<'a, Option<SandboxId>>;
}
