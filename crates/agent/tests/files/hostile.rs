//! Clients that are slow, wrong, large or suddenly gone.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::harness::{Agent, Answer, Reply, gzip, head, wait_for};

type Headers<'a> = &'a [(&'a str, &'a str)];

const MIB: usize = 1 << 20;
/// What the agent may hold at its peak, whatever clients do.
const MEMORY: u64 = 48 << 20;
const OCTETS: (&str, &str) = ("Content-Type", "application/octet-stream");
const CHUNKED: (&str, &str) = ("Transfer-Encoding", "chunked");

#[test]
fn a_gibibyte_both_ways_in_constant_memory() {
    let agent = Agent::start();
    let size = 1024 * MIB;
    let mut stream = agent.connect();
    let request = head(
        "POST",
        "/files?path=big",
        &[OCTETS, ("Content-Length", &size.to_string())],
    );
    stream
        .write_all(format!("{request}\r\n").as_bytes())
        .unwrap();
    let piece = vec![0; MIB];
    for _ in 0..1024 {
        stream.write_all(&piece).unwrap();
    }
    Reply::read(stream, false).ok();
    assert_eq!(fs::metadata(agent.at("big")).unwrap().len(), 1 << 30);
    assert!(agent.peak_memory() < MEMORY, "{}", agent.peak_memory());

    for accept in ["identity", "gzip"] {
        let mut stream = agent.connect();
        let request = head("GET", "/files?path=big", &[("Accept-Encoding", accept)]);
        stream
            .write_all(format!("{request}\r\n").as_bytes())
            .unwrap();
        let answer = Answer::read(stream);
        let body: Box<dyn std::io::Read> = match accept {
            "gzip" => Box::new(flate2::read::GzDecoder::new(answer.body)),
            _ => Box::new(answer.body),
        };
        assert_eq!(drain(body), 1 << 30, "{accept}");
    }
    assert!(agent.peak_memory() < MEMORY, "{}", agent.peak_memory());
}

fn drain(mut body: impl std::io::Read) -> u64 {
    std::io::copy(&mut body, &mut std::io::sink()).unwrap()
}

#[test]
fn small_gzip_of_something_large() {
    let agent = Agent::start();
    // Half a gigabyte of zeros, a thousandth in size.
    let zipped = gzip(&vec![0; 64 * MIB]).repeat(8);
    agent
        .put("bomb", &[("Content-Encoding", "gzip")], &zipped)
        .ok();
    assert_eq!(fs::metadata(agent.at("bomb")).unwrap().len(), 512 << 20);
    assert!(agent.peak_memory() < MEMORY, "{}", agent.peak_memory());
}

#[test]
fn slow_readers_hold_little_and_others_go_on() {
    let agent = Agent::start();
    fs::File::create(agent.at("sparse"))
        .unwrap()
        .set_len(5 << 30)
        .unwrap();
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = agent.connect();
            let request = head("GET", "/files?path=sparse", &[]);
            stream
                .write_all(format!("{request}\r\n").as_bytes())
                .unwrap();
            let mut answer = Answer::read(stream);
            assert_eq!(answer.headers["content-length"], (5u64 << 30).to_string());
            let mut byte = [1];
            answer.body.read_exact(&mut byte).unwrap();
            answer
        })
        .collect();
    agent.put("quick", &[], b"x").ok();
    assert_eq!(agent.get("/files?path=quick").body, b"x");
    assert!(agent.peak_memory() < MEMORY, "{}", agent.peak_memory());
    drop(slow);
}

#[test]
fn slow_writers_arrive_in_the_end() {
    let agent = Agent::start();
    let mut stream = agent.connect();
    let request = head("POST", "/files?path=slow", &[OCTETS, CHUNKED]);
    stream
        .write_all(format!("{request}\r\n").as_bytes())
        .unwrap();
    for byte in b"slowly" {
        stream
            .write_all(&[b'1', b'\r', b'\n', *byte, b'\r', b'\n'])
            .unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!agent.at("slow").exists(), "nobody sees half of it");
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    Reply::read(stream, false).ok();
    assert_eq!(agent.read("slow"), b"slowly");
}

