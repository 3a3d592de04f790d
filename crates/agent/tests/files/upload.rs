//! `POST /files` in all its forms.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::json;

use crate::harness::{Agent, Reply, gzip, head};

#[test]
fn answer_is_exact() {
    let agent = Agent::start();
    let path = agent.at("a/b c.txt");
    let path = path.to_str().unwrap();
    let reply = agent.put("a/b%20c.txt", &[], b"hello");
    assert_eq!(
        reply.ok(),
        json!([{ "path": path, "name": "b c.txt", "type": "file" }])
    );
    assert_eq!(agent.read("a/b c.txt"), b"hello");
    let reply = agent.put(
        "a/b+c.txt",
        &[("X-Metadata-Author", "me"), ("x-metadata-B", "")],
        b"",
    );
    assert_eq!(
        reply.ok(),
        json!([{ "path": path, "name": "b c.txt", "type": "file", "metadata": { "author": "me", "b": "" } }])
    );
    assert_eq!(agent.read("a/b c.txt"), b"");
}

#[test]
fn forms_with_and_without_filenames() {
    let agent = Agent::start();
    let absolute = agent.at("sub/abs.txt");
    let disposition = format!(r#"name="file"; filename="{}""#, absolute.display());
    let reply = agent.form(
        "/files",
        &[
            (&disposition, b"one"),
            (r#"name="file"; filename="rel.txt""#, b"two"),
            (r#"name="other""#, b"ignored"),
        ],
    );
    let names: Vec<_> = reply
        .ok()
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["abs.txt", "rel.txt"]);
    assert_eq!(agent.read("sub/abs.txt"), b"one");
    assert_eq!(agent.read("rel.txt"), b"two");

    agent
        .form("/files?path=field", &[(r#"name="file""#, b"plain")])
        .ok();
    assert_eq!(agent.read("field"), b"plain");
    // The query's path is for one file.
    let twice = agent.form(
        "/files?path=field",
        &[(r#"name="file""#, b"1"), (r#"name="file""#, b"2")],
    );
    assert!(twice.refused(400).contains("twice"));
    assert_eq!(agent.read("field"), b"plain");
    assert!(
        agent
            .form("/files", &[(r#"name="file""#, b"1")])
            .refused(400)
            .contains("no filename")
    );
}

#[test]
fn gzip_and_chunked_bodies() {
    let agent = Agent::start();
    let text = b"text ".repeat(100_000);
    agent
        .put("z", &[("Content-Encoding", "gzip")], &gzip(&text))
        .ok();
    assert_eq!(agent.read("z"), text);

    let mut stream = agent.connect();
    let mut request = head(
        "POST",
        "/files?path=chunked",
        &[
            ("Content-Type", "application/octet-stream"),
            ("Transfer-Encoding", "chunked"),
        ],
    );
    request.push_str("\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    Reply::read(stream, false).ok();
    assert_eq!(agent.read("chunked"), b"hello world");

    let reply = agent.put("z", &[("Content-Encoding", "br")], b"x");
    assert!(reply.refused(415).contains("br"));
    assert_eq!(agent.read("z"), text);
}

#[test]
fn owner_and_mode() {
    let agent = Agent::start();
    // Every Debian has `daemon`, uid and gid 1.
    agent.put("d/e/f&username=daemon", &[], b"x").ok();
    for (name, mode) in [("d", 0o40755), ("d/e", 0o40755), ("d/e/f", 0o100_644)] {
        let found = std::fs::metadata(agent.at(name)).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode()),
            (1, 1, mode),
            "{name}"
        );
    }
    let basic = ("Authorization", "Basic ZGFlbW9uOg==");
    agent.put("g", &[basic], b"x").ok();
    assert_eq!(std::fs::metadata(agent.at("g")).unwrap().uid(), 1);
    // The query names the user, whatever the header says.
    agent.put("h&username=root", &[basic], b"x").ok();
    assert_eq!(std::fs::metadata(agent.at("h")).unwrap().uid(), 0);

    let file = agent.at("d/e/f");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).unwrap();
    agent.put("d/e/f", &[], b"changed").ok();
    let found = std::fs::metadata(&file).unwrap();
    assert_eq!((found.uid(), found.mode()), (1, 0o100_751));

    let message = agent.put("x&username=no-such-user", &[], b"x").refused(401);
    assert_eq!(message, "invalid username: 'no-such-user'");
    assert!(!agent.at("x").exists());
}

#[test]
fn metadata_is_kept_replaced_and_shown() {
    let agent = Agent::start();
    let metadata =
        |path: &str| agent.call("Stat", &json!({ "path": path })).ok()["entry"]["metadata"].clone();
    agent
        .put(
            "f",
            &[("X-Metadata-A", "1"), ("X-Metadata-B", "two words")],
            b"x",
        )
        .ok();
    assert_eq!(metadata("f"), json!({ "a": "1", "b": "two words" }));
    let moved = agent
        .call("Move", &json!({ "source": "f", "destination": "g" }))
        .ok();
    assert_eq!(moved["entry"]["metadata"]["a"], "1");
    let listed = agent.call("ListDir", &json!({ "path": "" })).ok();
    assert_eq!(listed["entries"][0]["metadata"]["b"], "two words");
    agent.put("g", &[("X-Metadata-C", "3")], b"x").ok();
    assert_eq!(metadata("g"), json!({ "c": "3" }));
    agent.put("g", &[], b"x").ok();
    assert_eq!(metadata("g"), json!(null));

    let long = "v".repeat(4096);
    for (name, value) in [
        ("X-Metadata-A", "caf\u{e9}"),
        ("X-Metadata-A", "tab\there"),
        ("X-Metadata-", "no key"),
        ("X-Metadata-A", &long),
        (&format!("X-Metadata-{}", "k".repeat(247)), "v"),
    ] {
        agent.put("g", &[(name, value)], b"new").refused(400);
    }
    assert_eq!(agent.read("g"), b"x");
}

#[test]
fn full_disk_is_507_and_the_old_content_stays() {
    let agent = Agent::start_with(
        None,
        r#"exec unshare -m sh -c 'mount -t tmpfs -o size=1m none "$1" && exec "$0"' "$0" "$1""#,
    );
    agent.put("f", &[], b"old").ok();
    // Larger than what the sockets take in: the answer must come through all the same.
    let large = vec![7; 64 << 20];
    assert!(agent.put("f", &[], &large).refused(507).contains("space"));
    assert!(
        agent
            .put("f", &[("Content-Encoding", "gzip")], &gzip(&large))
            .refused(507)
            .contains("space")
    );
    let parts: [(&str, &[u8]); 2] = [
        (r#"name="file"; filename="f""#, b"new"),
        (r#"name="file"; filename="g""#, &large),
    ];
    agent.form("/files", &parts).refused(507);
    let read = |path: &str| agent.get(&format!("/files?path={path}"));
    assert_eq!(read("f").body, b"old");
    read("g").refused(404);
    let listed = agent.call("ListDir", &json!({ "path": "" })).ok();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn composing() {
    let agent = Agent::start();
    let compose = |body: &str| {
        let kind = ("Content-Type", "application/json");
        agent.send("POST", "/files/compose", &[kind], body.as_bytes())
    };
    agent.put("1", &[], b"one").ok();
    agent.put("2", &[], b"two").ok();
    let body = r#"{"source_paths":["2","1"],"destination":"d/all","username":"daemon"}"#;
    let reply = compose(body).ok();
    assert_eq!(reply["path"], agent.at("d/all").to_str().unwrap());
    assert_eq!(agent.read("d/all"), b"twoone");
    assert_eq!(std::fs::metadata(agent.at("d/all")).unwrap().uid(), 1);
    assert_eq!(agent.names(), ["d"]);
    compose(body).refused(404);
    for bad in [
        "",
        "{",
        "[]",
        r#"{"source_paths":"x","destination":"y"}"#,
        r#"{"source_paths":[],"destination":"y"}"#,
    ] {
        compose(bad).refused(400);
    }
    let huge = format!(
        r#"{{"source_paths":["{}"],"destination":"y"}}"#,
        "x".repeat(5 << 20)
    );
    compose(&huge).refused(400);
}
