//! API keys: made here, shown once, stored as a hash.
//!
//! Used by the server to know a caller, and by `hearth key` in a process of its own. A key
//! is `e2b_` and 40 hex digits (160 random bits), so a plain SHA-256 of it is enough: there
//! is nothing to guess.

use std::path::Path;

use hearth_model::id::TeamId;
use hearth_model::secret::Secret;
use sha2::{Digest as _, Sha256};

use crate::clock::now_ms;
use crate::store::keys::{KeyOwner, NewKeyRow};
use crate::store::{OpenStoreError, Store, StoreError};

pub use crate::store::keys::{KeyRecord, Revoked, TeamLimits};

/// Every SDK version accepts keys of this form.
const PREFIX: &str = "e2b_";
const RANDOM_BYTES: usize = 20;
/// Longest text that is looked up as a key.
const MAX_KEY: usize = 128;
/// Longest name of a key, in bytes.
pub const MAX_KEY_NAME: usize = 128;

/// A key that was just made.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// Public id, for `revoke`.
    pub id: String,
    pub team: TeamId,
    /// The key itself, shown once.
    pub secret: Secret,
}

/// Why a key was not made.
#[derive(Debug, thiserror::Error)]
pub enum CreateKeyError {
    #[error("the name has {len} bytes, the limit is {MAX_KEY_NAME}")]
    NameTooLong { len: usize },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The keys and teams of one store.
#[derive(Debug, Clone)]
pub struct Keys {
    store: Store,
}

impl Keys {
    /// Opens the store of a server, which may be running.
    ///
    /// # Errors
    /// When the database cannot be opened or brought up to date.
    pub async fn open(db_path: &Path) -> Result<Self, OpenStoreError> {
        Ok(Self::over(Store::open(db_path).await?))
    }

    pub(crate) fn over(store: Store) -> Self {
        Self { store }
    }

    /// Makes a key, and the team when it is new.
    ///
    /// # Errors
    /// When the name is too long or the store fails.
    pub async fn create(&self, team: &TeamId, name: &str) -> Result<NewKey, CreateKeyError> {
        if name.len() > MAX_KEY_NAME {
            return Err(CreateKeyError::NameTooLong { len: name.len() });
        }
        let text = format!("{PREFIX}{}", random_hex(RANDOM_BYTES));
        let id = format!("key_{}", random_hex(6));
        let mask = format!("{}...{}", &text[..6], &text[text.len() - 4..]);
        self.store
            .insert_key(NewKeyRow {
                id: &id,
                team,
                name,
                hash: &hash(&text),
                mask: &mask,
                now_ms: now_ms(),
            })
            .await?;
        Ok(NewKey {
            id,
            team: team.clone(),
            secret: Secret::new(text),
        })
    }

    /// Keys of one team or of all, revoked ones too, oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(&self, team: Option<&TeamId>) -> Result<Vec<KeyRecord>, StoreError> {
        self.store.keys(team).await
    }

    /// Revokes a key by its public id; with a team, only a key of that team. It opens
    /// nothing from the next request on, in every process.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn revoke(&self, id: &str, team: Option<&TeamId>) -> Result<Revoked, StoreError> {
        self.store.revoke_key(id, team, now_ms()).await
    }

    /// Whether any key is valid: a server without one makes one.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn has_any(&self) -> Result<bool, StoreError> {
        self.store.has_valid_key().await
    }

    /// Whether this text is a valid key.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn is_valid(&self, text: &str) -> Result<bool, StoreError> {
        Ok(self.owner_of(text).await?.is_some())
    }

    /// Sets both limits of a team, which is made when it is new.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn set_team_limits(
        &self,
        team: &TeamId,
        limits: TeamLimits,
    ) -> Result<(), StoreError> {
        self.store.set_limits(team, limits, now_ms()).await
    }

    /// The limits of a team; none when there is no such team.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn team_limits(&self, team: &TeamId) -> Result<Option<TeamLimits>, StoreError> {
        self.store.limits(team).await
    }

    /// A value the server keeps for itself between runs.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.store.setting(name).await
    }

    /// Keeps a value for the server itself.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn set_setting(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.store.set_setting(name, value).await
    }

    /// Closes the store; for a process that ends.
    pub async fn close(self) {
        self.store.close().await;
    }

    pub(crate) async fn owner_of(&self, text: &str) -> Result<Option<KeyOwner>, StoreError> {
        if text.is_empty() || text.len() > MAX_KEY {
            return Ok(None);
        }
        self.store.owner_of(&hash(text)).await
    }
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn random_hex(bytes: usize) -> String {
    let mut random = vec![0u8; bytes];
    getrandom::fill(&mut random).expect("the kernel's random source answers");
    hex::encode(random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_opens_until_it_is_revoked_by_another_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("hearth.db");
        let server = Keys::open(&path).await.expect("it opens");
        let cli = Keys::open(&path).await.expect("it opens twice");
        let team = TeamId::parse("blue").expect("a team");
        assert!(!server.has_any().await.expect("readable"));

        let key = cli.create(&team, "laptop").await.expect("a key");
        let text = key.secret.expose().to_owned();
        assert!(text.starts_with("e2b_") && text.len() == 44, "{text}");
        let owner = server.owner_of(&text).await.expect("readable");
        assert_eq!(owner.expect("it is valid").team, team);

        // What is stored does not contain the key.
        let list = server.list(None).await.expect("readable");
        assert_eq!(list.len(), 1);
        assert!(!format!("{list:?}").contains(&text[8..20]));

        let other = TeamId::parse("red").expect("a team");
        assert_eq!(
            cli.revoke(&key.id, Some(&other)).await.expect("it answers"),
            Revoked::Unknown
        );
        assert!(server.is_valid(&text).await.expect("readable"));
        assert_eq!(
            cli.revoke(&key.id, None).await.expect("it answers"),
            Revoked::Now
        );
        assert!(!server.is_valid(&text).await.expect("readable"));
        assert_eq!(
            cli.revoke(&key.id, None).await.expect("it answers"),
            Revoked::Before
        );
        assert!(!server.has_any().await.expect("readable"));
    }
}
