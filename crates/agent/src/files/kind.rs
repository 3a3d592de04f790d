//! The headers that tell a browser what a file is: its media type and its name.

use super::query::percent_encode;

/// Media type by the ending of a name.
const TYPES: [(&str, &str); 32] = [
    ("avif", "image/avif"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("ipynb", "application/json"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("ogg", "audio/ogg"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("py", "text/x-python; charset=utf-8"),
    ("sh", "text/x-shellscript; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("xml", "text/xml; charset=utf-8"),
    ("yaml", "application/yaml"),
    ("zip", "application/zip"),
];

/// The media type of the file `name` that begins with `start`.
pub(crate) fn media_type(name: &str, start: &[u8]) -> &'static str {
    let known = name.rsplit_once('.').and_then(|(_, ending)| {
        TYPES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(ending))
    });
    if let Some((_, kind)) = known {
        return kind;
    }
    let is_text = |byte: &u8| !matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    if start.iter().all(is_text) {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    }
}

/// `Content-Disposition` for a file shown in place (RFC 6266): the name as it is where
/// that is a word, quoted where it is ASCII, else encoded.
pub(crate) fn disposition(name: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte);
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    if !name.is_empty() && name.bytes().all(is_word) {
        format!("inline; filename={name}")
    } else if name.bytes().all(is_plain) {
        let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
        format!("inline; filename=\"{escaped}\"")
    } else {
        format!("inline; filename*=utf-8''{}", percent_encode(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_header() {
        assert_eq!(disposition("a.txt"), "inline; filename=a.txt");
        assert_eq!(disposition("a b;c"), "inline; filename=\"a b;c\"");
        assert_eq!(disposition("a\"b\\"), "inline; filename=\"a\\\"b\\\\\"");
        assert_eq!(
            disposition("\u{e9}\r\nX: y"),
            "inline; filename*=utf-8''%C3%A9%0D%0AX%3A%20y"
        );
    }

    #[test]
    fn types() {
        assert_eq!(media_type("A.PNG", b""), "image/png");
        assert_eq!(media_type("a", b"text\n"), "text/plain; charset=utf-8");
        assert_eq!(media_type("a.", b"\0"), "application/octet-stream");
        assert!(TYPES.is_sorted());
    }
}
