//! Servers that listen on the sandbox's own loopback only are reached through the agent.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stand::{
    Sandbox, Stand, body, http, listen, mirror, named, read_head, soon, status, text,
};

/// The agent's side of the contract; its loopback is the address after the sandbox's.
async fn tunnel_agent(sandbox: &Sandbox) -> (Ipv4Addr, Arc<AtomicUsize>) {
    let inside = Ipv4Addr::from(u32::from(sandbox.address) + 1);
    let opened = Arc::new(AtomicUsize::new(0));
    let (count, secret) = (Arc::clone(&opened), sandbox.secret.clone());
    listen(sandbox.address, 49982, move |mut socket: TcpStream| {
        let (count, secret) = (Arc::clone(&count), secret.clone());
        async move {
            let head = read_head(&mut socket).await;
            let port: u16 = head
                .strip_prefix("GET /tunnel?port=")
                .and_then(|rest| rest.split(' ').next())
                .and_then(|port| port.parse().ok())
                .expect("a port");
            let lower = head.to_ascii_lowercase();
            for wanted in ["connection: upgrade\r\n", "upgrade: hearth-tunnel\r\n"] {
                assert!(lower.contains(wanted), "{head}");
            }
            let key = format!("x-hearth-control: {}\r\n", secret.expose());
            assert!(lower.contains(&key), "{head}");
            match TcpStream::connect((inside, port)).await {
                Ok(mut inner) => {
                    count.fetch_add(1, Ordering::Relaxed);
                    let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: hearth-tunnel\r\n\r\n";
                    socket.write_all(head).await.expect("written");
                    let _ = tokio::io::copy_bidirectional(&mut socket, &mut inner).await;
                }
                Err(_) => {
                    let head = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n";
                    socket.write_all(head).await.expect("written");
                }
            }
        }
    })
    .await;
    (inside, opened)
}

#[tokio::test]
async fn a_server_on_loopback_is_reached() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (inside, opened) = tunnel_agent(&sandbox).await;
    let port = http(inside, 0, mirror).await;
    for _ in 0..3 {
        let answer = stand.ask(&sandbox, port, "GET /inner").await;
        assert!(body(&answer).starts_with("GET /inner\n"), "{answer}");
        assert!(!answer.contains("x-hearth"), "{answer}");
    }
    assert_eq!(opened.load(Ordering::Relaxed), 3);
    // Refused inside too.
    let closed = stand.ask(&sandbox, 1, "GET /").await;
    assert_eq!(status(&closed), 502);
    assert!(body(&closed).contains("port is not open"), "{closed}");
    // A server that comes up on the sandbox's address is found at once: nothing was cached.
    http(sandbox.address, port, |_| async { text("outer") }).await;
    assert_eq!(body(&stand.ask(&sandbox, port, "GET /").await), "outer");
    assert_eq!(opened.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn streams_and_upgrades_pass_the_tunnel_and_are_cut() {
    let stand = Stand::new().await;
    let sandbox = stand.sandbox();
    let (inside, _) = tunnel_agent(&sandbox).await;
    let port = listen(inside, 0, |mut socket: TcpStream| async move {
        read_head(&mut socket).await;
        let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        socket.write_all(head).await.expect("written");
        let (mut read, mut write) = socket.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let mut client = stand.connect().await;
    client
        .send(format!(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: x\r\n{}\r\n",
            named(&sandbox, port)
        ))
        .await;
    assert_eq!(status(&client.until("\r\n\r\n").await), 101);
    client.send("ping").await;
    let mut pong = [0; 4];
    soon(client.0.read_exact(&mut pong)).await.expect("read");
    assert_eq!(&pong, b"ping");
    sandbox.gone.cancel();
    let (_, end) = client.end().await;
    assert_eq!(
        end.expect_err("cut").kind(),
        std::io::ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn an_agent_that_says_nonsense_is_a_closed_port() {
    let stand = Stand::new().await;
    for nonsense in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 403 Forbidden\r\n\r\n",
        "garbage",
        "",
    ] {
        let sandbox = stand.sandbox();
        listen(
            sandbox.address,
            49982,
            move |mut socket: TcpStream| async move {
                read_head(&mut socket).await;
                socket
                    .write_all(nonsense.as_bytes())
                    .await
                    .expect("written");
            },
        )
        .await;
        let answer = stand.ask(&sandbox, 8080, "GET /").await;
        assert_eq!(status(&answer), 502, "{nonsense}");
        assert!(
            body(&answer).contains("port is not open"),
            "{nonsense} {answer}"
        );
    }
}
