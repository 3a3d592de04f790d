//! Requests and answers that two readers could split differently.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stand::{Stand, body, canned, listen, named, status};

/// Records every byte it gets and answers 204 once.
async fn recorder(address: std::net::Ipv4Addr) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&seen);
    let port = listen(address, 0, move |mut socket: TcpStream| {
        let seen = Arc::clone(&shared);
        async move {
            let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
            let mut all = Vec::new();
            let _ = socket.read_to_end(&mut all).await;
            seen.lock().unwrap().extend(all);
        }
    })
    .await;
    (port, seen)
}

#[tokio::test]
async fn requests_with_two_lengths() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = crate::stand::http(sandbox.address, 0, crate::stand::mirror).await;
    let inner = format!(
        "GET /smuggled HTTP/1.1\r\nHost: x\r\n{}\r\n",
        named(&sandbox, port)
    );
    for (name, head) in [
        (
            "content-length twice",
            "Content-Length: 5\r\nContent-Length: 6\r\n",
        ),
        ("a list of lengths", "Content-Length: 5, 6\r\n"),
        ("a signed length", "Content-Length: +5\r\n"),
        ("a hex length", "Content-Length: 0x5\r\n"),
        ("a huge length", "Content-Length: 99999999999999999999\r\n"),
        ("an unknown coding", "Transfer-Encoding: xchunked\r\n"),
        (
            "chunked is not last",
            "Transfer-Encoding: chunked, gzip\r\n",
        ),
        ("gzip and chunked", "Transfer-Encoding: gzip, chunked\r\n"),
        (
            "chunked twice",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ),
        ("a space before the colon", "Content-Length : 5\r\n"),
        ("a folded line", "X-A: b\r\n Content-Length: 5\r\n"),
        ("a bare carriage return", "X-A: b\rContent-Length: 5\r\n"),
        ("a NUL", "X-A: b\0\r\n"),
        ("a tab in the name", "Transfer\tEncoding: chunked\r\n"),
    ] {
        let mut client = stand.connect().await;
        client
            .send(format!(
                "POST /outer HTTP/1.1\r\nHost: x\r\n{}{head}\r\nhello{inner}",
                named(&sandbox, port)
            ))
            .await;
        let (all, _) = client.end().await;
        let all = String::from_utf8_lossy(&all);
        assert_eq!(status(&all), 400, "{name}: {all}");
        assert!(!all.contains("smuggled"), "{name}: {all}");
    }
}

/// RFC 9112 6.3 lets chunked win; what matters is that the sandbox gets one reading only.
#[tokio::test]
async fn chunked_beside_a_length_leaves_one_of_them() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    for head in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let (port, seen) = recorder(sandbox.address).await;
        let answer = stand
            .raw(format!(
                "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}{head}\r\n5\r\nhello\r\n0\r\n\r\n",
                named(&sandbox, port)
            ))
            .await;
        assert!(matches!(status(&answer), 204 | 400 | 502), "{answer}");
        crate::stand::eventually(|| !seen.lock().unwrap().is_empty()).await;
        let seen = String::from_utf8(seen.lock().unwrap().clone()).expect("text");
        assert!(
            !seen.to_ascii_lowercase().contains("content-length"),
            "{seen}"
        );
        assert!(seen.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "{seen}");
    }
}

#[tokio::test]
async fn a_body_cannot_become_a_request_inside() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (port, seen) = recorder(sandbox.address).await;
    let hidden = "GET /init HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = stand
        .raw(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{}\r\n{hidden}",
            hidden.len(),
            named(&sandbox, port)
        ))
        .await;
    assert!(matches!(status(&answer), 204 | 502), "{answer}");
    crate::stand::eventually(|| !seen.lock().unwrap().is_empty()).await;
    let seen = String::from_utf8(seen.lock().unwrap().clone()).expect("text");
    let length = format!("content-length: {}\r\n", hidden.len());
    assert!(seen.to_ascii_lowercase().contains(&length), "{seen}");
}

#[tokio::test]
async fn answers_with_two_lengths() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let good = canned(
        sandbox.address,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    assert_eq!(body(&stand.ask(&sandbox, good, "GET /").await), "ok");
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 99 Low\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH_9.9\r\n",
        "",
    ] {
        let port = canned(sandbox.address, answer).await;
        let got = stand.ask(&sandbox, port, "GET /").await;
        assert_eq!(status(&got), 502, "{answer:?}: {got}");
        assert!(got.contains("is not HTTP"), "{answer:?}: {got}");
    }
}

/// A second answer on the connection belongs to nobody.
#[tokio::test]
async fn an_answer_too_many_is_not_given_to_the_next_request() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let evil = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    listen(
        sandbox.address,
        49983,
        move |mut socket: TcpStream| async move {
            loop {
                if crate::stand::read_head(&mut socket).await.is_empty() {
                    return;
                }
                if socket.write_all(evil.as_bytes()).await.is_err() {
                    return;
                }
            }
        },
    )
    .await;
    let mut client = stand.connect().await;
    for _ in 0..20 {
        client
            .send(format!(
                "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
                named(&sandbox, 49983)
            ))
            .await;
        let head = client.until("\r\n\r\n").await;
        if status(&head) == 200 {
            assert_eq!(client.until("ok").await, "ok");
        } else {
            assert_eq!(status(&head), 502);
            client.until("}").await;
        }
    }
}
