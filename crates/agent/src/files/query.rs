//! The query of a `/files` request, decoded once and exactly: a path that is not text must
//! not become another one.

/// What a request names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Query {
    pub(crate) path: Option<String>,
    pub(crate) username: Option<String>,
    pub(crate) signature: Option<String>,
    pub(crate) signature_expiration: Option<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("query parameter '{0}' is not valid percent-encoded UTF-8")]
pub(crate) struct QueryError(String);

/// Reads the parameters we know. The first of several with one name counts; unknown ones
/// are none of our business.
///
/// # Errors
/// When one we know is badly encoded.
pub(crate) fn parse(query: &str) -> Result<Query, QueryError> {
    let mut out = Query::default();
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let field = match key {
            "path" => &mut out.path,
            "username" => &mut out.username,
            "signature" => &mut out.signature,
            "signature_expiration" => &mut out.signature_expiration,
            _ => continue,
        };
        if field.is_none() {
            let text = percent_decode(&value.replace('+', " "))
                .ok_or_else(|| QueryError(key.to_owned()))?;
            *field = Some(text);
        }
    }
    // Clients send an empty name for the default user.
    out.username = out.username.filter(|name| !name.is_empty());
    Ok(out)
}

/// Decodes `%XX` once; none for a bad escape or for what is not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let high = digit(bytes.next()?)?;
        let low = digit(bytes.next()?)?;
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}

/// Encodes all but letters, digits and `-._~`.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_once() {
        let query =
            parse("path=%2Fa%2520b+c&username=&x=%zz&path=second&signature=v1_a%2Bb").unwrap();
        assert_eq!(query.path.as_deref(), Some("/a%20b c"));
        assert_eq!(query.username, None);
        assert_eq!(query.signature.as_deref(), Some("v1_a+b"));
        assert_eq!(parse("").unwrap(), Query::default());
        assert_eq!(parse("path").unwrap().path.as_deref(), Some(""));
        assert_eq!(parse("path=%00").unwrap().path.as_deref(), Some("\0"));
    }

    #[test]
    fn bad_encoding_is_refused() {
        for bad in [
            "path=%",
            "path=%4",
            "path=%zz",
            "path=%ff",
            "username=%c3%28",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn encoding_round_trips() {
        let text = "/a b%\u{e9}\u{1f600}\"";
        assert_eq!(percent_decode(&percent_encode(text)).as_deref(), Some(text));
    }
}
