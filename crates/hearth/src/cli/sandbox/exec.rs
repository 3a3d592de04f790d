//! `hearth sandbox exec`: a command in a sandbox as if it ran here. Speaks the agent's
//! Connect protocol in JSON: one server stream of events, unary calls for input.
//!
//! The command runs as the SDKs run theirs, below a login shell, which is replaced by it: the
//! environment is the same, and what the shell says of a missing program (127) comes along.

use std::io;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::super::api::{Agent, Api, Taken, Target, collect, refused};
use super::super::out::clean;
use super::super::{EXIT_OWN, Failure, Outcome, out};
use super::{id, pair};
use crate::cli::terminal::RawTerminal;

/// Largest event accepted, in bytes. The agent's own are far smaller.
const MAX_EVENT: usize = 8 * 1024 * 1024;
/// Input of one call, in bytes.
const INPUT_CHUNK: usize = 64 * 1024;
/// Most output that `--json` keeps, in bytes.
const MAX_KEPT: usize = 64 * 1024 * 1024;
/// Exit status when `--timeout` passed, as of timeout(1).
const EXIT_TIMEOUT: u8 = 124;
/// Exit status when whoever read our output went away: 128 and SIGPIPE.
const EXIT_PIPE: u8 = 141;
/// Exit status of a second interrupt: 128 and SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    target: Target,
    id: String,
    /// User inside the sandbox; default: the template's.
    #[arg(long, short = 'u')]
    user: Option<String>,
    /// Folder it starts in; default: the user's home.
    #[arg(long, short = 'w')]
    cwd: Option<String>,
    /// Environment, as KEY=VALUE; may be given several times.
    #[arg(long = "env", short = 'e', value_parser = pair)]
    env: Vec<(String, String)>,
    /// Seconds until it is killed; the exit status is 124 then. Default: no limit.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Give it a terminal.
    #[arg(long, short = 't')]
    tty: bool,
    /// Print one object with exit code and output instead of passing them through.
    #[arg(long)]
    json: bool,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(crate) async fn run(args: ExecArgs) -> Outcome {
    exec(args).await.map_err(|failure| {
        if failure.code == EXIT_TIMEOUT {
            failure
        } else {
            failure.code(EXIT_OWN)
        }
    })
}

async fn exec(args: ExecArgs) -> Outcome {
    let api = Api::open(&args.target)?;
    let sandbox = id(&args.id)?.to_string();
    let about = format!("/sandboxes/{sandbox}");
    let detail = api.call(Method::GET, &about, None::<&Value>).await?.body;
    let token = detail
        .get("envdAccessToken")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let agent = Agent {
        sandbox,
        token,
        user: args.user.clone(),
    };

    let raw = if args.tty {
        Some(RawTerminal::enter().map_err(|e| Failure::from_error("--tty", &e))?)
    } else {
        None
    };
    // A person at a terminal types for a terminal's program; a pipe or a file is input.
    let input = args.tty || !io::stdin().is_terminal();
    let start = start_request(&args, raw.as_ref(), input);
    let answer = api
        .agent(
            &agent,
            "/process.Process/Start",
            "application/connect+json",
            args.timeout.map(|seconds| u64::from(seconds) * 1000),
            envelope(&start)?,
        )
        .await?;
    if !answer.status().is_success() {
        let status = answer.status();
        return Err(refused(status, &collect(answer).await?));
    }
    let mut run = Running {
        api: Arc::new(api),
        agent,
        events: Events {
            body: answer.into_body(),
            read: BytesMut::new(),
        },
        pid: None,
        input: input.then_some(if args.tty {
            Input::Terminal
        } else {
            Input::Pipe
        }),
        kept: args.json.then(Kept::default),
    };
    let done = run.follow().await;
    drop(raw);
    match done {
        Err(failure) if failure.code == 1 => Err(run.explain(failure, &about).await),
        other => other,
    }
}

