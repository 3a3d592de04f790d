//! Which `runsc` this host has, and how to call it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest build with the systrap platform that was tried (Debian backports).
// Days are written as the version has them: year, month, day.
const OLDEST: u32 = 20240101;
/// Builds from this day on recognise the host's namespace without help (gvisor#10704).
const NET_CORE_FIXED: u32 = 20240901;

/// A `runsc` that can be used.
#[derive(Debug, Clone)]
pub struct Runsc {
    pub path: PathBuf,
    pub version: String,
    pub(crate) needs_net_core_cover: bool,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(
        "runsc cannot be started; install it (Debian package `runsc`, from backports on Debian 12)"
    )]
    Missing(#[source] std::io::Error),
    #[error(
        "runsc {version} is older than {OLDEST}; it has no systrap platform. Install the one from Debian backports or a current release"
    )]
    TooOld { version: String },
    #[error("`runsc --version` said {said:?}, which has no date in it")]
    Unreadable { said: String },
}

impl Runsc {
    /// Asks the `runsc` on the path for its version. Blocking.
    ///
    /// # Errors
    /// When it is missing, too old or unreadable.
    pub fn probe() -> Result<Self, ProbeError> {
        let out = Command::new("runsc")
            .arg("--version")
            .output()
            .map_err(ProbeError::Missing)?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let date = date_in(&said).ok_or_else(|| ProbeError::Unreadable { said: said.clone() })?;
        let version = said
            .lines()
            .next()
            .unwrap_or("")
            .trim_start_matches("runsc version ")
            .to_owned();
        if date < OLDEST {
            return Err(ProbeError::TooOld { version });
        }
        Ok(Self {
            path: PathBuf::from("runsc"),
            version,
            needs_net_core_cover: date < NET_CORE_FIXED,
        })
    }

    pub(crate) fn run_args(&self, dir: &Path, pid_file: &Path) -> Vec<String> {
        let text = |p: &Path| p.to_string_lossy().into_owned();
        vec![
            text(&self.path),
            "--root".into(),
            text(&super::state_dir(dir)),
            "--platform=systrap".into(),
            "--network=sandbox".into(),
            // The launcher is in the group already; runsc's own attach would wait for RCU.
            "--ignore-cgroups".into(),
            // Writes go to the sandbox's own disk, not to memory.
            "--overlay2=none".into(),
            // ping works; whatever is forged is dropped on the host's side of the link.
            "--net-raw".into(),
            // What the sentry says when it gives up; the node logs the end of it.
            "--panic-log".into(),
            text(&dir.join(hearth_runtime::LAST_WORDS)),
            "run".into(),
            "--detach".into(),
            "--bundle".into(),
            text(dir),
            "--pid-file".into(),
            text(pid_file),
            "s".into(),
        ]
    }
}

/// `release-20260101.0` and `0.0~20240729.0` both hold a day.
fn date_in(text: &str) -> Option<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .find(|run| run.len() == 8 && run.starts_with("20"))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_version_hold_a_day() {
        assert_eq!(
            date_in("runsc version 0.0~20240729.0\nspec: 1.0.2-dev"),
            Some(20240729)
        );
        assert_eq!(date_in("runsc version release-20260803.0"), Some(20260803));
        assert_eq!(date_in("runsc version VERSION_MISSING"), None);
    }
}
