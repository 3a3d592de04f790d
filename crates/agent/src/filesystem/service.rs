//! The Connect service `filesystem.Filesystem` over the functions of this module: reads
//! requests, calls one function on a thread that may block, writes answers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buffa::{EnumValue, MessageField};
use connectrpc::{
    ConnectError, Encodable, ErrorCode, RequestContext, Response, ServiceRequest, ServiceResult,
    ServiceStream,
};
use futures::stream;
use hearth_wire::rpc::filesystem as wire;
use wire::watch_dir_response::Event as WatchEvent;

use super::change;
use super::entry::{Entry, Kind};
use super::fault::FileError;
use super::list;
use super::metadata::MetadataStore;
use super::names::Names;
use super::path::{Caller, resolve};
use super::watch::queue::{self, Next};
use super::watch::registry::{ReadError, Registry};
use super::watch::{Change, Detail, Event, NetworkMounts, Reach, Spec, Watch, Watches};
use crate::agent::Agent;

/// Seconds between signs of life on a silent stream, when the client names none.
const KEEPALIVE: u64 = 90;
/// Header by which it does.
const KEEPALIVE_HEADER: &str = "keepalive-ping-interval";

/// The service.
#[derive(Debug)]
pub(crate) struct Service {
    agent: Arc<Agent>,
    watches: Watches,
    registry: Registry,
}

impl Service {
    pub(crate) fn new(agent: Arc<Agent>) -> Self {
        Self {
            watches: Watches::new(Arc::clone(&agent.metadata)),
            agent,
            registry: Registry::default(),
        }
    }

    fn caller(&self, ctx: &RequestContext) -> Result<Caller, ConnectError> {
        let user = self
            .agent
            .user_of(ctx.headers())
            .map_err(|error| ConnectError::unauthenticated(error.to_string()))?;
        Ok(Caller::new(user, &self.agent))
    }

    /// Runs `work` as a blocking operation with what it needs.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MetadataStore) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, ConnectError> {
        let store = Arc::clone(&self.agent.metadata);
        super::blocking(move || work(&store))
            .await
            .and_then(|outcome| outcome)
            .map_err(refuse)
    }

    async fn start(&self, ctx: &RequestContext, asked: Asked<'_>) -> Result<Watch, ConnectError> {
        let caller = self.caller(ctx)?;
        let spec = Spec {
            path: resolve(asked.path, &caller).map_err(refuse)?,
            reach: if asked.recursive {
                Reach::Tree
            } else {
                Reach::Directory
            },
            detail: if asked.include_entry {
                Detail::Entry
            } else {
                Detail::Name
            },
            network_mounts: if asked.allow_network_mounts {
                NetworkMounts::Allow
            } else {
                NetworkMounts::Refuse
            },
        };
        self.watches.start(spec).await.map_err(refuse)
    }
}

/// The fields of the two requests that start a watcher.
struct Asked<'a> {
    path: &'a str,
    recursive: bool,
    include_entry: bool,
    allow_network_mounts: bool,
}

