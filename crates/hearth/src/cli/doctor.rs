//! `hearth doctor`: checks this host part by part, by trying what the server will do, and
//! says for each finding how to mend it. It changes nothing; what it makes it removes.
//!
//! Each group of checks has a file below `doctor`; all of them give [`Finding`]s.

mod host;
mod network;
mod server;
mod storage;
mod tier;

use std::process::ExitCode;

use hearth_runtime::Capabilities;
use serde::Serialize;
use serde_json::json;

use super::{Failure, Outcome, out};
use crate::serve::ServeArgs;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) serve: Box<ServeArgs>,
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How a part of the host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Health {
    Ok,
    /// The server runs, and something is weaker or may fail later.
    Warn,
    /// The server or its sandboxes cannot run.
    Fail,
}

/// What was found of one part.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    name: &'static str,
    state: Health,
    /// What is the case.
    what: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Finding {
    fn ok(name: &'static str, what: impl Into<String>) -> Self {
        Self {
            name,
            state: Health::Ok,
            what: what.into(),
            mend: None,
        }
    }
    fn warn(name: &'static str, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            name,
            state: Health::Warn,
            what: what.into(),
            mend: Some(mend.into()),
        }
    }
    fn fail(name: &'static str, what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            name,
            state: Health::Fail,
            what: what.into(),
            mend: Some(mend.into()),
        }
    }
}

/// An error with its sources, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    Failure::from_error("", error)
        .what
        .trim_start_matches(": ")
        .to_owned()
}

pub(crate) async fn run(args: DoctorArgs) -> Outcome {
    let serve = args.serve;
    let (of_storage, of_network) = (serve.clone(), serve.clone());
    let blocking = |doing: &'static str, work: Box<dyn FnOnce() -> Vec<Finding> + Send>| async move {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|e| Failure::from_error(doing, &e))
    };
    let mut findings = blocking("checking the host", Box::new(host::check)).await?;
    let mut tier = None;
    // Without root the rest fails for that reason alone, and says nothing of the host.
    if rustix::process::geteuid().is_root() {
        let (found_tier, found) = tier::check().await;
        tier = found_tier;
        findings.extend(found);
        findings.extend(
            blocking(
                "checking the network",
                Box::new(move || network::check(&of_network)),
            )
            .await?,
        );
        findings.extend(
            blocking(
                "checking the disks",
                Box::new(move || storage::check(&of_storage.folders)),
            )
            .await?,
        );
        findings.push(server::check(&serve.folders.state_dir).await);
    }

    if args.json {
        let all = json!({ "isolation": tier, "findings": findings });
        out::print(&format!("{all:#}\n"))?;
    } else {
        out::print(&text(tier.as_ref(), &findings))?;
    }
    let failed = findings.iter().any(|f| f.state == Health::Fail);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn text(tier: Option<&Capabilities>, findings: &[Finding]) -> String {
    let mut text = match tier {
        Some(tier) => format!(
            "isolation: {} {}: {}\n\n",
            tier.tier, tier.version, tier.boundary
        ),
        None => "isolation: no tier was shown to run on this host\n\n".to_owned(),
    };
    for Finding {
        name,
        state,
        what,
        mend,
    } in findings
    {
        let word = match state {
            Health::Ok => "ok",
            Health::Warn => "warn",
            Health::Fail => "FAIL",
        };
        text.push_str(&format!("{word:<5} {name:<14} {what}\n"));
        if let Some(mend) = mend {
            text.push_str(&format!("{:<20} -> {mend}\n", ""));
        }
    }
    text
}
