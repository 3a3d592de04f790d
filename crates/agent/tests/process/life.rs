//! The agent as PID 1: it reaps what others leave, without stealing what is its own.

use serde_json::json;

use crate::stand::{Agent, wait_for};

const AS_INIT: &str = "exec unshare --pid --fork --mount-proc --kill-child \"$0\"";

#[test]
fn orphans_are_reaped_and_exit_codes_are_kept() {
    let agent = Agent::start_as(AS_INIT);
    assert_eq!(agent.sh("cat /proc/1/comm").rest().ok(), "hearth-agent\n");
    let started: Vec<_> = (0..50)
        .map(|code| agent.sh(&format!("(sleep 0.1 &) ; (exit 1 &) ; exit {code}")))
        .collect();
    for (code, events) in started.into_iter().enumerate() {
        let whole = events.rest();
        assert_eq!(whole.end["status"], format!("exit status {code}"));
    }
    // Every orphan ends, and none stays as a zombie.
    let script = "while [ \"$(ls -d /proc/[0-9]* | wc -l)\" -gt 4 ]; do sleep 0.02; done";
    agent.sh(script).rest().ok();
    assert_no_zombies(&agent);
}

/// Reaping follows an end closely, not at once.
fn assert_no_zombies(agent: &Agent) {
    wait_for("no zombie is left", || {
        let whole = agent.sh("cat /proc/[0-9]*/stat").rest();
        let text = String::from_utf8(whole.stdout).unwrap();
        assert!(text.starts_with("1 (hearth-agent)"), "{text}");
        !text.contains(") Z ")
    });
}

#[test]
fn asking_it_to_end_does_not_end_it() {
    let agent = Agent::start_as(AS_INIT);
    agent
        .sh("kill -TERM 1; kill -INT 1; kill -HUP 1; kill -KILL 1; kill -CHLD 1; :")
        .rest();
    assert_eq!(agent.sh("echo lives").rest().ok(), "lives\n");
    // A failed start leaves nothing behind either.
    let request = json!({ "process": { "cmd": "/nothing" } });
    for _ in 0..20 {
        agent
            .stream("Start", &request, &[])
            .failed("invalid_argument");
    }
    assert_no_zombies(&agent);
}
