//! Bytes arrive as they are sent, in both directions, whatever the protocol.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use crate::stand::{Stand, body, listen, named, read_head, soon, status};

#[tokio::test]
async fn events_arrive_one_by_one() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    // The server sends the next event only after the client saw the one before.
    let go = Arc::new(Semaphore::new(0));
    let port = {
        let go = Arc::clone(&go);
        listen(sandbox.address, 0, move |mut socket| {
            let go = Arc::clone(&go);
            async move {
                read_head(&mut socket).await;
                socket
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                    .await
                    .expect("written");
                for n in 0..3 {
                    go.acquire().await.expect("open").forget();
                    let event = format!("data: {n}\n\n");
                    socket.write_all(event.as_bytes()).await.expect("written");
                }
            }
        })
        .await
    };
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n",
            named(&sandbox, port)
        ))
        .await;
    let head = client.until("\r\n\r\n").await;
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    for n in 0..3 {
        go.add_permits(1);
        assert_eq!(
            client.until("\n\n\r\n").await,
            format!("9\r\ndata: {n}\n\n\r\n")
        );
    }
    assert_eq!(client.rest().await, "0\r\n\r\n");
}

#[tokio::test]
async fn an_upload_and_its_answer_can_talk() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    // Echoes every chunk before the request is complete.
    let port = listen(sandbox.address, 0, |mut socket| async move {
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await
            .expect("written");
        let (mut read, mut write) = socket.split();
        tokio::io::copy(&mut read, &mut write)
            .await
            .expect("copied");
    })
    .await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n{}\r\n",
            named(&sandbox, port)
        ))
        .await;
    client.until("\r\n\r\n").await;
    for n in 0..100 {
        let chunk = format!("5\r\nab{n:03}\r\n");
        client.send(&chunk).await;
        assert_eq!(client.until("\r\n").await, "5\r\n");
        assert_eq!(client.until("\r\n").await, format!("ab{n:03}\r\n"));
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.until("0\r\n\r\n").await, "0\r\n\r\n");
}

#[tokio::test]
async fn expect_continue_is_answered_only_when_the_body_is_wanted() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = crate::stand::http(sandbox.address, 0, crate::stand::mirror).await;
    let request = |port| {
        format!(
            "PUT /up HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n{}\r\n",
            named(&sandbox, port)
        )
    };
    let mut client = stand.connect().await;
    client.send(request(port)).await;
    assert_eq!(
        client.until("\r\n\r\n").await,
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    client.send("hello").await;
    let answer = client.rest().await;
    assert!(answer.ends_with("\n\nhello"), "{answer}");
    assert!(!answer.contains("expect"), "{answer}");
    // The port is closed: the client is told before it sends a byte.
    let mut client = stand.connect().await;
    client.send(request(1)).await;
    assert_eq!(status(&client.until("\r\n\r\n").await), 502);
}

#[tokio::test]
async fn http_1_0_both_ways() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let old = crate::stand::canned(sandbox.address, "HTTP/1.0 200 OK\r\n\r\nold server").await;
    let answer = stand.ask(&sandbox, old, "GET /").await;
    assert!(
        answer.ends_with("\r\n\r\nA\r\nold server\r\n0\r\n\r\n"),
        "{answer}"
    );
    let answer = stand
        .raw(format!("GET / HTTP/1.0\r\n{}\r\n", named(&sandbox, old)))
        .await;
    assert_eq!(body(&answer), "old server");
    assert!(!answer.contains("transfer-encoding"), "{answer}");
}

/// Any protocol: 101, then bytes.
#[tokio::test]
async fn an_upgraded_connection_carries_bytes_and_half_closes() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = listen(sandbox.address, 0, |mut socket| async move {
        let head = read_head(&mut socket).await.to_ascii_lowercase();
        assert!(head.contains("upgrade: websocket\r\n"), "{head}");
        assert!(head.contains("connection: upgrade\r\n"), "{head}");
        assert!(
            head.contains("sec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n"),
            "{head}"
        );
        // The first bytes come in the same packet as the head.
        socket
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                  Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x81\x02hi",
            )
            .await
            .expect("written");
        let (mut read, mut write) = socket.split();
        tokio::io::copy(&mut read, &mut write)
            .await
            .expect("copied");
        write.write_all(b"bye").await.expect("written");
        write.shutdown().await.expect("shut");
    })
    .await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET /ws HTTP/1.1\r\nHost: {port}-{}.localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            sandbox.id
        ))
        .await;
    let head = client.until("\r\n\r\n").await;
    assert_eq!(status(&head), 101, "{head}");
    assert!(
        head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        "{head}"
    );
    assert!(head.contains("connection: upgrade"), "{head}");
    let mut frame = [0; 4];
    soon(client.0.read_exact(&mut frame)).await.expect("read");
    assert_eq!(&frame, b"\x81\x02hi");
    for n in 0..100u32 {
        let sent = n.to_be_bytes();
        client.send(sent).await;
        soon(client.0.read_exact(&mut frame)).await.expect("read");
        assert_eq!(frame, sent);
    }
    // The client says it is done; the server still has something to say.
    client.0.shutdown().await.expect("shut");
    assert_eq!(client.rest().await, "bye");
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_answer() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = crate::stand::http(sandbox.address, 0, crate::stand::mirror).await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: foo/2\r\n{}\r\n",
            named(&sandbox, port)
        ))
        .await;
    let head = client.until("\r\n\r\n").await;
    assert_eq!(status(&head), 200);
    client.until("\n\n").await;
    client
        .send("GET /z HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(body(&client.rest().await), "control /z");
}

#[tokio::test]
async fn an_upgrade_nobody_asked_for_is_refused() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let port = crate::stand::canned(
        sandbox.address,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    )
    .await;
    assert_eq!(status(&stand.ask(&sandbox, port, "GET /").await), 502);
}
