//! A gibibyte each way in constant memory. A program of its own: it reads the peak of the
//! whole process.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hearth_edge::{EdgeConfig, Lookup, Routes, serve};
use hearth_model::id::SandboxId;
use hearth_model::node::Endpoint;
use hearth_model::route::SignedFile;
use hearth_model::secret::Secret;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const TOTAL: usize = 1 << 30;
const PIECE: usize = 256 * 1024;
/// Far above what the buffers of one stream take, far below what is sent.
const MAX_GROWTH_KIB: usize = 32 * 1024;

struct One(Lookup);

impl Routes for One {
    fn lookup<'a>(&'a self, _: &'a SandboxId) -> BoxFuture<'a, Lookup> {
        async { self.0.clone() }.boxed()
    }

    fn by_signature<'a>(&'a self, _: &'a SignedFile) -> BoxFuture<'a, Option<SandboxId>> {
        async { None }.boxed()
    }
}

fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn read_head(socket: &mut TcpStream) {
    let mut end = [0; 4];
    while end != *b"\r\n\r\n" {
        end.rotate_left(1);
        end[3] = socket.read_u8().await.unwrap();
    }
}

async fn write_all(socket: &mut TcpStream) {
    let piece = vec![7; PIECE];
    for _ in 0..TOTAL / PIECE {
        socket.write_all(&piece).await.unwrap();
    }
}

async fn read_all(socket: &mut TcpStream) {
    let mut piece = vec![0; PIECE];
    let mut left = TOTAL;
    while left > 0 {
        let n = socket.read(&mut piece).await.unwrap();
        assert_ne!(n, 0, "{left} bytes missing");
        left -= n;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_each_way_in_constant_memory() {
    let server = TcpListener::bind("127.2.0.2:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = server.accept().await.unwrap();
            tokio::spawn(async move {
                let up = socket.peek(&mut [0]).await.unwrap() == 1;
                assert!(up);
                let mut method = [0; 3];
                socket.read_exact(&mut method).await.unwrap();
                read_head(&mut socket).await;
                if &method == b"GET" {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {TOTAL}\r\n\r\n");
                    socket.write_all(head.as_bytes()).await.unwrap();
                    write_all(&mut socket).await;
                } else {
                    read_all(&mut socket).await;
                    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    socket.write_all(head).await.unwrap();
                }
            });
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let edge = listener.local_addr().unwrap();
    let routes = Arc::new(One(Lookup::Running {
        endpoint: Endpoint {
            address: "127.2.0.2".parse().unwrap(),
            control_secret: Secret::random(),
        },
        gone: CancellationToken::new(),
    }));
    let cancel = CancellationToken::new();
    let control = axum::Router::new();
    tokio::spawn(serve(
        listener,
        EdgeConfig::default(),
        routes,
        control,
        cancel.clone(),
    ));

    let host = format!("Host: {port}-{}.localhost\r\n", SandboxId::random());
    let before = peak_kib();
    let started = std::time::Instant::now();
    let mut client = TcpStream::connect(edge).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\n{host}\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    read_head(&mut client).await;
    read_all(&mut client).await;
    let down = started.elapsed();
    let started = std::time::Instant::now();
    let head = format!("PUT / HTTP/1.1\r\nContent-Length: {TOTAL}\r\n{host}\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    write_all(&mut client).await;
    read_head(&mut client).await;
    let grown = peak_kib() - before;
    println!(
        "1 GiB down {down:?}, up {:?}, memory grew {grown} KiB",
        started.elapsed()
    );
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB");
    cancel.cancel();
}
