//! The resolver between real sandbox addresses and real upstream servers, all on loopback.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hearth_egress::dns::{Config, Policies, Policy, Resolver, Upstreams};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

const SOON: Duration = Duration::from_secs(20);
/// What a resolver of these tests waits for one try.
const TRY: Duration = Duration::from_millis(300);
/// Long enough to be sure of a silence, on loopback.
const SILENCE: Duration = Duration::from_millis(200);

/// How an upstream server behaves, told by the name asked.
fn upstream_answer(query: &Message, by_tcp: bool) -> Option<Vec<Message>> {
    let asked = query.queries()[0].clone();
    let name = asked.name().to_ascii().to_lowercase();
    let mut answer = Message::new();
    answer
        .set_id(query.id())
        .set_message_type(MessageType::Response)
        .set_recursion_available(true)
        .add_query(asked.clone());
    let record = |data| Record::from_rdata(asked.name().clone(), 5, data);
    match name.split('.').next().unwrap() {
        "silent" => return None,
        "missing" => {
            answer.set_response_code(ResponseCode::NXDomain);
        }
        "refused" => {
            answer.set_response_code(ResponseCode::Refused);
        }
        "large" if !by_tcp => {
            answer.set_truncated(true);
        }
        "large" => {
            for n in 0..100 {
                let text = vec![format!("{n}{}", "x".repeat(200))];
                answer.add_answer(record(RData::TXT(TXT::new(text))));
            }
        }
        "medium" => {
            let text = vec!["y".repeat(200); 4];
            answer.add_answer(record(RData::TXT(TXT::new(text))));
        }
        "spoofed" => {
            // Three forgeries come before the truth.
            answer.add_answer(record(RData::A(A::new(1, 1, 1, 1))));
            let mut wrong_id = answer.clone();
            wrong_id.set_id(query.id().wrapping_add(1));
            let mut wrong_name = answer.clone();
            wrong_name.queries_mut()[0].set_name(Name::from_str("other.test.").unwrap());
            wrong_name.answers_mut()[0].set_data(RData::A(A::new(6, 6, 6, 6)));
            let mut no_answer = answer.clone();
            no_answer.set_message_type(MessageType::Query);
            return Some(vec![wrong_id, wrong_name, no_answer, answer]);
        }
        _ => {
            answer.add_answer(record(RData::A(A::new(1, 2, 3, 4))));
        }
    }
    Some(vec![answer])
}

/// An upstream server; counts what it was asked.
async fn upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = udp.local_addr().unwrap();
    let tcp = TcpListener::bind(address).await.unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut buffer = vec![0; 4096];
        loop {
            let (len, peer) = udp.recv_from(&mut buffer).await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            let query = Message::from_vec(&buffer[..len]).unwrap();
            for answer in upstream_answer(&query, false).into_iter().flatten() {
                udp.send_to(&answer.to_vec().unwrap(), peer).await.unwrap();
            }
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = tcp.accept().await.unwrap();
            let query = read_framed(&mut socket).await.unwrap();
            let query = Message::from_vec(&query).unwrap();
            for answer in upstream_answer(&query, true).into_iter().flatten() {
                write_framed(&mut socket, &answer.to_vec().unwrap()).await;
            }
        }
    });
    (address, asked)
}

async fn read_framed(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let len = socket.read_u16().await?;
    let mut bytes = vec![0; usize::from(len)];
    socket.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn write_framed(socket: &mut TcpStream, bytes: &[u8]) {
    let mut framed = u16::try_from(bytes.len()).unwrap().to_be_bytes().to_vec();
    framed.extend(bytes);
    socket.write_all(&framed).await.unwrap();
}

struct Stand {
    resolver: SocketAddr,
    policies: Policies,
}

impl Stand {
    async fn new(upstreams: Vec<SocketAddr>) -> Self {
        let policies = Policies::default();
        // The kernel gives a port that is free for UDP; another test may have it for TCP.
        let resolver = loop {
            let config = Config {
                listen: "127.0.0.1:0".parse().unwrap(),
                upstreams: Upstreams::fixed(upstreams.clone()),
                try_limit: TRY,
            };
            match Resolver::bind(config, policies.clone()).await {
                Ok(resolver) => break resolver,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
            }
        };
        let address = resolver.local_addr().unwrap();
        tokio::spawn(resolver.run());
        Self {
            resolver: address,
            policies,
        }
    }

    /// A sandbox: an address of its own.
    fn sandbox(&self, policy: Option<Policy>) -> Ipv4Addr {
        static NEXT: AtomicU8 = AtomicU8::new(2);
        let address = Ipv4Addr::new(127, 3, 0, NEXT.fetch_add(1, Ordering::Relaxed));
        if let Some(policy) = policy {
            self.policies.set(address, policy);
        }
        address
    }

    async fn socket(&self, from: Ipv4Addr) -> UdpSocket {
        let socket = UdpSocket::bind((from, 0)).await.unwrap();
        socket.connect(self.resolver).await.unwrap();
        socket
    }

    async fn ask(&self, from: Ipv4Addr, query: &Message) -> Message {
        let socket = self.socket(from).await;
        socket.send(&query.to_vec().unwrap()).await.unwrap();
        let answer = receive(&socket).await;
        assert_eq!(answer.id(), query.id());
        answer
    }

    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.resolver).await.unwrap()
    }
}

