//! One client connection: its socket, its clocks, and how it is cut.
//!
//! A connection carries one exchange at a time (HTTP/1.1). While the answer of a sandbox is
//! being written, the connection hangs on that sandbox's life: when it is gone, the socket is
//! reset, because a clean end of the body would be a lie.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::accept::Edge;
use crate::config::{MAX_BUFFER, MAX_HEAD, MAX_HEADERS};
use crate::proxy;

/// Longest time between two looks at a connection's clock.
const MAX_TICK: Duration = Duration::from_secs(5);
/// No deadline: a request is being served.
const BUSY: u64 = u64::MAX;

/// Milliseconds of the monotonic clock, from a start of our own.
pub(crate) fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    millis(START.elapsed())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the parts of one connection share: the socket, the request handler, upgraded streams.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Given back when the socket is closed, also when an upgrade outlived the request.
    _permit: OwnedSemaphorePermit,
    pub(crate) peer: SocketAddr,
    reset: AtomicBool,
    /// Between two requests: waiting for the first byte of the next head.
    between: AtomicBool,
    /// When the client must have done its part, in [`now_ms`] time, or [`BUSY`].
    deadline: AtomicU64,
    head_timeout_ms: u64,
    idle_timeout_ms: u64,
    stream: Mutex<Stream>,
}

/// The sandbox whose answer is being written.
#[derive(Debug, Default)]
struct Stream {
    /// Tells one exchange from the next.
    generation: u64,
    gone: Option<CancellationToken>,
}

impl Shared {
    pub(crate) fn new(permit: OwnedSemaphorePermit, peer: SocketAddr, edge: &Edge) -> Arc<Self> {
        let head_timeout_ms = millis(edge.config.head_timeout);
        Arc::new(Self {
            _permit: permit,
            peer,
            reset: AtomicBool::new(false),
            between: AtomicBool::new(false),
            deadline: AtomicU64::new(now_ms().saturating_add(head_timeout_ms)),
            head_timeout_ms,
            idle_timeout_ms: millis(edge.config.idle_timeout),
            stream: Mutex::default(),
        })
    }

    /// The socket will be closed with RST instead of FIN.
    pub(crate) fn reset_on_close(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    /// A request head is complete.
    pub(crate) fn begin(self: &Arc<Self>) -> Exchange {
        self.between.store(false, Ordering::Relaxed);
        self.deadline.store(BUSY, Ordering::Relaxed);
        Exchange(Arc::clone(self))
    }

    fn bytes_came(&self) {
        if self.between.swap(false, Ordering::Relaxed) {
            self.wait_for(self.head_timeout_ms);
        }
    }

    fn wait_for(&self, ms: u64) {
        self.deadline
            .store(now_ms().saturating_add(ms), Ordering::Relaxed);
    }

    fn is_overdue(&self) -> bool {
        now_ms() >= self.deadline.load(Ordering::Relaxed)
    }

    fn set_stream(&self, gone: Option<CancellationToken>) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.generation += 1;
        stream.gone = gone;
    }
}

/// One request and its answer. Dropped when the last byte of the answer was handed to the
/// socket, or when it was given up.
#[derive(Debug)]
pub(crate) struct Exchange(Arc<Shared>);

impl Exchange {
    /// From here on the connection is reset when the sandbox is gone.
    pub(crate) fn hang_on(&self, gone: CancellationToken) {
        self.0.set_stream(Some(gone));
    }

    /// The answer broke off.
    pub(crate) fn reset_on_close(&self) {
        self.0.reset_on_close();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.set_stream(None);
        self.0.between.store(true, Ordering::Relaxed);
        self.0.wait_for(self.0.idle_timeout_ms);
    }
}

/// Follows the stream of the moment and is ready when its sandbox is gone.
#[derive(Default)]
struct GoneWatch {
    generation: u64,
    gone: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl GoneWatch {
    fn poll(&mut self, cx: &mut Context<'_>, shared: &Shared) -> Poll<()> {
        {
            let stream = shared.stream.lock().unwrap_or_else(PoisonError::into_inner);
            if stream.generation != self.generation {
                self.generation = stream.generation;
                self.gone = stream
                    .gone
                    .as_ref()
                    .map(|gone| Box::pin(gone.clone().cancelled_owned()));
            }
        }
        match &mut self.gone {
            Some(gone) => gone.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Serves one connection to its end.
pub(crate) async fn run(
    socket: TcpStream,
    shared: Arc<Shared>,
    edge: Arc<Edge>,
    stop: CancellationToken,
) {
    let tick = MAX_TICK
        .min(edge.config.head_timeout / 4)
        .max(Duration::from_millis(10));
    let io = TokioIo::new(ClientIo {
        socket,
        shared: Arc::clone(&shared),
    });
    let service = {
        let (edge, shared) = (Arc::clone(&edge), Arc::clone(&shared));
        service_fn(move |request| proxy::answer(Arc::clone(&edge), Arc::clone(&shared), request))
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The clocks here tell a client that is idle from one that sends its head slowly.
        .header_read_timeout(None)
        .max_buf_size(MAX_BUFFER)
        .max_header_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(io, service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let mut watch = GoneWatch::default();
    let mut clock = tokio::time::interval(tick);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            result = connection.as_mut() => {
                if let Err(error) = result {
                    // Mostly clients that left; a broken request was answered by hyper.
                    tracing::debug!(peer = %shared.peer, %error, "connection ended early");
                }
                return;
            }
            () = std::future::poll_fn(|cx| watch.poll(cx, &shared)) => {
                shared.reset_on_close();
                return;
            }
            () = edge.abort.cancelled() => {
                shared.reset_on_close();
                return;
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            _ = clock.tick() => {
                if shared.is_overdue() {
                    tracing::debug!(peer = %shared.peer, "client took too long");
                    return;
                }
            }
        }
    }
}

/// The client's socket. It tells the clock when bytes come, and it is reset on close when its
/// stream was cut.
pub(crate) struct ClientIo {
    socket: TcpStream,
    shared: Arc<Shared>,
}

impl Drop for ClientIo {
    fn drop(&mut self) {
        if self.shared.reset.load(Ordering::Relaxed)
            && let Err(error) = self.socket.set_zero_linger()
        {
            tracing::warn!(%error, "a cut connection will end with FIN instead of RST");
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.socket).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.shared.bytes_came();
        }
        polled
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
