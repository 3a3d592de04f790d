//! Signals, and timeouts that end in one.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stand::{Agent, wait_for};

fn signal(pid: u64, signal: impl Into<Value>) -> Value {
    let signal: Value = signal.into();
    json!({ "process": { "pid": pid }, "signal": signal })
}

fn is_gone(pid: &str) -> bool {
    match std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())) {
        // Waiting for its parent to look counts as gone.
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    }
}

#[test]
fn term_and_kill_are_sent() {
    let agent = Agent::start();
    let mut events =
        agent.sh("trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.05; done");
    let pid = events.pid();
    events.until("ready");
    agent
        .call("SendSignal", &signal(pid, "SIGNAL_SIGTERM"))
        .ok();
    let whole = events.rest();
    assert_eq!(whole.stdout, b"asked\n");
    assert_eq!(whole.end["exitCode"], 3);

    let mut events = agent.sh("trap '' TERM; echo ready; exec sleep 1000");
    let pid = events.pid();
    events.until("ready");
    agent.call("SendSignal", &signal(pid, 15)).ok();
    agent
        .call("SendSignal", &signal(pid, "SIGNAL_SIGKILL"))
        .ok();
    let whole = events.rest();
    assert_eq!(whole.end["status"], "signal: killed");
    agent
        .call("SendSignal", &signal(pid, "SIGNAL_SIGKILL"))
        .failed(404, "not_found");
}

#[test]
fn others_are_refused() {
    let agent = Agent::start();
    let mut events = agent.sh("exec sleep 1000");
    let pid = events.pid();
    for number in [0, 1, 2, 64, -9] {
        agent
            .call("SendSignal", &signal(pid, number))
            .failed(501, "unimplemented");
    }
    agent
        .call("SendSignal", &signal(pid, "SIGNAL_SIGHUP"))
        .failed(400, "invalid_argument");
    // Only what the agent started: not the agent, not whoever else is here.
    for pid in [0, 1, u64::from(std::process::id())] {
        agent
            .call("SendSignal", &signal(pid, 9))
            .failed(404, "not_found");
    }
    assert_eq!(agent.pids(), [pid]);
}

#[test]
fn kill_takes_the_jobs_along() {
    let agent = Agent::start();
    // Monitor mode gives each job a group of its own, as interactive shells do.
    let mut events = agent.sh("set -m; sleep 1000 & echo job $!; wait");
    let pid = events.pid();
    let text = events.until("\n");
    let job = text.trim().strip_prefix("job ").unwrap().to_owned();
    assert!(!is_gone(&job));
    agent.call("SendSignal", &signal(pid, 9)).ok();
    wait_for("the job is gone", || is_gone(&job));
}

#[test]
fn timeout_takes_a_crowd_along() {
    let agent = Agent::start();
    // A name for `sleep` that nobody else uses.
    let nap = format!("98765.{}", agent.port);
    let script = format!(
        "i=0; while [ $i -lt 200 ]; do (sh -c 'sleep {nap} & wait' &); i=$((i+1)); done; echo up; while :; do sleep {nap} & sleep 0.01; done"
    );
    let count = || {
        let processes = std::fs::read_dir("/proc").unwrap();
        let lines = processes.filter_map(|p| std::fs::read(p.ok()?.path().join("cmdline")).ok());
        lines
            .filter(|line| line.windows(nap.len()).any(|part| part == nap.as_bytes()))
            .count()
    };
    let headers = [("Connect-Timeout-Ms", "4000")];
    let mut events = agent.sh_with(&script, json!({ "stdin": false }), &headers);
    events.until("up");
    assert!(count() >= 200);
    assert_eq!(events.rest().error["code"], "deadline_exceeded");
    wait_for("all of them are gone", || count() == 0);
}

#[test]
fn timeout_kills_and_says_so() {
    let agent = Agent::start();
    let begun = Instant::now();
    let mut events = agent.sh_with(
        "sleep 1000 & echo child $!; wait",
        json!({ "stdin": false }),
        &[("Connect-Timeout-Ms", "1000")],
    );
    let pid = events.pid();
    let text = events.until("\n");
    let child = text.trim().strip_prefix("child ").unwrap().to_owned();
    let other = agent.connect(pid);
    let whole = events.rest();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(whole.end.is_null());
    let text = "killed: command timeout of 1 s";
    assert_eq!(
        whole.error,
        json!({ "code": "deadline_exceeded", "message": text })
    );
    wait_for("the child is gone", || is_gone(&child));
    // Whoever else looks on, then or later, is told the same in the end event.
    for events in [other, agent.connect(pid)] {
        let whole = events.rest();
        assert_eq!(
            whole.end,
            json!({ "exitCode": -1, "status": "signal: killed", "error": text })
        );
    }
    let text = agent
        .call("SendInput", &json!({ "process": { "pid": pid } }))
        .failed(404, "not_found");
    assert!(text.contains("killed: command timeout of 1 s"), "{text}");
}

#[test]
fn timeout_of_a_connection_ends_only_that() {
    let agent = Agent::start();
    let mut events = agent.sh("exec sleep 1000");
    let pid = events.pid();
    let request = json!({ "process": { "pid": pid } });
    let whole = agent
        .stream("Connect", &request, &[("Connect-Timeout-Ms", "100")])
        .rest();
    assert_eq!(whole.error["code"], "deadline_exceeded");
    assert_eq!(agent.pids(), [pid]);
}

#[test]
fn process_outlives_its_client() {
    let agent = Agent::start();
    let mut events = agent.sh_with("read x; echo $x", json!({ "tag": "mine" }), &[]);
    let pid = events.pid();
    drop(events);
    let list = agent.call("List", &json!({})).ok();
    assert_eq!(list["processes"][0]["tag"], "mine");
    assert_eq!(list["processes"][0]["config"]["cmd"], "/bin/sh");
    let events = agent.stream("Connect", &json!({ "process": { "tag": "mine" } }), &[]);
    let input =
        json!({ "process": { "pid": pid }, "input": { "stdin": crate::stand::coded(b"on\n") } });
    agent.call("SendInput", &input).ok();
    assert_eq!(events.rest().ok(), "on\n");
    assert!(agent.pids().is_empty());
}
