//! `multipart/form-data` taken apart as it arrives (RFC 7578, RFC 2046 5.1.1).
//!
//! Our own, because the usual crate reads ahead as far as the client has sent, without a
//! bound. This one holds one piece of input and at most one block of headers.

/// Bytes of the headers of one part: a path of 4 KiB, encoded, fits well.
const MAX_HEADERS: usize = 16 * 1024;
/// Longest boundary, by RFC 2046.
const MAX_BOUNDARY: usize = 70;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum MultipartError {
    #[error("multipart content type has no boundary")]
    NoBoundary,
    #[error("multipart boundary has {0} bytes; it must have 1 to {MAX_BOUNDARY}")]
    BadBoundary(usize),
    #[error("headers of a multipart part have more than {MAX_HEADERS} bytes")]
    HeadersTooLong,
    #[error("headers of a multipart part are malformed")]
    BadHeaders,
    #[error("multipart boundary is followed by something that is not a line end")]
    BadDelimiter,
    #[error("multipart body ends before its closing boundary")]
    Truncated,
}

/// What a part says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) filename: Option<String>,
}

/// One step through a body.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    Begin(Part),
    Data(&'a [u8]),
    End,
}

/// The boundary of a `Content-Type` of multipart/form-data; none: it is another type.
///
/// # Errors
/// When it has no usable boundary.
pub(crate) fn boundary(content_type: &str) -> Option<Result<String, MultipartError>> {
    let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let found = parameters_of(parameters)
        .and_then(|list| list.into_iter().find(|(key, _)| key == "boundary"));
    Some(match found {
        None => Err(MultipartError::NoBoundary),
        Some((_, text)) if text.is_empty() || text.len() > MAX_BOUNDARY => {
            Err(MultipartError::BadBoundary(text.len()))
        }
        Some((_, text)) => Ok(text),
    })
}

#[derive(Debug)]
pub(crate) struct Parser {
    /// Line end, two dashes and the boundary.
    delimiter: Vec<u8>,
    buffer: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    /// After a boundary: a line end, or the dashes that close the body.
    Delimiter,
    Headers,
    Data,
    Epilogue,
}

impl Parser {
    pub(crate) fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // The first boundary needs no line end before it: there is one here.
            buffer: b"\r\n".to_vec(),
            state: State::Preamble,
        }
    }

    /// Takes the next bytes and tells `on` what they were, stopping at its first error.
    ///
    /// # Errors
    /// [`MultipartError`] for malformed input, or what `on` says.
    pub(crate) fn feed<E: From<MultipartError>>(
        &mut self,
        input: &[u8],
        on: &mut dyn FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.state == State::Epilogue {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(input);
        let mut rest: &[u8] = &buffer;
        while let Some(after) = self.step(rest, on)? {
            rest = after;
        }
        let rest_length = match self.state {
            State::Data | State::Preamble => {
                let keep = partial(rest, &self.delimiter);
                let (data, _) = rest.split_at(rest.len() - keep);
                if self.state == State::Data && !data.is_empty() {
                    on(Piece::Data(data))?;
                }
                keep
            }
            State::Epilogue => 0,
            State::Delimiter | State::Headers => rest.len(),
        };
        buffer.drain(..buffer.len() - rest_length);
        self.buffer = buffer;
        Ok(())
    }

    /// One change of state; none: more input is needed.
    fn step<'a, E: From<MultipartError>>(
        &mut self,
        rest: &'a [u8],
        on: &mut dyn FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<Option<&'a [u8]>, E> {
        match self.state {
            State::Preamble | State::Data => {
                let Some(at) = find(rest, &self.delimiter) else {
                    return Ok(None);
                };
                if self.state == State::Data {
                    if at > 0 {
                        on(Piece::Data(&rest[..at]))?;
                    }
                    on(Piece::End)?;
                }
                self.state = State::Delimiter;
                Ok(Some(&rest[at + self.delimiter.len()..]))
            }
            State::Delimiter => {
                let padding = rest
                    .iter()
                    .take_while(|byte| matches!(byte, b' ' | b'\t'))
                    .count();
                let after = &rest[padding..];
                if padding > MAX_HEADERS {
                    return Err(MultipartError::BadDelimiter.into());
                }
                match after {
                    [b'\r', b'\n', ..] => {
                        self.state = State::Headers;
                        // The line end stays: it may be half of the empty line.
                        Ok(Some(after))
                    }
                    [b'-', b'-', ..] if padding == 0 => {
                        self.state = State::Epilogue;
                        Ok(None)
                    }
                    [] | [b'\r'] => Ok(None),
                    [b'-'] if padding == 0 => Ok(None),
                    _ => Err(MultipartError::BadDelimiter.into()),
                }
            }
            State::Headers => {
                let Some(end) = find(rest, b"\r\n\r\n") else {
                    if rest.len() > MAX_HEADERS {
                        return Err(MultipartError::HeadersTooLong.into());
                    }
                    return Ok(None);
                };
                if end > MAX_HEADERS {
                    return Err(MultipartError::HeadersTooLong.into());
                }
                on(Piece::Begin(part(&rest[..end])?))?;
                self.state = State::Data;
                Ok(Some(&rest[end + 4..]))
            }
            State::Epilogue => Ok(None),
        }
    }

    /// Says that no more input comes.
    ///
    /// # Errors
    /// [`MultipartError::Truncated`] when the closing boundary has not been seen.
    pub(crate) fn finish(&self) -> Result<(), MultipartError> {
        if self.state == State::Epilogue {
            Ok(())
        } else {
            Err(MultipartError::Truncated)
        }
    }
}

