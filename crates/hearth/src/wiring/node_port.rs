//! The node, as control asks for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use hearth_control::ports::{LogLine, Node as Port, Template};
use hearth_image::store::Store;
use hearth_model::end::EndCause;
use hearth_model::id::SandboxId;
use hearth_model::limits;
use hearth_model::node::{CreateError, Started, Usage};
use hearth_model::sandbox::SandboxSpec;
use hearth_node::Node;

pub(super) struct NodePort {
    node: Node,
    templates: Vec<Template>,
}

impl NodePort {
    pub(super) fn new(node: Node, store: &Arc<Store>) -> std::io::Result<Self> {
        let templates = store
            .templates()?
            .into_iter()
            .map(|t| Template {
                build_id: uuid_of(&t.key),
                id: t.id,
                aliases: t.names,
                size: t.size,
                envd_version: limits::ENVD_VERSION.into(),
                created_ms: t.created_ms,
                updated_ms: t.created_ms,
            })
            .collect();
        Ok(Self { node, templates })
    }
}

/// The content key of an image in the form of a UUID, which clients expect of a build.
fn uuid_of(key: &str) -> String {
    let hex = format!("{:0<32.32}", key);
    format!(
        "{}-{}-4{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..32]
    )
}

impl Port for NodePort {
    fn create(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Started, CreateError>> {
        Box::pin(self.node.create(spec))
    }

    fn kill(&self, id: SandboxId, _cause: EndCause) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.node.kill(&id).await })
    }

    fn usage(&self, id: SandboxId) -> BoxFuture<'_, Option<Usage>> {
        Box::pin(async move { self.node.usage(&id) })
    }

    fn logs(&self, id: SandboxId, start_ms: i64, limit: usize) -> BoxFuture<'_, Vec<LogLine>> {
        Box::pin(async move {
            match self.node.logs(&id, start_ms, limit).await {
                Ok(lines) => lines.into_iter().map(line).collect(),
                Err(hearth_node::LogsError::NotRunning) => Vec::new(),
                Err(error) => {
                    tracing::warn!(sandbox.id = %id, %error, "its log cannot be read");
                    Vec::new()
                }
            }
        })
    }

    fn adopted(&self) -> BoxFuture<'_, Vec<SandboxId>> {
        Box::pin(async move { self.node.ids() })
    }

    fn templates(&self) -> Vec<Template> {
        self.templates.clone()
    }
}

fn line(line: hearth_node::LogLine) -> LogLine {
    LogLine {
        timestamp_ms: line.timestamp_ms,
        level: line.level,
        message: line.message,
        fields: line
            .fields
            .into_iter()
            .map(|(k, v)| (k, v.to_string()))
            .collect::<BTreeMap<_, _>>(),
    }
}

#[cfg(test)]
mod tests {
    use super::uuid_of;

    #[test]
    fn a_key_becomes_a_uuid() {
        let uuid = uuid_of("0123456789abcdef");
        assert_eq!(uuid.len(), 36);
        assert_eq!(uuid, "01234567-89ab-4def-8000-000000000000");
    }
}
