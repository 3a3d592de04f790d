//! What a started process is: its user, directory, environment, program and end.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::stand::{Agent, coded};

#[test]
fn streams_start_output_and_end() {
    let agent = Agent::start();
    let events = agent.sh("echo out; echo err >&2");
    assert_eq!(events.headers["x-accel-buffering"], "no");
    assert_eq!(events.headers["content-type"], "application/connect+json");
    let whole = events.rest();
    assert!(whole.pid > 0);
    assert_eq!(whole.stdout, b"out\n");
    assert_eq!(whole.stderr, b"err\n");
    // A zero exit code is left out, as proto3 JSON leaves out every default.
    assert_eq!(
        whole.end,
        json!({ "exited": true, "status": "exit status 0" })
    );
    assert!(whole.error.is_null());
}

#[test]
fn end_says_how() {
    let agent = Agent::start();
    let check = |script: &str, expected| assert_eq!(agent.sh(script).rest().end, expected);
    check(
        "exit 7",
        json!({ "exitCode": 7, "exited": true, "status": "exit status 7", "error": "exit status 7" }),
    );
    check(
        "kill -9 $$",
        json!({ "exitCode": -1, "status": "signal: killed", "error": "signal: killed" }),
    );
    // A real-time signal has no name, and must not confuse whoever waits.
    check(
        "kill -40 $$",
        json!({ "exitCode": -1, "status": "signal: signal 40", "error": "signal: signal 40" }),
    );
}

#[test]
fn environment_is_the_users_then_the_sandboxs_then_the_requests() {
    let agent = Agent::start();
    let more = json!({ "process": { "envs": { "BOTH": "2", "MINE": "a b=c" } }, "stdin": false });
    let text = agent.sh_with("env", more, &[]).rest().ok();
    let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line} not in {text}");
    has("HOME=/root");
    has("USER=root");
    has("LOGNAME=root");
    has("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    has("SANDBOX=yes");
    has("BOTH=2");
    has("MINE=a b=c");

    for name in ["", "A=B", "A\0B"] {
        let more = json!({ "process": { "envs": { name: "x" } } });
        let text = agent.sh_with("true", more, &[]).failed("invalid_argument");
        assert!(text.contains("process.envs"), "{text}");
    }
    let more = json!({ "process": { "envs": { "A": "x\0y" } } });
    agent.sh_with("true", more, &[]).failed("invalid_argument");
}

#[test]
fn runs_as_the_user_that_basic_names() {
    let agent = Agent::start();
    let basic = |name: &str| format!("Basic {}", coded(format!("{name}:").as_bytes()));
    let run = |name: &str| {
        let header = basic(name);
        agent.sh_with(
            "id -u; id -g; id -G; echo $HOME $USER; umask",
            json!({ "stdin": false, "process": { "cwd": "/" } }),
            &[("Authorization", header.as_str())],
        )
    };
    assert_eq!(
        run("daemon").rest().ok(),
        "1\n1\n1\n/usr/sbin daemon\n0022\n"
    );
    assert!(run("root").rest().ok().starts_with("0\n0\n0"));
    assert!(run("").rest().ok().starts_with("0\n0\n0"));
    assert_eq!(
        run("nobody-here").failed("unauthenticated"),
        "invalid username: 'nobody-here'"
    );
    agent
        .sh_with("true", json!({}), &[("Authorization", "Basic %%%")])
        .failed("unauthenticated");
}

