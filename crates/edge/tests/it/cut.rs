//! When a sandbox is gone its streams break at once, and the next answer says so.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stand::{
    Client, Sandbox, Stand, body, eventually, http, listen, named, read_head, status, text,
};

/// Sends a head and one piece, then nothing; tells when its peer left.
async fn endless(
    sandbox: &Sandbox,
    head: &'static str,
    piece: &'static [u8],
) -> (u16, Arc<AtomicBool>) {
    let left = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&left);
    let port = listen(sandbox.address, 0, move |mut socket: TcpStream| {
        let flag = Arc::clone(&flag);
        async move {
            read_head(&mut socket).await;
            socket.write_all(head.as_bytes()).await.expect("written");
            socket.write_all(piece).await.expect("written");
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
            flag.store(true, Ordering::Relaxed);
        }
    })
    .await;
    (port, left)
}

async fn open(stand: &Stand, sandbox: &Sandbox, port: u16, extra: &str) -> Client {
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{extra}{}\r\n",
            named(sandbox, port)
        ))
        .await;
    client
}

async fn assert_reset(client: &mut Client) {
    let (rest, end) = client.end().await;
    assert_eq!(rest, b"", "nothing that ends the stream in order");
    let error = end.expect_err("not a clean end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn streams_of_every_kind_are_reset_and_502_follows() {
    let stand = Stand::new().await;
    let (sandbox, other) = (stand.sandbox(), stand.sandbox());
    let (chunked, left) = endless(
        &sandbox,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2\r\nqq\r\n",
    )
    .await;
    let (until_close, _) = endless(&sandbox, "HTTP/1.0 200 OK\r\n\r\n", b"qq").await;
    let (sized, _) = endless(
        &sandbox,
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
        b"qq",
    )
    .await;
    let (upgraded, _) = endless(
        &sandbox,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"qq",
    )
    .await;
    http(other.address, 80, |_| async { text("undisturbed") }).await;
    let (bystander, _) = endless(
        &other,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2\r\nqq\r\n",
    )
    .await;

    let mut streams = vec![
        open(&stand, &sandbox, chunked, "").await,
        open(&stand, &sandbox, until_close, "").await,
        open(&stand, &sandbox, sized, "").await,
        open(
            &stand,
            &sandbox,
            upgraded,
            "Connection: upgrade\r\nUpgrade: x\r\n",
        )
        .await,
    ];
    for (at, client) in streams.iter_mut().enumerate() {
        client.until(if at < 2 { "qq\r\n" } else { "qq" }).await;
    }
    // An HTTP/1.0 client reads to the end of the connection: only a reset tells it.
    let mut old = stand.connect().await;
    old.send(format!(
        "GET / HTTP/1.0\r\n{}\r\n",
        named(&sandbox, until_close)
    ))
    .await;
    old.until("qq").await;
    streams.push(old);
    let mut undisturbed = open(&stand, &other, bystander, "").await;
    undisturbed.until("qq\r\n").await;

    sandbox.gone.cancel();
    // The table still says that it runs; what counts is that it is gone.
    let after = stand.ask(&sandbox, 49983, "GET /health").await;
    assert_eq!(status(&after), 502);
    assert_eq!(
        body(&after),
        format!(
            r#"{{"sandboxId":"{}","message":"The sandbox was not found","code":502}}"#,
            sandbox.id
        )
    );
    for mut client in streams {
        assert_reset(&mut client).await;
    }
    eventually(|| left.load(Ordering::Relaxed)).await;

    // A neighbour notices nothing: its stream is still open.
    let silence = tokio::time::timeout(Duration::from_millis(100), undisturbed.0.read_u8()).await;
    assert!(silence.is_err(), "{silence:?}");
    assert_eq!(body(&stand.ask(&other, 80, "GET /").await), "undisturbed");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_too() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let left = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&left);
    let port = listen(sandbox.address, 0, move |mut socket: TcpStream| {
        let flag = Arc::clone(&flag);
        async move {
            read_head(&mut socket).await;
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
            socket.write_all(head).await.expect("written");
            let zeros = vec![0; 1 << 20];
            while socket.write_all(&zeros).await.is_ok() {}
            flag.store(true, Ordering::Relaxed);
        }
    })
    .await;
    let mut client = open(&stand, &sandbox, port, "").await;
    client.until("\r\n\r\n").await;
    // Give the buffers time to fill; nothing depends on how far they get.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(
        !left.load(Ordering::Relaxed),
        "the server waits for the client"
    );
    sandbox.gone.cancel();
    eventually(|| left.load(Ordering::Relaxed)).await;
    let (_, end) = client.end().await;
    assert_eq!(end.expect_err("cut").kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_request_that_waits_for_its_answer_gets_502() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (port, left) = endless(&sandbox, "", b"").await;
    let mut client = open(&stand, &sandbox, port, "Connection: close\r\n").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!left.load(Ordering::Relaxed));
    sandbox.gone.cancel();
    let answer = client.rest().await;
    assert_eq!(status(&answer), 502);
    assert!(answer.contains("The sandbox was not found"), "{answer}");
    eventually(|| left.load(Ordering::Relaxed)).await;
}

#[tokio::test]
async fn an_upload_in_flight_is_cut() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (port, left) = endless(&sandbox, "", b"").await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n{}\r\n2\r\nqq\r\n",
            named(&sandbox, port)
        ))
        .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    sandbox.gone.cancel();
    assert_eq!(status(&client.until("\r\n\r\n").await), 502);
    eventually(|| left.load(Ordering::Relaxed)).await;
}

#[tokio::test]
async fn stopping_the_server_resets_what_does_not_end() {
    let stand = Stand::with(hearth_edge::EdgeConfig {
        drain: Duration::from_millis(100),
        ..Default::default()
    })
    .await;
    let sandbox = stand.sandbox();
    let (port, _) = endless(
        &sandbox,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2\r\nqq\r\n",
    )
    .await;
    let mut idle = stand.connect().await;
    idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    idle.until("control /").await;
    let mut client = open(&stand, &sandbox, port, "").await;
    client.until("qq\r\n").await;
    stand.cancel.cancel();
    assert_eq!(idle.rest().await, "", "an idle connection ends in order");
    assert_reset(&mut client).await;
    let mut stand = stand;
    crate::stand::soon(&mut stand.served)
        .await
        .expect("joined")
        .expect("served to the end");
}
