//! One file per command. They print for people by default and the API's own objects with
//! `--json`; a failure says what to do next.

mod api;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod env;
pub(crate) mod key;
pub(crate) mod out;
pub(crate) mod prepare;
pub(crate) mod sandbox;
mod table;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status of wrong usage and refused configuration (sysexits: EX_USAGE).
pub(crate) const EXIT_USAGE: u8 = 64;
/// Exit status of hearth's own failures where a command's status is passed through.
pub(crate) const EXIT_OWN: u8 = 125;

/// Where an instance keeps its things.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Folders {
    /// Folder of everything that outlives the server.
    #[arg(long, env = "HEARTH_STATE_DIR", default_value = "/var/lib/hearth")]
    pub(crate) state_dir: PathBuf,
    /// Folder of built templates; may be shared by instances and removed at any time.
    #[arg(long, env = "HEARTH_CACHE_DIR", default_value = "/var/cache/hearth")]
    pub(crate) cache_dir: PathBuf,
}

/// What a command that failed tells: one line of what, and one of what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) what: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            code: 1,
            what: what.into(),
            hint: None,
        }
    }

    /// From an error with its sources.
    pub(crate) fn from_error(doing: &str, error: &dyn std::error::Error) -> Self {
        let mut what = format!("{doing}: {error}");
        let mut source = error.source();
        while let Some(e) = source {
            what.push_str(": ");
            what.push_str(&e.to_string());
            source = e.source();
        }
        Self::new(what)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    pub(crate) fn print(self) -> ExitCode {
        eprintln!("hearth: {}", self.what);
        if let Some(hint) = self.hint {
            eprintln!("  hint: {hint}");
        }
        ExitCode::from(self.code)
    }
}

/// What a command ends with.
pub(crate) type Outcome = Result<ExitCode, Failure>;