impl wire::Filesystem for Service {
    async fn stat<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::StatRequest>,
    ) -> ServiceResult<impl Encodable<wire::StatResponse> + Send + use<'a>> {
        let path = resolve(request.path, &self.caller(&ctx)?).map_err(refuse)?;
        let entry = self.run(move |store| read(&path, store)).await?;
        Response::ok(wire::StatResponse {
            entry: MessageField::some(entry),
            ..Default::default()
        })
    }

    async fn make_dir<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::MakeDirRequest>,
    ) -> ServiceResult<impl Encodable<wire::MakeDirResponse> + Send + use<'a>> {
        let caller = self.caller(&ctx)?;
        let path = resolve(request.path, &caller).map_err(refuse)?;
        let entry = self
            .run(move |store| {
                change::make_dir(&path, &caller)?;
                read(&path, store)
            })
            .await?;
        Response::ok(wire::MakeDirResponse {
            entry: MessageField::some(entry),
            ..Default::default()
        })
    }

    async fn r#move<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::MoveRequest>,
    ) -> ServiceResult<impl Encodable<wire::MoveResponse> + Send + use<'a>> {
        let caller = self.caller(&ctx)?;
        let source = resolve(request.source, &caller).map_err(refuse)?;
        let destination = resolve(request.destination, &caller).map_err(refuse)?;
        let entry = self
            .run(move |store| {
                change::move_entry(&source, &destination, &caller, store)?;
                read(&destination, store)
            })
            .await?;
        Response::ok(wire::MoveResponse {
            entry: MessageField::some(entry),
            ..Default::default()
        })
    }

    async fn list_dir<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::ListDirRequest>,
    ) -> ServiceResult<impl Encodable<wire::ListDirResponse> + Send + use<'a>> {
        let path = resolve(request.path, &self.caller(&ctx)?).map_err(refuse)?;
        let depth = request.depth;
        let entries = self
            .run(move |store| list::list(&path, depth, store))
            .await?;
        Response::ok(wire::ListDirResponse {
            entries: entries.into_iter().map(entry_to_wire).collect(),
            ..Default::default()
        })
    }

    async fn remove<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::RemoveRequest>,
    ) -> ServiceResult<impl Encodable<wire::RemoveResponse> + Send + use<'a>> {
        let path = resolve(request.path, &self.caller(&ctx)?).map_err(refuse)?;
        // A variable that was empty must not cost a home directory.
        if matches!(request.path.trim_end_matches('/'), "" | "." | "~") {
            return Err(ConnectError::invalid_argument(format!(
                "refused to remove '{}', given as '{}'; name the directory itself",
                path.display(),
                request.path
            )));
        }
        self.run(move |store| change::remove(&path, store)).await?;
        Response::ok(wire::RemoveResponse::default())
    }

    async fn watch_dir(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<wire::WatchDirResponse> + Send + use<>>> {
        let asked = Asked {
            path: request.path,
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let watch = self.start(&ctx, asked).await?;
        let silence = keepalive(&ctx);
        // The library leaves it to streams to keep to the client's timeout.
        let deadline = ctx.deadline();
        let events = stream::unfold(Step::Start(watch), move |step| {
            next(step, silence, deadline)
        });
        Ok(Response::stream(events).with_header("x-accel-buffering", "no"))
    }

    async fn create_watcher<'a>(
        &'a self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::CreateWatcherRequest>,
    ) -> ServiceResult<impl Encodable<wire::CreateWatcherResponse> + Send + use<'a>> {
        self.registry.sweep(Instant::now());
        let asked = Asked {
            path: request.path,
            recursive: request.recursive,
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let watch = self.start(&ctx, asked).await?;
        Response::ok(wire::CreateWatcherResponse {
            watcher_id: self.registry.insert(watch, Instant::now()),
            ..Default::default()
        })
    }

    async fn get_watcher_events<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::GetWatcherEventsRequest>,
    ) -> ServiceResult<impl Encodable<wire::GetWatcherEventsResponse> + Send + use<'a>> {
        let events = self
            .registry
            .read(request.watcher_id, Instant::now())
            .map_err(|error| match error {
                ReadError::Unknown(unknown) => ConnectError::not_found(unknown.to_string()),
                ReadError::Lost(lost) => refuse(lost),
            })?;
        Response::ok(wire::GetWatcherEventsResponse {
            events: events.into_iter().map(event_to_wire).collect(),
            ..Default::default()
        })
    }

    async fn remove_watcher<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::RemoveWatcherRequest>,
    ) -> ServiceResult<impl Encodable<wire::RemoveWatcherResponse> + Send + use<'a>> {
        self.registry
            .remove(request.watcher_id)
            .map_err(|unknown| ConnectError::not_found(unknown.to_string()))?;
        Response::ok(wire::RemoveWatcherResponse::default())
    }
}

/// Where a stream of events stands.
enum Step {
    Start(Watch),
    Going(Watch),
    Over,
}

