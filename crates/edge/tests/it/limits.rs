//! Every limit of the edge, hit.

use std::time::{Duration, Instant};

use hearth_edge::EdgeConfig;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::stand::{Stand, body, canned, http, listen, named, soon, status, text};

#[tokio::test]
async fn one_connection_too_many_gets_503() {
    let stand = Stand::with(EdgeConfig {
        max_connections: 2,
        ..Default::default()
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = stand.connect().await;
        client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        client.until("control /").await;
        held.push(client);
    }
    let mut third = stand.connect().await;
    assert_eq!(status(&third.until("\r\n\r\n").await), 503);
    // A place that is given back is taken.
    drop(held.pop());
    soon(async {
        loop {
            let mut client = stand.connect().await;
            client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
            if status(&client.until("\r\n\r\n").await) == 200 {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn slow_heads_are_closed_and_idle_connections_are_not() {
    let stand = Stand::with(EdgeConfig {
        head_timeout: Duration::from_millis(200),
        ..Default::default()
    })
    .await;
    let mut idle = stand.connect().await;
    idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    idle.until("control /").await;
    let mut silent = stand.connect().await;
    let mut slow = stand.connect().await;
    slow.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    slow.until("control /").await;
    // A byte now and then does not buy time.
    let started = Instant::now();
    let closed = async {
        loop {
            if tokio::io::AsyncWriteExt::write_all(&mut slow.0, b"x")
                .await
                .is_err()
            {
                break;
            }
            let mut byte = [0];
            let read =
                tokio::time::timeout(Duration::from_millis(20), slow.0.read(&mut byte)).await;
            if matches!(read, Ok(Ok(0) | Err(_))) {
                break;
            }
        }
    };
    soon(closed).await;
    assert!(started.elapsed() >= Duration::from_millis(190));
    assert_eq!(silent.end().await.0, b"");
    idle.send("GET /again HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    assert_eq!(body(&idle.rest().await), "control /again");
}

#[tokio::test]
async fn idle_connections_are_closed_in_the_end() {
    let stand = Stand::with(EdgeConfig {
        head_timeout: Duration::from_millis(100),
        idle_timeout: Duration::from_millis(300),
        ..Default::default()
    })
    .await;
    let sandbox = stand.sandbox();
    let port = listen(sandbox.address, 0, |mut socket: TcpStream| async move {
        crate::stand::read_head(&mut socket).await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate";
        tokio::io::AsyncWriteExt::write_all(&mut socket, answer)
            .await
            .expect("written");
    })
    .await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            named(&sandbox, port)
        ))
        .await;
    // Neither limit runs while a request is served.
    client.until("late").await;
    assert_eq!(client.end().await.0, b"");
}

#[tokio::test]
async fn a_port_that_never_answers_is_504() {
    let stand = Stand::with(EdgeConfig {
        answer_timeout: Duration::from_millis(300),
        ..Default::default()
    })
    .await;
    let sandbox = stand.sandbox();
    let port = listen(sandbox.address, 0, |mut socket: TcpStream| async move {
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all).await;
    })
    .await;
    let answer = stand.ask(&sandbox, port, "GET /").await;
    assert_eq!(status(&answer), 504);
    let json: serde_json::Value = serde_json::from_str(body(&answer)).expect("JSON");
    assert_eq!(json["sandboxId"], sandbox.id.as_str());
    assert_eq!(json["port"], port);
    // An upload that moves is not a port that does not answer.
    let mut client = stand.connect().await;
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n{}\r\n",
            named(&sandbox, port)
        ))
        .await;
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(900) {
        client.send("x").await;
        let early = tokio::time::timeout(Duration::from_millis(50), client.0.read_u8()).await;
        assert!(early.is_err(), "{early:?}");
    }
    assert_eq!(status(&client.until("\r\n\r\n").await), 504);
}

#[tokio::test]
async fn an_address_that_drops_packets_is_a_closed_port() {
    let stand = Stand::with(EdgeConfig {
        connect_timeout: Duration::from_millis(300),
        ..Default::default()
    })
    .await;
    let sandbox = stand.sandbox();
    // A listener whose queue is full drops SYNs.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(&std::net::SocketAddr::from((sandbox.address, 0)).into())
        .unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut fill = Vec::new();
    while let Ok(Ok(client)) =
        tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await
    {
        fill.push(client);
        assert!(fill.len() < 100, "the queue never fills");
    }
    let started = Instant::now();
    let answer = stand.ask(&sandbox, address.port(), "GET /").await;
    assert!(started.elapsed() >= Duration::from_millis(290));
    assert_eq!(status(&answer), 502);
    assert!(body(&answer).contains("port is not open"), "{answer}");
}

#[tokio::test]
async fn heads_have_a_size() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let large = "a".repeat(60 * 1024);
    let port = canned(
        sandbox.address,
        format!("HTTP/1.1 200 OK\r\nX-Large: {large}\r\nContent-Length: 2\r\n\r\nok"),
    )
    .await;
    let answer = stand
        .ask(&sandbox, port, &format!("GET /?{}", "a".repeat(3000)))
        .await;
    assert_eq!(body(&answer), "ok");
    let port = canned(
        sandbox.address,
        format!("HTTP/1.1 200 OK\r\nX-Large: {large}{large}\r\nContent-Length: 2\r\n\r\nok"),
    )
    .await;
    assert_eq!(status(&stand.ask(&sandbox, port, "GET /").await), 502);
    let endless = listen(sandbox.address, 0, |mut socket: TcpStream| async move {
        use tokio::io::AsyncWriteExt as _;
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n").await;
        while socket.write_all(b"X-More: and more\r\n").await.is_ok() {}
    })
    .await;
    assert_eq!(status(&stand.ask(&sandbox, endless, "GET /").await), 502);

    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-Large: {large}\r\n\r\n"
        ))
        .await;
    assert_eq!(status(&client.until("\r\n\r\n").await), 200);
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-Large: {large}{large}"
        ))
        .await;
    assert_eq!(status(&client.until("\r\n\r\n").await), 431);
}

#[tokio::test]
async fn one_sandbox_has_so_many_streams() {
    let stand = Stand::with(EdgeConfig {
        max_streams_per_sandbox: 2,
        ..Default::default()
    })
    .await;
    let (sandbox, other) = (stand.sandbox(), stand.sandbox());
    let port = listen(sandbox.address, 0, |mut socket: TcpStream| async move {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        crate::stand::read_head(&mut socket).await;
        tokio::io::AsyncWriteExt::write_all(&mut socket, head)
            .await
            .expect("written");
        let mut all = Vec::new();
        let _ = socket.read_to_end(&mut all).await;
    })
    .await;
    http(other.address, port, |_| async { text("other") }).await;
    let request = format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", named(&sandbox, port));
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = stand.connect().await;
        client.send(&request).await;
        assert_eq!(status(&client.until("\r\n\r\n").await), 200);
        held.push(client);
    }
    let refused = stand.ask(&sandbox, port, "GET /").await;
    assert_eq!(status(&refused), 429);
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert_eq!(body(&stand.ask(&other, port, "GET /").await), "other");
    drop(held.pop());
    soon(async {
        loop {
            let mut client = stand.connect().await;
            client.send(&request).await;
            if status(&client.until("\r\n\r\n").await) == 200 {
                break;
            }
        }
    })
    .await;
}
