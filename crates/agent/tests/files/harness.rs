//! Starts the agent and speaks HTTP/1.1 to it byte by byte, so that tests can be as slow,
//! as early gone and as wrong as they like.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hearth_wire::boot::{Boot, READY_LINE};
use serde_json::Value;

/// How long anything may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A running agent with a directory of its own, where relative paths start.
pub(crate) struct Agent {
    child: Child,
    pub port: u16,
    /// Owner of the directory's life.
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Agent {
    pub(crate) fn start() -> Self {
        Self::start_with(None, "exec \"$0\"")
    }

    pub(crate) fn with_token(token: &str) -> Self {
        Self::start_with(Some(token), "exec \"$0\"")
    }

    /// Runs `script` with the agent's path as `$0` and the directory as `$1`.
    pub(crate) fn start_with(token: Option<&str>, script: &str) -> Self {
        // A free port may be taken by another test in between; then another one is tried.
        for _ in 0..10 {
            if let Some(agent) = Self::try_start(token, script) {
                return agent;
            }
        }
        panic!("the agent does not start");
    }

    fn try_start(token: Option<&str>, script: &str) -> Option<Self> {
        let free = || TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (one, two) = (free(), free());
        let port = one.local_addr().unwrap().port();
        let control_port = two.local_addr().unwrap().port();
        drop((one, two));
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let boot = Boot {
            sandbox_id: "sandbox".into(),
            template_id: "base".into(),
            agent_port: port,
            control_port,
            access_token: token.map(str::to_owned),
            control_secret: "control".into(),
            env: BTreeMap::new(),
            default_user: "root".into(),
            default_workdir: Some(root.to_str().unwrap().into()),
            fixups: None,
        };
        let mut child = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_hearth-agent")])
            .arg(&root)
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
            _dir: dir,
            root,
        };
        if line.trim_end() == READY_LINE {
            return Some(agent);
        }
        assert!(line.contains("listening"), "{line}");
        None
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    /// Names in the directory, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.root)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The most memory the agent has ever held, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let mut stream = self.connect();
        let mut head = head(method, target, headers);
        if !body.is_empty() || method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // The answer may come before the body is read.
        let _ = stream.write_all(body);
        Reply::read(stream, method == "HEAD")
    }

    pub(crate) fn get(&self, target: &str) -> Reply {
        self.send("GET", target, &[], b"")
    }

    /// Uploads as octets, with more headers.
    pub(crate) fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut all = vec![("Content-Type", "application/octet-stream")];
        all.extend(headers);
        self.send("POST", &format!("/files?path={path}"), &all, body)
    }

    pub(crate) fn form(&self, target: &str, parts: &[(&str, &[u8])]) -> Reply {
        let mut body = Vec::new();
        for (disposition, data) in parts {
            body.extend_from_slice(
                format!("--XX\r\nContent-Disposition: form-data; {disposition}\r\n\r\n").as_bytes(),
            );
            body.extend_from_slice(data);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--XX--\r\n");
        let kind = ("Content-Type", "multipart/form-data; boundary=XX");
        self.send("POST", target, &[kind], &body)
    }

    /// One unary call.
    pub(crate) fn call(&self, method: &str, message: &Value) -> Reply {
        self.call_with(method, message, &[])
    }

    pub(crate) fn call_with(
        &self,
        method: &str,
        message: &Value,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut all = vec![
            ("Content-Type", "application/json"),
            ("Connect-Protocol-Version", "1"),
        ];
        all.extend(headers);
        let target = format!("/filesystem.Filesystem/{method}");
        self.send("POST", &target, &all, message.to_string().as_bytes())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub(crate) fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Reply {
    pub(crate) fn read(stream: TcpStream, is_head: bool) -> Self {
        let mut answer = Answer::read(stream);
        let mut body = Vec::new();
        if !is_head && !matches!(answer.status, 204 | 304) {
            answer.body.read_to_end(&mut body).unwrap();
        }
        Self {
            status: answer.status,
            headers: answer.headers,
            body,
        }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The body of a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// A refusal of `/files`, in its form.
    pub(crate) fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["code"], status, "{body}");
        body["message"].as_str().unwrap().to_owned()
    }

    /// A refusal of the Connect service, in its form.
    pub(crate) fn failed(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["code"], code, "{body}");
        body["message"].as_str().unwrap().to_owned()
    }
}

/// An answer whose body is still to come.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Body,
}

impl Answer {
    pub(crate) fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {line:?}"));
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let is_chunked = headers
            .get("transfer-encoding")
            .is_some_and(|coding| coding == "chunked");
        let left = headers
            .get("content-length")
            .map(|length| length.parse().unwrap());
        Self {
            status,
            headers,
            body: Body {
                reader,
                framing: if is_chunked {
                    Framing::Chunked(0)
                } else {
                    Framing::Length(left)
                },
            },
        }
    }
}

/// A body without its framing. Ends in an error when the connection ends before it.
pub(crate) struct Body {
    reader: BufReader<TcpStream>,
    framing: Framing,
}

enum Framing {
    /// What is left of this chunk.
    Chunked(usize),
    Length(Option<u64>),
    Over,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        match &mut self.framing {
            Framing::Over => Ok(0),
            Framing::Length(None) => self.reader.read(buffer),
            Framing::Length(Some(0)) => {
                self.framing = Framing::Over;
                Ok(0)
            }
            Framing::Length(Some(left)) => {
                let wanted = buffer.len().min(usize::try_from(*left).unwrap());
                let read = self.reader.read(&mut buffer[..wanted])?;
                if read == 0 {
                    return Err(cut());
                }
                *left -= u64::try_from(read).unwrap();
                Ok(read)
            }
            Framing::Chunked(left) => {
                if *left == 0 {
                    let mut line = String::new();
                    self.reader.read_line(&mut line)?;
                    *left = usize::from_str_radix(line.trim_end(), 16).map_err(|_| cut())?;
                    if *left == 0 {
                        self.framing = Framing::Over;
                        return Ok(0);
                    }
                }
                let wanted = buffer.len().min(*left);
                let read = self.reader.read(&mut buffer[..wanted])?;
                if read == 0 {
                    return Err(cut());
                }
                *left -= read;
                if *left == 0 {
                    let mut end = String::new();
                    self.reader.read_line(&mut end)?;
                }
                Ok(read)
            }
        }
    }
}

/// Waits until `holds`.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut out)
        .unwrap();
    out
}
