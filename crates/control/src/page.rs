//! Lists: the page token and the filters of a query (`e2b.md` A.3). Pure.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hearth_model::id::SandboxId;

use crate::clock::{parse_rfc3339_ceil, rfc3339};
use crate::store::sandboxes::{Cursor, Order};

const SEPARATOR: &str = "__";
const ASCENDING: &str = "asc";
/// A token is a time and an id; anything longer is none of ours.
const MAX_TOKEN: usize = 256;
/// Pairs of a metadata filter.
pub(crate) const MAX_PAIRS: usize = 64;

/// The token of the page after `cursor`.
pub(crate) fn write_token(cursor: &Cursor, order: Order) -> String {
    let mut text = format!("{}{SEPARATOR}{}", rfc3339(cursor.started_ms), cursor.id);
    if order == Order::OldestFirst {
        text.push_str(SEPARATOR);
        text.push_str(ASCENDING);
    }
    URL_SAFE_NO_PAD.encode(text)
}

/// Reads a token that was made for this order.
pub(crate) fn read_token(token: &str, order: Order) -> Option<Cursor> {
    if token.len() > MAX_TOKEN {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let mut parts = text.split(SEPARATOR);
    let (started, id, suffix) = (parts.next()?, parts.next()?, parts.next());
    let made_for = match suffix {
        None => Order::NewestFirst,
        Some(ASCENDING) => Order::OldestFirst,
        Some(_) => return None,
    };
    if made_for != order || parts.next().is_some() {
        return None;
    }
    Some(Cursor {
        started_ms: parse_rfc3339_ceil(started)?,
        id: SandboxId::parse(id).ok()?,
    })
}

/// Why a metadata filter was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetadataError {
    #[error("metadata must be percent-encoded UTF-8 text")]
    Encoding,
    #[error("metadata must be key=value pairs joined with &")]
    NoPair,
    #[error("metadata has {0} pairs, the limit is {MAX_PAIRS}")]
    TooMany(usize),
}

/// Reads a metadata filter. Clients encode three times; the query parser undid the first.
/// A `+` stands for itself: clients never write a space so.
pub(crate) fn read_metadata(value: &str) -> Result<Vec<(String, String)>, MetadataError> {
    let pairs = percent_decode(value).ok_or(MetadataError::Encoding)?;
    if pairs.is_empty() {
        return Ok(Vec::new());
    }
    let count = pairs.split('&').count();
    if count > MAX_PAIRS {
        return Err(MetadataError::TooMany(count));
    }
    pairs
        .split('&')
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or(MetadataError::NoPair)?;
            Ok((
                percent_decode(key).ok_or(MetadataError::Encoding)?,
                percent_decode(value).ok_or(MetadataError::Encoding)?,
            ))
        })
        .collect()
}

/// Undoes one layer of percent-encoding. None for a broken escape or bytes that are not text.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            let mut byte = [0u8; 1];
            hex::decode_to_slice(digits, &mut byte).ok()?;
            bytes.extend_from_slice(&byte);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everything but unreserved characters, as both SDKs do it.
    fn percent_encode(text: &str) -> String {
        text.bytes()
            .map(|b| match b {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                    char::from(b).to_string()
                }
                _ => format!("%{b:02X}"),
            })
            .collect()
    }

    #[test]
    fn the_forms_on_the_wire_are_read() {
        let want = vec![
            ("a b".to_owned(), "c/d".to_owned()),
            ("e".into(), "f".into()),
        ];
        // Python sends a%252520b%3Dc%252Fd%26e%3Df, JavaScript c%25252Fd: after one decoding:
        for value in ["a%2520b=c%2Fd&e=f", "a%2520b=c%252Fd&e=f"] {
            assert_eq!(read_metadata(value), Ok(want.clone()), "{value}");
        }
        // Somebody with curl.
        assert_eq!(read_metadata("k=v"), Ok(vec![("k".into(), "v".into())]));
        assert_eq!(read_metadata(""), Ok(vec![]));
    }

    #[test]
    fn broken_filters_are_refused() {
        for value in ["k", "k=v&", "%", "%zz=1", "k=%25f", "%ff=1", "k=%25ff"] {
            assert!(read_metadata(value).is_err(), "{value}");
        }
        let many = vec!["a=b"; MAX_PAIRS + 1].join("&");
        assert_eq!(
            read_metadata(&many),
            Err(MetadataError::TooMany(MAX_PAIRS + 1))
        );
    }

    #[test]
    fn a_token_of_the_other_order_is_refused() {
        let cursor = Cursor {
            started_ms: 1_700_000_000_123,
            id: SandboxId::random(),
        };
        let token = write_token(&cursor, Order::OldestFirst);
        assert_eq!(read_token(&token, Order::NewestFirst), None);
        let token = write_token(&cursor, Order::NewestFirst);
        assert_eq!(read_token(&token, Order::OldestFirst), None);
    }

    proptest! {
        #[test]
        fn three_encodings_are_undone(key in ".{0,12}", value in ".{0,12}") {
            let pair = format!("{}={}", percent_encode(&percent_encode(&key)), percent_encode(&percent_encode(&value)));
            prop_assert_eq!(read_metadata(&pair), Ok(vec![(key, value)]));
        }

        #[test]
        fn write_then_read_is_identity(ms in 0i64..4_000_000_000_000, ascending: bool) {
            let cursor = Cursor { started_ms: ms, id: SandboxId::random() };
            let order = if ascending { Order::OldestFirst } else { Order::NewestFirst };
            prop_assert_eq!(read_token(&write_token(&cursor, order), order), Some(cursor));
        }

        #[test]
        fn any_text_is_survived(text in ".*") {
            let _ = (read_token(&text, Order::NewestFirst), read_metadata(&text));
        }
    }
}