fn start_request(args: &ExecArgs, raw: Option<&RawTerminal>, input: bool) -> Value {
    let mut arguments = vec![
        "-l".to_owned(),
        "-c".into(),
        r#"exec -- "$@""#.into(),
        "hearth".into(),
    ];
    arguments.extend(args.command.iter().cloned());
    let mut env: serde_json::Map<String, Value> = args
        .env
        .iter()
        .map(|(k, v)| (k.clone(), json!(v)))
        .collect();
    let mut request = json!({ "stdin": input });
    if let Some(raw) = raw {
        let (cols, rows) = raw.size();
        request["pty"] = json!({ "size": { "cols": cols, "rows": rows } });
        env.entry("TERM").or_insert_with(|| {
            json!(std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".into()))
        });
    }
    request["process"] = json!({ "cmd": "/bin/bash", "args": arguments, "envs": env });
    if let Some(cwd) = &args.cwd {
        request["process"]["cwd"] = json!(cwd);
    }
    request
}

/// One message of a Connect stream: a flag byte, the length, the JSON.
fn envelope(message: &Value) -> Result<Vec<u8>, Failure> {
    let json = message.to_string();
    let len =
        u32::try_from(json.len()).map_err(|_| Failure::new("the command is longer than 4 GiB"))?;
    let mut out = vec![0u8];
    out.extend(len.to_be_bytes());
    out.extend(json.into_bytes());
    Ok(out)
}

/// The events of a stream, cut out of its bytes.
#[derive(Debug)]
struct Events {
    body: Incoming,
    read: BytesMut,
}

/// One thing a stream says.
#[derive(Debug, PartialEq)]
enum Item {
    Message(Value),
    /// The stream is over, with the error it carries.
    End(Option<(String, String)>),
}

impl Events {
    async fn next(&mut self) -> Result<Item, Failure> {
        loop {
            if let Some(item) = cut(&mut self.read)? {
                return Ok(item);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
                Some(Err(e)) => {
                    return Err(Failure::from_error(
                        "the connection to the sandbox broke",
                        &e,
                    ));
                }
                None => {
                    return Err(Failure::new(
                        "the connection to the sandbox ended before the command did",
                    ));
                }
            }
        }
    }
}

/// The next whole message of `read`, taken out of it.
fn cut(read: &mut BytesMut) -> Result<Option<Item>, Failure> {
    let Some((head, rest)) = read.split_first_chunk::<5>() else {
        return Ok(None);
    };
    let len = usize::try_from(u32::from_be_bytes([head[1], head[2], head[3], head[4]]))
        .unwrap_or(usize::MAX);
    if len > MAX_EVENT {
        return Err(Failure::new(format!(
            "the agent sent an event of {len} bytes; the limit is {MAX_EVENT}"
        )));
    }
    if rest.len() < len {
        return Ok(None);
    }
    let flags = head[0];
    read.advance(5);
    let message: Value = serde_json::from_slice(&read.split_to(len))
        .map_err(|e| Failure::from_error("reading an event of the agent", &e))?;
    if flags & 2 == 0 {
        return Ok(Some(Item::Message(message)));
    }
    let text = |name: &str| {
        message["error"][name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    Ok(Some(Item::End(
        message
            .get("error")
            .map(|_| (text("code"), text("message"))),
    )))
}

/// What is typed or piped into a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Pipe,
    Terminal,
}

/// Output for `--json`.
#[derive(Debug, Default)]
struct Kept {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// A command on its way.
#[derive(Debug)]
struct Running {
    api: Arc<Api>,
    agent: Agent,
    events: Events,
    pid: Option<u64>,
    input: Option<Input>,
    kept: Option<Kept>,
}

/// What woke the loop.
enum Woken {
    Item(Result<Item, Failure>),
    Interrupted,
    Resized,
}

impl Running {
    async fn follow(&mut self) -> Outcome {
        let listen =
            |kind| signal(kind).map_err(|e| Failure::from_error("listening for signals", &e));
        let (mut term, mut int) = (
            listen(SignalKind::terminate())?,
            listen(SignalKind::interrupt())?,
        );
        let mut resized = listen(SignalKind::window_change())?;
        let mut interrupts = 0;
        loop {
            let woken = tokio::select! {
                item = self.events.next() => Woken::Item(item),
                _ = either(&mut term, &mut int) => Woken::Interrupted,
                _ = resized.recv(), if self.input == Some(Input::Terminal) => Woken::Resized,
            };
            match woken {
                Woken::Item(item) => {
                    if let Some(code) = self.take(item?).await? {
                        return Ok(code);
                    }
                }
                Woken::Interrupted => {
                    interrupts += 1;
                    self.signal(if interrupts == 1 {
                        "SIGNAL_SIGTERM"
                    } else {
                        "SIGNAL_SIGKILL"
                    })
                    .await;
                    if interrupts > 2 {
                        return Ok(ExitCode::from(EXIT_INTERRUPTED));
                    }
                }
                Woken::Resized => self.resize().await,
            }
        }
    }

    async fn take(&mut self, item: Item) -> Result<Option<ExitCode>, Failure> {
        let event = match item {
            Item::Message(message) => message["event"].clone(),
            Item::End(None) => {
                return Err(Failure::new(
                    "the agent ended the stream before the command ended",
                ));
            }
            Item::End(Some((code, _))) if code == "deadline_exceeded" => {
                let failure = Failure::new("the command was killed: its --timeout passed");
                return Err(failure.code(EXIT_TIMEOUT));
            }
            Item::End(Some((code, message))) => {
                return Err(Failure::new(format!(
                    "the agent refused ({}): {}",
                    clean(&code),
                    clean(&message)
                )));
            }
        };
        if let Some(start) = event.get("start") {
            self.pid = start["pid"].as_u64();
            if let (Some(pid), Some(input)) = (self.pid, self.input) {
                tokio::spawn(pump(Arc::clone(&self.api), self.agent.clone(), pid, input));
            }
        } else if let Some(data) = event.get("data") {
            for name in ["stdout", "stderr", "pty"] {
                if let Some(text) = data[name].as_str() {
                    let bytes = STANDARD
                        .decode(text)
                        .map_err(|e| Failure::from_error("reading output", &e))?;
                    if self.write(name, &bytes).await? == Reader::Gone {
                        self.signal("SIGNAL_SIGKILL").await;
                        return Ok(Some(ExitCode::from(EXIT_PIPE)));
                    }
                }
            }
        } else if let Some(end) = event.get("end") {
            let code = exit_code(end);
            if let Some(kept) = &self.kept {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let all = json!({ "exitCode": code, "stdout": text(&kept.stdout), "stderr": text(&kept.stderr) });
                out::print(&format!("{all:#}\n"))?;
            }
            return Ok(Some(ExitCode::from(code)));
        }
        Ok(None)
    }

    async fn write(&mut self, name: &str, bytes: &[u8]) -> Result<Reader, Failure> {
        if let Some(kept) = &self.kept
            && kept.stdout.len() + kept.stderr.len() + bytes.len() > MAX_KEPT
        {
            self.signal("SIGNAL_SIGKILL").await;
            let mib = MAX_KEPT >> 20;
            return Err(
                Failure::new(format!("the command put out more than {mib} MiB"))
                    .hint("without --json there is no limit"),
            );
        }
        let done = match (&mut self.kept, name) {
            (Some(kept), "stderr") => {
                kept.stderr.extend_from_slice(bytes);
                Ok(())
            }
            (Some(kept), _) => {
                kept.stdout.extend_from_slice(bytes);
                Ok(())
            }
            (None, "stderr") => write_to(tokio::io::stderr(), bytes).await,
            (None, _) => write_to(tokio::io::stdout(), bytes).await,
        };
        match done {
            Ok(()) => Ok(Reader::There),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
            Err(e) => Err(Failure::from_error("writing output", &e)),
        }
    }

    /// The process may have ended meanwhile: then its end is on its way, and this changes nothing.
    async fn signal(&self, name: &str) {
        if let Some(pid) = self.pid {
            let body = json!({ "process": { "pid": pid }, "signal": name });
            if let Err(failure) = self
                .api
                .agent_call(&self.agent, "/process.Process/SendSignal", &body)
                .await
            {
                tracing::debug!(what = failure.what, "a signal was not delivered");
            }
        }
    }

    async fn resize(&self) {
        if let (Some(pid), Some((cols, rows))) = (self.pid, crate::cli::terminal::size()) {
            let body = json!({ "process": { "pid": pid }, "pty": { "size": { "cols": cols, "rows": rows } } });
            if let Err(failure) = self
                .api
                .agent_call(&self.agent, "/process.Process/Update", &body)
                .await
            {
                tracing::debug!(what = failure.what, "the terminal was not resized");
            }
        }
    }

    /// When the stream broke because the sandbox is gone, the server knows why.
    async fn explain(&self, failure: Failure, about: &str) -> Failure {
        match self.api.call(Method::GET, about, None::<&Value>).await {
            Ok(_) => failure,
            Err(why) => Failure {
                hint: Some(why.what),
                ..failure
            },
        }
    }
}

/// Whether somebody still reads our output.
#[derive(Debug, PartialEq, Eq)]
enum Reader {
    There,
    Gone,
}

async fn write_to(mut out: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes).await?;
    out.flush().await
}

async fn either(a: &mut Signal, b: &mut Signal) {
    tokio::select! {
        _ = a.recv() => {}
        _ = b.recv() => {}
    }
}

/// Carries standard input to the process until either ends.
async fn pump(api: Arc<Api>, agent: Agent, pid: u64, input: Input) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0u8; INPUT_CHUNK];
    let name = if input == Input::Terminal {
        "pty"
    } else {
        "stdin"
    };
    loop {
        let n = match stdin.read(&mut buffer).await {
            Ok(n) => n,
            Err(error) => {
                eprintln!("hearth: reading standard input: {error}");
                0
            }
        };
        let (method, body) = if n > 0 {
            let data = STANDARD.encode(Bytes::copy_from_slice(&buffer[..n]));
            (
                "/process.Process/SendInput",
                json!({ "process": { "pid": pid }, "input": { name: data } }),
            )
        } else if input == Input::Pipe {
            (
                "/process.Process/CloseStdin",
                json!({ "process": { "pid": pid } }),
            )
        } else {
            return;
        };
        match api.agent_call(&agent, method, &body).await {
            Ok(Taken::Yes) if n > 0 => {}
            Ok(Taken::Yes) => return,
            // A process that ended or closed its input takes no more; that is its right, and
            // its exit status says the rest.
            Ok(Taken::No) if n == 0 || input == Input::Terminal => return,
            // For whatever other reason: it must not wait for more.
            Ok(Taken::No) => {
                let close = json!({ "process": { "pid": pid } });
                if let Err(failure) = api
                    .agent_call(&agent, "/process.Process/CloseStdin", &close)
                    .await
                {
                    tell(&failure);
                }
                return;
            }
            Err(failure) => {
                tell(&failure);
                return;
            }
        }
    }
}

