//! `filesystem.Filesystem`, unary calls.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use serde_json::{Value, json};

use crate::harness::Agent;

#[test]
fn stat_says_all_of_it() {
    let agent = Agent::start();
    fs::write(agent.at("f.txt"), "12345").unwrap();
    let entry = agent.call("Stat", &json!({ "path": "f.txt" })).ok()["entry"].clone();
    let path = agent.at("f.txt");
    assert_eq!(entry["name"], "f.txt");
    assert_eq!(entry["type"], "FILE_TYPE_FILE");
    assert_eq!(entry["path"], path.to_str().unwrap());
    assert_eq!(entry["size"], "5");
    assert_eq!(entry["mode"], 0o644);
    assert_eq!(entry["permissions"], "-rw-r--r--");
    assert_eq!(
        (&entry["owner"], &entry["group"]),
        (&json!("root"), &json!("root"))
    );
    assert!(
        entry["modifiedTime"].as_str().unwrap().ends_with('Z'),
        "{entry}"
    );
    assert_eq!(entry.get("symlinkTarget"), None);
    assert_eq!(entry.get("isSymlink"), None);

    symlink("f.txt", agent.at("l")).unwrap();
    let entry = agent.call("Stat", &json!({ "path": "l" })).ok()["entry"].clone();
    assert_eq!(entry["type"], "FILE_TYPE_FILE");
    assert_eq!(entry["symlinkTarget"], path.to_str().unwrap());
    assert_eq!(entry["isSymlink"], true);
    assert_eq!(entry["permissions"], "Lrwxrwxrwx");

    agent
        .call("Stat", &json!({ "path": "no" }))
        .failed(404, "not_found");
}

#[test]
fn directories() {
    let agent = Agent::start();
    let basic = ("Authorization", "Basic ZGFlbW9uOg==");
    let made = agent
        .call_with("MakeDir", &json!({ "path": "b/c" }), &[basic])
        .ok();
    assert_eq!(made["entry"]["permissions"], "drwxr-xr-x");
    assert_eq!(made["entry"]["owner"], "daemon");
    assert_eq!(fs::metadata(agent.at("b")).unwrap().uid(), 1);
    agent
        .call("MakeDir", &json!({ "path": "b/c" }))
        .failed(409, "already_exists");
    fs::write(agent.at("b/f"), "").unwrap();
    agent
        .call("MakeDir", &json!({ "path": "b/f" }))
        .failed(400, "invalid_argument");

    fs::write(agent.at("a"), "").unwrap();
    fs::write(agent.at("b.txt"), "").unwrap();
    let list = |message: Value| {
        let listed = agent.call("ListDir", &message).ok();
        let entries = listed["entries"].as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().to_owned())
            .map(|path| path.replace(&format!("{}/", agent.root().display()), ""))
            .collect::<Vec<_>>()
    };
    assert_eq!(list(json!({ "path": "" })), ["a", "b", "b.txt"]);
    assert_eq!(
        list(json!({ "path": ".", "depth": 2 })),
        ["a", "b", "b/c", "b/f", "b.txt"]
    );
    assert!(list(json!({ "path": "b/c" })).is_empty());
    symlink("b", agent.at("l")).unwrap();
    assert_eq!(list(json!({ "path": "l" })), ["l/c", "l/f"]);
    symlink("loop", agent.at("loop")).unwrap();
    let fails = |path: &str, status: u16, code: &str| {
        agent
            .call("ListDir", &json!({ "path": path }))
            .failed(status, code);
    };
    fails("no", 404, "not_found");
    fails("a", 400, "invalid_argument");
    fails("loop", 400, "failed_precondition");
}

#[test]
fn moves_and_removals() {
    let agent = Agent::start();
    fs::write(agent.at("f"), "x").unwrap();
    let moved = agent
        .call("Move", &json!({ "source": "f", "destination": "new/g" }))
        .ok();
    assert_eq!(moved["entry"]["path"], agent.at("new/g").to_str().unwrap());
    agent
        .call("Move", &json!({ "source": "f", "destination": "h" }))
        .failed(404, "not_found");
    agent.call("Remove", &json!({ "path": "new" })).ok();
    assert!(agent.names().is_empty());
    agent.call("Remove", &json!({ "path": "new" })).ok();
    fs::write(agent.at("kept"), "").unwrap();
    for nothing in ["/", "", ".", "./", "~", "//"] {
        agent
            .call("Remove", &json!({ "path": nothing }))
            .failed(400, "invalid_argument");
    }
    assert_eq!(agent.names(), ["kept"]);
}

#[test]
fn users_and_bad_paths() {
    let agent = Agent::start();
    let stat = |path: &str, headers: &[(&str, &str)]| {
        agent.call_with("Stat", &json!({ "path": path }), headers)
    };
    // `~` is the home of whoever asks.
    assert_eq!(stat("~", &[]).ok()["entry"]["path"], "/root");
    let daemon = ("Authorization", "Basic ZGFlbW9uOg==");
    assert_eq!(stat("~", &[daemon]).ok()["entry"]["path"], "/usr/sbin");
    let nobody = ("Authorization", "Basic bm8tb25lOg==");
    let message = stat("f", &[nobody]).failed(401, "unauthenticated");
    assert_eq!(message, "invalid username: 'no-one'");
    stat("f", &[("Authorization", "Basic ???")]).failed(401, "unauthenticated");
    let bad = |path: &str| stat(path, &[]).failed(400, "invalid_argument");
    assert!(bad("a\0b").contains("NUL"));
    assert!(bad(&"a/".repeat(32 * 1024)).contains("4095"));
    assert!(bad(&"n".repeat(256)).contains("255"));
    for strange in [
        "%2e%2e/%2e%2e/etc",
        "..%2f",
        "\u{2024}\u{2024}/x",
        "a\nb",
        "\u{202e}txt",
    ] {
        stat(strange, &[]).failed(404, "not_found");
    }
    // Malformed messages are refused, and the agent goes on.
    let kind = ("Content-Type", "application/json");
    for body in [&b"{"[..], b"{\"path\":5}", b"\xff", &b"[".repeat(100_000)] {
        let reply = agent.send("POST", "/filesystem.Filesystem/Stat", &[kind], body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(10)]);
        assert_eq!(reply.status, 400, "{shown}: {}", reply.text());
    }
    stat("", &[]).ok();
}
