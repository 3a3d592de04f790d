//! `process.Process` on the wire: requests in, one call each, events out.

use std::sync::Arc;
use std::time::Duration;

use buffa::{EnumValue, MessageField};
use connectrpc::{
    ConnectError, Encodable, InboundStream, RequestContext, Response, ServiceRequest,
    ServiceResult, ServiceStream,
};
use futures::{StreamExt as _, stream};
use hearth_wire::rpc::process as wire;
use nix::sys::signal::Signal;
use tokio::time::Instant;
use wire::process_event as event;

use super::ending::{Ending, timeout_text};
use super::input::{InputError, Kind};
use super::launch::{self, LaunchError, Order, Size, Talk};
use super::output::{Channel, Event, Reader, STALL};
use super::pump::{self, Timeout};
use super::table::{FindError, Process, Selector, Table};
use crate::agent::Agent;

/// Seconds between signs of life on a silent stream, when the client names none.
const KEEPALIVE: u64 = 90;
/// Header by which it does.
const KEEPALIVE_HEADER: &str = "keepalive-ping-interval";
/// Milliseconds a command may run, or a connection may last.
const TIMEOUT_HEADER: &str = "connect-timeout-ms";
/// Longest timeout taken as one, in milliseconds: a year. Beyond it there is none.
const MAX_TIMEOUT: u64 = 365 * 24 * 3600 * 1000;

/// The service.
#[derive(Debug)]
pub(crate) struct Service {
    agent: Arc<Agent>,
    table: Arc<Table>,
}

impl Service {
    pub(crate) fn new(agent: Arc<Agent>) -> Self {
        let table = Arc::clone(&agent.processes);
        Self { agent, table }
    }

    fn running(
        &self,
        selector: Option<&wire::ProcessSelector>,
    ) -> Result<Arc<Process>, ConnectError> {
        Ok(self.table.running(&select(selector)?)?)
    }
}

