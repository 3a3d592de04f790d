//! What every request handler shares: who the sandbox is, who may talk to it, whom a
//! request acts for.

use std::path::PathBuf;
use std::sync::Arc;

use hearth_model::secret::Secret;
use hearth_wire::boot::Boot;
use http::HeaderMap;

use crate::auth;
use crate::filesystem::metadata::MetadataStore;
use crate::metrics::Meter;
use crate::process::table::Table;
use crate::reaper::Reaper;
use crate::sys::Confines;
use crate::users::{self, User, UserError};

/// The agent's shared state; always behind an `Arc`.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) boot: Boot,
    /// Metadata of files on file systems that keep none.
    pub(crate) metadata: Arc<MetadataStore>,
    pub(crate) processes: Arc<Table>,
    pub(crate) meter: Meter,
    confines: Confines,
    access_token: Option<Secret>,
    control_secret: Secret,
}

impl Agent {
    pub(crate) fn new(boot: Boot, confines: Confines, reaper: Arc<Reaper>) -> Self {
        Self {
            access_token: boot.access_token.clone().map(Secret::new),
            control_secret: Secret::new(boot.control_secret.clone()),
            metadata: Arc::default(),
            processes: Arc::new(Table::new(reaper)),
            meter: Meter::new(),
            confines,
            boot,
        }
    }

    /// The token clients must show and sign file URLs with; none: the agent is open.
    pub(crate) fn access_token(&self) -> Option<&Secret> {
        self.access_token.as_ref()
    }

    /// What every program enters before it runs.
    pub(crate) fn confines(&self) -> &Confines {
        &self.confines
    }

    pub(crate) fn control_secret(&self) -> &Secret {
        &self.control_secret
    }

    /// Whether the request shows the access token. Always, when the agent is open.
    pub(crate) fn has_token(&self, headers: &HeaderMap) -> bool {
        match &self.access_token {
            None => true,
            Some(token) => auth::shown_token(headers).is_some_and(|shown| token.matches(shown)),
        }
    }

    /// The user that `Authorization: Basic` names, else the default one. Reads the tables
    /// of the sandbox, so it blocks for a moment.
    ///
    /// # Errors
    /// [`UserError`], which clients see as `unauthenticated`.
    pub(crate) fn user_of(&self, headers: &HeaderMap) -> Result<User, UserError> {
        self.user_named(auth::basic_user(headers)?.as_deref())
    }

    /// The user of that name; none or empty: the default one.
    ///
    /// # Errors
    /// [`UserError`], which clients see as `unauthenticated`.
    pub(crate) fn user_named(&self, name: Option<&str>) -> Result<User, UserError> {
        match name {
            None | Some("") => users::find(&self.boot.default_user),
            Some(name) => users::find(name),
        }
    }

    /// Where relative paths and processes without a directory of their own start; none: at
    /// the user's home.
    pub(crate) fn default_workdir(&self) -> Option<PathBuf> {
        self.boot
            .default_workdir
            .as_deref()
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from)
    }
}