/// The command goes on without its input; whoever waits for it should know why.
fn tell(failure: &Failure) {
    eprintln!("hearth: standard input was cut off: {}", failure.what);
}

/// The status a shell would show: the process's own, or 128 and the signal's number.
fn exit_code(end: &Value) -> u8 {
    if end["exited"].as_bool().unwrap_or(false) {
        let code = end["exitCode"].as_i64().unwrap_or(0);
        return u8::try_from(code & 0xFF).unwrap_or(u8::MAX);
    }
    let status = end["status"].as_str().unwrap_or_default();
    let name = status
        .trim_start_matches("signal: ")
        .trim_end_matches(" (core dumped)");
    let number = SIGNALS
        .iter()
        .find(|(_, text)| *text == name)
        .map(|(number, _)| *number)
        .or_else(|| name.strip_prefix("signal ").and_then(|n| n.parse().ok()));
    number.map_or(EXIT_OWN, |n| 128u8.saturating_add(n))
}

/// Signals as the agent's protocol words them (Go's `syscall.Signal`).
const SIGNALS: [(u8, &str); 15] = [
    (1, "hangup"),
    (2, "interrupt"),
    (3, "quit"),
    (4, "illegal instruction"),
    (5, "trace/breakpoint trap"),
    (6, "aborted"),
    (7, "bus error"),
    (8, "floating point exception"),
    (9, "killed"),
    (10, "user defined signal 1"),
    (11, "segmentation fault"),
    (12, "user defined signal 2"),
    (13, "broken pipe"),
    (14, "alarm clock"),
    (15, "terminated"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_wherever_the_bytes_were() {
        let mut bytes = envelope(&json!({ "event": { "start": { "pid": 7 } } })).unwrap();
        let mut end =
            envelope(&json!({ "error": { "code": "not_found", "message": "no" } })).unwrap();
        end[0] = 2;
        bytes.extend(end);
        let mut read = BytesMut::new();
        let mut items = Vec::new();
        for byte in bytes {
            read.extend_from_slice(&[byte]);
            items.extend(cut(&mut read).unwrap());
        }
        assert_eq!(
            items,
            [
                Item::Message(json!({ "event": { "start": { "pid": 7 } } })),
                Item::End(Some(("not_found".into(), "no".into()))),
            ]
        );
        assert!(read.is_empty());
        let mut huge = BytesMut::from(&[0u8, 0xFF, 0xFF, 0xFF, 0xFF][..]);
        assert!(cut(&mut huge).is_err());
        let mut broken = BytesMut::from(&[0u8, 0, 0, 0, 1, b'{'][..]);
        assert!(cut(&mut broken).is_err());
    }

    #[test]
    fn exit_codes_are_a_shells() {
        let check = |end: Value, code: u8| assert_eq!(exit_code(&end), code, "{end}");
        check(json!({ "exited": true, "status": "exit status 0" }), 0);
        check(json!({ "exited": true, "exitCode": 255 }), 255);
        check(
            json!({ "exited": false, "exitCode": -1, "status": "signal: killed" }),
            137,
        );
        check(
            json!({ "exitCode": -1, "status": "signal: terminated" }),
            143,
        );
        check(
            json!({ "status": "signal: segmentation fault (core dumped)" }),
            139,
        );
        check(json!({ "status": "signal: signal 34" }), 162);
        check(json!({ "status": "?" }), EXIT_OWN);
    }
}
