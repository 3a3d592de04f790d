//! Create: intent in the store, the node's work, the start in the store, the answer.

use std::sync::Arc;

use hearth_model::end::{Actor, EndCause, EndReason};
use hearth_model::id::{SandboxId, TemplateId};
use hearth_model::limits::{DEFAULT_DISK_MIB, DEFAULT_MEMORY_MIB, DEFAULT_VCPU};
use hearth_model::node::{CreateError, Started};
use hearth_model::sandbox::SandboxSpec;
use hearth_model::secret::Secret;
use hearth_wire::e2b;
use sha2::{Digest as _, Sha256};
use tokio::task::JoinHandle;

use super::{App, Caller, Creating};
use crate::clock::now_ms;
use crate::parse::CreateRequest;
use crate::ports::Template;
use crate::store::StoreError;
use crate::store::idempotency::Claim;
use crate::store::sandboxes::{Guard, InsertError, Inserted, Moved, NewSandboxRow};

/// Why there is no sandbox. In each case nothing of it is left, or it is being removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateFailed {
    #[error("template {name:?} not found")]
    NoTemplate { name: String },
    #[error(transparent)]
    Refused(#[from] InsertError),
    #[error("no capacity: {what}")]
    NoCapacity { what: String },
    #[error("the sandbox did not start: {detail}")]
    StartFailed { detail: String },
    #[error("the sandbox was not ready within {seconds} s")]
    TooLate { seconds: u64 },
    /// Killed, or dead, before the create was through.
    #[error("sandbox {id} ended while it was being created: {why}")]
    Ended { id: SandboxId, why: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// An idempotency key and the request it stands for.
#[derive(Debug, Clone)]
pub(crate) struct RepeatKey {
    key: String,
    request: [u8; 32],
}

impl RepeatKey {
    pub(crate) fn new(key: String, canonical_request: &str) -> Self {
        Self {
            key,
            request: Sha256::digest(canonical_request.as_bytes()).into(),
        }
    }
}

impl App {
    /// Creates a sandbox; the answer is the body of a 201.
    pub(crate) async fn create(
        self: Arc<Self>,
        caller: Caller,
        request: CreateRequest,
        repeat: Option<RepeatKey>,
    ) -> Result<String, CreateFailed> {
        let template = self.find_template(&request)?;
        let spec = spec_of(&caller, &request, &template);
        let id = spec.id.clone();
        let answer = self.answer(&spec.access_token, &id, &template)?;
        // Before the intent, so that whoever sees the intent sees this too.
        let creating = self.begin_create(&id);

        let now_ms = now_ms();
        let give_up_ms = now_ms.saturating_add(
            i64::try_from(self.config.create_deadline.as_millis()).unwrap_or(i64::MAX),
        );
        let inserted = self
            .store
            .insert_sandbox(
                NewSandboxRow {
                    spec: &spec,
                    alias: template.aliases.first().map(String::as_str),
                    envd_version: &template.envd_version,
                    internet_choice: request.internet_choice,
                    metadata: &request.metadata,
                    timeout_s: request.timeout_s,
                    now_ms,
                    give_up_ms,
                    claim: repeat.as_ref().map(|repeat| Claim {
                        key: &repeat.key,
                        request: &repeat.request,
                    }),
                },
                &caller.actor(),
            )
            .await?;
        if let Inserted::Repeat(body) = inserted {
            return Ok(body);
        }

        let node = Arc::clone(&self.node);
        let mut work = tokio::spawn(async move { node.create(spec).await });
        match tokio::time::timeout(self.config.create_deadline, &mut work).await {
            Ok(Ok(Ok(started))) => self.started(&id, &started, answer).await,
            Ok(Ok(Err(fault))) => Err(self.not_started(&id, fault).await),
            Ok(Err(panic)) => {
                tracing::error!(sandbox.id = %id, error = %panic, "the node's create broke");
                let fault = CreateError::StartFailed {
                    detail: "internal error".into(),
                };
                // What it had made by then is unknown.
                self.node.kill(id.clone(), EndCause::Killed).await;
                Err(self.not_started(&id, fault).await)
            }
            Err(_) => Err(self.too_late(id, creating, work).await),
        }
    }

    fn find_template(&self, request: &CreateRequest) -> Result<Template, CreateFailed> {
        let templates = self.node.templates();
        request
            .template
            .find(&templates)
            .cloned()
            .ok_or_else(|| CreateFailed::NoTemplate {
                name: request.template_text.clone(),
            })
    }

    fn answer(
        &self,
        access_token: &Secret,
        id: &SandboxId,
        template: &Template,
    ) -> Result<String, StoreError> {
        let body = self.sandbox_body(
            id,
            &template.id,
            template.aliases.first().cloned(),
            &template.envd_version,
            access_token,
        );
        serde_json::to_string(&body).map_err(|fault| StoreError::Damaged {
            what: fault.to_string(),
        })
    }

    /// The object of create and connect.
    pub(crate) fn sandbox_body(
        &self,
        id: &SandboxId,
        template: &TemplateId,
        alias: Option<String>,
        envd_version: &str,
        access_token: &Secret,
    ) -> e2b::Sandbox {
        e2b::Sandbox {
            template_id: template.to_string(),
            sandbox_id: id.to_string(),
            client_id: e2b::CLIENT_ID.to_owned(),
            envd_version: envd_version.to_owned(),
            alias,
            envd_access_token: Some(access_token.expose().to_owned()),
            traffic_access_token: None,
            domain: self.config.domain.clone(),
        }
    }

    /// The node has it: from now on it runs, unless somebody ended it meanwhile.
    async fn started(
        self: &Arc<Self>,
        id: &SandboxId,
        started: &Started,
        answer: String,
    ) -> Result<String, CreateFailed> {
        let moved = self
            .store
            .mark_running(id, started.tier, now_ms(), &answer)
            .await;
        match moved {
            Ok(Moved::To(sandbox)) => {
                self.deadline_set.notify_one();
                tracing::info!(sandbox.id = %id, team.id = %sandbox.team, "sandbox runs");
                Ok(answer)
            }
            Ok(Moved::Refused(sandbox) | Moved::Unchanged(sandbox)) => {
                self.node.kill(id.clone(), EndCause::Killed).await;
                self.release(id).await;
                Err(CreateFailed::Ended {
                    id: id.clone(),
                    why: sandbox
                        .end
                        .map_or_else(|| "it is gone".into(), |end| end.cause.describe()),
                })
            }
            Ok(Moved::Missing) => {
                self.node.kill(id.clone(), EndCause::Lost).await;
                Err(CreateFailed::Ended {
                    id: id.clone(),
                    why: "its record is gone".into(),
                })
            }
            Err(fault) => {
                // It runs but cannot be recorded: end it rather than serve what a restart
                // would not know.
                let detail = "its start could not be recorded".to_owned();
                self.clean_up_later(id.clone(), EndCause::StartFailed { detail });
                Err(fault.into())
            }
        }
    }

    /// The node gave up and holds nothing.
    async fn not_started(self: &Arc<Self>, id: &SandboxId, fault: CreateError) -> CreateFailed {
        let detail = fault.to_string();
        if let Err(error) = self.fail(id, &detail).await {
            tracing::error!(sandbox.id = %id, %error, "could not record a failed start");
            self.clean_up_later(id.clone(), EndCause::StartFailed { detail });
        }
        match fault {
            CreateError::NoCapacity { what } => CreateFailed::NoCapacity { what },
            CreateError::NoTemplate { template } => CreateFailed::NoTemplate { name: template },
            CreateError::StartFailed { detail } => CreateFailed::StartFailed { detail },
            CreateError::Ended => CreateFailed::Ended {
                id: id.clone(),
                why: match self.store.sandbox(id).await {
                    Ok(Some(sandbox)) => sandbox.end.map(|end| end.cause.describe()),
                    Ok(None) | Err(_) => None,
                }
                .unwrap_or_else(|| "it was ended".into()),
            },
        }
    }

    async fn fail(&self, id: &SandboxId, detail: &str) -> Result<(), StoreError> {
        let reason = EndReason {
            at_ms: now_ms(),
            cause: EndCause::StartFailed {
                detail: detail.to_owned(),
            },
            actor: Actor::System,
        };
        self.store.begin_end(id, &reason, Guard::None).await?;
        self.store.finish_end(id, now_ms()).await?;
        Ok(())
    }

    /// The deadline passed: the client is told at once, the rest is removed behind its back.
    async fn too_late(
        self: &Arc<Self>,
        id: SandboxId,
        creating: Creating,
        work: JoinHandle<Result<Started, CreateError>>,
    ) -> CreateFailed {
        let seconds = self.config.create_deadline.as_secs();
        let reason = EndReason {
            at_ms: now_ms(),
            cause: EndCause::StartFailed {
                detail: format!("it was not ready within {seconds} s"),
            },
            actor: Actor::System,
        };
        if let Err(error) = self.store.begin_end(&id, &reason, Guard::None).await {
            tracing::error!(sandbox.id = %id, %error, "could not record a late start");
        }
        let app = Arc::clone(self);
        self.tasks.spawn(async move {
            app.node.kill(id.clone(), reason.cause.clone()).await;
            app.wait_or_abort(&id, work).await;
            drop(creating);
            app.clean_up(id, reason.cause).await;
        });
        CreateFailed::TooLate { seconds }
    }

    /// Gives a create that was overtaken by a kill one more deadline to return.
    async fn wait_or_abort(
        &self,
        id: &SandboxId,
        mut work: JoinHandle<Result<Started, CreateError>>,
    ) {
        if tokio::time::timeout(self.config.create_deadline, &mut work)
            .await
            .is_err()
        {
            tracing::warn!(sandbox.id = %id, "the node's create did not end after a kill");
            work.abort();
        }
    }
}

fn spec_of(caller: &Caller, request: &CreateRequest, template: &Template) -> SandboxSpec {
    let mut size = template.size;
    // A template that names no size takes the defaults.
    if size.vcpu == 0 {
        size.vcpu = DEFAULT_VCPU;
    }
    if size.memory_mib == 0 {
        size.memory_mib = DEFAULT_MEMORY_MIB;
    }
    if size.disk_mib == 0 {
        size.disk_mib = DEFAULT_DISK_MIB;
    }
    SandboxSpec {
        id: SandboxId::random(),
        team: caller.team.clone(),
        template: template.id.clone(),
        size,
        env: request.env.clone(),
        internet: request.internet(),
        access_token: Secret::random(),
    }
}