#[test]
fn starts_in_the_directory_it_is_told() {
    let agent = Agent::start();
    let within = |cwd: &str| {
        agent.sh_with(
            "pwd",
            json!({ "process": { "cwd": cwd }, "stdin": false }),
            &[],
        )
    };
    assert_eq!(within("").rest().ok(), "/root\n");
    assert_eq!(within("/usr/../tmp").rest().ok(), "/tmp\n");
    assert_eq!(within("~").rest().ok(), "/root\n");
    let name = agent.at("here");
    std::fs::create_dir(&name).unwrap();
    let relative = format!("..{name}");
    assert_eq!(within(&relative).rest().ok(), format!("{name}\n"));
    assert_eq!(
        within("/not/there").failed("invalid_argument"),
        "cwd '/not/there' does not exist"
    );
    assert_eq!(
        within("/etc/passwd").failed("invalid_argument"),
        "cwd '/etc/passwd' is not a directory"
    );
    within("a\0b").failed("invalid_argument");
    // It is there, but not for this user.
    std::fs::set_permissions(&name, std::fs::Permissions::from_mode(0o700)).unwrap();
    let text = agent
        .sh_with(
            "pwd",
            json!({ "process": { "cwd": name } }),
            &[("Authorization", "Basic ZGFlbW9uOg==")],
        )
        .failed("invalid_argument");
    assert!(text.contains("cannot be entered"), "{text}");
}

#[test]
fn program_is_looked_up_and_refused_by_name() {
    let agent = Agent::start();
    let run = |cmd: &str| {
        let request = json!({ "process": { "cmd": cmd, "args": ["x"], "cwd": "/bin" } });
        agent.stream("Start", &request, &[])
    };
    assert_eq!(run("echo").rest().ok(), "x\n");
    assert_eq!(run("./echo").rest().ok(), "x\n");
    assert_eq!(
        run("no-such-command").failed("invalid_argument"),
        "command 'no-such-command' not found"
    );
    assert!(
        run("/etc/passwd")
            .failed("invalid_argument")
            .contains("cannot run")
    );
    assert!(run("").failed("invalid_argument").contains("process.cmd"));
    run("ec\0ho").failed("invalid_argument");
    let request = json!({ "tag": "x" });
    let text = agent
        .stream("Start", &request, &[])
        .failed("invalid_argument");
    assert!(text.contains("process is missing"), "{text}");
}

#[test]
fn fields_of_newer_clients_are_skipped() {
    let agent = Agent::start();
    let more = json!({ "later": { "a": [1] }, "process": { "later": 1 }, "stdin": false });
    assert_eq!(agent.sh_with("echo x", more, &[]).rest().ok(), "x\n");
    agent
        .call("Update", &json!({ "process": { "pid": 4_000_000_000u32 } }))
        .failed(404, "not_found");
    agent
        .call("List", &json!("x"))
        .failed(400, "invalid_argument");
    agent
        .call("Nothing", &json!({}))
        .failed(404, "unimplemented");
}

#[test]
fn nothing_of_the_agent_leaks_into_a_process() {
    let agent = Agent::start();
    let text = agent
        .sh("ls /proc/self/fd; cat /proc/self/status; ulimit -n; exec cat /proc/self/stat")
        .rest()
        .ok();
    let files: Vec<&str> = text.lines().take_while(|line| line.len() < 3).collect();
    // The fourth is the one by which `ls` reads the list.
    assert_eq!(files, ["0", "1", "2", "3"]);
    let mask = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(mask("SigBlk:"), 0);
    // The C library keeps 32 and 33 for itself: they stay as the test was given them.
    assert_eq!(mask("SigIgn:") & !(3 << 31), 0);
    // pid, group and session are one.
    let stat: Vec<&str> = text.lines().last().unwrap().split(' ').collect();
    assert_eq!((stat[0], stat[0]), (stat[4], stat[5]));
}

#[test]
fn own_files_open_again_by_name() {
    let agent = Agent::start();
    let nobody = format!("Basic {}", coded(b"nobody:"));
    let script = "echo out > /dev/stdout; echo err > /dev/stderr; cat < /dev/stdin";
    let more = serde_json::json!({ "stdin": false });
    let whole = agent
        .sh_with(script, more, &[("Authorization", &nobody)])
        .rest();
    assert_eq!(whole.stdout, b"out\n");
    assert_eq!(whole.stderr, b"err\n");
}