async fn next(
    step: Step,
    silence: Duration,
    deadline: Option<Instant>,
) -> Option<(Result<wire::WatchDirResponse, ConnectError>, Step)> {
    let say = |event| wire::WatchDirResponse {
        event: Some(event),
        ..Default::default()
    };
    match step {
        Step::Start(watch) => {
            let start = WatchEvent::Start(Box::default());
            Some((Ok(say(start)), Step::Going(watch)))
        }
        Step::Going(watch) => match wait(&watch, silence, deadline).await {
            Err(Wait::Deadline) => {
                let late = ConnectError::deadline_exceeded("the timeout of the watch is over");
                Some((Err(late), Step::Over))
            }
            Err(Wait::Silence) => {
                let keepalive = WatchEvent::Keepalive(Box::default());
                Some((Ok(say(keepalive)), Step::Going(watch)))
            }
            Ok(Next::Event(event)) => {
                let event = WatchEvent::Filesystem(Box::new(event_to_wire(*event)));
                Some((Ok(say(event)), Step::Going(watch)))
            }
            Ok(Next::Lost) => Some((Err(refuse(queue::lost())), Step::Over)),
            Ok(Next::Ended) => None,
        },
        Step::Over => None,
    }
}

/// Why waiting for an event ended without one.
enum Wait {
    Silence,
    Deadline,
}

async fn wait(watch: &Watch, silence: Duration, deadline: Option<Instant>) -> Result<Next, Wait> {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // A stream of events without a gap keeps to its deadline too.
    if left == Some(Duration::ZERO) {
        return Err(Wait::Deadline);
    }
    let (limit, outcome) = match left {
        Some(left) if left < silence => (left, Wait::Deadline),
        _ => (silence, Wait::Silence),
    };
    tokio::time::timeout(limit, watch.next())
        .await
        .map_err(|_| outcome)
}

fn keepalive(ctx: &RequestContext) -> Duration {
    let seconds = ctx
        .header(KEEPALIVE_HEADER)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.trim().parse::<u64>().ok())
        .filter(|seconds| *seconds > 0)
        .unwrap_or(KEEPALIVE);
    Duration::from_secs(seconds)
}

fn read(path: &Path, store: &MetadataStore) -> Result<wire::EntryInfo, FileError> {
    Entry::read(path, &Names::load(), store).map(entry_to_wire)
}

fn entry_to_wire(entry: Entry) -> wire::EntryInfo {
    wire::EntryInfo {
        name: entry.name,
        r#type: EnumValue::from(match entry.kind {
            Kind::File => wire::FileType::File,
            Kind::Directory => wire::FileType::Directory,
            Kind::Symlink => wire::FileType::Symlink,
            Kind::Other => wire::FileType::Unspecified,
        }),
        path: entry.path,
        size: entry.size,
        mode: entry.mode,
        permissions: entry.permissions,
        owner: entry.owner,
        group: entry.group,
        modified_time: MessageField::some(buffa_types::google::protobuf::Timestamp {
            seconds: entry.modified.0,
            nanos: entry.modified.1,
            ..Default::default()
        }),
        symlink_target: entry.symlink_target,
        metadata: entry.metadata.into_iter().collect(),
        is_symlink: entry.is_symlink,
        ..Default::default()
    }
}

fn event_to_wire(event: Event) -> wire::FilesystemEvent {
    wire::FilesystemEvent {
        name: event.name,
        r#type: EnumValue::from(match event.change {
            Change::Create => wire::EventType::Create,
            Change::Write => wire::EventType::Write,
            Change::Remove => wire::EventType::Remove,
            Change::Rename => wire::EventType::Rename,
            Change::Chmod => wire::EventType::Chmod,
        }),
        entry: event.entry.map(entry_to_wire).into(),
        ..Default::default()
    }
}

/// The Connect code of a failed file operation.
fn refuse(error: FileError) -> ConnectError {
    let code = match error {
        FileError::Invalid(_) => ErrorCode::InvalidArgument,
        FileError::NotFound(_) => ErrorCode::NotFound,
        FileError::AlreadyExists(_) => ErrorCode::AlreadyExists,
        FileError::Precondition(_) => ErrorCode::FailedPrecondition,
        FileError::NoSpace(_) | FileError::Exhausted(_) => ErrorCode::ResourceExhausted,
        FileError::Denied { .. } => ErrorCode::PermissionDenied,
        FileError::Io { .. } => ErrorCode::Internal,
    };
    let text = error.public_text();
    if code == ErrorCode::Internal {
        tracing::warn!(error = %text, "a file operation failed");
    }
    ConnectError::new(code, text)
}
