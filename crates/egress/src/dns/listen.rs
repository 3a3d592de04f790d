//! Takes queries by UDP and TCP and sees each to its answer, within the limits.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::OwnedSemaphorePermit;

use super::Inner;
use super::message::{Asked, MAX_QUERY, Question, Transport, parse};
use super::policy::{Policy, Source};

/// Longest silence on a TCP connection, and longest time to write one answer to it.
const TCP_IDLE: Duration = Duration::from_secs(10);
/// Pause after a socket failed, so that a broken host is not also busy.
const PAUSE: Duration = Duration::from_millis(50);

/// What becomes of a query.
enum Verdict {
    Drop,
    Answer(Vec<u8>),
    Forward(Forward),
}

/// A question on its way to upstream, with its places.
struct Forward {
    question: Question,
    from: Ipv4Addr,
    source: Arc<Source>,
    _places: [OwnedSemaphorePermit; 2],
}

impl Inner {
    fn judge(&self, bytes: &[u8], from: Ipv4Addr) -> Verdict {
        let Some(source) = self.policies.get(from) else {
            return Verdict::Drop;
        };
        let question = match parse(bytes) {
            Asked::Question(question) => question,
            Asked::Fault(answer) => return Verdict::Answer(answer),
            Asked::Noise => return Verdict::Drop,
        };
        if let Some(answer) = question.local() {
            return Verdict::Answer(answer);
        }
        if source.policy == Policy::Closed {
            return error(&question, ResponseCode::Refused);
        }
        let places = (
            Arc::clone(&source.queries).try_acquire_owned(),
            Arc::clone(&self.queries).try_acquire_owned(),
        );
        match places {
            (Ok(own), Ok(all)) if source.may_ask(Instant::now()) => Verdict::Forward(Forward {
                question,
                from,
                source,
                _places: [own, all],
            }),
            // "Try again", for the sandbox's own resolver.
            _ => error(&question, ResponseCode::ServFail),
        }
    }

    /// The answer for the sandbox, or nothing when it is no longer the one that asked.
    async fn forward(&self, forward: Forward, transport: Transport) -> Option<Vec<u8>> {
        let Forward {
            question,
            from,
            source,
            _places,
        } = forward;
        let answered = self
            .upstreams
            .ask(&question, transport, self.try_limit)
            .await;
        if !self.policies.is_still(from, &source) {
            return None;
        }
        match answered {
            Ok(answer) => question.finish(answer, transport),
            Err(error) => {
                tracing::debug!(%from, %error, "no answer from upstream");
                question.refuse(ResponseCode::ServFail)
            }
        }
    }
}

fn error(question: &Question, code: ResponseCode) -> Verdict {
    question.refuse(code).map_or(Verdict::Drop, Verdict::Answer)
}

fn v4(peer: SocketAddr) -> Option<Ipv4Addr> {
    match peer.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

pub(super) async fn udp(socket: Arc<UdpSocket>, inner: Arc<Inner>) {
    // One byte more than is accepted, so that a longer query is seen as one.
    let mut buffer = vec![0; MAX_QUERY + 1];
    loop {
        let (len, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "cannot receive queries");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (Some(from), Some(bytes)) = (v4(peer), buffer.get(..len)) else {
            continue;
        };
        match inner.judge(bytes, from) {
            Verdict::Drop => {}
            Verdict::Answer(answer) => send(&socket, &answer, peer).await,
            Verdict::Forward(forward) => {
                let (socket, inner) = (Arc::clone(&socket), Arc::clone(&inner));
                // Bounded by the places `forward` holds.
                tokio::spawn(async move {
                    if let Some(answer) = inner.forward(forward, Transport::Udp).await {
                        send(&socket, &answer, peer).await;
                    }
                });
            }
        }
    }
}

async fn send(socket: &UdpSocket, answer: &[u8], peer: SocketAddr) {
    if let Err(error) = socket.send_to(answer, peer).await {
        tracing::debug!(%peer, %error, "an answer was not sent");
    }
}

pub(super) async fn tcp(listener: TcpListener, inner: Arc<Inner>) {
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some((from, source)) =
            v4(peer).and_then(|from| Some((from, inner.policies.get(from)?)))
        else {
            continue;
        };
        let places = (
            Arc::clone(&source.connections).try_acquire_owned(),
            Arc::clone(&inner.connections).try_acquire_owned(),
        );
        let (Ok(own), Ok(all)) = places else {
            tracing::debug!(%from, "too many connections");
            continue;
        };
        let inner = Arc::clone(&inner);
        tokio::spawn(async move {
            let _places = [own, all];
            if let Err(error) = talk(socket, from, &inner).await {
                tracing::debug!(%from, %error, "connection ended early");
            }
        });
    }
}

/// Answers queries in their order until the sandbox closes or is silent.
async fn talk(mut socket: TcpStream, from: Ipv4Addr, inner: &Inner) -> io::Result<()> {
    socket.set_nodelay(true)?;
    loop {
        let Some(query) = within(read(&mut socket)).await? else {
            return Ok(());
        };
        let answer = match inner.judge(&query, from) {
            Verdict::Drop => return Ok(()),
            Verdict::Answer(answer) => answer,
            Verdict::Forward(forward) => match inner.forward(forward, Transport::Tcp).await {
                Some(answer) => answer,
                None => return Ok(()),
            },
        };
        let len = u16::try_from(answer.len()).map_err(io::Error::other)?;
        let mut framed = Vec::with_capacity(answer.len() + 2);
        framed.extend(len.to_be_bytes());
        framed.extend(answer);
        within(socket.write_all(&framed)).await?;
    }
}

/// One query, or nothing at the end of the connection.
async fn read(socket: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let len = match socket.read_u16().await {
        Ok(len) => usize::from(len),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if len > MAX_QUERY {
        return Err(io::Error::other(format!(
            "a query of {len} bytes, the limit is {MAX_QUERY}"
        )));
    }
    let mut query = vec![0; len];
    socket.read_exact(&mut query).await?;
    Ok(Some(query))
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(TCP_IDLE, work)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
