//! `hearth down`: the one command that ends sandboxes wholesale.

use std::process::ExitCode;
use std::time::Instant;

use super::{Failure, Folders, Outcome};
use crate::wiring::{self, STOP_DEADLINE, StateLock};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    folders: Folders,
}

pub(crate) async fn run(args: DownArgs) -> Outcome {
    let state = &args.folders.state_dir;
    if !state.join("instance").exists() {
        hearth_image::store::Store::close_at(state)
            .map_err(|e| Failure::from_error("closing the disk store", &e))?;
        println!("nothing was started from {}", state.display());
        return Ok(ExitCode::SUCCESS);
    }
    let lock = take_over(state).await?;
    let count = wiring::end_everything(&args.folders).await?;
    drop(lock);
    println!("ended {count} sandboxes; nothing of this instance is left running");
    Ok(ExitCode::SUCCESS)
}

/// Asks a running server to stop and takes its lock.
async fn take_over(state: &std::path::Path) -> Result<StateLock, Failure> {
    let deadline = Instant::now() + STOP_DEADLINE;
    let mut asked = 0;
    loop {
        match StateLock::take(state)
            .map_err(|e| Failure::from_error("locking the state folder", &e))?
        {
            Ok(lock) => return Ok(lock),
            Err(pid) if Instant::now() > deadline => {
                return Err(Failure::new(format!(
                    "the server (pid {pid}) did not stop within 30 s"
                ))
                .hint(
                    "end it yourself and run `hearth down` again; sandboxes are not lost by that",
                ));
            }
            Err(pid) if pid != asked && pid > 0 => {
                asked = pid;
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                        .map_err(|e| Failure::from_error("stopping the server", &e))?;
                }
            }
            Err(_) => {}
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
