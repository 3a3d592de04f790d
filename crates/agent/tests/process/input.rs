//! The way into a process.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::stand::{Agent, coded, envelope};
use crate::wire::{Answer, Reply, head};

fn stdin(pid: u64, bytes: &[u8]) -> Value {
    json!({ "process": { "pid": pid }, "input": { "stdin": coded(bytes) } })
}

#[test]
fn reaches_the_process_and_ends() {
    let agent = Agent::start();
    // Absent counts as true.
    let mut events = agent.sh_with("cat; echo done", json!({}), &[]);
    let pid = events.pid();
    agent.call("SendInput", &stdin(pid, b"a\n")).ok();
    events.until("a\n");
    agent.call("SendInput", &stdin(pid, b"\xff\0")).ok();
    let select = json!({ "process": { "pid": pid } });
    agent.call("CloseStdin", &select).ok();
    assert_eq!(events.rest().stdout, b"\xff\0done\n");
    agent.call("CloseStdin", &select).failed(404, "not_found");
    agent
        .call("SendInput", &stdin(pid, b"x"))
        .failed(404, "not_found");
}

#[test]
fn more_than_a_pipe_holds() {
    let agent = Agent::start();
    let mut events = agent.sh_with("sleep 0.2; wc -c", json!({ "stdin": true }), &[]);
    let pid = events.pid();
    let piece = vec![b'x'; 9_000_000];
    agent.call("SendInput", &stdin(pid, &piece)).ok();
    agent
        .call("CloseStdin", &json!({ "process": { "pid": pid } }))
        .ok();
    assert_eq!(events.rest().ok(), "9000000\n");
}

#[test]
fn none_means_none() {
    let agent = Agent::start();
    assert_eq!(agent.sh("cat; echo empty").rest().ok(), "empty\n");
    let mut events = agent.sh("exec sleep 1000");
    let pid = events.pid();
    agent
        .call("SendInput", &stdin(pid, b"x"))
        .failed(500, "internal");
    agent
        .call("CloseStdin", &json!({ "process": { "pid": pid } }))
        .failed(500, "internal");
}

#[test]
fn wrong_kind_or_nobody() {
    let agent = Agent::start();
    let mut events = agent.sh_with("exec sleep 1000", json!({}), &[]);
    let pid = events.pid();
    let terminal = json!({ "process": { "pid": pid }, "input": { "pty": coded(b"x") } });
    agent
        .call("SendInput", &terminal)
        .failed(400, "failed_precondition");
    let resize = json!({ "process": { "pid": pid }, "pty": { "size": { "cols": 1, "rows": 1 } } });
    agent
        .call("Update", &resize)
        .failed(400, "failed_precondition");
    agent
        .call("SendInput", &json!({ "input": {} }))
        .failed(400, "invalid_argument");
    agent
        .call("SendInput", &stdin(1, b"x"))
        .failed(404, "not_found");
    let tag = json!({ "process": { "tag": "none" }, "input": { "stdin": "" } });
    assert_eq!(
        agent.call("SendInput", &tag).failed(404, "not_found"),
        "process with tag 'none' not found"
    );
    let text = json!({ "process": { "pid": pid }, "input": { "stdin": "%%%" } });
    agent
        .call("SendInput", &text)
        .failed(400, "invalid_argument");
}

#[test]
fn process_that_stopped_reading() {
    let agent = Agent::start();
    let mut events = agent.sh_with("exec <&-; echo closed; exec sleep 1000", json!({}), &[]);
    let pid = events.pid();
    events.until("closed");
    let text = agent
        .call("SendInput", &stdin(pid, b"x"))
        .failed(500, "internal");
    assert!(text.contains("no longer reads"), "{text}");
    // One that ends while a writer waits for it tells the writer.
    let mut events = agent.sh_with("sleep 0.3", json!({}), &[]);
    let pid = events.pid();
    let piece = vec![b'x'; 1_000_000];
    agent
        .call("SendInput", &stdin(pid, &piece))
        .failed(500, "internal");
}

/// Sends `messages` as one chunked request.
fn stream_input(agent: &Agent, messages: &[Value]) -> Value {
    let stream = agent.send("HEAD", "/health", &[], b"");
    drop(stream);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    let head = head(
        "POST",
        "/process.Process/StreamInput",
        &[
            ("X-Access-Token", crate::stand::TOKEN),
            ("Content-Type", "application/connect+json"),
            ("Connect-Protocol-Version", "1"),
            ("Transfer-Encoding", "chunked"),
        ],
    );
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    for message in messages {
        let bytes = envelope(message);
        write!(stream, "{:x}\r\n", bytes.len()).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let answer = Answer::read(stream);
    assert_eq!(answer.status, 200);
    let mut body = answer.body;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut body, &mut bytes).unwrap();
    // The end-of-stream frame is the last one.
    let at = bytes
        .windows(5)
        .rposition(|w| w[0] == 2 && w[1] == 0)
        .unwrap();
    serde_json::from_slice(&bytes[at + 5..]).unwrap()
}

#[test]
fn many_pieces_in_one_request() {
    let agent = Agent::start();
    let mut events = agent.sh_with("read a; read b; echo $a-$b", json!({ "tag": "t" }), &[]);
    let pid = events.pid();
    let data = |text: &[u8]| json!({ "data": { "input": { "stdin": coded(text) } } });
    let start = json!({ "start": { "process": { "tag": "t" } } });
    let end = stream_input(
        &agent,
        &[
            start.clone(),
            data(b"on"),
            json!({ "keepalive": {} }),
            data(b"e\ntwo\n"),
        ],
    );
    assert_eq!(end, json!({}));
    assert_eq!(events.rest().ok(), "one-two\n");

    let end = stream_input(&agent, &[data(b"x"), start.clone()]);
    assert_eq!(end["error"]["code"], "invalid_argument", "{end}");
    let end = stream_input(&agent, &[start]);
    assert_eq!(end["error"]["code"], "not_found", "{end}");
    assert!(!agent.pids().contains(&pid));
}

#[test]
fn malformed_frames_are_refused() {
    let agent = Agent::start();
    let headers = [("Content-Type", "application/connect+json")];
    let bodies: [&[u8]; 4] = [b"", b"\0\0\0\0", b"\0\0\0\0\x05{}", b"\0\xff\xff\xff\xff{}"];
    for body in bodies {
        let stream = agent.send("POST", "/process.Process/Start", &headers, body);
        let reply = Reply::read(stream, false);
        assert_eq!(reply.status, 200);
        assert!(reply.text().contains("\"error\""), "{}", reply.text());
    }
    let json = [("Content-Type", "application/json")];
    for body in ["{", "\"x\"", "{\"process\":{\"pid\":-1}}", "\u{feff}{}"] {
        let stream = agent.send(
            "POST",
            "/process.Process/SendSignal",
            &json,
            body.as_bytes(),
        );
        Reply::read(stream, false).failed(400, "invalid_argument");
    }
    assert!(agent.pids().is_empty());
}
