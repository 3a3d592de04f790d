//! Signed file URLs (`e2b.md` B.5.3): `v1_` and unpadded base64 of
//! SHA-256(`path:operation:user:token[:expiration]`).
//!
//! The agent verifies with it; the edge finds by it the sandbox of a URL without headers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::secret::Secret;

/// What a signed URL allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

/// The signed part of a file URL. Texts are exactly as the URL gave them, decoded once.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    pub path: &'a str,
    pub operation: Operation,
    /// Empty when the URL names no user.
    pub user: &'a str,
    /// Seconds since the epoch, as text, when the URL has one.
    pub expiration: Option<&'a str>,
}

/// The signature of `claim` under `token`.
pub fn sign(claim: &Claim<'_>, token: &Secret) -> String {
    let operation = match claim.operation {
        Operation::Read => "read",
        Operation::Write => "write",
    };
    let mut text = format!(
        "{}:{operation}:{}:{}",
        claim.path,
        claim.user,
        token.expose()
    );
    if let Some(expiration) = claim.expiration {
        text.push(':');
        text.push_str(expiration);
    }
    format!(
        "v1_{}",
        STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes()))
    )
}

/// Whether `signature` is the one of `claim` under `token`. Expiry is the caller's to check.
pub fn verify(claim: &Claim<'_>, token: &Secret, signature: &str) -> bool {
    Secret::new(sign(claim, token)).matches(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_part_breaks_it() {
        let token = Secret::new("t");
        let claim = Claim {
            path: "a",
            operation: Operation::Read,
            user: "",
            expiration: None,
        };
        let good = sign(&claim, &token);
        assert!(verify(&claim, &token, &good));
        for other in [
            Claim { path: "b", ..claim },
            Claim {
                operation: Operation::Write,
                ..claim
            },
            Claim {
                user: "root",
                ..claim
            },
            Claim {
                expiration: Some("1"),
                ..claim
            },
        ] {
            assert!(!verify(&other, &token, &good));
        }
        assert!(!verify(&claim, &Secret::new("u"), &good));
    }
}
