//! The daemon inside every sandbox: PID 1, E2B's agent protocol on one port, the node's
//! control channel on another.
//!
//! Order of life: read [`Boot`](hearth_wire::boot::Boot) from standard input, make the
//! sandbox what it says, listen, say [`READY_LINE`], serve until killed. It is started
//! afresh in every sandbox and keeps nothing on disk.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use hearth_wire::boot::{Boot, FAILED_PREFIX, READY_LINE};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

mod agent;
mod answer;
mod auth;
mod control;
mod crowd;
mod files;
mod filesystem;
mod fixups;
mod guard;
mod log;
mod metrics;
mod process;
mod procfs;
mod reaper;
mod serve;
mod sudo;
mod sys;
mod users;

use agent::Agent;
use reaper::Reaper;
use sys::Confines;

/// Threads for work that blocks, such as file access. They come and go with it.
const MAX_BLOCKING: usize = 64;
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
    #[error("{0}")]
    Fixup(#[from] fixups::FixupError),
    #[error("raising the limit of open files failed: {0}")]
    OpenFiles(#[source] nix::errno::Errno),
    #[error("starting the runtime failed: {0}")]
    Runtime(#[source] std::io::Error),
    #[error("listening on port {port} failed: {source}")]
    Listen {
        port: u16,
        #[source]
        source: std::io::Error,
    },
    #[error("listening for sudo failed: {0}")]
    Sudo(#[source] std::io::Error),
    #[error("saying that the agent is ready failed: {0}")]
    Ready(#[source] std::io::Error),
    #[error("leaving the standard files failed: {0}")]
    Detach(#[source] std::io::Error),
}

fn main() -> ExitCode {
    if sudo::is_called() {
        return sudo::client::main();
    }
    match start() {
        Ok(never) => match never {},
        Err(error) => {
            // Nobody is left to tell when even this write fails; the exit code stands.
            let _ = writeln!(std::io::stdout(), "{FAILED_PREFIX} {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<Infallible, StartError> {
    sys::one_arena();
    log::start();
    let boot = read_boot()?;
    let mut confines = Confines {
        open_files: Some(raise_open_files()?),
        ..Confines::default()
    };
    if let Some(fixups) = &boot.fixups {
        sys::ignore_requests_to_end();
        confines.group = Some(fixups::apply(fixups)?);
        confines.unprotect = protect_from_memory_killer();
    }
    let reaper = Reaper::start().map_err(StartError::Runtime)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(MAX_BLOCKING)
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    runtime.block_on(serve(boot, confines, reaper))
}

async fn serve(
    boot: Boot,
    confines: Confines,
    reaper: Arc<Reaper>,
) -> Result<Infallible, StartError> {
    let listen = |port: u16| async move {
        serve::bind(port)
            .await
            .map_err(|source| StartError::Listen { port, source })
    };
    let public = listen(boot.agent_port).await?;
    let control = listen(boot.control_port).await?;
    let agent = Arc::new(Agent::new(boot, confines, reaper));
    if let Some(fixups) = &agent.boot.fixups {
        let table = Arc::clone(&agent.processes);
        tokio::spawn(guard::run(table, fixups.memory_bytes));
        tokio::spawn(crowd::run(fixups.pids_max));
        let callers = sudo::broker::listen().map_err(StartError::Sudo)?;
        tokio::spawn(sudo::broker::serve(callers, Arc::clone(&agent)));
    }
    tokio::spawn(serve::run(control, control::router(&agent)));
    let router = serve::public(&agent);
    sys::trim_memory();
    let mut out = std::io::stdout();
    writeln!(out, "{READY_LINE}")
        .and_then(|()| out.flush())
        .map_err(StartError::Ready)?;
    sys::detach_standard_files().map_err(StartError::Detach)?;
    Ok(serve::run(public, router).await)
}

/// As many files as the sandbox lets anybody have; gives the limits that programs get.
fn raise_open_files() -> Result<libc::rlimit, StartError> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(StartError::OpenFiles)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(StartError::OpenFiles)?;
    Ok(libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    })
}

/// Whether it worked: not every sandbox kernel has such a killer.
fn protect_from_memory_killer() -> bool {
    match std::fs::write("/proc/self/oom_score_adj", "-1000") {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(%error, "the kernel's memory killer may take the agent");
            false
        }
    }
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
