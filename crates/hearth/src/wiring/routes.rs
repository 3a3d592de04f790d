//! Where a sandbox is, as the edge asks for it: whether it runs is control's word, where it
//! runs is the node's.

use futures::future::BoxFuture;
use hearth_control::routes::{Lookup as Known, Routes as ControlRoutes};
use hearth_edge::{Lookup, Routes};
use hearth_model::id::SandboxId;
use hearth_model::route::SignedFile;
use hearth_node::Node;

pub(super) struct EdgeRoutes {
    node: Node,
    control: ControlRoutes,
}

impl EdgeRoutes {
    pub(super) fn new(node: Node, control: ControlRoutes) -> Self {
        Self { node, control }
    }
}

impl Routes for EdgeRoutes {
    fn lookup<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Lookup> {
        Box::pin(async move {
            match self.control.lookup(id).await {
                Ok(Known::Running(_)) => match self.node.reach(id) {
                    Some(reached) => Lookup::Running {
                        endpoint: reached.endpoint,
                        gone: reached.gone,
                    },
                    // It died this moment; control has not heard of it yet.
                    None => Lookup::Unknown,
                },
                Ok(Known::Creating) => Lookup::Changing,
                Ok(Known::Ended(reason)) => Lookup::Ended { reason },
                Ok(Known::Unknown) => Lookup::Unknown,
                Err(error) => {
                    tracing::error!(sandbox.id = %id, %error, "a route could not be looked up");
                    Lookup::Changing
                }
            }
        })
    }

    fn by_signature<'a>(&'a self, file: &'a SignedFile) -> BoxFuture<'a, Option<SandboxId>> {
        Box::pin(async move {
            self.control
                .find_signed(|token| file.is_signed_with(token))
                .map(|found| found.id.clone())
        })
    }
}