impl wire::Process for Service {
    async fn list<'a>(
        &'a self,
        _ctx: RequestContext,
        _request: ServiceRequest<'_, wire::ListRequest>,
    ) -> ServiceResult<impl Encodable<wire::ListResponse> + Send + use<'a>> {
        let processes = self.table.live();
        let processes = processes.iter().map(|process| wire::ProcessInfo {
            config: MessageField::some(process.config.clone()),
            pid: process.pid,
            tag: process.tag.clone(),
            ..Default::default()
        });
        Response::ok(wire::ListResponse {
            processes: processes.collect(),
            ..Default::default()
        })
    }

    async fn start(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::StartRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<wire::StartResponse> + Send + use<>>> {
        let request = request.to_owned_message();
        let config = request
            .process
            .into_option()
            .ok_or_else(|| ConnectError::invalid_argument("process is missing"))?;
        let talk = match (request.pty.as_option(), request.stdin) {
            (Some(pty), _) => {
                let size = pty.size.as_option();
                Talk::Terminal(size.map_or(Size::new(0, 0), |size| Size::new(size.cols, size.rows)))
            }
            (None, Some(false)) => Talk::Output,
            (None, _) => Talk::Pipes,
        };
        let timeout = timeout(&ctx);
        let headers = ctx.headers().clone();
        let (agent, table) = (Arc::clone(&self.agent), Arc::clone(&self.table));
        let tag = request.tag;
        let start = move || {
            let user = agent
                .user_of(&headers)
                .map_err(|error| ConnectError::unauthenticated(error.to_string()))?;
            let order = Order {
                config,
                tag,
                user,
                talk,
            };
            let started = launch::launch(&agent, &table, order)?;
            let process = Arc::clone(&started.process);
            let reader = process.output.subscribe();
            // From here on the process is looked after, whatever becomes of the request.
            tokio::spawn(pump::run(
                table,
                started.process,
                started.sources,
                started.exit,
                timeout,
            ));
            Ok::<_, ConnectError>((process.pid, reader))
        };
        let (pid, reader) = tokio::task::spawn_blocking(start).await.map_err(|error| {
            ConnectError::internal(format!("starting did not finish: {error}"))
        })??;
        // The pump kills at the timeout and the end says so; the stream has no other.
        let follow = Follow::new(pid, reader, keepalive(&ctx), Patience::Process);
        Ok(Response::new(
            follow
                .events()
                .map(|event| {
                    event.map(|event| wire::StartResponse {
                        event: MessageField::some(event),
                        ..Default::default()
                    })
                })
                .boxed(),
        ))
    }

    async fn connect(
        &self,
        ctx: RequestContext,
        request: ServiceRequest<'_, wire::ConnectRequest>,
    ) -> ServiceResult<ServiceStream<impl Encodable<wire::ConnectResponse> + Send + use<>>> {
        let request = request.to_owned_message();
        let process = self.table.recent(&select(request.process.as_option())?)?;
        let reader = process.output.subscribe();
        let patience = Patience::Stream(timeout(&ctx));
        let follow = Follow::new(process.pid, reader, keepalive(&ctx), patience);
        Ok(Response::new(
            follow
                .events()
                .map(|event| {
                    event.map(|event| wire::ConnectResponse {
                        event: MessageField::some(event),
                        ..Default::default()
                    })
                })
                .boxed(),
        ))
    }

    async fn update<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::UpdateRequest>,
    ) -> ServiceResult<impl Encodable<wire::UpdateResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.running(request.process.as_option())?;
        if let Some(size) = request.pty.as_option().and_then(|pty| pty.size.as_option()) {
            let size = Size::new(size.cols, size.rows);
            process.input.resize(size.cols, size.rows).await?;
        }
        Response::ok(wire::UpdateResponse::default())
    }

    async fn send_input<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::SendInputRequest>,
    ) -> ServiceResult<impl Encodable<wire::SendInputResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.running(request.process.as_option())?;
        send(&process, request.input.into_option()).await?;
        Response::ok(wire::SendInputResponse::default())
    }

    async fn stream_input<'a>(
        &'a self,
        _ctx: RequestContext,
        mut requests: InboundStream<wire::StreamInputRequest>,
    ) -> ServiceResult<impl Encodable<wire::StreamInputResponse> + Send + use<'a>> {
        use wire::stream_input_request::Event;
        let mut process = None;
        while let Some(request) = requests.next().await {
            match request?.to_owned_message().event {
                Some(Event::Start(start)) if process.is_none() => {
                    process = Some(self.running(start.process.as_option())?);
                }
                Some(Event::Start(_)) => {
                    return Err(ConnectError::invalid_argument(
                        "the input stream has more than one start message",
                    ));
                }
                Some(Event::Data(data)) => {
                    let process = process.as_ref().ok_or_else(|| {
                        ConnectError::invalid_argument("the input stream has data before its start")
                    })?;
                    send(process, data.input.into_option()).await?;
                }
                Some(Event::Keepalive(_)) | None => {}
            }
        }
        Response::ok(wire::StreamInputResponse::default())
    }

    async fn send_signal<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::SendSignalRequest>,
    ) -> ServiceResult<impl Encodable<wire::SendSignalResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        let process = self.running(request.process.as_option())?;
        match request.signal {
            EnumValue::Known(wire::Signal::SIGNAL_SIGKILL) => {
                pump::kill(Arc::clone(&self.table), process).await;
            }
            EnumValue::Known(wire::Signal::SIGNAL_SIGTERM) => {
                self.table.signal(&process, Signal::SIGTERM);
            }
            other => {
                return Err(ConnectError::unimplemented(format!(
                    "signal {} cannot be sent; SIGNAL_SIGTERM and SIGNAL_SIGKILL can",
                    other.to_i32()
                )));
            }
        }
        Response::ok(wire::SendSignalResponse::default())
    }

    async fn close_stdin<'a>(
        &'a self,
        _ctx: RequestContext,
        request: ServiceRequest<'_, wire::CloseStdinRequest>,
    ) -> ServiceResult<impl Encodable<wire::CloseStdinResponse> + Send + use<'a>> {
        let request = request.to_owned_message();
        self.running(request.process.as_option())?
            .input
            .close()
            .await?;
        Response::ok(wire::CloseStdinResponse::default())
    }
}

async fn send(process: &Process, input: Option<wire::ProcessInput>) -> Result<(), ConnectError> {
    use wire::process_input::Input;
    let (kind, bytes) = match input.and_then(|input| input.input) {
        Some(Input::Stdin(bytes)) => (Kind::Stdin, bytes),
        Some(Input::Pty(bytes)) => (Kind::Terminal, bytes),
        None => return Ok(()),
    };
    Ok(process.input.write(kind, &bytes).await?)
}

fn select(selector: Option<&wire::ProcessSelector>) -> Result<Selector, ConnectError> {
    use wire::process_selector::Selector as Wire;
    match selector.and_then(|selector| selector.selector.as_ref()) {
        Some(Wire::Pid(pid)) => Ok(Selector::Pid(*pid)),
        Some(Wire::Tag(tag)) => Ok(Selector::Tag(tag.clone())),
        None => Err(ConnectError::invalid_argument(
            "process names neither pid nor tag",
        )),
    }
}

fn keepalive(ctx: &RequestContext) -> Duration {
    let wished = ctx.header(KEEPALIVE_HEADER).and_then(|v| v.to_str().ok());
    let seconds = wished.and_then(|text| text.trim().parse().ok());
    Duration::from_secs(seconds.filter(|s| *s > 0).unwrap_or(KEEPALIVE))
}

