//! How a request names a sandbox and a port: routing headers, the host label or a signed
//! file URL (`e2b.md` D.4). Pure; used by the edge, tested with odd input.
//!
//! Start with [`route`]. It sees raw bytes from outside and decides; whether the sandbox
//! exists is not its business.

use crate::id::SandboxId;
use crate::limits::AGENT_PORT;
use crate::secret::Secret;
use crate::signature::{Claim, Operation, verify};

/// Longest host accepted, in bytes: a DNS name has 253 characters, then a dot, a colon and a port.
pub const MAX_HOST_LEN: usize = 260;
/// Longest file path in a signed URL, in bytes: PATH_MAX of Linux. It also bounds what one
/// request without any header can make the server hash.
pub const MAX_SIGNED_PATH: usize = 4096;
/// Longest user name or expiry in a signed URL, in bytes.
pub const MAX_SIGNED_FIELD: usize = 64;
/// `v1_` and 43 characters: SHA-256 in base64 without padding.
const SIGNATURE_LEN: usize = 46;

/// A sandbox and a port in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub sandbox: SandboxId,
    pub port: u16,
}

/// A file URL that names its sandbox only by its signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedFile {
    pub path: String,
    /// Empty when the URL names no user.
    pub user: String,
    pub expiration: Option<String>,
    pub signature: String,
    /// The operations this request may stand for; a preflight stands for both.
    operations: &'static [Operation],
}

impl SignedFile {
    /// Whether a sandbox with this access token signed the URL. Expiry is the agent's to check.
    pub fn is_signed_with(&self, token: &Secret) -> bool {
        self.operations.iter().any(|operation| {
            let claim = Claim {
                path: &self.path,
                operation: *operation,
                user: &self.user,
                expiration: self.expiration.as_deref(),
            };
            verify(&claim, token, &self.signature)
        })
    }

    /// The port such a URL is for: the agent's.
    pub fn port(&self) -> u16 {
        AGENT_PORT
    }
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Sandbox(Target),
    Signed(SignedFile),
    Control,
}

/// Why a request names nothing. The text is the whole answer, with status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("invalid host: {0}")]
    Host(&'static str),
    #[error("invalid sandbox id: must be `i` and 19 to 39 characters of [a-z0-9]")]
    Sandbox,
    #[error("invalid sandbox port: must be a number from 1 to 65535")]
    Port,
    #[error("missing header E2b-Sandbox-Port: it goes with E2b-Sandbox-Id")]
    MissingPort,
    #[error("missing header E2b-Sandbox-Id: it goes with E2b-Sandbox-Port")]
    MissingId,
    #[error("header {0} is given more than once")]
    Repeated(&'static str),
    #[error("invalid signed URL: {0}")]
    Signed(&'static str),
}

/// The parts of a request head that can name a sandbox, as they came.
#[derive(Debug, Clone, Default)]
pub struct Head<'a> {
    pub method: &'a str,
    /// Of the request target, not decoded.
    pub path: &'a str,
    pub query: Option<&'a str>,
    /// The authority of an absolute-form target (`GET http://host/path`).
    pub authority: Option<&'a str>,
    pub hosts: Vec<&'a [u8]>,
    pub sandbox_ids: Vec<&'a [u8]>,
    pub sandbox_ports: Vec<&'a [u8]>,
    /// HTTP/1.0 may omit `Host`.
    pub host_optional: bool,
}

/// Decides where a request goes. The routing headers win over the host, as clients expect:
/// they send both, and the host is then the server's own or anything else.
///
/// # Errors
/// When something that names a sandbox is malformed, repeated or contradicts itself.
pub fn route(head: &Head<'_>) -> Result<Route, RouteError> {
    let label = first_label(head)?;
    let id = single(&head.sandbox_ids, "E2b-Sandbox-Id")?;
    let port = single(&head.sandbox_ports, "E2b-Sandbox-Port")?;
    match (id, port) {
        (Some(id), Some(port)) => return target(id, port).map(Route::Sandbox),
        (Some(_), None) => return Err(RouteError::MissingPort),
        (None, Some(_)) => return Err(RouteError::MissingId),
        (None, None) => {}
    }
    if let Some((port, id)) = label.as_deref().and_then(split_label) {
        return target(id.as_bytes(), port.as_bytes()).map(Route::Sandbox);
    }
    match signed(head)? {
        Some(signed) => Ok(Route::Signed(signed)),
        None => Ok(Route::Control),
    }
}

fn single<'a>(values: &[&'a [u8]], name: &'static str) -> Result<Option<&'a [u8]>, RouteError> {
    match values {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(RouteError::Repeated(name)),
    }
}

