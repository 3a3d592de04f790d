//! What of a head may pass: hop-by-hop headers end here, names of our own never reach a
//! sandbox, and where a request came from is told afresh.

use std::net::IpAddr;

use hearth_model::limits::AGENT_PORT;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Port of the code interpreter, whose server checks the access token as the agent does.
const CODE_INTERPRETER_PORT: u16 = 49999;

pub(crate) const SANDBOX_ID: &str = "e2b-sandbox-id";
pub(crate) const SANDBOX_PORT: &str = "e2b-sandbox-port";

/// Headers about one connection only (RFC 9110 7.6.1), besides those `Connection` lists.
/// `Trailer` stays: trailers are passed on, and it says which.
const HOP_BY_HOP: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "transfer-encoding",
    "upgrade",
];
/// What a `Connection` header cannot take away, whoever lists it.
const NOT_PER_HOP: [&str; 4] = ["host", "content-length", "content-type", "authorization"];

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("invalid request: both Transfer-Encoding and Content-Length are given")]
    TwoLengths,
    #[error("invalid request: the only Transfer-Encoding accepted is chunked")]
    TransferEncoding,
}

/// A length that two readers could read differently is refused, not repaired.
pub(crate) fn check_framing(headers: &HeaderMap) -> Result<(), HeadError> {
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else {
        return Ok(());
    };
    if headers.contains_key(header::CONTENT_LENGTH) {
        return Err(HeadError::TwoLengths);
    }
    let chunked = encoding
        .as_bytes()
        .trim_ascii()
        .eq_ignore_ascii_case(b"chunked");
    if chunked && encodings.next().is_none() {
        Ok(())
    } else {
        Err(HeadError::TransferEncoding)
    }
}

/// The protocol a message asks to change to, when it asks properly.
pub(crate) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    lists(headers, "upgrade")
        .then(|| headers.get(header::UPGRADE).cloned())
        .flatten()
}

fn lists(headers: &HeaderMap, token: &str) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// Removes what concerns one connection only.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .filter_map(|item| HeaderName::from_bytes(item.trim_ascii()).ok())
        .filter(|name| !NOT_PER_HOP.contains(&name.as_str()))
        .collect();
    for name in listed {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Names that carry meaning between us and our own parts, or that we state ourselves. CGI and
/// WSGI read `_` as `-`, so both spellings count.
fn is_ours(name: &str, port: u16) -> bool {
    let name = name.replace('_', "-");
    let token_allowed = port == AGENT_PORT || port == CODE_INTERPRETER_PORT;
    name.starts_with("x-hearth-")
        || name.starts_with("x-forwarded-")
        || matches!(
            name.as_str(),
            SANDBOX_ID | SANDBOX_PORT | "e2b-traffic-access-token" | "forwarded" | "x-real-ip"
        )
        || (name == "x-access-token" && !token_allowed)
}

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) client: IpAddr,
    pub(crate) host: Option<&'a HeaderValue>,
}

/// Makes a client's headers into those a sandbox sees on `port`.
pub(crate) fn to_sandbox(headers: &mut HeaderMap, port: u16, origin: Origin<'_>) {
    let trailers = headers
        .get_all(header::TE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    strip_hop_by_hop(headers);
    headers.remove(header::TE);
    // The edge itself asks the client to go on, when the body is first wanted.
    headers.remove(header::EXPECT);
    let ours: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_ours(name.as_str(), port))
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Ok(client) = HeaderValue::from_str(&origin.client.to_string()) {
        headers.insert("x-forwarded-for", client);
    }
    headers.insert("x-forwarded-proto", HeaderValue::from_static("http"));
    if let Some(host) = origin.host {
        headers.insert("x-forwarded-host", host.clone());
        headers.insert(header::HOST, host.clone());
    }
}

/// Asks for, or agrees to, a change of protocol on this connection.
pub(crate) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        headers
    }

    fn sent(port: u16, pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = map(pairs);
        let host = HeaderValue::from_static("8080-i.localhost");
        to_sandbox(
            &mut headers,
            port,
            Origin {
                client: IpAddr::from([127, 0, 0, 9]),
                host: Some(&host),
            },
        );
        headers
    }

    #[test]
    fn our_names_never_reach_a_sandbox() {
        let headers = sent(
            8080,
            &[
                ("x-hearth-control", "secret"),
                ("x_hearth_control", "secret"),
                ("e2b-sandbox-id", "i"),
                ("e2b_sandbox_port", "1"),
                ("e2b-traffic-access-token", "t"),
                ("x-access-token", "t"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x_forwarded_for", "1.2.3.4"),
                ("x-forwarded-user", "root"),
                ("forwarded", "for=1.2.3.4"),
                ("x-real-ip", "1.2.3.4"),
                ("x-api-key", "kept"),
                ("cookie", "kept"),
            ],
        );
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "cookie",
                "host",
                "x-api-key",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto"
            ]
        );
        assert_eq!(headers["x-forwarded-for"], "127.0.0.9");
        assert_eq!(headers["x-forwarded-host"], "8080-i.localhost");
    }

    #[test]
    fn the_access_token_reaches_those_that_check_it() {
        for (port, kept) in [(49983, true), (49999, true), (8080, false), (49982, false)] {
            let headers = sent(port, &[("x-access-token", "t")]);
            assert_eq!(headers.contains_key("x-access-token"), kept, "{port}");
        }
    }

    #[test]
    fn connection_headers_end_here() {
        let headers = sent(
            8080,
            &[
                ("connection", "keep-alive, x-secret, host"),
                ("connection", "x-forwarded-for, content-length"),
                ("x-secret", "1"),
                ("content-length", "3"),
                ("keep-alive", "timeout=5"),
                ("te", "trailers, deflate"),
                ("proxy-authorization", "Basic x"),
                ("upgrade", "h2c"),
                ("expect", "100-continue"),
            ],
        );
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "content-length",
                "host",
                "te",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto"
            ]
        );
        assert_eq!(headers["te"], "trailers");
    }

    #[test]
    fn framing_that_can_be_read_twice_is_refused() {
        assert_eq!(check_framing(&map(&[("content-length", "1")])), Ok(()));
        assert_eq!(
            check_framing(&map(&[("transfer-encoding", "Chunked")])),
            Ok(())
        );
        assert_eq!(
            check_framing(&map(&[
                ("transfer-encoding", "chunked"),
                ("content-length", "1")
            ])),
            Err(HeadError::TwoLengths)
        );
        for (a, b) in [
            ("gzip", None),
            ("gzip, chunked", None),
            ("chunked", Some("chunked")),
            ("xchunked", None),
        ] {
            let mut headers = map(&[("transfer-encoding", a)]);
            if let Some(b) = b {
                headers.append("transfer-encoding", HeaderValue::from_static(b));
            }
            assert_eq!(
                check_framing(&headers),
                Err(HeadError::TransferEncoding),
                "{a}"
            );
        }
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        assert!(wanted_upgrade(&map(&[("upgrade", "websocket")])).is_none());
        assert!(wanted_upgrade(&map(&[("connection", "upgrade")])).is_none());
        let both = map(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ]);
        assert_eq!(
            wanted_upgrade(&both),
            Some(HeaderValue::from_static("websocket"))
        );
    }
}