/// Counted from now: the request is complete, and what was spent on its way is the
/// network's.
fn timeout(ctx: &RequestContext) -> Option<Timeout> {
    let text = ctx.header(TIMEOUT_HEADER)?.to_str().ok()?;
    let ms = text.trim().parse().ok().filter(|ms| *ms <= MAX_TIMEOUT)?;
    let length = Duration::from_millis(ms);
    Some(Timeout {
        at: Instant::now() + length,
        length,
    })
}

/// What a stream's timeout means.
#[derive(Debug, Clone, Copy)]
enum Patience {
    /// The process's: the pump kills it, and this stream says so at the end.
    Process,
    /// The stream's own: it ends, the process goes on.
    Stream(Option<Timeout>),
}

/// A stream of one process's events.
struct Follow {
    pid: u32,
    reader: Reader,
    keepalive: Duration,
    patience: Patience,
    at: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    Data,
    Done,
}

impl Follow {
    fn new(pid: u32, reader: Reader, keepalive: Duration, patience: Patience) -> Self {
        Self {
            pid,
            reader,
            keepalive,
            patience,
            at: Stage::Start,
        }
    }

    fn events(
        self,
    ) -> impl stream::Stream<Item = Result<wire::ProcessEvent, ConnectError>> + Send + 'static {
        stream::unfold(self, |mut follow| async move {
            let event = follow.next().await?;
            if event.is_err() {
                follow.at = Stage::Done;
            }
            Some((event, follow))
        })
    }

    async fn next(&mut self) -> Option<Result<wire::ProcessEvent, ConnectError>> {
        match self.at {
            Stage::Done => return None,
            Stage::Start => {
                self.at = Stage::Data;
                let start = event::StartEvent {
                    pid: self.pid,
                    ..Default::default()
                };
                return Some(Ok(wrap(start)));
            }
            Stage::Data => {}
        }
        let end = async {
            match self.patience {
                Patience::Stream(Some(timeout)) => {
                    tokio::time::sleep_until(timeout.at).await;
                    timeout.length
                }
                _ => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            biased;
            event = self.reader.next() => event,
            limit = end => {
                return Some(Err(ConnectError::deadline_exceeded(format!(
                    "the connection's timeout of {} ms passed; the process goes on",
                    limit.as_millis()
                ))));
            }
            () = tokio::time::sleep(self.keepalive) => {
                return Some(Ok(wrap(event::KeepAlive::default())));
            }
        };
        Some(match event {
            Event::Data(channel, bytes) => Ok(wrap(data(channel, bytes))),
            Event::Cut => Err(ConnectError::resource_exhausted(format!(
                "the client took no output for {} s and was cut off; the process goes on",
                STALL.as_secs()
            ))),
            Event::End(ending) => {
                self.at = Stage::Done;
                self.end(&ending)
            }
        })
    }

    fn end(&self, ending: &Ending) -> Result<wire::ProcessEvent, ConnectError> {
        use super::ending::Cause;
        if let (Patience::Process, Cause::Timeout(limit)) = (self.patience, ending.cause) {
            return Err(ConnectError::deadline_exceeded(timeout_text(limit)));
        }
        Ok(wrap(event::EndEvent {
            exit_code: ending.code(),
            exited: ending.is_exit(),
            status: ending.status(),
            error: ending.error(),
            ..Default::default()
        }))
    }
}

fn wrap(event: impl Into<event::Event>) -> wire::ProcessEvent {
    wire::ProcessEvent {
        event: Some(event.into()),
        ..Default::default()
    }
}

fn data(channel: Channel, bytes: Vec<u8>) -> event::DataEvent {
    use event::data_event::Output;
    let output = match channel {
        Channel::Stdout => Output::Stdout(bytes),
        Channel::Stderr => Output::Stderr(bytes),
        Channel::Terminal => Output::Pty(bytes),
    };
    event::DataEvent {
        output: Some(output),
        ..Default::default()
    }
}

impl From<FindError> for ConnectError {
    fn from(error: FindError) -> Self {
        Self::not_found(error.to_string())
    }
}

impl From<LaunchError> for ConnectError {
    fn from(error: LaunchError) -> Self {
        let text = error.to_string();
        match error {
            LaunchError::Invalid(_) => Self::invalid_argument(text),
            LaunchError::Exhausted { .. } => Self::resource_exhausted(text),
            LaunchError::Internal { .. } => Self::internal(text),
        }
    }
}

impl From<InputError> for ConnectError {
    fn from(error: InputError) -> Self {
        let text = error.to_string();
        match error {
            InputError::Endless | InputError::NoTerminal | InputError::HasTerminal => {
                Self::failed_precondition(text)
            }
            InputError::Nothing | InputError::Closed | InputError::Deaf | InputError::Write(_) => {
                Self::internal(text)
            }
        }
    }
}
