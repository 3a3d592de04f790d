//! The agent's connections are kept between requests, and never used when that is not safe.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::stand::{Client, Sandbox, Stand, eventually, listen, named, read_head, status};

/// Answers `per_connection` requests on each connection, then closes it.
async fn agent(sandbox: &Sandbox, port: u16, per_connection: usize) -> (u16, Arc<AtomicUsize>) {
    let opened = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&opened);
    let port = listen(sandbox.address, port, move |mut socket: TcpStream| {
        shared.fetch_add(1, Ordering::Relaxed);
        async move {
            for _ in 0..per_connection {
                if read_head(&mut socket).await.is_empty() {
                    return;
                }
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                socket.write_all(answer).await.expect("written");
            }
        }
    })
    .await;
    (port, opened)
}

async fn ask(client: &mut Client, method: &str, sandbox: &Sandbox, port: u16) {
    client
        .send(format!(
            "{method} / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{}\r\n",
            named(sandbox, port)
        ))
        .await;
    assert_eq!(status(&client.until("\r\n\r\nok").await), 200);
}

#[tokio::test]
async fn one_connection_serves_requests_in_a_row() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (_, opened) = agent(&sandbox, 49983, usize::MAX).await;
    let mut client = stand.connect().await;
    ask(&mut client, "POST", &sandbox, 49983).await;
    let started = Instant::now();
    for _ in 0..500 {
        ask(&mut client, "POST", &sandbox, 49983).await;
    }
    let each = started.elapsed() / 500;
    println!("one request through the edge and back: {each:?}");
    // Mostly one; a request that comes before the last answer is quite done opens another.
    let opened = opened.load(Ordering::Relaxed);
    assert!(opened <= 20, "{opened} connections for 501 requests");
}

#[tokio::test]
async fn users_servers_get_a_connection_per_request() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (port, opened) = agent(&sandbox, 0, usize::MAX).await;
    let mut client = stand.connect().await;
    for _ in 0..10 {
        ask(&mut client, "GET", &sandbox, port).await;
    }
    assert_eq!(opened.load(Ordering::Relaxed), 10);
}

#[tokio::test]
async fn a_connection_the_agent_closed_is_not_used() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (_, opened) = agent(&sandbox, 49983, 1).await;
    let mut client = stand.connect().await;
    for n in 1..=50 {
        ask(&mut client, "GET", &sandbox, 49983).await;
        eventually(|| opened.load(Ordering::Relaxed) >= n).await;
    }
}

#[tokio::test]
async fn kept_connections_end_with_their_sandbox() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let closed = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&closed);
    listen(sandbox.address, 49983, move |mut socket: TcpStream| {
        let closed = Arc::clone(&shared);
        async move {
            read_head(&mut socket).await;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            socket.write_all(answer).await.expect("written");
            assert_eq!(read_head(&mut socket).await, "");
            closed.fetch_add(1, Ordering::Relaxed);
        }
    })
    .await;
    let mut client = stand.connect().await;
    ask(&mut client, "GET", &sandbox, 49983).await;
    assert_eq!(closed.load(Ordering::Relaxed), 0, "it is kept");
    sandbox.gone.cancel();
    eventually(|| closed.load(Ordering::Relaxed) == 1).await;
}

/// An upgrade on the agent's port would carry requests past the check of internal routes.
#[tokio::test]
async fn the_agent_is_never_asked_for_another_protocol() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    crate::stand::http(sandbox.address, 49983, crate::stand::mirror).await;
    let answer = stand
        .raw(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n{}\r\n",
            named(&sandbox, 49983)
        ))
        .await;
    assert_eq!(status(&answer), 200);
    assert!(
        !answer.contains("upgrade") && !answer.contains("http2-settings"),
        "{answer}"
    );
}
