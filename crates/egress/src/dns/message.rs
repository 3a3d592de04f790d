//! DNS messages: what a sandbox asked, what is asked of upstream for it, and whether an answer
//! answers it. Pure. Bytes on both sides are hostile; a query is rebuilt, never passed on, so
//! only a question leaves the host.

use hickory_proto::op::{Edns, Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Largest query accepted, in bytes: a question with EDNS options is far smaller.
pub(super) const MAX_QUERY: usize = 1232;
/// Largest answer sent by UDP, in bytes: it passes every link unfragmented (DNS flag day 2020).
pub(super) const MAX_UDP_ANSWER: u16 = 1232;
/// What a client without EDNS takes by UDP (RFC 1035 4.2.1).
const PLAIN_UDP_ANSWER: u16 = 512;
/// Bytes of a DNS header.
const HEADER_LEN: usize = 12;
/// Seconds the local names live in a client's cache.
const LOCAL_TTL: u32 = 3600;

/// How a question came, and its answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// What the bytes of a query are.
#[derive(Debug)]
pub(super) enum Asked {
    Question(Question),
    /// Answered at once with an error.
    Fault(Vec<u8>),
    /// Not a query at all: answering could make two servers talk to each other for ever.
    Noise,
}

/// One question of one sandbox.
#[derive(Debug, Clone)]
pub(super) struct Question {
    id: u16,
    query: Query,
    recursion_desired: bool,
    checking_disabled: bool,
    authentic_data: bool,
    edns: Option<ClientEdns>,
}

#[derive(Debug, Clone, Copy)]
struct ClientEdns {
    max_payload: u16,
    dnssec_ok: bool,
}

/// Reads a query.
pub(super) fn parse(bytes: &[u8]) -> Asked {
    let Ok(header) = Header::read(&mut BinDecoder::new(bytes)) else {
        return Asked::Noise;
    };
    if header.message_type() != MessageType::Query {
        return Asked::Noise;
    }
    let fault = |code| error(header.id(), header.op_code(), None, code);
    if bytes.len() > MAX_QUERY {
        return fault(ResponseCode::FormErr);
    }
    if header.op_code() != OpCode::Query {
        return fault(ResponseCode::NotImp);
    }
    let Ok(message) = Message::from_vec(bytes) else {
        return fault(ResponseCode::FormErr);
    };
    let [query] = message.queries() else {
        return fault(ResponseCode::FormErr);
    };
    let zone_transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
    if query.query_class() != DNSClass::IN || zone_transfer {
        return error(
            header.id(),
            OpCode::Query,
            Some(query),
            ResponseCode::Refused,
        );
    }
    Asked::Question(Question {
        id: header.id(),
        query: query.clone(),
        recursion_desired: header.recursion_desired(),
        checking_disabled: header.checking_disabled(),
        authentic_data: header.authentic_data(),
        edns: message.extensions().as_ref().map(|edns| ClientEdns {
            max_payload: edns.max_payload(),
            dnssec_ok: edns.flags().dnssec_ok,
        }),
    })
}

fn error(id: u16, op_code: OpCode, query: Option<&Query>, code: ResponseCode) -> Asked {
    let mut message = Message::error_msg(id, op_code, code);
    message.add_queries(query.cloned());
    message.to_vec().map_or(Asked::Noise, Asked::Fault)
}

impl Question {
    /// The same question under another id, as upstream gets it.
    pub(super) fn for_upstream(&self, id: u16) -> Option<Vec<u8>> {
        let mut message = Message::new();
        message
            .set_id(id)
            .set_message_type(MessageType::Query)
            .set_op_code(OpCode::Query)
            .set_recursion_desired(self.recursion_desired)
            .set_checking_disabled(self.checking_disabled)
            .set_authentic_data(self.authentic_data)
            .add_query(self.query.clone());
        if let Some(edns) = self.edns {
            message.set_edns(own_edns(edns.dnssec_ok));
        }
        message.to_vec().ok()
    }

    /// Whether `bytes` are an answer to [`Self::for_upstream`] with `id`.
    pub(super) fn is_answered_by(&self, id: u16, bytes: &[u8]) -> bool {
        let mut decoder = BinDecoder::new(bytes);
        let Ok(header) = Header::read(&mut decoder) else {
            return false;
        };
        if header.id() != id
            || header.message_type() != MessageType::Response
            || header.op_code() != OpCode::Query
            || header.query_count() != 1
        {
            return false;
        }
        let Ok(query) = Query::read(&mut decoder) else {
            return false;
        };
        query.query_type() == self.query.query_type()
            && query.query_class() == self.query.query_class()
            && query.name().to_lowercase() == self.query.name().to_lowercase()
    }

    /// An answer that is an error.
    pub(super) fn refuse(&self, code: ResponseCode) -> Option<Vec<u8>> {
        let mut message = self.reply();
        message.set_response_code(code);
        message.to_vec().ok()
    }

    /// The answer for names that mean the sandbox itself (RFC 6761 6.3), under every policy.
    pub(super) fn local(&self) -> Option<Vec<u8>> {
        if !self.query.name().is_localhost() {
            return None;
        }
        let mut message = self.reply();
        let data = match self.query.query_type() {
            RecordType::A => Some(RData::A(A(Ipv4Addr::LOCALHOST))),
            RecordType::AAAA => Some(RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))),
            _ => None,
        };
        if let Some(data) = data {
            let name = self.query.name().clone();
            message.add_answer(Record::from_rdata(name, LOCAL_TTL, data));
        }
        message.to_vec().ok()
    }

    /// Makes upstream's answer into the one to this question: its id, and no more bytes than
    /// the way back takes.
    pub(super) fn finish(&self, mut answer: Vec<u8>, transport: Transport) -> Option<Vec<u8>> {
        let limit = match (transport, self.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_UDP_ANSWER,
            (Transport::Udp, Some(edns)) => {
                edns.max_payload.clamp(PLAIN_UDP_ANSWER, MAX_UDP_ANSWER)
            }
        };
        if answer.len() > usize::from(limit) {
            let mut message = self.reply();
            message.set_truncated(true);
            message.set_response_code(ResponseCode::NoError);
            return message.to_vec().ok();
        }
        answer.get_mut(..2)?.copy_from_slice(&self.id.to_be_bytes());
        Some(answer)
    }

    fn reply(&self) -> Message {
        let mut message = Message::new();
        message
            .set_id(self.id)
            .set_message_type(MessageType::Response)
            .set_op_code(OpCode::Query)
            .set_recursion_desired(self.recursion_desired)
            .set_recursion_available(true)
            .set_checking_disabled(self.checking_disabled)
            .add_query(self.query.clone());
        if let Some(edns) = self.edns {
            message.set_edns(own_edns(edns.dnssec_ok));
        }
        message
    }
}

