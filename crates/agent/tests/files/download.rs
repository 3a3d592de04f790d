//! `GET /files` in all its forms.

use std::fs;

use crate::harness::{Agent, gunzip};

#[test]
fn content_and_headers() {
    let agent = Agent::start();
    fs::write(agent.at("a b.txt"), "hello").unwrap();
    let reply = agent.get("/files?path=a%20b.txt");
    assert_eq!((reply.status, &*reply.body), (200, &b"hello"[..]));
    assert_eq!(reply.header("content-length"), "5");
    assert_eq!(
        reply.header("content-disposition"),
        "inline; filename=\"a b.txt\""
    );
    assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(reply.header("accept-ranges"), "bytes");
    assert_eq!(reply.header("access-control-allow-origin"), "*");

    let reply = agent.send("HEAD", "/files?path=a%20b.txt", &[], b"");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-length"), "5");

    fs::write(agent.at("empty"), "").unwrap();
    for headers in [&[][..], &[("Accept-Encoding", "gzip")]] {
        let reply = agent.send("GET", "/files?path=empty", headers, b"");
        assert_eq!((reply.status, reply.header("content-length")), (200, "0"));
        assert_eq!(reply.header("content-encoding"), "");
        assert!(reply.body.is_empty());
    }
}

#[test]
fn files_whose_size_is_a_lie() {
    let agent = Agent::start();
    let reply = agent.get("/files?path=/proc/sys/kernel/random/boot_id");
    assert_eq!(
        reply.body,
        fs::read("/proc/sys/kernel/random/boot_id").unwrap()
    );
    // A page by its inode, a few bytes in truth.
    let reply = agent.get("/files?path=/sys/kernel/mm/transparent_hugepage/enabled");
    if reply.status == 200 {
        assert!(!reply.body.is_empty() && reply.body.len() < 4096);
    }
}

#[test]
fn ranges_and_conditions() {
    let agent = Agent::start();
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    fs::write(agent.at("f"), &content).unwrap();
    let get = |headers: &[(&str, &str)]| agent.send("GET", "/files?path=f", headers, b"");
    for (range, from, to) in [
        ("bytes=0-9", 0, 10),
        ("bytes=131071-131073", 131_071, 131_074),
        ("bytes=299999-", 299_999, 300_000),
        ("bytes=-5", 299_995, 300_000),
    ] {
        let reply = get(&[("Range", range), ("Accept-Encoding", "gzip")]);
        assert_eq!(reply.status, 206, "{range}");
        assert_eq!(reply.body, content[from..to], "{range}");
        let expected = format!("bytes {from}-{}/300000", to - 1);
        assert_eq!(reply.header("content-range"), expected);
        assert_eq!(reply.header("content-encoding"), "");
    }
    let reply = get(&[("Range", "bytes=300000-")]);
    assert_eq!(reply.header("content-range"), "bytes */300000");
    reply.refused(416);
    let reply = get(&[("Range", "bytes=0-1,5-6")]);
    assert_eq!((reply.status, reply.body.len()), (200, 300_000));

    let modified = get(&[]).header("last-modified").to_owned();
    let reply = get(&[("If-Modified-Since", &modified)]);
    assert_eq!(reply.status, 304);
    let reply = get(&[("If-Range", &modified), ("Range", "bytes=0-0")]);
    assert_eq!((reply.status, reply.body.len()), (206, 1));
    get(&[("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT")]).refused(412);
}

#[test]
fn encodings() {
    let agent = Agent::start();
    let text = b"text ".repeat(200_000);
    fs::write(agent.at("f"), &text).unwrap();
    let get =
        |accept: &str| agent.send("GET", "/files?path=f", &[("Accept-Encoding", accept)], b"");
    let reply = get("gzip");
    assert_eq!(reply.header("content-encoding"), "gzip");
    assert_eq!(reply.header("vary"), "Accept-Encoding");
    assert!(reply.body.len() < text.len() / 10);
    assert_eq!(gunzip(&reply.body), text);
    let reply = get("br, identity");
    assert_eq!((reply.header("content-encoding"), &reply.body), ("", &text));
    get("br, identity;q=0").refused(406);
}

#[test]
fn refusals() {
    let agent = Agent::start();
    fs::create_dir(agent.at("d")).unwrap();
    fs::write(agent.at("f"), "").unwrap();
    std::os::unix::fs::symlink("loop", agent.at("loop")).unwrap();
    let get = |path: &str| agent.get(&format!("/files?path={path}"));
    assert_eq!(
        get("no").refused(404),
        format!("path '{}' does not exist", agent.at("no").display())
    );
    get("d").refused(400);
    get("").refused(400);
    get("f/x").refused(400);
    get("loop").refused(400);
    get("/dev/zero").refused(400);
    get("f&username=nobody-here").refused(401);
    agent.get("/files").refused(400);
}
