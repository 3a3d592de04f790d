//! The daemon inside every sandbox: PID 1, E2B's agent protocol on one port, the node's
//! control channel on another.
//!
//! Order of life: read [`Boot`](hearth_wire::boot::Boot) from standard input, make the
//! sandbox what it says, listen, say [`READY_LINE`], serve until killed. It is started
//! afresh in every sandbox and keeps nothing on disk.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use hearth_wire::boot::{Boot, FAILED_PREFIX, READY_LINE};

mod agent;
mod answer;
mod auth;
mod files;
mod filesystem;
mod serve;
mod users;

use agent::Agent;

/// Largest boot configuration taken, in bytes.
const MAX_BOOT: u64 = 4 * 1024 * 1024;

/// The sandbox cannot be what it should be; it must not be served.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("reading the boot configuration failed: {0}")]
    Read(#[source] std::io::Error),
    #[error("the boot configuration is longer than {MAX_BOOT} bytes")]
    TooLong,
    #[error("the boot configuration makes no sense: {0}")]
    Parse(#[source] serde_json::Error),
    #[error("starting the runtime failed: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("listening on port {port} failed: {source}")]
    Listen {
        port: u16,
        #[source]
        source: std::io::Error,
    },
    #[error("saying that the agent is ready failed: {0}")]
    Ready(#[source] std::io::Error),
}

fn main() -> ExitCode {
    match start() {
        Ok(never) => match never {},
        Err(error) => {
            // Nobody is left to tell when even this write fails; the exit code stands.
            let _ = writeln!(std::io::stdout(), "{FAILED_PREFIX} {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<std::convert::Infallible, StartError> {
    let boot = read_boot()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    runtime.block_on(async {
        let listen = |port: u16| async move {
            serve::bind(port)
                .await
                .map_err(|source| StartError::Listen { port, source })
        };
        let public = listen(boot.agent_port).await?;
        let control = listen(boot.control_port).await?;
        let agent = Arc::new(Agent::new(boot));
        let control = tokio::spawn(serve::run(control, serve::control(&agent)));
        writeln!(std::io::stdout(), "{READY_LINE}").map_err(StartError::Ready)?;
        let never = serve::run(public, serve::public(&agent)).await;
        control.abort();
        Ok(never)
    })
}

fn read_boot() -> Result<Boot, StartError> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .lock()
        .take(MAX_BOOT + 1)
        .read_to_end(&mut bytes)
        .map_err(StartError::Read)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_BOOT) {
        return Err(StartError::TooLong);
    }
    serde_json::from_slice(&bytes).map_err(StartError::Parse)
}
