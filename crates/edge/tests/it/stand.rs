//! What every test needs: an edge, sandboxes that are loopback addresses, servers on them, and
//! a client that writes and reads bytes as they are.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hearth_edge::{EdgeConfig, Lookup, Routes, serve};
use hearth_model::id::SandboxId;
use hearth_model::node::Endpoint;
use hearth_model::route::SignedFile;
use hearth_model::secret::Secret;
use http::{Request, Response};
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// No wait in these tests is longer, unless the test says so.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) type Body = BoxBody<Bytes, Infallible>;

#[derive(Default)]
pub(crate) struct Table {
    sandboxes: Mutex<HashMap<SandboxId, Lookup>>,
    tokens: Mutex<Vec<(Secret, SandboxId)>>,
}

impl Table {
    pub(crate) fn set(&self, id: &SandboxId, lookup: Lookup) {
        self.sandboxes.lock().unwrap().insert(id.clone(), lookup);
    }

    pub(crate) fn sign(&self, id: &SandboxId, token: &Secret) {
        self.tokens
            .lock()
            .unwrap()
            .push((token.clone(), id.clone()));
    }
}

impl Routes for Table {
    fn lookup<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Lookup> {
        let found = self.sandboxes.lock().unwrap().get(id).cloned();
        async move { found.unwrap_or(Lookup::Unknown) }.boxed()
    }

    fn by_signature<'a>(&'a self, file: &'a SignedFile) -> BoxFuture<'a, Option<SandboxId>> {
        let tokens = self.tokens.lock().unwrap().clone();
        async move {
            let mut tokens = tokens.into_iter();
            tokens.find_map(|(token, id)| file.is_signed_with(&token).then_some(id))
        }
        .boxed()
    }
}

pub(crate) struct Stand {
    pub(crate) edge: SocketAddr,
    pub(crate) table: Arc<Table>,
    pub(crate) cancel: CancellationToken,
    pub(crate) served: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// A sandbox: an address of its own on the loopback interface.
#[derive(Clone)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) address: Ipv4Addr,
    pub(crate) secret: Secret,
    pub(crate) gone: CancellationToken,
}

impl Stand {
    pub(crate) async fn new() -> Self {
        Self::with(EdgeConfig::default()).await
    }

    pub(crate) async fn with(config: EdgeConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let edge = listener.local_addr().unwrap();
        let table = Arc::new(Table::default());
        let cancel = CancellationToken::new();
        let control = axum::Router::new()
            .route("/echo", axum::routing::post(|body: Bytes| async { body }))
            .fallback(|uri: http::Uri| async move { format!("control {}", uri.path()) });
        let served = tokio::spawn(serve(
            listener,
            config,
            Arc::clone(&table) as Arc<dyn Routes>,
            control,
            cancel.clone(),
        ));
        Self {
            edge,
            table,
            cancel,
            served,
        }
    }

    pub(crate) fn sandbox(&self) -> Sandbox {
        static NEXT: AtomicU32 = AtomicU32::new(0x7f01_0002);
        let sandbox = Sandbox {
            id: SandboxId::random(),
            address: Ipv4Addr::from(NEXT.fetch_add(2, Ordering::Relaxed)),
            secret: Secret::random(),
            gone: CancellationToken::new(),
        };
        self.table.set(
            &sandbox.id,
            Lookup::Running {
                endpoint: Endpoint {
                    address: sandbox.address,
                    control_secret: sandbox.secret.clone(),
                },
                gone: sandbox.gone.clone(),
            },
        );
        sandbox
    }

    pub(crate) async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.edge).await.unwrap())
    }

    /// Sends bytes and reads to the end of the connection.
    pub(crate) async fn raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.connect().await;
        client.send(bytes).await;
        client.rest().await
    }

    /// One request with `connection: close`, by routing headers.
    pub(crate) async fn ask(&self, sandbox: &Sandbox, port: u16, line: &str) -> String {
        self.raw(format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n",
            named(sandbox, port)
        ))
        .await
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The routing headers.
pub(crate) fn named(sandbox: &Sandbox, port: u16) -> String {
    format!(
        "E2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: {port}\r\n",
        sandbox.id
    )
}

pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon(self.0.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Reads until the end; a reset is an error of the test.
    pub(crate) async fn rest(&mut self) -> String {
        let mut all = Vec::new();
        soon(self.0.read_to_end(&mut all)).await.unwrap();
        String::from_utf8(all).unwrap()
    }

    /// Reads until `end` was seen.
    pub(crate) async fn until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        soon(async {
            while !all.ends_with(end.as_bytes()) {
                match self.0.read_u8().await {
                    Ok(byte) => all.push(byte),
                    Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&all)),
                }
            }
        })
        .await;
        String::from_utf8(all).unwrap()
    }

    /// What is left, and how the connection ended.
    pub(crate) async fn end(&mut self) -> (Vec<u8>, std::io::Result<()>) {
        let mut all = Vec::new();
        let end = soon(self.0.read_to_end(&mut all)).await;
        (all, end.map(|_| ()))
    }
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .expect("it happens soon")
}

/// Waits until `what` holds.
pub(crate) async fn eventually(what: impl Fn() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Runs `handle` for each connection to a port of a sandbox.
pub(crate) async fn listen<F>(
    address: Ipv4Addr,
    port: u16,
    handle: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((address, port)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(handle(socket));
        }
    });
    port
}

/// An HTTP server on a port of a sandbox.
pub(crate) async fn http<F>(
    address: Ipv4Addr,
    port: u16,
    handle: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> u16
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    listen(address, port, move |socket| {
        let handle = handle.clone();
        async move {
            let service = hyper::service::service_fn(move |request| {
                let answer = handle(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .with_upgrades()
                .await;
        }
    })
    .await
}

/// A server that answers every connection with the same bytes and then closes.
pub(crate) async fn canned(address: Ipv4Addr, answer: impl Into<String>) -> u16 {
    let answer: Arc<str> = answer.into().into();
    listen(address, 0, move |mut socket| {
        let answer = Arc::clone(&answer);
        async move {
            read_head(&mut socket).await;
            socket.write_all(answer.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
        }
    })
    .await
}

/// Reads a head to its empty line.
pub(crate) async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

pub(crate) fn text(text: impl Into<Bytes>) -> Response<Body> {
    Response::new(BoxBody::new(Full::new(text.into())))
}

/// Answers with the request as it came: line, headers, an empty line, body.
pub(crate) async fn mirror(request: Request<Incoming>) -> Response<Body> {
    use http_body_util::BodyExt as _;
    let (head, body) = request.into_parts();
    let mut out = format!("{} {}\n", head.method, head.uri);
    for (name, value) in &head.headers {
        out.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
    }
    out.push('\n');
    let body = body.collect().await.unwrap().to_bytes();
    out.push_str(&String::from_utf8_lossy(&body));
    text(out)
}

pub(crate) fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no status in {answer:?}"))
}

pub(crate) fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}