fn target(id: &[u8], port: &[u8]) -> Result<Target, RouteError> {
    let port = parse_port(port).ok_or(RouteError::Port)?;
    let sandbox = std::str::from_utf8(id)
        .ok()
        .and_then(|id| SandboxId::parse(id).ok())
        .ok_or(RouteError::Sandbox)?;
    Ok(Target { sandbox, port })
}

/// Digits only: `str::parse` would also take a plus sign.
fn parse_port(text: &[u8]) -> Option<u16> {
    if text.is_empty() || text.len() > 5 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let port: u16 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (port != 0).then_some(port)
}

/// The first label of the host in lower case; `None` for an IPv6 address or no host at all.
fn first_label(head: &Head<'_>) -> Result<Option<String>, RouteError> {
    let host = match (&head.hosts[..], head.authority) {
        ([], None) if head.host_optional => return Ok(None),
        ([], None) => return Err(RouteError::Host("the Host header is missing")),
        ([], Some(authority)) => authority,
        ([host], authority) => {
            let host =
                std::str::from_utf8(host).map_err(|_| RouteError::Host("it is not a host name"))?;
            // RFC 9112 3.2.2 lets the target win; a proxy and an application that disagree
            // on that see two different hosts, so a contradiction is refused.
            if authority.is_some_and(|a| !a.eq_ignore_ascii_case(host)) {
                return Err(RouteError::Host("the target and the Host header differ"));
            }
            host
        }
        _ => return Err(RouteError::Host("the Host header is given more than once")),
    };
    if host.is_empty() || host.len() > MAX_HOST_LEN {
        return Err(RouteError::Host("it must have 1 to 260 characters"));
    }
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest
            .split_once(']')
            .ok_or(RouteError::Host("a bracket is not closed"))?;
        address
            .parse::<std::net::Ipv6Addr>()
            .map_err(|_| RouteError::Host("it is not an IPv6 address"))?;
        check_port_suffix(port)?;
        return Ok(None);
    }
    let (name, port) = host.find(':').map_or((host, ""), |at| host.split_at(at));
    check_port_suffix(port)?;
    let name = name.strip_suffix('.').unwrap_or(name);
    let ok = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !ok || name.split('.').any(str::is_empty) {
        return Err(RouteError::Host("it is not a host name"));
    }
    Ok(name.split('.').next().map(str::to_ascii_lowercase))
}

/// `""`, `:` or `:3000`.
fn check_port_suffix(text: &str) -> Result<(), RouteError> {
    let ok = match text.strip_prefix(':') {
        None => text.is_empty(),
        Some("") => true,
        Some(port) => parse_port(port.as_bytes()).is_some(),
    };
    if ok {
        Ok(())
    } else {
        Err(RouteError::Host("its port is not a number from 1 to 65535"))
    }
}

/// `^(\d+)-([a-z0-9]+)(-…)?$`, as port and id.
fn split_label(label: &str) -> Option<(&str, &str)> {
    let (port, rest) = label.split_once('-')?;
    let id = rest.split_once('-').map_or(rest, |(id, _)| id);
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let alnum = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    (digits && alnum).then_some((port, id))
}

