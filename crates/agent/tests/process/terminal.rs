//! Processes with a terminal.

use serde_json::{Value, json};

use crate::stand::{Agent, Events, coded};

fn open(agent: &Agent, script: &str, cols: u32, rows: u32) -> (Events, u64) {
    let more = json!({ "pty": { "size": { "cols": cols, "rows": rows } } });
    let mut events = agent.sh_with(script, more, &[]);
    let pid = events.pid();
    (events, pid)
}

fn keys(pid: u64, bytes: &[u8]) -> Value {
    json!({ "process": { "pid": pid }, "input": { "pty": coded(bytes) } })
}

#[test]
fn has_the_size_it_is_given() {
    let agent = Agent::start();
    let (mut events, pid) = open(
        &agent,
        "stty size; tty; trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done",
        101,
        33,
    );
    let text = events.until("ready");
    assert!(
        text.contains("33 101\r\n") && text.contains("/dev/pts/"),
        "{text}"
    );
    let resize =
        json!({ "process": { "pid": pid }, "pty": { "size": { "cols": 80, "rows": 24 } } });
    agent.call("Update", &resize).ok();
    let whole = events.rest();
    assert_eq!(whole.terminal, b"24 80\r\n");
    assert_eq!(whole.end["exitCode"], 4);
    assert!(whole.stdout.is_empty() && whole.stderr.is_empty());
    // No size means a usual one.
    let (events, _) = open(&agent, "stty size", 0, 0);
    assert_eq!(events.rest().terminal, b"24 80\r\n");
}

#[test]
fn keys_are_echoed_and_interrupt() {
    let agent = Agent::start();
    let (mut events, pid) = open(
        &agent,
        "echo ready; read x; echo got $x; exec sleep 1000",
        80,
        24,
    );
    events.until("ready");
    agent.call("SendInput", &keys(pid, b"word\r")).ok();
    let text = events.until("got word");
    assert!(text.contains("word\r\ngot word"), "{text}");
    let stdin = json!({ "process": { "pid": pid }, "input": { "stdin": coded(b"x") } });
    agent
        .call("SendInput", &stdin)
        .failed(400, "failed_precondition");
    let select = json!({ "process": { "pid": pid } });
    agent
        .call("CloseStdin", &select)
        .failed(400, "failed_precondition");
    // Control-C reaches the foreground by the terminal.
    agent.call("SendInput", &keys(pid, b"\x03")).ok();
    assert_eq!(events.rest().end["status"], "signal: interrupt");
}

#[test]
fn interactive_shell_works_and_hangs_up() {
    let agent = Agent::start();
    let request = json!({
        "process": { "cmd": "/bin/bash", "args": ["-i", "-l"], "envs": { "TERM": "xterm-256color" } },
        "pty": { "size": { "cols": 80, "rows": 24 } },
    });
    let mut events = agent.stream("Start", &request, &[]);
    let pid = events.pid();
    agent
        .call("SendInput", &keys(pid, b"sleep 1000 & echo \"job <$!>\"\n"))
        .ok();
    let text = events.until(">\r\n");
    let job = text
        .rsplit_once('<')
        .unwrap()
        .1
        .split('>')
        .next()
        .unwrap()
        .to_owned();
    let job: u64 = job.parse().unwrap();
    agent.call("SendInput", &keys(pid, b"exit 9\n")).ok();
    assert_eq!(events.rest().end["exitCode"], 9);
    let kill = json!({ "process": { "pid": job }, "signal": 9 });
    agent.call("SendSignal", &kill).failed(404, "not_found");
    let raw = i32::try_from(job).unwrap();
    // Ours to clean up, when the shell left it running.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(raw), nix::sys::signal::SIGKILL);
}

#[test]
fn large_output_through_a_terminal() {
    let agent = Agent::start();
    let (events, _) = open(
        &agent,
        "head -c 1000000 /dev/zero | tr '\\0' x; echo",
        80,
        24,
    );
    let whole = events.rest();
    assert_eq!(whole.terminal.len(), 1_000_002);
}
