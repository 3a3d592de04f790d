//! `hearth env`: what a client has to set. Also the file it is kept in: the operator's own
//! copy of the first API key, as the database has only its hash.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use super::{Failure, Folders, Outcome};

const FILE: &str = "client.json";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    folders: Folders,
}

/// What a client needs to reach this server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) api_key: String,
    pub(crate) api_url: String,
}

impl Client {
    pub(crate) fn load(state: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(state.join(FILE))?)?)
    }

    /// Written whole or not at all, readable by root only.
    pub(crate) fn save(&self, state: &Path) -> io::Result<()> {
        hearth_host::file::replace_private(&state.join(FILE), &serde_json::to_vec_pretty(self)?)
    }

    /// The block, as a shell reads it.
    pub(crate) fn exports(&self) -> String {
        let Self { api_key, api_url } = self;
        format!(
            "export E2B_API_KEY={}\nexport E2B_API_URL={}\nexport E2B_SANDBOX_URL={}\n",
            quote(api_key),
            quote(api_url),
            quote(api_url)
        )
    }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

pub(crate) fn run(args: &EnvArgs) -> Outcome {
    let client = Client::load(&args.folders.state_dir).map_err(|e| {
        Failure::from_error("reading the client's settings", &e).hint(
            "`hearth serve` writes them at its first start; or make a key with `hearth key create`",
        )
    })?;
    super::out::print(&client.exports())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_for_a_shell() {
        let client = Client {
            api_key: "a'b".into(),
            api_url: "http://127.0.0.1:3000".into(),
        };
        assert!(client.exports().contains(r"export E2B_API_KEY='a'\''b'"));
    }
}
