//! Many processes, few descriptors: the agent stays itself.

use std::thread;

use serde_json::json;

use crate::stand::{Agent, wait_for};

#[test]
fn a_thousand_processes() {
    let agent = Agent::start();
    let mut streams = Vec::new();
    for _ in 0..1000 {
        let mut events = agent.sh_with("read x; echo $x; exit 3", json!({}), &[]);
        let pid = events.pid();
        streams.push((pid, events));
    }
    assert_eq!(agent.pids().len(), 1000);
    thread::scope(|scope| {
        for part in streams.chunks_mut(250) {
            let agent = &agent;
            scope.spawn(move || {
                for (pid, events) in part {
                    let line = crate::stand::coded(format!("{pid}\n").as_bytes());
                    let input = json!({ "process": { "pid": pid }, "input": { "stdin": line } });
                    agent.call("SendInput", &input).ok();
                    events.until(&format!("{pid}\n"));
                }
            });
        }
    });
    for (_, events) in streams {
        assert_eq!(events.rest().end["exitCode"], 3);
    }
    assert!(agent.pids().is_empty());
    // It gives back what it took: descriptors and memory.
    wait_for("the pipes are closed", || agent.open_files() < 40);
    assert!(agent.status_kib("VmRSS") < 64 * 1024);
}

#[test]
fn out_of_descriptors_is_exhaustion_and_passes() {
    let agent = Agent::start_as("ulimit -n 40; exec \"$0\"");
    let mut streams = Vec::new();
    let text = loop {
        let mut events = agent.sh_with("exec sleep 1000", json!({}), &[]);
        match events.next() {
            crate::stand::Frame::Event(_) => streams.push(events),
            crate::stand::Frame::Last(last) => {
                assert_eq!(last["error"]["code"], "resource_exhausted", "{last}");
                break last["error"]["message"].as_str().unwrap().to_owned();
            }
        }
        assert!(streams.len() < 40);
    };
    assert!(text.contains("/bin/sh"), "{text}");
    // Those that run do so still, and with room there is room again.
    drop(streams.split_off(1));
    for pid in agent.pids().into_iter().skip(1) {
        let kill = json!({ "process": { "pid": pid }, "signal": 9 });
        agent.call("SendSignal", &kill).ok();
    }
    wait_for("there is room again", || agent.pids().len() == 1);
    assert_eq!(agent.sh("echo x").rest().ok(), "x\n");
}

#[test]
fn oversized_requests_are_refused() {
    let agent = Agent::start();
    let headers = [("Content-Type", "application/json")];
    let mut body = b"{\"process\":{\"tag\":\"".to_vec();
    body.resize(65 * 1024 * 1024, b'x');
    let length = body.len().to_string();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", agent.port)).unwrap();
    let head = crate::wire::head(
        "POST",
        "/process.Process/SendSignal",
        &[
            headers[0],
            ("X-Access-Token", crate::stand::TOKEN),
            ("Content-Length", &length),
        ],
    );
    std::io::Write::write_all(&mut stream, format!("{head}\r\n").as_bytes()).unwrap();
    // The refusal may come before the body is through.
    let _ = std::io::Write::write_all(&mut stream, &body);
    let reply = crate::wire::Reply::read(stream, false);
    reply.failed(429, "resource_exhausted");
    // More arguments than the kernel takes.
    let word = "x".repeat(1024 * 1024);
    let request = json!({ "process": { "cmd": "true", "args": [word, word, word, word] } });
    agent
        .stream("Start", &request, &[])
        .failed("invalid_argument");
}
