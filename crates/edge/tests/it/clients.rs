//! Either side may leave at any moment; the other side learns of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stand::{Stand, eventually, listen, named, read_head};

/// Writes `answer` after the request's head and counts its peers that left.
async fn server(address: std::net::Ipv4Addr, answer: &'static str) -> (u16, Arc<[AtomicUsize; 2]>) {
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let shared = Arc::clone(&counts);
    let port = listen(address, 0, move |mut socket: TcpStream| {
        let counts = Arc::clone(&shared);
        async move {
            read_head(&mut socket).await;
            counts[0].fetch_add(1, Ordering::Relaxed);
            socket.write_all(answer.as_bytes()).await.expect("written");
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
            counts[1].fetch_add(1, Ordering::Relaxed);
        }
    })
    .await;
    (port, counts)
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_inside() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let cases = [
        // Waiting for an answer; reading one that stands still; sending a body.
        ("GET / HTTP/1.1\r\nHost: x\r\n", "", ""),
        (
            "GET / HTTP/1.1\r\nHost: x\r\n",
            "",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n",
            "half",
            "",
        ),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n",
            "2\r\nhi\r\n",
            "",
        ),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: x\r\n",
            "",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        ),
    ];
    for (request, sent, answer) in cases {
        let (port, counts) = server(sandbox.address, answer).await;
        let mut client = stand.connect().await;
        client
            .send(format!("{request}{}\r\n{sent}", named(&sandbox, port)))
            .await;
        if !answer.is_empty() {
            client.until("\r\n\r\n").await;
        }
        eventually(|| counts[0].load(Ordering::Relaxed) == 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(counts[1].load(Ordering::Relaxed), 0, "{request} {answer}");
        drop(client);
        eventually(|| counts[1].load(Ordering::Relaxed) == 1).await;
    }
}

#[tokio::test]
async fn a_server_that_breaks_off_leaves_its_answer_unfinished() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    for (answer, got) in [
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
            "2\r\nhi\r\n",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhi", "hi"),
    ] {
        let port = crate::stand::canned(sandbox.address, answer).await;
        let mut client = stand.connect().await;
        client
            .send(format!(
                "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
                named(&sandbox, port)
            ))
            .await;
        client.until("\r\n\r\n").await;
        let (rest, _) = client.end().await;
        assert_eq!(String::from_utf8_lossy(&rest), got);
    }
}

#[tokio::test]
async fn a_hundred_clients_that_leave_cost_nothing() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (port, counts) = server(sandbox.address, "").await;
    for _ in 0..100 {
        let mut client = stand.connect().await;
        client
            .send(format!(
                "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
                named(&sandbox, port)
            ))
            .await;
        drop(client);
    }
    // Some left before the edge dialled; whatever was opened is closed again.
    soon_equal(&counts).await;
    let (live, seen) = server(sandbox.address, "HTTP/1.1 204 No Content\r\n\r\n").await;
    assert!(stand.ask(&sandbox, live, "GET /").await.contains(" 204 "));
    assert_eq!(seen[0].load(Ordering::Relaxed), 1);
}

async fn soon_equal(counts: &[AtomicUsize; 2]) {
    eventually(|| {
        let [opened, closed] = counts;
        opened.load(Ordering::Relaxed) == closed.load(Ordering::Relaxed)
    })
    .await;
}