#[test]
fn a_client_that_goes_away_leaves_no_trace() {
    let agent = Agent::start();
    fs::write(agent.at("f"), "old").unwrap();
    let form = ("Content-Type", "multipart/form-data; boundary=B");
    let part = "--B\r\nContent-Disposition: form-data; name=file; filename=f\r\n\r\nnew content";
    let two =
        format!("{part}\r\n--B\r\nContent-Disposition: form-data; name=file; filename=g\r\n\r\n");
    let gzipped = gzip(&[7; 100_000]);
    let cut = &gzipped[..gzipped.len() / 2];
    let cases: [(Headers<'_>, &[u8]); 5] = [
        (&[OCTETS, ("Content-Length", "1000")], b"half"),
        (&[OCTETS, CHUNKED], b"4\r\nhalf\r\n"),
        (&[form, ("Content-Length", "100000")], part.as_bytes()),
        (&[form, ("Content-Length", "100000")], two.as_bytes()),
        (
            &[
                OCTETS,
                ("Content-Encoding", "gzip"),
                ("Content-Length", "100000"),
            ],
            cut,
        ),
    ];
    for (headers, body) in cases {
        let mut stream = agent.connect();
        let request = head("POST", "/files?path=f", headers);
        let request = if headers[0] == form {
            request.replace("?path=f", "")
        } else {
            request
        };
        stream
            .write_all(format!("{request}\r\n").as_bytes())
            .unwrap();
        stream.write_all(body).unwrap();
        wait_for("the upload has begun", || agent.names().len() > 1);
        drop(stream);
        wait_for("nothing is left of it", || agent.names() == ["f"]);
        assert_eq!(agent.read("f"), b"old");
    }
}

#[test]
fn truncated_and_malformed_bodies() {
    let agent = Agent::start();
    fs::write(agent.at("f"), "old").unwrap();
    let post = |content_type: &str, body: &[u8]| {
        agent.send(
            "POST",
            "/files?path=f",
            &[("Content-Type", content_type)],
            body,
        )
    };
    let whole = b"--B\r\nContent-Disposition: form-data; name=file\r\n\r\nnew\r\n--B--";
    for length in 0..whole.len() {
        post("multipart/form-data; boundary=B", &whole[..length]).refused(400);
    }
    post("multipart/form-data; boundary=C", whole).refused(400);
    post("multipart/form-data", whole).refused(400);
    post("multipart/form-data; boundary=", whole).refused(400);
    post(
        &format!("multipart/form-data; boundary={}", "b".repeat(5000)),
        whole,
    )
    .refused(400);
    post("multipart/mixed; boundary=B", whole).refused(400);
    post("text/plain", b"x").refused(400);
    post("", b"x").refused(400);
    let endless = [&b"--B\r\nX: "[..], &vec![b'x'; 4 * MIB]].concat();
    post("multipart/form-data; boundary=B", &endless).refused(400);
    let zipped = gzip(&b"text".repeat(1000));
    let gzipped = ("Content-Encoding", "gzip");
    for bad in [
        &zipped[..zipped.len() - 1],
        &zipped[..20],
        b"",
        b"plain",
        &[&zipped[..], b"x"].concat(),
    ] {
        agent.put("f", &[gzipped], bad).refused(400);
    }
    assert_eq!(agent.read("f"), b"old");
    assert_eq!(agent.names(), ["f"]);
    post("multipart/form-data; boundary=B", whole).ok();
    assert_eq!(agent.read("f"), b"new");
    assert!(agent.peak_memory() < MEMORY, "{}", agent.peak_memory());
}

#[test]
fn paths_of_every_kind() {
    let agent = Agent::start();
    let inside = agent.at("in");
    fs::create_dir(&inside).unwrap();
    let put = |path: &str| agent.put(path, &[], b"x");
    // `..` is taken by its text, encoded once and no more.
    put("in/../a").ok();
    put("in%2f..%2fb").ok();
    put("%252e%252e%252fc").ok();
    let mut names = agent.names();
    names.sort();
    assert_eq!(names, ["%2e%2e%2fc", "a", "b", "in"]);
    // Look-alikes are names like any other.
    put("%E2%80%A4%E2%80%A4%E2%88%95d").ok();
    assert!(agent.at("\u{2024}\u{2024}\u{2215}d").exists());
    for bad in [
        "a%00b",
        "%ff",
        "%",
        "%zz",
        "in",
        "a/x",
        "/",
        "",
        &"p".repeat(256),
    ] {
        put(bad).refused(400);
    }
    let message = put(&"a/".repeat(30 * 1024)).refused(400);
    assert!(message.contains("4095"), "{message}");
    let get = agent.get(&format!("/files?path={}", "a/".repeat(30 * 1024)));
    assert!(get.refused(400).contains("4095"));
    // Even longer does not fit a request, but a form.
    let long = "a/".repeat(32 * 1024);
    assert_eq!(agent.get(&format!("/files?path={long}")).status, 414);
    let reply = agent.get(&format!("/files?path={}", long.repeat(8)));
    assert!(matches!(reply.status, 414 | 431), "{}", reply.status);
    for (length, text) in [(5_000, "4095"), (65_536, "headers")] {
        let disposition = format!(r#"name="file"; filename="{}""#, "n".repeat(length));
        let message = agent.form("/files", &[(&disposition, b"x")]).refused(400);
        assert!(message.contains(text), "{message}");
    }
    assert_eq!(agent.get("/files?path=a").body, b"x");
}

#[test]
fn links_lead_where_they_say() {
    let agent = Agent::start();
    fs::create_dir(agent.at("d")).unwrap();
    symlink("../target", agent.at("d/link")).unwrap();
    agent.put("d/link", &[], b"through").ok();
    assert_eq!(agent.read("target"), b"through");
    assert!(agent.at("d/link").is_symlink());
    assert_eq!(agent.get("/files?path=d/link").body, b"through");
    symlink("/dev/zero", agent.at("zero")).unwrap();
    agent.get("/files?path=zero").refused(400);
    agent.put("zero", &[], b"x").refused(400);
    // A name that turns into a device while it is read or written never hangs the agent.
    let fifo = agent.at("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    agent.get("/files?path=fifo").refused(400);
    agent.put("fifo", &[], b"x").refused(400);
}