/// Where `needle`, which begins with a carriage return, starts in `hay`.
fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = find_return(&hay[from..]) {
        let at = from + at;
        if hay[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// The first carriage return, looked for in blocks so that the compiler can look at many
/// bytes at once.
fn find_return(hay: &[u8]) -> Option<usize> {
    let mut at = 0;
    for block in hay.chunks(64) {
        if block.iter().fold(false, |any, byte| any | (*byte == b'\r')) {
            return block
                .iter()
                .position(|byte| *byte == b'\r')
                .map(|within| at + within);
        }
        at += block.len();
    }
    None
}

/// Bytes at the end of `hay` that may be the start of `needle`.
fn partial(hay: &[u8], needle: &[u8]) -> usize {
    (1..needle.len())
        .rev()
        .find(|length| hay.ends_with(&needle[..*length]))
        .unwrap_or(0)
}

/// Reads the headers of a part. `block` begins with the line end after the boundary.
fn part(block: &[u8]) -> Result<Part, MultipartError> {
    let text = std::str::from_utf8(block).map_err(|_| MultipartError::BadHeaders)?;
    let mut found = Part {
        name: String::new(),
        filename: None,
    };
    for line in text.split("\r\n").filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once(':').ok_or(MultipartError::BadHeaders)?;
        if !key.trim().eq_ignore_ascii_case("content-disposition") {
            continue;
        }
        let (_, parameters) = value.split_once(';').ok_or(MultipartError::BadHeaders)?;
        for (key, value) in parameters_of(parameters).ok_or(MultipartError::BadHeaders)? {
            match &*key {
                "name" => found.name = value,
                "filename" if found.filename.is_none() => found.filename = Some(value),
                // RFC 5987; it is the better one of the two.
                "filename*" => {
                    let encoded = value
                        .split_once("''")
                        .filter(|(charset, _)| charset.eq_ignore_ascii_case("utf-8"))
                        .ok_or(MultipartError::BadHeaders)?
                        .1;
                    found.filename = Some(
                        super::query::percent_decode(encoded).ok_or(MultipartError::BadHeaders)?,
                    );
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// `key=value` pairs between semicolons; a value may be quoted. A backslash escapes only a
/// quote or a backslash: clients write paths with backslashes as they are.
fn parameters_of(text: &str) -> Option<Vec<(String, String)>> {
    let mut out = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Some((key, after)) = rest.split_once('=') else {
            // A word without a value, or a semicolon at the end.
            return rest.trim_matches([';', ' ']).is_empty().then_some(out);
        };
        let key = key.trim_matches([' ', '\t', ';']).to_ascii_lowercase();
        let after = after.trim_start();
        let value;
        if let Some(quoted) = after.strip_prefix('"') {
            let (text, remaining) = unquote(quoted)?;
            value = text;
            rest = remaining;
        } else {
            let (text, remaining) = after.split_once(';').unwrap_or((after, ""));
            value = text.trim().to_owned();
            rest = remaining;
        }
        rest = rest.trim_start_matches([' ', '\t', ';']);
        out.push((key, value));
    }
    Some(out)
}

/// The text up to the closing quote, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, letter)) = chars.next() {
        match letter {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => match chars.peek() {
                Some((_, next @ ('"' | '\\'))) => {
                    out.push(*next);
                    chars.next();
                }
                _ => out.push('\\'),
            },
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parts = Vec<(Part, Vec<u8>)>;

    fn parse(body: &[u8], boundary: &str, step: usize) -> Result<Parts, MultipartError> {
        let mut parser = Parser::new(boundary);
        let mut parts: Parts = Vec::new();
        let mut open = false;
        for input in body.chunks(step.max(1)) {
            parser.feed(input, &mut |piece| {
                match piece {
                    Piece::Begin(part) => {
                        assert!(!open);
                        open = true;
                        parts.push((part, Vec::new()));
                    }
                    Piece::Data(data) => {
                        assert!(open && !data.is_empty());
                        parts.last_mut().unwrap().1.extend_from_slice(data);
                    }
                    Piece::End => {
                        assert!(open);
                        open = false;
                    }
                }
                Ok::<(), MultipartError>(())
            })?;
            assert!(parser.buffer.len() <= MAX_HEADERS + step + 80);
        }
        parser.finish()?;
        assert!(!open);
        Ok(parts)
    }

    fn body(parts: &[(&str, &[u8])], boundary: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for (disposition, data) in parts {
            out.extend_from_slice(
                format!("--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\nContent-Type: text/plain\r\n\r\n").as_bytes(),
            );
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        out
    }

    #[test]
    fn parts_with_and_without_filename() {
        let body = body(
            &[
                (r#"name="file"; filename="/a b/c.txt""#, b"hello"),
                (r#"name="file""#, b""),
                (r"name=file; filename=plain", b"\r\n--B\r\r\n-"),
                (r#"name="file"; filename="a\"b\\c\d;e=f""#, b"x"),
                (
                    "name=\"file\"; filename*=utf-8''%C3%A9%20.txt; filename=\"e.txt\"",
                    b"y",
                ),
            ],
            "Bo'un",
        );
        for step in [1, 2, 3, 7, 64, 10_000] {
            let parts = parse(&body, "Bo'un", step).unwrap();
            let names: Vec<Option<&str>> = parts
                .iter()
                .map(|(part, _)| part.filename.as_deref())
                .collect();
            assert_eq!(
                names,
                [
                    Some("/a b/c.txt"),
                    None,
                    Some("plain"),
                    Some("a\"b\\c\\d;e=f"),
                    Some("\u{e9} .txt")
                ]
            );
            assert!(parts.iter().all(|(part, _)| part.name == "file"));
            assert_eq!(parts[0].1, b"hello");
            assert_eq!(parts[2].1, b"\r\n--B\r\r\n-");
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let body = body(&[(r#"name="file""#, b"hello"), (r#"name="g""#, b"x")], "B");
        let closed = body.len() - 2;
        for length in 0..closed {
            assert_eq!(
                parse(&body[..length], "B", 5),
                Err(MultipartError::Truncated),
                "{length}"
            );
        }
        assert_eq!(parse(&body[..closed], "B", 5).unwrap().len(), 2);
    }

    #[test]
    fn malformed() {
        let check = |body: &str, expected: MultipartError| {
            assert_eq!(parse(body.as_bytes(), "B", 3), Err(expected), "{body:?}");
        };
        check("", MultipartError::Truncated);
        check("no boundary at all", MultipartError::Truncated);
        check("--Bx\r\n", MultipartError::BadDelimiter);
        check("--B\r\nnocolon\r\n\r\n", MultipartError::BadHeaders);
        check(
            "--B\r\nContent-Disposition: form-data; name=\"open\r\n\r\n",
            MultipartError::BadHeaders,
        );
        check(
            &format!("--B\r\nX: {}", "y".repeat(MAX_HEADERS + 10)),
            MultipartError::HeadersTooLong,
        );
        check(
            &format!("--B{}", " ".repeat(MAX_HEADERS + 10)),
            MultipartError::BadDelimiter,
        );
        let bytes = b"--B\r\nContent-Disposition: form-data; name=\"\xff\"\r\n\r\n";
        assert_eq!(parse(bytes, "B", 99), Err(MultipartError::BadHeaders));
        // No headers at all is a part without a name, and no parts at all are none.
        assert_eq!(parse(b"--B\r\n\r\nx\r\n--B--", "B", 1).unwrap()[0].1, b"x");
        assert!(parse(b"--B--", "B", 1).unwrap().is_empty());
        assert_eq!(parse(b"junk\r\n--B--junk", "B", 1).unwrap(), []);
    }

    #[test]
    fn boundaries() {
        let check = |text: &str, expected: Option<Result<&str, MultipartError>>| {
            assert_eq!(
                boundary(text),
                expected.map(|found| found.map(str::to_owned)),
                "{text}"
            );
        };
        check("multipart/form-data; boundary=abc", Some(Ok("abc")));
        check(
            "Multipart/Form-Data;charset=utf-8; Boundary=\"a b\"",
            Some(Ok("a b")),
        );
        check("multipart/form-data", Some(Err(MultipartError::NoBoundary)));
        check(
            "multipart/form-data; boundary=",
            Some(Err(MultipartError::BadBoundary(0))),
        );
        check(
            &format!("multipart/form-data; boundary={}", "b".repeat(71)),
            Some(Err(MultipartError::BadBoundary(71))),
        );
        check("application/octet-stream", None);
        check("", None);
    }

    proptest! {
        #[test]
        fn content_survives_any_cut(
            data in prop::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'-'), Just(b'Q'), any::<u8>()],
                0..300,
            ),
            step in 1usize..50,
        ) {
            let text = body(&[("name=file", &data), ("name=file", b"end")], "QQ8-boundary");
            let parts = parse(&text, "QQ8-boundary", step).unwrap();
            prop_assert_eq!(&parts[0].1, &data);
            prop_assert_eq!(&parts[1].1, b"end");
        }

        #[test]
        fn rubbish_never_panics(data in prop::collection::vec(any::<u8>(), 0..400), step in 1usize..50) {
            let _ = parse(&data, "B", step);
            let mut framed = b"--B\r\n".to_vec();
            framed.extend(data);
            let _ = parse(&framed, "B", step);
        }
    }
}
