//! Watching, by stream and by polling.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Agent, Answer, Body, head, wait_for};

/// A server stream of Connect messages.
struct Stream(Body);

impl Stream {
    fn open(agent: &Agent, message: &Value, headers: &[(&str, &str)]) -> Self {
        let message = message.to_string();
        let mut body = vec![0];
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message.as_bytes());
        let length = body.len().to_string();
        let mut all = vec![
            ("Content-Type", "application/connect+json"),
            ("Connect-Protocol-Version", "1"),
            ("Content-Length", &length),
        ];
        all.extend(headers);
        let mut stream = agent.connect();
        let head = head("POST", "/filesystem.Filesystem/WatchDir", &all);
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        let answer = Answer::read(stream);
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["content-type"], "application/connect+json");
        Self(answer.body)
    }

    /// Flag byte and message.
    fn next(&mut self) -> (u8, Value) {
        let mut prefix = [0; 5];
        self.0.read_exact(&mut prefix).unwrap();
        let length = u32::from_be_bytes(prefix[1..].try_into().unwrap());
        let mut message = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut message).unwrap();
        (prefix[0], serde_json::from_slice(&message).unwrap())
    }

    fn until(&mut self, name: &str, kind: &str) -> Value {
        loop {
            let (flag, message) = self.next();
            assert_eq!(flag, 0, "{message}");
            let event = &message["filesystem"];
            if event["name"] == name && event["type"] == kind {
                return event.clone();
            }
        }
    }
}

#[test]
fn stream_of_a_tree_with_entries_and_signs_of_life() {
    let agent = Agent::start();
    let asked = json!({ "path": "", "recursive": true, "includeEntry": true });
    let mut stream = Stream::open(&agent, &asked, &[("Keepalive-Ping-Interval", "1")]);
    assert_eq!(stream.next(), (0, json!({ "start": {} })));
    assert_eq!(stream.next(), (0, json!({ "keepalive": {} })));
    agent.put("d/e/f.txt", &[], b"12345").ok();
    let event = stream.until("d/e/f.txt", "EVENT_TYPE_WRITE");
    assert_eq!(event["entry"]["size"], "5");
    assert_eq!(
        event["entry"]["path"],
        agent.at("d/e/f.txt").to_str().unwrap()
    );
    agent.put("d/e/f.txt", &[], b"1").ok();
    stream.until("d/e/f.txt", "EVENT_TYPE_WRITE");
    agent
        .call(
            "Move",
            &json!({ "source": "d/e/f.txt", "destination": "g" }),
        )
        .ok();
    let event = stream.until("d/e/f.txt", "EVENT_TYPE_RENAME");
    assert_eq!(event.get("entry"), None);
    stream.until("g", "EVENT_TYPE_CREATE");
    agent.call("Remove", &json!({ "path": "g" })).ok();
    stream.until("g", "EVENT_TYPE_REMOVE");
}

#[test]
fn stream_refusals_come_as_its_end() {
    let agent = Agent::start();
    fs::write(agent.at("f"), "").unwrap();
    for (path, code) in [("no", "not_found"), ("f", "invalid_argument")] {
        let mut stream = Stream::open(&agent, &json!({ "path": path }), &[]);
        let (flag, end) = stream.next();
        assert_eq!((flag, &end["error"]["code"]), (2, &json!(code)), "{end}");
    }
}

#[test]
fn the_clients_timeout_ends_the_stream() {
    let agent = Agent::start();
    let mut stream = Stream::open(
        &agent,
        &json!({ "path": "" }),
        &[("Connect-Timeout-Ms", "300")],
    );
    assert_eq!(stream.next().1, json!({ "start": {} }));
    // Events come all the time, and do not put it off.
    loop {
        fs::write(agent.at("busy"), "").unwrap();
        let (flag, message) = stream.next();
        if flag == 2 {
            assert_eq!(message["error"]["code"], "deadline_exceeded", "{message}");
            return;
        }
    }
}

#[test]
fn a_client_that_goes_away_ends_its_watcher() {
    let agent = Agent::start();
    let pid_dir = format!("/proc/{}/fd", agent.pid());
    let watchers = || {
        fs::read_dir(&pid_dir)
            .unwrap()
            .filter_map(|item| fs::read_link(item.ok()?.path()).ok())
            .filter(|target| target == Path::new("anon_inode:inotify"))
            .count()
    };
    let mut stream = Stream::open(&agent, &json!({ "path": "" }), &[]);
    stream.next();
    assert_eq!(watchers(), 1);
    drop(stream);
    wait_for("the watcher is gone", || {
        // Nothing is written to a client that hears nothing; an event finds out.
        fs::write(agent.at("poke"), "").unwrap();
        watchers() == 0
    });
}

#[test]
fn polling() {
    let agent = Agent::start();
    let made = agent
        .call("CreateWatcher", &json!({ "path": "", "recursive": true }))
        .ok();
    let id = made["watcherId"].as_str().unwrap().to_owned();
    let mut seen = Vec::new();
    let mut poll = |wanted: (&str, &str)| {
        wait_for(&format!("{wanted:?}"), || {
            let reply = agent
                .call("GetWatcherEvents", &json!({ "watcherId": id }))
                .ok();
            for event in reply["events"].as_array().into_iter().flatten() {
                let text = |key: &str| event[key].as_str().unwrap().to_owned();
                seen.push((text("name"), text("type")));
            }
            seen.iter().any(|(name, kind)| (&**name, &**kind) == wanted)
        });
    };
    fs::create_dir_all(agent.at("x/y")).unwrap();
    poll(("x/y", "EVENT_TYPE_CREATE"));
    fs::write(agent.at("x/y/z"), "1").unwrap();
    poll(("x/y/z", "EVENT_TYPE_WRITE"));
    let by_id = json!({ "watcherId": id });
    agent.call("RemoveWatcher", &by_id).ok();
    agent.call("RemoveWatcher", &by_id).failed(404, "not_found");
    agent
        .call("GetWatcherEvents", &by_id)
        .failed(404, "not_found");
    for (path, status, code) in [("no", 404, "not_found"), ("x/y/z", 400, "invalid_argument")] {
        agent
            .call("CreateWatcher", &json!({ "path": path }))
            .failed(status, code);
    }
}

#[test]
fn too_many_watchers_are_refused_and_removal_makes_room() {
    let agent = Agent::start();
    let create = || agent.call("CreateWatcher", &json!({ "path": "" }));
    // Where the kernel allows fewer instances than we do, it is the one that refuses.
    let mut ids = Vec::new();
    let refused = loop {
        let reply = create();
        if reply.status != 200 {
            break reply;
        }
        ids.push(reply.json()["watcherId"].clone());
        assert!(ids.len() <= 1024);
    };
    refused.failed(429, "resource_exhausted");
    assert!(ids.len() >= 64, "{}", ids.len());
    agent
        .call("RemoveWatcher", &json!({ "watcherId": ids[0] }))
        .ok();
    wait_for("room for one more", || create().status == 200);
}