fn own_edns(dnssec_ok: bool) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP_ANSWER);
    edns.set_dnssec_ok(dnssec_ok);
    edns
}

/// Whether an answer says that it was cut short, or that its server did not want to or could
/// not answer.
pub(super) fn verdict(answer: &[u8]) -> Verdict {
    match answer.get(..HEADER_LEN) {
        Some([_, _, flags, code, ..]) if flags & 0x02 != 0 && !is_failure(code & 0x0f) => {
            Verdict::Truncated
        }
        Some([_, _, _, code, ..]) if is_failure(code & 0x0f) => Verdict::Failed,
        _ => Verdict::Whole,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Whole,
    Truncated,
    Failed,
}

/// SERVFAIL or REFUSED: another server may know better.
fn is_failure(code: u8) -> bool {
    code == 2 || code == 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::Name;
    use proptest::prelude::*;
    use std::str::FromStr as _;

    fn query(name: &str, kind: RecordType) -> Message {
        let mut message = Message::new();
        message
            .set_id(7)
            .set_recursion_desired(true)
            .add_query(Query::query(Name::from_str(name).expect("a name"), kind));
        message
    }

    fn question(message: &Message) -> Question {
        match parse(&message.to_vec().expect("encodes")) {
            Asked::Question(question) => question,
            other => panic!("{other:?}"),
        }
    }

    fn code(bytes: &[u8]) -> ResponseCode {
        Message::from_vec(bytes).expect("an answer").response_code()
    }

    #[test]
    fn only_the_question_leaves_the_host() {
        let mut message = query("Example.org.", RecordType::A);
        message.add_additional(Record::from_rdata(
            Name::from_str("smuggled.test.").expect("a name"),
            1,
            RData::A(A::new(1, 2, 3, 4)),
        ));
        let bytes = question(&message).for_upstream(99).expect("encodes");
        let sent = Message::from_vec(&bytes).expect("decodes");
        assert_eq!(sent.id(), 99);
        assert_eq!(sent.queries(), message.queries());
        assert!(sent.additionals().is_empty() && sent.extensions().is_none());
        assert!(sent.recursion_desired());
    }

    #[test]
    fn an_answer_answers_its_question_only() {
        let asked = question(&query("example.org.", RecordType::A));
        let answer = |id, name, kind, class, reply| {
            let mut message = query(name, kind);
            message.set_id(id);
            message.queries_mut()[0].set_query_class(class);
            if reply {
                message.set_message_type(MessageType::Response);
            }
            message.to_vec().expect("encodes")
        };
        use DNSClass::{CH, IN};
        use RecordType::{A, AAAA};
        assert!(asked.is_answered_by(9, &answer(9, "example.org.", A, IN, true)));
        assert!(asked.is_answered_by(9, &answer(9, "EXAMPLE.org.", A, IN, true)));
        assert!(!asked.is_answered_by(8, &answer(9, "example.org.", A, IN, true)));
        assert!(!asked.is_answered_by(9, &answer(9, "example.com.", A, IN, true)));
        assert!(!asked.is_answered_by(9, &answer(9, "example.org.", AAAA, IN, true)));
        assert!(!asked.is_answered_by(9, &answer(9, "example.org.", A, CH, true)));
        assert!(!asked.is_answered_by(9, &answer(9, "example.org.", A, IN, false)));
        assert!(!asked.is_answered_by(9, b"\0\x09"));
        assert!(!asked.is_answered_by(9, b""));
    }

    #[test]
    fn faults_are_named() {
        let fault = |bytes: &[u8]| match parse(bytes) {
            Asked::Fault(bytes) => code(&bytes),
            other => panic!("{other:?}"),
        };
        let good = query("example.org.", RecordType::A);
        let mut two = good.clone();
        two.add_query(good.queries()[0].clone());
        let mut update = good.clone();
        update.set_op_code(OpCode::Update);
        let mut chaos = good.clone();
        chaos.queries_mut()[0].set_query_class(DNSClass::CH);
        let bytes = |message: &Message| message.to_vec().expect("encodes");
        assert_eq!(fault(&bytes(&two)), ResponseCode::FormErr);
        assert_eq!(fault(&bytes(&Message::new())), ResponseCode::FormErr);
        assert_eq!(fault(&bytes(&update)), ResponseCode::NotImp);
        assert_eq!(fault(&bytes(&chaos)), ResponseCode::Refused);
        let transfer = query("example.org.", RecordType::AXFR);
        assert_eq!(fault(&bytes(&transfer)), ResponseCode::Refused);
        let cut = bytes(&good);
        assert_eq!(fault(&cut[..cut.len() - 3]), ResponseCode::FormErr);
        let mut long = cut.clone();
        long.resize(MAX_QUERY + 1, 0);
        assert_eq!(fault(&long), ResponseCode::FormErr);
        let mut answer = good.clone();
        answer.set_message_type(MessageType::Response);
        assert!(matches!(parse(&bytes(&answer)), Asked::Noise));
        assert!(matches!(parse(b"short"), Asked::Noise));
    }

    #[test]
    fn localhost_is_answered_here() {
        let answer = |name, kind| {
            let bytes = question(&query(name, kind)).local()?;
            Some(Message::from_vec(&bytes).expect("an answer"))
        };
        let a = answer("localhost.", RecordType::A).expect("local");
        assert_eq!(a.answers()[0].data(), &RData::A(A(Ipv4Addr::LOCALHOST)));
        let sub = answer("8080-x.LocalHost.", RecordType::AAAA).expect("local");
        assert_eq!(
            sub.answers()[0].data(),
            &RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))
        );
        let mx = answer("localhost.", RecordType::MX).expect("local");
        assert!(mx.answers().is_empty());
        assert_eq!(mx.response_code(), ResponseCode::NoError);
        assert!(answer("localhost.example.org.", RecordType::A).is_none());
        assert!(answer("notlocalhost.", RecordType::A).is_none());
    }

    #[test]
    fn answers_fit_the_way_back() {
        let plain = question(&query("example.org.", RecordType::TXT));
        let mut message = query("example.org.", RecordType::TXT);
        message.set_edns(own_edns(true));
        let edns = question(&message);
        let truncated = |asked: &Question, len: usize, way| {
            let out = asked.finish(vec![0; len], way).expect("finished");
            assert_eq!(&out[..2], &[0, 7]);
            out.len() < len && out[2] & 0x02 != 0
        };
        assert!(!truncated(&plain, 512, Transport::Udp));
        assert!(truncated(&plain, 513, Transport::Udp));
        assert!(!truncated(&edns, 1232, Transport::Udp));
        assert!(truncated(&edns, 1233, Transport::Udp));
        assert!(!truncated(&plain, 65_535, Transport::Tcp));
    }

    #[test]
    fn verdicts() {
        let header = |flags, code| [0, 0, flags, code, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(verdict(&header(0x80, 0x80)), Verdict::Whole);
        assert_eq!(verdict(&header(0x80, 0x83)), Verdict::Whole);
        assert_eq!(verdict(&header(0x82, 0x80)), Verdict::Truncated);
        assert_eq!(verdict(&header(0x80, 0x82)), Verdict::Failed);
        assert_eq!(verdict(&header(0x80, 0x85)), Verdict::Failed);
        assert_eq!(verdict(b""), Verdict::Whole);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Asked::Question(question) = parse(&bytes) {
                let _ = question.for_upstream(1);
                let _ = question.refuse(ResponseCode::Refused);
                let _ = question.local();
                let _ = question.is_answered_by(1, &bytes);
                let _ = question.finish(bytes.clone(), Transport::Udp);
            }
            let asked = question(&query("example.org.", RecordType::A));
            let _ = asked.is_answered_by(1, &bytes);
            let _ = verdict(&bytes);
        }

        #[test]
        fn flipped_queries_never_panic(at in 0usize..29, bit in 0u8..8) {
            let mut bytes = query("example.org.", RecordType::A).to_vec().expect("encodes");
            bytes[at] ^= 1 << bit;
            if let Asked::Question(question) = parse(&bytes) {
                prop_assert!(question.for_upstream(1).is_some());
            }
        }
    }
}