async fn receive(socket: &UdpSocket) -> Message {
    let mut buffer = vec![0; 4096];
    let len = tokio::time::timeout(SOON, socket.recv(&mut buffer))
        .await
        .expect("an answer soon")
        .unwrap();
    Message::from_vec(&buffer[..len]).unwrap()
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new();
    message
        .set_id(4711)
        .set_recursion_desired(true)
        // `from_str` would fold the case.
        .add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn addresses(answer: &Message) -> Vec<Ipv4Addr> {
    let records = answer.answers().iter();
    records
        .filter_map(|record| match record.data() {
            RData::A(address) => Some(address.0),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn the_policy_of_the_source_decides() {
    let (server, asked) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let (open, closed, nobody) = (
        stand.sandbox(Some(Policy::Open)),
        stand.sandbox(Some(Policy::Closed)),
        stand.sandbox(None),
    );
    let question = query("example.test.", RecordType::A);

    let answer = stand.ask(open, &question).await;
    assert_eq!(addresses(&answer), [Ipv4Addr::new(1, 2, 3, 4)]);
    assert!(answer.recursion_available());
    assert_eq!(asked.load(Ordering::Relaxed), 1);

    let started = Instant::now();
    let refused = stand.ask(closed, &question).await;
    assert_eq!(refused.response_code(), ResponseCode::Refused);
    assert!(started.elapsed() < TRY, "at once");
    for name in ["localhost.", "x.localhost."] {
        let local = stand.ask(closed, &query(name, RecordType::A)).await;
        assert_eq!(addresses(&local), [Ipv4Addr::LOCALHOST], "{name}");
    }
    let socket = stand.socket(nobody).await;
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    let silence = tokio::time::timeout(SILENCE, socket.recv(&mut [0; 512])).await;
    assert!(silence.is_err(), "{silence:?}");
    let mut by_tcp = stand.connect(nobody).await;
    assert!(read_framed(&mut by_tcp).await.is_err(), "closed");
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "nothing else left the host"
    );

    // The node changes its mind; the next query knows.
    stand.policies.set(closed, Policy::Open);
    assert_eq!(addresses(&stand.ask(closed, &question).await).len(), 1);
    stand.policies.set(open, Policy::Closed);
    let refused = stand.ask(open, &question).await;
    assert_eq!(refused.response_code(), ResponseCode::Refused);
}

#[tokio::test]
async fn answers_pass_as_they_are() {
    let (server, _) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let open = stand.sandbox(Some(Policy::Open));
    let missing = stand
        .ask(open, &query("missing.test.", RecordType::A))
        .await;
    assert_eq!(missing.response_code(), ResponseCode::NXDomain);
    let refused = stand
        .ask(open, &query("refused.test.", RecordType::A))
        .await;
    assert_eq!(refused.response_code(), ResponseCode::Refused);
    // The case asked is the case answered.
    let mixed = stand
        .ask(open, &query("ExAmPlE.test.", RecordType::A))
        .await;
    assert_eq!(mixed.queries()[0].name().to_ascii(), "ExAmPlE.test.");
}

#[tokio::test]
async fn forged_answers_are_not_taken() {
    let (server, _) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let open = stand.sandbox(Some(Policy::Open));
    let answer = stand
        .ask(open, &query("spoofed.test.", RecordType::A))
        .await;
    assert_eq!(addresses(&answer), [Ipv4Addr::new(1, 1, 1, 1)]);
}

#[tokio::test]
async fn large_answers_come_by_tcp() {
    let (server, _) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let open = stand.sandbox(Some(Policy::Open));
    let question = query("large.test.", RecordType::TXT);
    let cut = stand.ask(open, &question).await;
    assert!(cut.truncated() && cut.answers().is_empty());
    let mut socket = stand.connect(open).await;
    for _ in 0..2 {
        write_framed(&mut socket, &question.to_vec().unwrap()).await;
        let whole = Message::from_vec(&read_framed(&mut socket).await.unwrap()).unwrap();
        assert_eq!((whole.id(), whole.answers().len()), (4711, 100));
    }
    // Between the two sizes EDNS decides.
    let mut question = query("medium.test.", RecordType::TXT);
    assert!(stand.ask(open, &question).await.truncated());
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    question.set_edns(edns);
    assert_eq!(stand.ask(open, &question).await.answers().len(), 1);
}

#[tokio::test]
async fn a_server_that_fails_is_passed_over() {
    let (good, _) = upstream().await;
    // Nothing listens on the first; the second takes queries and is silent.
    let free = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let dead = free.local_addr().unwrap();
    drop(free);
    let mute = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let silent = mute.local_addr().unwrap();
    let question = query("example.test.", RecordType::A);
    for servers in [
        vec![dead, good],
        vec![silent, good],
        vec![dead, silent, good],
    ] {
        let stand = Stand::new(servers).await;
        let open = stand.sandbox(Some(Policy::Open));
        assert_eq!(addresses(&stand.ask(open, &question).await).len(), 1);
    }
    let started = Instant::now();
    let stand = Stand::new(vec![silent]).await;
    let open = stand.sandbox(Some(Policy::Open));
    let failed = stand.ask(open, &question).await;
    assert_eq!(failed.response_code(), ResponseCode::ServFail);
    assert!(started.elapsed() >= 2 * TRY, "tried twice");
    let stand = Stand::new(vec![]).await;
    let open = stand.sandbox(Some(Policy::Open));
    let failed = stand.ask(open, &question).await;
    assert_eq!(failed.response_code(), ResponseCode::ServFail);
}

#[tokio::test]
async fn an_answer_for_a_sandbox_that_left_reaches_nobody() {
    let (server, asked) = upstream().await;
    let mute = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let stand = Stand::new(vec![mute.local_addr().unwrap(), server]).await;
    let address = stand.sandbox(Some(Policy::Open));
    let socket = stand.socket(address).await;
    let question = query("example.test.", RecordType::A);
    socket.send(&question.to_vec().unwrap()).await.unwrap();
    // It waits for the first server; meanwhile the slot passes to the next sandbox.
    mute.recv_from(&mut [0; 512]).await.unwrap();
    stand.policies.remove(address);
    stand.policies.set(address, Policy::Open);
    let deadline = Instant::now() + SOON;
    while asked.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let silence = tokio::time::timeout(SILENCE, socket.recv(&mut [0; 512])).await;
    assert!(silence.is_err(), "{silence:?}");
    // The new one is served.
    assert_eq!(addresses(&stand.ask(address, &question).await).len(), 1);
}

#[tokio::test]
async fn one_sandbox_cannot_take_the_resolver_from_another() {
    let (server, asked) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let (greedy, other) = (
        stand.sandbox(Some(Policy::Open)),
        stand.sandbox(Some(Policy::Open)),
    );
    let socket = stand.socket(greedy).await;
    let silent = query("silent.test.", RecordType::A).to_vec().unwrap();
    for _ in 0..100 {
        socket.send(&silent).await.unwrap();
    }
    // The 65th and later are answered at once: no place.
    for _ in 0..36 {
        assert_eq!(
            receive(&socket).await.response_code(),
            ResponseCode::ServFail
        );
    }
    let question = query("example.test.", RecordType::A);
    let started = Instant::now();
    assert_eq!(addresses(&stand.ask(other, &question).await).len(), 1);
    assert!(started.elapsed() < TRY, "undisturbed");
    // The places come back when upstream was waited for.
    for _ in 0..64 {
        assert_eq!(
            receive(&socket).await.response_code(),
            ResponseCode::ServFail
        );
    }
    assert_eq!(addresses(&stand.ask(greedy, &question).await).len(), 1);

    // The rate: far more than a burst, and only a burst and a little is forwarded.
    let before = asked.load(Ordering::Relaxed);
    let started = Instant::now();
    for _ in 0..2_000 {
        stand.ask(other, &question).await;
    }
    let forwarded = asked.load(Ordering::Relaxed) - before;
    let allowed = 400.0 + 100.0 * started.elapsed().as_secs_f64() + 1.0;
    assert!((300..=2_000).contains(&forwarded));
    assert!(
        f64::from(u32::try_from(forwarded).unwrap()) <= allowed,
        "{forwarded} > {allowed}"
    );
}

#[tokio::test]
async fn connections_have_limits_too() {
    let (server, _) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let (greedy, other) = (
        stand.sandbox(Some(Policy::Open)),
        stand.sandbox(Some(Policy::Open)),
    );
    let question = query("example.test.", RecordType::A).to_vec().unwrap();
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut socket = stand.connect(greedy).await;
        write_framed(&mut socket, &question).await;
        read_framed(&mut socket).await.unwrap();
        held.push(socket);
    }
    let mut ninth = stand.connect(greedy).await;
    assert!(read_framed(&mut ninth).await.is_err(), "closed");
    let mut socket = stand.connect(other).await;
    write_framed(&mut socket, &question).await;
    read_framed(&mut socket).await.unwrap();
    // A query longer than any question ends its connection.
    held[0].write_all(&[0xff, 0xff, 0]).await.unwrap();
    assert!(read_framed(&mut held[0]).await.is_err(), "closed");
    write_framed(&mut held[1], &question).await;
    read_framed(&mut held[1]).await.unwrap();
}

#[tokio::test]
async fn broken_queries_get_an_error_or_nothing() {
    let (server, asked) = upstream().await;
    let stand = Stand::new(vec![server]).await;
    let open = stand.sandbox(Some(Policy::Open));
    let mut update = query("example.test.", RecordType::A);
    update.set_op_code(OpCode::Update);
    let answer = stand.ask(open, &update).await;
    assert_eq!(answer.response_code(), ResponseCode::NotImp);
    let socket = stand.socket(open).await;
    let mut response = query("example.test.", RecordType::A);
    response.set_message_type(MessageType::Response);
    for noise in [vec![], vec![0; 5], response.to_vec().unwrap()] {
        socket.send(&noise).await.unwrap();
    }
    socket.send(&[0; 1300]).await.unwrap();
    assert_eq!(
        receive(&socket).await.response_code(),
        ResponseCode::FormErr
    );
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    // And it still serves.
    let answer = stand
        .ask(open, &query("example.test.", RecordType::A))
        .await;
    assert_eq!(addresses(&answer).len(), 1);
}

#[tokio::test]
async fn the_hosts_file_is_read_when_it_changes() {
    let path = std::env::temp_dir().join(format!("hearth-egress-{}.conf", std::process::id()));
    std::fs::write(&path, "# no server\n").unwrap();
    let policies = Policies::default();
    let config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        upstreams: Upstreams::file(&path),
        try_limit: TRY,
    };
    let resolver = Resolver::bind(config, policies.clone()).await.unwrap();
    let stand = Stand {
        resolver: resolver.local_addr().unwrap(),
        policies,
    };
    tokio::spawn(resolver.run());
    let open = stand.sandbox(Some(Policy::Open));
    let question = query("example.test.", RecordType::A);
    let failed = stand.ask(open, &question).await;
    assert_eq!(failed.response_code(), ResponseCode::ServFail);
    // A server on port 53 of an address of its own.
    let server = UdpSocket::bind("127.3.1.53:53").await.unwrap();
    tokio::spawn(async move {
        let mut buffer = vec![0; 512];
        loop {
            let (len, peer) = server.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..len]).unwrap();
            for answer in upstream_answer(&query, false).unwrap() {
                server
                    .send_to(&answer.to_vec().unwrap(), peer)
                    .await
                    .unwrap();
            }
        }
    });
    std::fs::write(&path, "nameserver 127.3.1.53\n").unwrap();
    let deadline = Instant::now() + SOON;
    while addresses(&stand.ask(open, &question).await).is_empty() {
        assert!(Instant::now() < deadline, "the new server is found");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    std::fs::remove_file(&path).unwrap();
}
