//! Identifiers, one type each. They parse and print; nothing else turns text into an id.
//!
//! Everything that comes from outside (a path, a header, a host label, a file name) goes
//! through `parse`, so `..`, NUL, percent signs, look-alike letters and 64 KiB of text are
//! refused here, once.

use std::fmt;

/// Bytes of randomness behind a sandbox id. 17 bytes are 136 bits; the contract is 128.
const SANDBOX_RANDOM_BYTES: usize = 17;
/// Base-36 digits that hold 128 bits: 36^25 > 2^129.
const SANDBOX_DIGITS: usize = 25;
/// Longest id accepted from outside. E2B's ids have 20 characters; a DNS label has to
/// hold the port, a dash and the id.
pub const MAX_ID_LEN: usize = 40;

const BASE36: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {rule}")]
pub struct ParseIdError {
    /// The kind of id, as the caller knows it.
    pub field: &'static str,
    /// The rule that was broken, with its limit.
    pub rule: &'static str,
}

fn digits36(mut bytes: Vec<u8>, digits: usize) -> String {
    // Repeated division of a big-endian number: the low `digits` base-36 digits.
    let mut out = Vec::with_capacity(digits);
    for _ in 0..digits {
        let mut rem: u32 = 0;
        for b in &mut bytes {
            let cur = rem * 256 + u32::from(*b);
            *b = u8::try_from(cur / 36).unwrap_or(0);
            rem = cur % 36;
        }
        out.push(char::from(BASE36[rem as usize % 36]));
    }
    out.into_iter().collect()
}

fn is_lower_alnum(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(&self.0)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_id!(
    /// A sandbox: `i` and 25 base-36 digits (129 random bits), in E2B's alphabet.
    SandboxId
);
text_id!(
    /// A template: an id of E2B's shape, or the fixed id of a built-in template.
    TemplateId
);
text_id!(
    /// A team, by its slug: `[a-z0-9-]`, 1 to 40 characters.
    TeamId
);

impl SandboxId {
    /// A fresh id from the operating system's random source.
    pub fn random() -> Self {
        let mut bytes = vec![0u8; SANDBOX_RANDOM_BYTES];
        getrandom::fill(&mut bytes).expect("the kernel's random source answers");
        Self(format!("i{}", digits36(bytes, SANDBOX_DIGITS)))
    }

    /// Reads an id that came from outside. A `-suffix` is stripped: clients before 2.0
    /// sent `sandboxID-clientID`.
    ///
    /// # Errors
    /// When it is not `i` followed by 19 to 39 characters of `[a-z0-9]`.
    pub fn parse(text: &str) -> Result<Self, ParseIdError> {
        let fault = ParseIdError {
            field: "sandboxID",
            rule: "`i` and 19 to 39 characters of [a-z0-9]",
        };
        if text.len() > 2 * MAX_ID_LEN {
            return Err(fault);
        }
        let id = text.split_once('-').map_or(text, |(id, _)| id);
        let ok = is_lower_alnum(id) && id.starts_with('i') && (20..=MAX_ID_LEN).contains(&id.len());
        if ok {
            Ok(Self(id.to_owned()))
        } else {
            Err(fault)
        }
    }
}

impl TemplateId {
    /// # Errors
    /// When it is not 1 to 40 characters of `[a-z0-9-_]`.
    pub fn parse(text: &str) -> Result<Self, ParseIdError> {
        let ok = !text.is_empty()
            && text.len() <= MAX_ID_LEN
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError {
                field: "templateID",
                rule: "1 to 40 characters of [a-z0-9-_]",
            })
        }
    }
}

impl TeamId {
    /// # Errors
    /// When it is not 1 to 40 characters of `[a-z0-9-]`.
    pub fn parse(text: &str) -> Result<Self, ParseIdError> {
        let ok = !text.is_empty()
            && text.len() <= MAX_ID_LEN
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if ok {
            Ok(Self(text.to_owned()))
        } else {
            Err(ParseIdError {
                field: "team",
                rule: "1 to 40 characters of [a-z0-9-]",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn random_ids_parse_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 26);
        assert_eq!(SandboxId::parse(a.as_str()), Ok(a));
    }

    #[test]
    fn old_client_suffix_is_stripped() {
        let id = SandboxId::random();
        assert_eq!(SandboxId::parse(&format!("{id}-6532622b")), Ok(id));
    }

    #[test]
    fn hostile_ids_are_refused() {
        let long = "i".repeat(65_536);
        for text in [
            "",
            "i",
            "../../etc/passwd",
            "i0000000000000000000\0",
            "i000000000000000000%2e",
            "I0000000000000000000000",
            "\u{456}0000000000000000000000",
            "x0000000000000000000000",
            long.as_str(),
        ] {
            assert!(SandboxId::parse(text).is_err(), "{text:.40}");
        }
    }

    proptest! {
        #[test]
        fn print_then_parse_is_identity(tail in "[a-z0-9]{19,39}") {
            let text = format!("i{tail}");
            prop_assert_eq!(SandboxId::parse(&text).expect("valid").to_string(), text);
        }

        #[test]
        fn parse_never_panics(text in ".*") {
            let _ = (SandboxId::parse(&text).is_ok(), TemplateId::parse(&text).is_ok(), TeamId::parse(&text).is_ok());
        }
    }
}
