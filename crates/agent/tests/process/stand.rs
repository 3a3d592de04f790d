//! Starts the agent and speaks Connect with JSON to it, one connection per request.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hearth_wire::boot::{Boot, CONTROL_HEADER, READY_LINE};
use serde_json::{Value, json};

use crate::wire::{Answer, Body, DEADLINE, Reply, head};

pub(crate) const SECRET: &str = "control secret";
pub(crate) const TOKEN: &str = "access token";

/// A running agent.
pub(crate) struct Agent {
    child: Child,
    pub port: u16,
    pub control_port: u16,
    pub dir: tempfile::TempDir,
}

impl Agent {
    pub(crate) fn start() -> Self {
        Self::start_as("exec \"$0\"")
    }

    /// Runs `script` with the agent's path as `$0`.
    pub(crate) fn start_as(script: &str) -> Self {
        // A free port may be taken by another test in between; then another one is tried.
        for _ in 0..10 {
            if let Some(agent) = Self::try_start(script) {
                return agent;
            }
        }
        panic!("the agent does not start");
    }

    fn try_start(script: &str) -> Option<Self> {
        let free = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let listeners = (free(), free());
        let port = listeners.0.local_addr().unwrap().port();
        let control_port = listeners.1.local_addr().unwrap().port();
        drop(listeners);
        let boot = Boot {
            sandbox_id: "sandbox".into(),
            template_id: "base".into(),
            agent_port: port,
            control_port,
            access_token: Some(TOKEN.into()),
            control_secret: SECRET.into(),
            env: BTreeMap::from([
                ("SANDBOX".into(), "yes".into()),
                ("BOTH".into(), "1".into()),
            ]),
            default_user: "root".into(),
            default_workdir: None,
            fixups: None,
        };
        let mut child = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_hearth-agent")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        serde_json::to_writer(&mut stdin, &boot).unwrap();
        drop(stdin);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let agent = Self {
            child,
            port,
            control_port,
            dir: tempfile::tempdir().unwrap(),
        };
        if line.trim_end() == READY_LINE {
            return Some(agent);
        }
        assert!(line.contains("listening"), "{line}");
        None
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A value of the agent's `/proc/PID/status`, in kB.
    pub(crate) fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        line.trim_matches([':', '\t', ' ', 'k', 'B'])
            .parse()
            .unwrap()
    }

    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))
            .unwrap()
            .count()
    }

    /// A request with the token.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut all = vec![("X-Access-Token", TOKEN)];
        all.extend(headers);
        send(self.port, method, target, &all, body)
    }

    /// A unary call of `process.Process`.
    pub(crate) fn call(&self, method: &str, message: &Value) -> Reply {
        let headers = [
            ("Content-Type", "application/json"),
            ("Connect-Protocol-Version", "1"),
        ];
        let target = format!("/process.Process/{method}");
        let stream = self.send("POST", &target, &headers, message.to_string().as_bytes());
        Reply::read(stream, false)
    }

    /// A call with a stream of answers.
    pub(crate) fn stream(&self, method: &str, message: &Value, headers: &[(&str, &str)]) -> Events {
        let mut all = vec![
            ("Content-Type", "application/connect+json"),
            ("Connect-Protocol-Version", "1"),
        ];
        all.extend(headers);
        let target = format!("/process.Process/{method}");
        let stream = self.send("POST", &target, &all, &envelope(message));
        let answer = Answer::read(stream);
        assert_eq!(answer.status, 200);
        Events {
            headers: answer.headers,
            body: answer.body,
        }
    }

    /// Starts `sh -c script` with more fields in the request and more headers.
    pub(crate) fn sh_with(&self, script: &str, more: Value, headers: &[(&str, &str)]) -> Events {
        let mut request = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] } });
        merge(&mut request, more);
        self.stream("Start", &request, headers)
    }

    pub(crate) fn sh(&self, script: &str) -> Events {
        self.sh_with(script, json!({ "stdin": false }), &[])
    }

    pub(crate) fn connect(&self, pid: u64) -> Events {
        self.stream("Connect", &json!({ "process": { "pid": pid } }), &[])
    }

    /// Pids in the answer to `List`.
    pub(crate) fn pids(&self) -> Vec<u64> {
        let list = self.call("List", &json!({})).ok();
        let processes = list["processes"].as_array().cloned().unwrap_or_default();
        processes
            .iter()
            .map(|p| p["pid"].as_u64().unwrap())
            .collect()
    }

    /// A request to the control port.
    pub(crate) fn control(&self, target: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut all = vec![(CONTROL_HEADER, SECRET)];
        all.extend(headers);
        send(self.control_port, "GET", target, &all, b"")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Its processes are the test's: they must not outlive it.
        for pid in Reply::read(self.control("/processes", &[]), false)
            .json()
            .as_array()
            .into_iter()
            .flatten()
            .filter(|process| process["end"].is_null())
            .filter_map(|process| process["pid"].as_u64())
        {
            self.call(
                "SendSignal",
                &json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" }),
            );
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

pub(crate) fn send(
    port: u16,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut head = head(method, target, headers);
    if method == "POST" {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream
}

/// A message in its frame.
pub(crate) fn envelope(message: &Value) -> Vec<u8> {
    let text = message.to_string().into_bytes();
    let mut all = vec![0];
    all.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
    all.extend(text);
    all
}

pub(crate) fn coded(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A stream of process events.
pub(crate) struct Events {
    pub headers: BTreeMap<String, String>,
    body: Body,
}

/// What a stream held in all.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub pid: u64,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub terminal: Vec<u8>,
    pub end: Value,
    /// The error in the end-of-stream frame.
    pub error: Value,
    pub keepalives: usize,
}

impl Events {
    /// The next frame: an event, or the end of the stream.
    pub(crate) fn next(&mut self) -> Frame {
        let mut head = [0; 5];
        self.body.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes(head[1..].try_into().unwrap());
        let mut text = vec![0; usize::try_from(length).unwrap()];
        self.body.read_exact(&mut text).unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        match head[0] {
            0 => Frame::Event(value["event"].clone()),
            2 => Frame::Last(value),
            flags => panic!("frame with flags {flags}"),
        }
    }

    /// The pid in the first event.
    pub(crate) fn pid(&mut self) -> u64 {
        match self.next() {
            Frame::Event(event) => event["start"]["pid"].as_u64().unwrap(),
            Frame::Last(last) => panic!("no start: {last}"),
        }
    }

    /// Reads until standard output or the terminal has `text`.
    pub(crate) fn until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        loop {
            let Frame::Event(event) = self.next() else {
                panic!("no '{text}' in {:?}", String::from_utf8_lossy(&seen));
            };
            for channel in ["stdout", "pty"] {
                seen.extend(decoded(&event["data"][channel]));
            }
            let shown = String::from_utf8_lossy(&seen);
            if shown.contains(text) {
                return shown.into_owned();
            }
            assert!(event["end"].is_null(), "no '{text}' in {shown:?}");
        }
    }

    /// Everything up to the end of the stream.
    pub(crate) fn rest(mut self) -> Whole {
        let mut whole = Whole::default();
        loop {
            match self.next() {
                Frame::Event(event) => {
                    assert!(whole.end.is_null(), "an event after the end: {event}");
                    if let Some(pid) = event["start"]["pid"].as_u64() {
                        whole.pid = pid;
                    }
                    whole.stdout.extend(decoded(&event["data"]["stdout"]));
                    whole.stderr.extend(decoded(&event["data"]["stderr"]));
                    whole.terminal.extend(decoded(&event["data"]["pty"]));
                    whole.end = event["end"].clone();
                    whole.keepalives += usize::from(event.get("keepalive").is_some());
                }
                Frame::Last(last) => {
                    whole.error = last["error"].clone();
                    return whole;
                }
            }
        }
    }

    /// The refusal of a stream that never started.
    pub(crate) fn failed(mut self, code: &str) -> String {
        match self.next() {
            Frame::Last(last) => {
                assert_eq!(last["error"]["code"], code, "{last}");
                last["error"]["message"].as_str().unwrap().to_owned()
            }
            Frame::Event(event) => panic!("not refused: {event}"),
        }
    }
}

impl Whole {
    /// Standard output of a process that ended well.
    pub(crate) fn ok(&self) -> String {
        assert_eq!(self.end["status"], "exit status 0", "{self:?}");
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

#[derive(Debug)]
pub(crate) enum Frame {
    Event(Value),
    Last(Value),
}

fn decoded(value: &Value) -> Vec<u8> {
    value
        .as_str()
        .map(|text| STANDARD.decode(text).unwrap())
        .unwrap_or_default()
}

/// Waits until `holds`, much longer than it should take.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
