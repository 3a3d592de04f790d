//! Which part of a file a request wants, and whether it wants it at all: `Range` and the
//! conditional headers (RFC 9110 13 and 14), over the time of change as only validator.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header;

/// What to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Whole,
    /// First byte and number of bytes, at least one.
    Part {
        start: u64,
        length: u64,
    },
    /// 304
    NotModified,
    /// 412
    PreconditionFailed,
    /// 416
    Unsatisfiable,
}

/// Decides. `size` is none where it is not known before the end: then there are no parts.
pub(crate) fn decide(headers: &HeaderMap, size: Option<u64>, modified: SystemTime) -> Answer {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let date = |name| text(name).and_then(|text| httpdate::parse_http_date(text).ok());
    let modified = whole_seconds(modified);
    // There are no entity tags here, so only `*` matches.
    if let Some(tags) = text(header::IF_MATCH) {
        if tags.trim() != "*" {
            return Answer::PreconditionFailed;
        }
    } else if date(header::IF_UNMODIFIED_SINCE).is_some_and(|date| modified > date) {
        return Answer::PreconditionFailed;
    }
    if let Some(tags) = text(header::IF_NONE_MATCH) {
        if tags.trim() == "*" {
            return Answer::NotModified;
        }
    } else if date(header::IF_MODIFIED_SINCE).is_some_and(|date| modified <= date) {
        return Answer::NotModified;
    }
    let (Some(range), Some(size)) = (text(header::RANGE), size) else {
        return Answer::Whole;
    };
    if let Some(condition) = text(header::IF_RANGE)
        && httpdate::parse_http_date(condition).ok() != Some(modified)
    {
        return Answer::Whole;
    }
    parse(range, size)
}

/// One range; of several the whole file is a valid answer (RFC 9110 14.2).
fn parse(range: &str, size: u64) -> Answer {
    let Some((unit, list)) = range.split_once('=') else {
        return Answer::Unsatisfiable;
    };
    if !unit.trim().eq_ignore_ascii_case("bytes") || list.contains(',') {
        return Answer::Whole;
    }
    let Some((first, last)) = list.trim().split_once('-') else {
        return Answer::Unsatisfiable;
    };
    let number = |text: &str| {
        let text = text.trim();
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    let (start, end) = match (first.trim(), last.trim()) {
        ("", "") => return Answer::Unsatisfiable,
        ("", suffix) => match number(suffix) {
            None | Some(0) => return Answer::Unsatisfiable,
            Some(length) => (size.saturating_sub(length), size),
        },
        (first, last) => {
            let Some(start) = number(first) else {
                return Answer::Unsatisfiable;
            };
            let end = if last.is_empty() {
                size
            } else {
                match number(last) {
                    Some(last) if last >= start => last.saturating_add(1).min(size),
                    _ => return Answer::Unsatisfiable,
                }
            };
            (start, end)
        }
    };
    if start >= end {
        return Answer::Unsatisfiable;
    }
    Answer::Part {
        start,
        length: end - start,
    }
}

/// HTTP dates have no fractions.
pub(crate) fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// How the body may be encoded, by `Accept-Encoding`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
    /// 406
    NotAcceptable,
}

/// Compresses for a client that asks for gzip and for nothing else, and for one that takes
/// nothing plain. A list of codings is what HTTP libraries send unasked (the Python SDK's
/// does, with every download); compressing for those would make large files several times
/// slower, for nobody who wished it.
pub(crate) fn coding(headers: &HeaderMap) -> Coding {
    let mut gzip = None;
    let mut identity = None;
    let mut any = None;
    let mut is_list = false;
    for value in headers.get_all(header::ACCEPT_ENCODING) {
        for item in value.to_str().unwrap_or("").split(',') {
            let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
            let weight = weight(parameters);
            match name.trim().to_ascii_lowercase().as_str() {
                "" => {}
                "gzip" | "x-gzip" => gzip = Some(weight),
                "identity" => identity = Some(weight),
                "*" => any = Some(weight),
                _ => is_list |= weight > 0,
            }
        }
    }
    // `*` is for those not named; leaving identity unnamed allows it.
    let is_plain_allowed = identity.or(any.filter(|any| *any == 0)) != Some(0);
    let is_asked_for =
        !is_list && gzip.is_some_and(|gzip| gzip > 0 && gzip >= identity.unwrap_or(0));
    let is_gzip_allowed = gzip.or(any).unwrap_or(0) > 0;
    if is_asked_for || (is_gzip_allowed && !is_plain_allowed) {
        Coding::Gzip
    } else if is_plain_allowed {
        Coding::Identity
    } else {
        Coding::NotAcceptable
    }
}

