//! The node's channel.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::json;

use crate::stand::{Agent, coded, send, wait_for};
use crate::wire::Reply;

const UPGRADE: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "hearth-tunnel")];

fn get(agent: &Agent, target: &str) -> Reply {
    Reply::read(agent.control(target, &[]), false)
}

#[test]
fn asks_for_its_secret() {
    let agent = Agent::start();
    for target in [
        "/health",
        "/tunnel?port=1",
        "/logs",
        "/processes",
        "/nothing",
    ] {
        for headers in [
            vec![],
            vec![("x-hearth-control", "wrong")],
            vec![("x-access-token", "access token")],
        ] {
            let stream = send(agent.control_port, "GET", target, &headers, b"");
            Reply::read(stream, false).refused(401);
        }
    }
    assert_eq!(get(&agent, "/health").status, 204);
    get(&agent, "/nothing").refused(404);
    // The public port has none of it.
    let stream = agent.send(
        "GET",
        "/processes",
        &[("x-hearth-control", crate::stand::SECRET)],
        b"",
    );
    assert_eq!(Reply::read(stream, false).status, 404);
}

#[test]
fn tunnels_to_loopback() {
    let agent = Agent::start();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let mut stream = agent.control(&format!("/tunnel?port={port}"), &UPGRADE);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101 "),
        "{}",
        String::from_utf8_lossy(&head)
    );
    let sent = vec![7; 3_000_000];
    stream.write_all(&sent).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back == sent, "{} bytes came back", back.len());
    echo.join().unwrap();
    // Now nobody listens there.
    let reply = Reply::read(
        agent.control(&format!("/tunnel?port={port}"), &UPGRADE),
        false,
    );
    reply.refused(502);
    get(&agent, &format!("/tunnel?port={port}")).refused(426);
    assert_eq!(get(&agent, "/tunnel?port=70000").status, 400);
}

#[test]
fn tells_processes_and_what_they_wrote() {
    let agent = Agent::start();
    let whole = agent
        .sh_with(
            "echo one; read x; echo two >&2; exit 3",
            json!({ "stdin": false, "tag": "t" }),
            &[],
        )
        .rest();
    let pid = whole.pid;
    let list = get(&agent, "/processes").ok();
    assert_eq!(list[0]["pid"], pid);
    assert_eq!(list[0]["tag"], "t");
    assert_eq!(list[0]["user"], "root");
    assert_eq!(list[0]["end"]["exit_code"], 3);
    let output = get(&agent, &format!("/processes/{pid}/output")).ok();
    assert_eq!((&output["first"], &output["last"]), (&json!(0), &json!(8)));
    assert_eq!(
        output["pieces"],
        json!([
            { "channel": "stdout", "offset": 0, "data": coded(b"one\n") },
            { "channel": "stderr", "offset": 4, "data": coded(b"two\n") },
        ])
    );
    assert_eq!(output["end"]["status"], "exit status 3");
    let output = get(&agent, &format!("/processes/{pid}/output?offset=2")).ok();
    assert_eq!(
        output["pieces"][0],
        json!({ "channel": "stdout", "offset": 2, "data": coded(b"e\n") })
    );
    let output = get(&agent, &format!("/processes/{pid}/output?offset=99")).ok();
    assert_eq!(output["pieces"], json!([]));
    get(&agent, "/processes/1/output").refused(404);

    // The ring forgets the oldest, and offsets stay what they were.
    let whole = agent.sh("head -c 5000000 /dev/zero; echo END").rest();
    let output = get(
        &agent,
        &format!("/processes/{}/output?offset=5000000", whole.pid),
    )
    .ok();
    assert_eq!(output["last"], 5_000_004);
    let first = output["first"].as_u64().unwrap();
    assert!((3_900_000..4_100_000).contains(&first), "{first}");
    assert_eq!(output["pieces"][0]["data"], coded(b"END\n"));
}

#[test]
fn tells_what_happened() {
    let agent = Agent::start();
    let pid = agent.sh("exit 3").rest().pid;
    let of = |message: &str| {
        let logs = get(&agent, "/logs?start_ms=0&limit=100").ok();
        let found = logs
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["message"] == message && entry["fields"]["pid"] == pid);
        found.cloned()
    };
    wait_for("both are told", || {
        of("process started").is_some() && of("process ended").is_some()
    });
    let ended = of("process ended").unwrap();
    assert_eq!(ended["level"], "info");
    assert_eq!(ended["fields"]["status"], "exit status 3");
    assert!(ended["timestamp_ms"].as_i64().unwrap() > 1_700_000_000_000);
    assert_eq!(get(&agent, "/logs?start_ms=99999999999999").ok(), json!([]));
    assert_eq!(
        get(&agent, "/logs?limit=1").ok().as_array().unwrap().len(),
        1
    );
}
