//! The isolation tier, by really running something in it: that a program is installed, or a
//! device is there, proves nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hearth_runtime::{Capabilities, Runtime as _};
use hearth_runtime_oci::{Gvisor, Runsc};
use serde_json::json;
use tokio::process::Command;

use super::{Finding, chain};

/// How long the try may take. It takes a tenth of a second; a platform that does not work
/// on this processor hangs.
const DEADLINE: Duration = Duration::from_secs(20);

pub(super) async fn check() -> (Option<Capabilities>, Vec<Finding>) {
    let mend = "`make up` installs it from Debian (backports on Debian 12); or install a current release of gVisor";
    let runsc = match tokio::task::spawn_blocking(Runsc::probe).await {
        Ok(Ok(runsc)) => runsc,
        Ok(Err(e)) => return (None, vec![Finding::fail("runsc", chain(&e), mend)]),
        Err(e) => return (None, vec![Finding::fail("runsc", chain(&e), mend)]),
    };
    let mut findings = vec![Finding::ok("runsc", format!("version {}", runsc.version))];
    let (dir, path) = match scratch() {
        Ok(dir) => (dir, runsc.path.clone()),
        Err(e) => {
            findings.push(Finding::fail(
                "gvisor",
                format!("making a folder to try it in: {e}"),
                "free space below /tmp",
            ));
            return (None, findings);
        }
    };
    let tried = try_out(&path, &dir).await;
    if let Err(e) = std::fs::remove_dir_all(&dir) {
        findings.push(Finding::warn(
            "gvisor",
            format!("removing {}: {e}", dir.display()),
            "remove it by hand",
        ));
    }
    match tried {
        Ok(took) => {
            findings.push(Finding::ok(
                "gvisor",
                format!("a program ran in it (systrap) in {} ms", took.as_millis()),
            ));
            (
                Some(Gvisor::new(runsc, PathBuf::new()).capabilities().clone()),
                findings,
            )
        }
        Err(what) => {
            findings.push(Finding::fail(
                "gvisor",
                what,
                "gVisor needs root, ptrace and user-space system call handling: in a container run it privileged; \
                 otherwise try a current release of gVisor",
            ));
            (None, findings)
        }
    }
}

/// Runs the host's own `/bin/true` with the host's root, read-only and without a network.
fn scratch() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let dir = std::env::temp_dir().join(format!("hearth-doctor-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
    let config = json!({
        "ociVersion": "1.0.2",
        "process": { "user": { "uid": 0, "gid": 0 }, "args": ["/bin/true"], "cwd": "/", "env": [] },
        "root": { "path": "/", "readonly": true },
        "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
        "linux": { "namespaces": [
            { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }, { "type": "network" },
        ] },
    });
    std::fs::write(dir.join("config.json"), config.to_string())?;
    Ok(dir)
}

/// How long it took, or what went wrong.
async fn try_out(runsc: &Path, dir: &Path) -> Result<Duration, String> {
    let begun = Instant::now();
    let child = command(runsc, dir)
        .args([
            "--platform=systrap",
            "--network=none",
            "--ignore-cgroups",
            "--overlay2=none",
            "run",
            "--bundle",
        ])
        .arg(dir)
        .arg("doctor")
        .spawn()
        .map_err(|e| format!("starting runsc: {e}"))?;
    let what = match tokio::time::timeout(DEADLINE, child.wait_with_output()).await {
        Ok(Ok(out)) if out.status.success() => return Ok(begun.elapsed()),
        Ok(Ok(out)) => {
            let said = String::from_utf8_lossy(&out.stderr);
            format!(
                "/bin/true in it ended with {}: {}",
                out.status,
                said.trim().lines().next_back().unwrap_or("")
            )
        }
        Ok(Err(e)) => format!("waiting for runsc: {e}"),
        Err(_) => format!(
            "/bin/true in it did not end within {} s",
            DEADLINE.as_secs()
        ),
    };
    // What hangs has processes of its own, which only this ends.
    let ended = command(runsc, dir)
        .args(["delete", "--force", "doctor"])
        .output();
    match tokio::time::timeout(DEADLINE, ended).await {
        Ok(Ok(_)) => Err(what),
        Ok(Err(e)) => Err(format!("{what}; ending it: {e}")),
        Err(_) => Err(format!(
            "{what}; ending it took longer than {} s",
            DEADLINE.as_secs()
        )),
    }
}

fn command(runsc: &Path, dir: &Path) -> Command {
    let mut command = Command::new(runsc);
    command
        .arg("--root")
        .arg(dir.join("runsc"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}
