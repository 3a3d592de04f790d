//! The resolver sandboxes ask: it answers by the policy of the address a query comes from.
//!
//! Asking for a name is egress, so a closed sandbox is refused at once, whatever it asks. An
//! open one is forwarded to the host's servers. A query from an address that is nobody's is
//! dropped. Nothing is cached, and no answer is edited: where an answer may lead is decided
//! when the sandbox connects.
//!
//! Start with [`serve`], or with [`Resolver`] where the port is not 53.

mod listen;
mod message;
mod policy;
mod upstream;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;

pub use policy::{Policies, Policy};
pub use upstream::Upstreams;

/// Port of DNS.
const PORT: u16 = 53;
/// Time one upstream server gets for one try.
const TRY_LIMIT: Duration = Duration::from_secs(2);
/// Queries of all sandboxes that wait for upstream at once: each holds a socket and a buffer.
const MAX_QUERIES: usize = 1024;
/// TCP connections of all sandboxes at once.
const MAX_CONNECTIONS: usize = 256;

/// What a resolver is made from.
#[derive(Debug)]
pub struct Config {
    /// UDP and TCP are served on each.
    pub listen: SocketAddr,
    pub upstreams: Upstreams,
    /// Time one upstream server gets for one try; two tries are made.
    pub try_limit: Duration,
}

/// A resolver that is bound and does not serve yet.
#[derive(Debug)]
pub struct Resolver {
    udp: UdpSocket,
    tcp: TcpListener,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    upstreams: Upstreams,
    try_limit: Duration,
    policies: Policies,
    queries: Arc<Semaphore>,
    connections: Arc<Semaphore>,
}

impl Resolver {
    /// # Errors
    /// When an address cannot be bound.
    pub async fn bind(config: Config, policies: Policies) -> io::Result<Self> {
        let udp = UdpSocket::bind(config.listen).await?;
        let tcp = TcpListener::bind(udp.local_addr()?).await?;
        Ok(Self {
            udp,
            tcp,
            inner: Arc::new(Inner {
                upstreams: config.upstreams,
                try_limit: config.try_limit,
                policies,
                queries: Arc::new(Semaphore::new(MAX_QUERIES)),
                connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            }),
        })
    }

    /// # Errors
    /// When the socket cannot be read.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Serves for ever.
    pub async fn run(self) {
        let Self { udp, tcp, inner } = self;
        tokio::join!(
            listen::udp(Arc::new(udp), Arc::clone(&inner)),
            listen::tcp(tcp, inner)
        );
    }
}

/// Binds port 53 of `address` and serves in the background until the process ends. Without
/// `upstream` the servers of the host's `/etc/resolv.conf` are asked, as it is at the time.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    address: Ipv4Addr,
    upstream: Vec<SocketAddr>,
    policies: Policies,
) -> io::Result<()> {
    let upstreams = if upstream.is_empty() {
        Upstreams::host()
    } else {
        Upstreams::fixed(upstream)
    };
    let config = Config {
        listen: SocketAddr::from((address, PORT)),
        upstreams,
        try_limit: TRY_LIMIT,
    };
    let resolver = Resolver::bind(config, policies).await?;
    tokio::spawn(resolver.run());
    Ok(())
}