fn signed(head: &Head<'_>) -> Result<Option<SignedFile>, RouteError> {
    let operations: &'static [Operation] = match head.method {
        "GET" | "HEAD" => &[Operation::Read],
        "POST" => &[Operation::Write],
        "OPTIONS" => &[Operation::Read, Operation::Write],
        _ => return Ok(None),
    };
    let Some(query) = head.query.filter(|_| head.path == "/files") else {
        return Ok(None);
    };
    let [mut path, mut user, mut expiration, mut signature] = [const { None::<String> }; 4];
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (slot, limit) = match name {
            "path" => (&mut path, MAX_SIGNED_PATH),
            "username" => (&mut user, MAX_SIGNED_FIELD),
            "signature_expiration" => (&mut expiration, MAX_SIGNED_FIELD),
            "signature" => (&mut signature, SIGNATURE_LEN),
            _ => continue,
        };
        // Three bytes of a URL can stand for one of the value.
        if value.len() > 3 * limit {
            return Err(RouteError::Signed("a parameter is too long"));
        }
        let value =
            decode_form(value).ok_or(RouteError::Signed("a parameter is not encoded text"))?;
        if value.len() > limit {
            return Err(RouteError::Signed("a parameter is too long"));
        }
        if slot.replace(value).is_some() {
            return Err(RouteError::Signed("a parameter is given more than once"));
        }
    }
    let Some(signature) = signature else {
        return Ok(None);
    };
    Ok(Some(SignedFile {
        path: path.unwrap_or_default(),
        user: user.unwrap_or_default(),
        expiration,
        signature,
        operations,
    }))
}

/// `application/x-www-form-urlencoded`, once. `None` for a broken escape or invalid UTF-8.
fn decode_form(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => hex_digit(bytes.next()?)? * 16 + hex_digit(bytes.next()?)?,
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// The agent's routes that only its node may use, whatever the method.
const INTERNAL_ROUTES: [&str; 7] = [
    "init", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw", "upgrade",
];
/// Rounds of percent-decoding tried on a path. A path that still changes after them is nothing
/// an honest client sends.
const MAX_DECODE_ROUNDS: usize = 8;

/// Whether a path reaches one of the agent's internal routes under any reading of it:
/// percent-encoded once or often, with doubled slashes, backslashes, dot segments, path
/// parameters, in upper case, or as the prefix of a longer path.
pub fn is_agent_internal(path: &str) -> bool {
    let mut bytes = path.as_bytes().to_vec();
    for _ in 0..MAX_DECODE_ROUNDS {
        if first_segment_is_internal(&bytes) {
            return true;
        }
        let next = decode_percent(&bytes);
        if next == bytes {
            return false;
        }
        bytes = next;
    }
    true
}

/// Decodes every valid escape and leaves the others as they are.
fn decode_percent(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escape = (*byte == b'%')
            .then(|| Some(hex_digit(*bytes.get(at + 1)?)? * 16 + hex_digit(*bytes.get(at + 2)?)?))
            .flatten();
        out.push(escape.unwrap_or(*byte));
        at += if escape.is_some() { 3 } else { 1 };
    }
    out
}

fn first_segment_is_internal(path: &[u8]) -> bool {
    let end = path
        .iter()
        .position(|b| matches!(b, b'?' | b'#' | 0))
        .unwrap_or(path.len());
    let mut resolved: Vec<&[u8]> = Vec::new();
    let mut internal = false;
    for segment in path[..end].split(|b| matches!(b, b'/' | b'\\')) {
        let name = segment.split(|b| *b == b';').next().unwrap_or_default();
        let name = name.trim_ascii();
        match name {
            b"" | b"." => {}
            b".." => {
                resolved.pop();
            }
            _ => {
                // Judged on the way too: a server that does not resolve dots sees this one.
                if resolved.is_empty() {
                    internal |= INTERNAL_ROUTES
                        .iter()
                        .any(|route| name.eq_ignore_ascii_case(route.as_bytes()));
                }
                resolved.push(name);
            }
        }
    }
    internal
}

#[cfg(test)]
mod tests;
