//! Values that must not be printed: access tokens, control secrets, API keys.

use std::fmt;

/// A secret text. `Debug` is masked and there is no `Display`; `expose` is the one way out.
#[derive(Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// 32 random bytes in hex.
    pub fn random() -> Self {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes).expect("the kernel's random source answers");
        Self(hex::encode(bytes))
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in time that does not depend on where the texts differ.
    pub fn matches(&self, other: &str) -> bool {
        let (a, b) = (self.0.as_bytes(), other.as_bytes());
        a.len() == b.len() && a.iter().zip(b).fold(0u8, |acc, (x, y)| acc | (x ^ y)) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}
