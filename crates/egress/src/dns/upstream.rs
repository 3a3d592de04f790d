//! Asks the host's servers. Each try has a socket of its own, so its port is as hard to guess
//! as its id.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use super::PORT;
use super::message::{Question, Transport, Verdict, verdict};

/// Tries of one question, over all servers.
const TRIES: usize = 2;
/// Datagrams that are not the answer, before a try is given up: somebody is guessing.
const MAX_STRAY: usize = 16;
/// Largest UDP answer read, in bytes.
const MAX_DATAGRAM: usize = 4096;
/// How long a reading of the host's configuration counts.
const REREAD: Duration = Duration::from_secs(5);
/// The host's configuration.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The servers asked.
#[derive(Debug)]
pub struct Upstreams(Kind);

#[derive(Debug)]
enum Kind {
    Fixed(Vec<SocketAddr>),
    /// Read again and again: hosts move between networks.
    File {
        path: PathBuf,
        read: Mutex<Option<(Instant, Vec<SocketAddr>)>>,
    },
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("reading the host's servers from {path}")]
    Configuration {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the host names no server")]
    NoServer,
    #[error("the question cannot be written")]
    Unwritable,
    #[error("asking {server}")]
    Io {
        server: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("{server} did not answer in time")]
    TimedOut { server: SocketAddr },
    #[error("{server} answered something else")]
    Stray { server: SocketAddr },
}

impl Upstreams {
    pub fn fixed(servers: Vec<SocketAddr>) -> Self {
        Self(Kind::Fixed(servers))
    }

    /// What the host's `/etc/resolv.conf` names.
    pub fn host() -> Self {
        Self::file(RESOLV_CONF)
    }

    /// What a file in the format of `/etc/resolv.conf` names.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Kind::File {
            path: path.into(),
            read: Mutex::new(None),
        })
    }

    async fn servers(&self) -> Result<Vec<SocketAddr>, AskError> {
        match &self.0 {
            Kind::Fixed(servers) => Ok(servers.clone()),
            Kind::File { path, read } => {
                let known = read.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some((at, servers)) = known
                    && at.elapsed() < REREAD
                {
                    return Ok(servers);
                }
                let servers = read_file(path).await?;
                *read.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((Instant::now(), servers.clone()));
                Ok(servers)
            }
        }
    }

    /// The answer to a question, as upstream gave it.
    ///
    /// # Errors
    /// The last try's, when none brought an answer.
    pub(super) async fn ask(
        &self,
        question: &Question,
        transport: Transport,
        limit: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let servers = self.servers().await?;
        let mut outcome = Err(AskError::NoServer);
        for server in servers.iter().cycle().take(TRIES.max(servers.len())) {
            let tried = tokio::time::timeout(limit, ask_one(question, *server, transport))
                .await
                .unwrap_or(Err(AskError::TimedOut { server: *server }));
            match tried {
                Ok(answer) if verdict(&answer) != Verdict::Failed => return Ok(answer),
                // A server that says no is worth more than one that says nothing.
                Ok(answer) => outcome = Ok(answer),
                Err(error) => {
                    if outcome.is_err() {
                        outcome = Err(error);
                    }
                }
            }
        }
        outcome
    }
}

async fn read_file(path: &Path) -> Result<Vec<SocketAddr>, AskError> {
    let text = tokio::fs::read_to_string(path)
        .await
        .map_err(|source| AskError::Configuration {
            path: path.to_owned(),
            source,
        })?;
    Ok(parse_servers(&text))
}

/// The first three `nameserver` lines, as every resolver reads them. An address with a scope
/// (`fe80::1%eth0`) is left out.
fn parse_servers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some("nameserver")).then(|| words.next())?
        })
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .map(|address| SocketAddr::from((address, PORT)))
        .take(3)
        .collect()
}

async fn ask_one(
    question: &Question,
    server: SocketAddr,
    transport: Transport,
) -> Result<Vec<u8>, AskError> {
    let answer = udp(question, server).await?;
    // By UDP the sandbox is told that the answer was cut and comes back by TCP.
    if transport == Transport::Tcp && verdict(&answer) == Verdict::Truncated {
        return tcp(question, server).await;
    }
    Ok(answer)
}

fn random_id() -> u16 {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).expect("the kernel's random source answers");
    u16::from_be_bytes(bytes)
}

async fn udp(question: &Question, server: SocketAddr) -> Result<Vec<u8>, AskError> {
    let io = |source| AskError::Io { server, source };
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.map_err(io)?;
    // Connected: the kernel lets in what comes from this server only.
    socket.connect(server).await.map_err(io)?;
    let id = random_id();
    let bytes = question.for_upstream(id).ok_or(AskError::Unwritable)?;
    socket.send(&bytes).await.map_err(io)?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    for _ in 0..MAX_STRAY {
        let len = socket.recv(&mut buffer).await.map_err(io)?;
        buffer.truncate(len);
        if question.is_answered_by(id, &buffer) {
            return Ok(buffer);
        }
        buffer.resize(MAX_DATAGRAM, 0);
    }
    Err(AskError::Stray { server })
}

async fn tcp(question: &Question, server: SocketAddr) -> Result<Vec<u8>, AskError> {
    let io = |source| AskError::Io { server, source };
    let mut socket = TcpStream::connect(server).await.map_err(io)?;
    let id = random_id();
    let bytes = question.for_upstream(id).ok_or(AskError::Unwritable)?;
    let len = u16::try_from(bytes.len()).map_err(|_| AskError::Unwritable)?;
    let mut framed = len.to_be_bytes().to_vec();
    framed.extend(bytes);
    socket.write_all(&framed).await.map_err(io)?;
    let len = socket.read_u16().await.map_err(io)?;
    let mut answer = vec![0; usize::from(len)];
    socket.read_exact(&mut answer).await.map_err(io)?;
    if question.is_answered_by(id, &answer) {
        Ok(answer)
    } else {
        Err(AskError::Stray { server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_configuration_is_read_as_resolvers_do() {
        let text = "# nameserver 9.9.9.9\nsearch example.org\nnameserver 10.0.0.1\n\
                    nameserver\t2001:db8::1 # why\n nameserver fe80::1%eth0\nnameserver x\n\
                    nameserverx 1.1.1.1\noptions ndots:5\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n";
        let servers: Vec<String> = parse_servers(text)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(servers, ["10.0.0.1:53", "[2001:db8::1]:53", "10.0.0.2:53"]);
        assert!(parse_servers("").is_empty());
    }
}
