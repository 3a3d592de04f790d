//! What control needs from the side that runs sandboxes. The binary implements it over
//! the node; who carries the calls (a function today, a connection later) is not known here.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use hearth_model::end::EndCause;
use hearth_model::id::{SandboxId, TemplateId};
use hearth_model::node::{CreateError, Started, Usage};
use hearth_model::sandbox::{SandboxSpec, Size};

/// The node, as control sees it.
pub trait Node: Send + Sync + 'static {
    /// Makes the sandbox; returns when its agent answers. Control runs this as a task of
    /// its own and does not drop it, except when a kill did not make it return.
    fn create(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Started, CreateError>>;

    /// Ends it and gives back everything it held. Returns when that is done, at once when
    /// there is nothing; may be called again, and while a create is going on, which it
    /// overtakes.
    fn kill(&self, id: SandboxId, cause: EndCause) -> BoxFuture<'_, ()>;

    /// A reading of its use; none when it is gone or cannot be read now.
    fn usage(&self, id: SandboxId) -> BoxFuture<'_, Option<Usage>>;

    /// At most `limit` lines of its agent's log at and after `start_ms`, oldest first. Empty
    /// when it is gone.
    fn logs(&self, id: SandboxId, start_ms: i64, limit: usize) -> BoxFuture<'_, Vec<LogLine>>;

    /// The sandboxes this node holds now. Asked once, at start.
    fn adopted(&self) -> BoxFuture<'_, Vec<SandboxId>>;

    /// The templates this node can start from. Asked by every create: answer from memory.
    fn templates(&self) -> Vec<Template>;
}

/// One line of an agent's log. It comes from inside the sandbox: texts are not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub timestamp_ms: i64,
    /// `debug`, `info`, `warn` or `error`; anything else is shown as `info`.
    pub level: String,
    pub message: String,
    pub fields: BTreeMap<String, String>,
}

/// A template that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub id: TemplateId,
    /// Names a client may use instead of the id, without namespace and tag.
    pub aliases: Vec<String>,
    /// A UUID.
    pub build_id: String,
    pub size: Size,
    pub envd_version: String,
    pub created_ms: i64,
    pub updated_ms: i64,
}
