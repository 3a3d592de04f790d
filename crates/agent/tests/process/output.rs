//! Output arrives whole, in order and bounded, whoever reads it how.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::stand::{Agent, Frame, wait_for};

/// More than the agent may ever hold, in kB: rings, buffers and itself.
const MAX_AGENT_KIB: u64 = 40 * 1024;

#[test]
fn ten_megabytes_in_one_line() {
    let agent = Agent::start();
    let whole = agent
        .sh("head -c 10000000 /dev/zero | tr '\\0' a; printf END")
        .rest();
    assert_eq!(whole.stdout.len(), 10_000_003);
    assert!(whole.stdout.ends_with(b"aaaEND"));
    assert!(agent.status_kib("VmHWM") < MAX_AGENT_KIB);
}

#[test]
fn bytes_that_are_no_text() {
    let agent = Agent::start();
    let whole = agent
        .sh("printf '\\377\\000\\303(\\n'; printf '\\200' >&2")
        .rest();
    assert_eq!(whole.stdout, b"\xff\0\xc3(\n");
    assert_eq!(whole.stderr, b"\x80");
}

#[test]
fn output_of_the_last_microsecond() {
    let agent = Agent::start();
    for round in 0..100 {
        // As much as a pipe holds is left in it when the writer is gone.
        let whole = agent.sh("head -c 65536 /dev/zero; kill -9 $$").rest();
        assert_eq!(whole.stdout.len(), 65536, "round {round}");
        assert_eq!(whole.end["status"], "signal: killed");
        let whole = agent.sh("exec printf last").rest();
        assert_eq!(whole.stdout, b"last", "round {round}");
    }
}

#[test]
fn child_left_behind_does_not_hold_the_end_back() {
    let agent = Agent::start();
    let mark = agent.at("mark");
    let script = format!(
        "(while [ ! -e {mark}.go ]; do sleep 0.01; done; echo late; echo later >&2; touch {mark}) & echo first"
    );
    let whole = agent.sh(&script).rest();
    assert_eq!(whole.ok(), "first\n");
    // It goes on, is not stopped by a broken pipe, and what it writes is kept.
    std::fs::write(format!("{mark}.go"), "").unwrap();
    wait_for("the child went on", || std::path::Path::new(&mark).exists());
    wait_for("its output is kept", || {
        let target = format!("/processes/{}/output", whole.pid);
        let kept = crate::wire::Reply::read(agent.control(&target, &[]), false).json();
        kept["last"] == json!(17)
    });
    // One that never stops writing does not, either.
    assert_eq!(agent.sh("yes & echo").rest().end["exited"], true);
}

#[test]
fn slow_reader_loses_nothing_and_costs_nothing() {
    let agent = Agent::start();
    let mut events = agent.sh("head -c 60000000 /dev/zero; echo END");
    let pid = events.pid();
    // Nobody reads until everything between is full and the writer stands still.
    let mut before = 0;
    wait_for("the process waits for its reader", || {
        let io = std::fs::read_to_string(format!("/proc/{}/status", child_of(pid))).unwrap();
        let now = switches(&io);
        thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut before, now) == now
    });
    let whole = events.rest();
    assert_eq!(whole.stdout.len(), 60_000_004);
    assert!(agent.status_kib("VmHWM") < MAX_AGENT_KIB);
}

fn child_of(pid: u64) -> String {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut child = String::new();
    wait_for("the shell started its command", || {
        child = std::fs::read_to_string(&path).unwrap().trim().to_owned();
        !child.is_empty()
    });
    child
}

fn switches(status: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn reader_that_stands_still_is_cut_off_and_the_process_goes_on() {
    let agent = Agent::start();
    let mark = agent.at("done");
    let begun = Instant::now();
    let mut slow = agent.sh(&format!(
        "head -c 60000000 /dev/zero; touch {mark}; sleep 1000"
    ));
    let pid = slow.pid();
    let mut quick = agent.connect(pid);
    thread::spawn(move || while let Frame::Event(_) = quick.next() {});
    let mark = std::path::Path::new(&mark);
    while !mark.exists() {
        assert!(
            begun.elapsed() < Duration::from_secs(90),
            "it waits for ever"
        );
        thread::sleep(Duration::from_millis(50));
    }
    assert!(
        begun.elapsed() >= Duration::from_secs(30),
        "it did not wait"
    );
    let whole = slow.rest();
    assert_eq!(whole.error["code"], "resource_exhausted", "{}", whole.error);
    assert!(whole.end.is_null());
    assert_eq!(agent.pids(), [pid]);
}

#[test]
fn nobody_reads_and_nothing_stops() {
    let agent = Agent::start();
    let mut events = agent.sh("read x < /dev/zero & head -c 30000000 /dev/zero; exec sleep 1000");
    let pid = events.pid();
    drop(events);
    wait_for("all was written", || {
        let kept = crate::wire::Reply::read(
            agent.control(&format!("/processes/{pid}/output?offset=29999999"), &[]),
            false,
        );
        kept.json()["last"] == json!(30_000_000)
    });
    assert!(agent.status_kib("VmHWM") < MAX_AGENT_KIB);
    assert_eq!(agent.pids(), [pid]);
}

#[test]
fn several_readers_get_copies_from_when_they_came() {
    let agent = Agent::start();
    let mut first = agent.sh_with("echo one; read x; echo two; exit 5", json!({}), &[]);
    let pid = first.pid();
    first.until("one\n");
    let mut second = agent.connect(pid);
    assert_eq!(second.pid(), pid);
    let input =
        json!({ "process": { "pid": pid }, "input": { "stdin": crate::stand::coded(b"\n") } });
    agent.call("SendInput", &input).ok();
    for events in [first, second] {
        let whole = events.rest();
        assert_eq!(whole.stdout, b"two\n");
        assert_eq!(whole.end["exitCode"], 5);
    }
    // Late: the end, and nothing again.
    let whole = agent.connect(pid).rest();
    assert_eq!((whole.pid, whole.stdout.len()), (pid, 0));
    assert_eq!(whole.end["status"], "exit status 5");
}

#[test]
fn signs_of_life_on_a_silent_stream() {
    let agent = Agent::start();
    let header = [("Keepalive-Ping-Interval", "1")];
    let mut events = agent.sh_with("exec sleep 1000", json!({}), &header);
    events.pid();
    match events.next() {
        Frame::Event(event) => assert_eq!(event, json!({ "keepalive": {} })),
        Frame::Last(last) => panic!("{last}"),
    }
    // Nonsense counts as the default, which is too long to see here.
    for value in ["0", "-1", "x"] {
        let header = [("Keepalive-Ping-Interval", value)];
        let whole = agent.sh_with("sleep 1.2", json!({}), &header).rest();
        assert_eq!(whole.keepalives, 0, "{value}");
    }
}