/// `q=0.5` in thousandths; anything odd counts as 1, as leaving it out does.
fn weight(parameters: &str) -> u32 {
    let Some(text) = parameters
        .split(';')
        .find_map(|parameter| parameter.trim().strip_prefix("q="))
    else {
        return 1000;
    };
    let (whole, fraction) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let digits: String = format!("{fraction:0<3}").chars().take(3).collect();
    match (whole.parse::<u32>(), digits.parse::<u32>()) {
        (Ok(whole), Ok(fraction)) => (whole.min(1) * 1000 + fraction).min(1000),
        _ => 1000,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(list: &[(HeaderName, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (name.clone(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn ranges() {
        let check = |range: &str, size: u64, expected: Answer| {
            let asked = headers(&[(header::RANGE, range)]);
            assert_eq!(decide(&asked, Some(size), UNIX_EPOCH), expected, "{range}");
        };
        let part = |start, length| Answer::Part { start, length };
        check("bytes=0-0", 10, part(0, 1));
        check("bytes=2-", 10, part(2, 8));
        check("bytes=-3", 10, part(7, 3));
        check("bytes=-30", 10, part(0, 10));
        check("bytes=5-99", 10, part(5, 5));
        check("bytes=10-", 10, Answer::Unsatisfiable);
        check("bytes=5-4", 10, Answer::Unsatisfiable);
        check("bytes=-0", 10, Answer::Unsatisfiable);
        check("bytes=0-", 0, Answer::Unsatisfiable);
        check("bytes=x-y", 10, Answer::Unsatisfiable);
        check("bytes", 10, Answer::Unsatisfiable);
        check("bytes=-", 10, Answer::Unsatisfiable);
        check("bytes=0-1,4-5", 10, Answer::Whole);
        check("lines=0-1", 10, Answer::Whole);
        check("bytes=99999999999999999999-", 10, Answer::Unsatisfiable);
        check("bytes=0-99999999999999999999", 10, part(0, 10));
        let asked = headers(&[(header::RANGE, "bytes=0-1")]);
        assert_eq!(decide(&asked, None, UNIX_EPOCH), Answer::Whole);
    }

    #[test]
    fn conditions() {
        let modified = UNIX_EPOCH + Duration::from_millis(1_000_000_500);
        let same = httpdate::fmt_http_date(modified);
        let before = httpdate::fmt_http_date(modified - Duration::from_secs(5));
        let check = |list: &[(HeaderName, &str)], expected: Answer| {
            assert_eq!(
                decide(&headers(list), Some(9), modified),
                expected,
                "{list:?}"
            );
        };
        check(&[(header::IF_MODIFIED_SINCE, &same)], Answer::NotModified);
        check(&[(header::IF_MODIFIED_SINCE, &before)], Answer::Whole);
        check(&[(header::IF_MODIFIED_SINCE, "rubbish")], Answer::Whole);
        check(&[(header::IF_UNMODIFIED_SINCE, &same)], Answer::Whole);
        check(
            &[(header::IF_UNMODIFIED_SINCE, &before)],
            Answer::PreconditionFailed,
        );
        check(&[(header::IF_MATCH, "\"a\"")], Answer::PreconditionFailed);
        check(&[(header::IF_NONE_MATCH, "*")], Answer::NotModified);
        check(
            &[
                (header::IF_NONE_MATCH, "\"a\""),
                (header::IF_MODIFIED_SINCE, &same),
            ],
            Answer::Whole,
        );
        let range = (header::RANGE, "bytes=1-2");
        check(
            &[range.clone(), (header::IF_RANGE, &same)],
            Answer::Part {
                start: 1,
                length: 2,
            },
        );
        check(&[range.clone(), (header::IF_RANGE, &before)], Answer::Whole);
        check(&[range, (header::IF_RANGE, "\"tag\"")], Answer::Whole);
    }

    #[test]
    fn codings() {
        let check = |text: &str, expected: Coding| {
            let asked = headers(&[(header::ACCEPT_ENCODING, text)]);
            assert_eq!(coding(&asked), expected, "{text:?}");
        };
        assert_eq!(coding(&HeaderMap::new()), Coding::Identity);
        check("", Coding::Identity);
        check("gzip", Coding::Gzip);
        check("GZIP", Coding::Gzip);
        check("gzip, deflate", Coding::Identity);
        check("br, gzip, deflate", Coding::Identity);
        check("gzip, deflate;q=0", Coding::Gzip);
        check("gzip, deflate, identity;q=0", Coding::Gzip);
        check("br, *, identity;q=0", Coding::Gzip);
        check("identity", Coding::Identity);
        check("identity, gzip;q=0.5", Coding::Identity);
        check("identity;q=0.2, gzip;q=0.5", Coding::Gzip);
        check("gzip;q=0", Coding::Identity);
        check("br", Coding::Identity);
        check("*", Coding::Identity);
        check("br, identity;q=0", Coding::NotAcceptable);
        check("br, *;q=0", Coding::NotAcceptable);
        check("*;q=0, identity", Coding::Identity);
    }
}
