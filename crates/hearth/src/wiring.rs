//! Joins the rooms: opens node and control over one state folder, implements the small
//! traits they and the edge define, and serves. No logic of its own.

mod node_port;
mod routes;

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hearth_control::{Control, ControlConfig};
use hearth_edge::EdgeConfig;
use hearth_image::store::Store;
use hearth_model::end::{Actor, EndCause};
use hearth_model::id::TeamId;
use hearth_node::{Node, NodeConfig};
use hearth_runtime_oci::{Gvisor, Runsc};
use tokio_util::sync::CancellationToken;

use crate::cli::env::Client;
use crate::cli::key::DEFAULT_TEAM;
use crate::cli::{Failure, Folders, prepare};
use crate::serve::ServeArgs;

/// The agent's program, built first.
static AGENT: &[u8] = include_bytes!(env!("HEARTH_AGENT"));

/// Where the database of a state folder is.
pub(crate) fn db_path(state: &Path) -> PathBuf {
    state.join("hearth.db")
}

/// One server at a time over a state folder. Held by an open file, so that it is free the
/// moment its holder is gone, however that came.
#[derive(Debug)]
pub(crate) struct StateLock(#[allow(dead_code, reason = "held, not used")] File);

impl StateLock {
    /// Takes the lock, or says which process has it.
    pub(crate) fn take(state: &Path) -> io::Result<Result<Self, i32>> {
        std::fs::create_dir_all(state)?;
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(state.join("server.lock"))?;
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                write!(file, "{}", std::process::id())?;
                Ok(Ok(Self(file)))
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let text = std::fs::read_to_string(state.join("server.lock"))?;
                Ok(Err(text.trim().parse().unwrap_or(0)))
            }
            Err(std::fs::TryLockError::Error(e)) => Err(e),
        }
    }
}

/// Node and control over one state folder, recovered.
pub(crate) struct Parts {
    pub(crate) node: Node,
    pub(crate) store: Arc<Store>,
    pub(crate) control: Control,
    /// Stops control's background tasks.
    pub(crate) stop: CancellationToken,
}

impl Parts {
    /// Lets go of the database in good order; what takes too long is finished by the next start.
    async fn shut_down(self) {
        self.stop.cancel();
        if tokio::time::timeout(SHUTDOWN_DEADLINE, self.control.shutdown())
            .await
            .is_err()
        {
            tracing::warn!("work in progress was cut off; the next start finishes it");
        }
    }
}

/// Opens everything and brings it in step with what is alive on the host.
async fn open(args: &ServeArgs, store: Arc<Store>, ready_slots: usize) -> Result<Parts, Failure> {
    let runsc = tokio::task::spawn_blocking(Runsc::probe)
        .await
        .map_err(|e| Failure::from_error("looking for runsc", &e))?
        .map_err(|e| {
            Failure::from_error("looking for runsc", &e)
                .hint("`make up` installs it; `hearth doctor` says more")
        })?;
    let program =
        std::env::current_exe().map_err(|e| Failure::from_error("finding this program", &e))?;
    let config = NodeConfig {
        state_dir: args.folders.state_dir.clone(),
        sandbox_net: args.sandbox_net,
        dns_upstream: args.dns_upstream.clone(),
        private_egress: args.private_egress(),
        ca_bundle: if args.no_host_cas {
            String::new()
        } else {
            host_cas()
        },
        agent: AGENT,
        ready_slots,
        disk_bps: args.disk_mib_per_second << 20,
    };
    let (node, reports) = Node::open(
        config,
        Arc::new(Gvisor::new(runsc, program)),
        Arc::clone(&store),
    )
    .await
    .map_err(|e| {
        Failure::from_error("preparing this host", &e)
            .hint("`hearth doctor` checks it part by part")
    })?;
    let port = node_port::NodePort::new(node.clone(), &store)
        .map_err(|e| Failure::from_error("reading the templates", &e))?;
    let control = Control::open(
        ControlConfig::new(db_path(&args.folders.state_dir)),
        Arc::new(port),
    )
    .await
    .map_err(|e| Failure::from_error("opening the database", &e))?;
    control
        .recover()
        .await
        .map_err(|e| Failure::from_error("bringing the database in step", &e))?;
    let stop = CancellationToken::new();
    control.spawn_background(reports, &stop);
    Ok(Parts {
        node,
        store,
        control,
        stop,
    })
}

/// Serves until SIGTERM or SIGINT. Sandboxes go on without it.
pub(crate) async fn serve(args: ServeArgs) -> Result<(), Failure> {
    let state = args.folders.state_dir.clone();
    let _lock = match StateLock::take(&state)
        .map_err(|e| Failure::from_error("locking the state folder", &e))?
    {
        Ok(lock) => lock,
        Err(pid) => {
            return Err(Failure::new(format!(
                "another server (pid {pid}) has the state folder {}",
                state.display()
            ))
            .hint("end it first, or give this one a --state-dir of its own"));
        }
    };
    // The address first: a taken port is told before anything is made.
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .map_err(|e| {
            Failure::from_error(&format!("listening on {}", args.listen), &e)
                .hint("choose another --listen")
        })?;
    let listen = listener
        .local_addr()
        .map_err(|e| Failure::from_error("listening", &e))?;
    println!("preparing sandboxes");
    let (store, _) = prepare::base(args.folders.clone(), args.sizes.clone()).await?;
    let parts = open(&args, store, usize::from(args.ready_slots)).await?;
    first_key(&parts.control, &state, listen).await?;
    let tier = parts.node.capabilities();
    println!(
        "isolation: {} {} ({})",
        tier.tier, tier.version, tier.boundary
    );

    let cancel = CancellationToken::new();
    let routes = Arc::new(routes::EdgeRoutes::new(
        parts.node.clone(),
        parts.control.routes(),
    ));
    let serving = tokio::spawn(hearth_edge::serve(
        listener,
        EdgeConfig::default(),
        routes,
        parts.control.router(),
        cancel.clone(),
    ));
    println!("ready on http://{listen}");
    if let Ok(client) = Client::load(&state) {
        print!("\n{}", client.exports());
    }
    flush();
    stop_signal()
        .await
        .map_err(|e| Failure::from_error("waiting for signals", &e))?;
    println!("stopping; sandboxes go on (`hearth down` ends them)");
    flush();
    cancel.cancel();
    let served = serving.await;
    parts.shut_down().await;
    match served {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) => Err(Failure::from_error("serving", &e)),
        Err(e) => Err(Failure::from_error("serving", &e)),
    }
}

/// Ends every sandbox with the operator as actor, and takes down what the instance made.
pub(crate) async fn end_everything(folders: &Folders) -> Result<usize, Failure> {
    let last = hearth_node::Instance::last_net(&folders.state_dir)
        .map_err(|e| Failure::from_error("reading the last network", &e))?;
    let args = ServeArgs::only_to_end(folders.clone(), last);
    let state = folders.state_dir.clone();
    let store = tokio::task::spawn_blocking(move || Store::open(&state))
        .await
        .map_err(|e| Failure::from_error("opening the disk store", &e))?
        .map_err(|e| Failure::from_error("opening the disk store", &e))?;
    let parts = open(&args, Arc::new(store), 0).await?;
    let count = parts.node.ids().len();
    parts
        .control
        .end_all(EndCause::Down, Actor::Operator)
        .await
        .map_err(|e| Failure::from_error("ending the sandboxes", &e))?;
    parts.node.end_all().await;
    let store = Arc::clone(&parts.store);
    parts.shut_down().await;
    store
        .close()
        .map_err(|e| Failure::from_error("closing the disk store", &e))?;
    Ok(count)
}

/// A server without any key makes one: shown once, kept as a hash, with the operator's own
/// copy in `client.json` for `hearth env`.
async fn first_key(control: &Control, state: &Path, listen: SocketAddr) -> Result<(), Failure> {
    let failed = |e: &dyn std::error::Error| Failure::from_error("making the first key", e);
    let api_url = format!("http://{listen}");
    let keys = control.keys();
    if !keys.has_any().await.map_err(|e| failed(&e))? {
        let team = TeamId::parse(DEFAULT_TEAM).map_err(|e| failed(&e))?;
        let key = keys.create(&team, "first").await.map_err(|e| failed(&e))?;
        let client = Client {
            api_key: key.secret.expose().to_owned(),
            api_url,
        };
        return client.save(state).map_err(|e| failed(&e));
    }
    // The address may be another one than last time.
    match Client::load(state) {
        Ok(client) if client.api_url != api_url => Client { api_url, ..client }
            .save(state)
            .map_err(|e| failed(&e)),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(failed(&e)),
    }
}

/// Certificates an operator added to this host: what Debian keeps apart from its own.
fn host_cas() -> String {
    let mut bundle = String::new();
    let Ok(dir) = std::fs::read_dir("/usr/local/share/ca-certificates") else {
        return bundle;
    };
    let mut files: Vec<PathBuf> = dir.flatten().map(|e| e.path()).collect();
    files.sort();
    for file in files
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "crt"))
    {
        match std::fs::read_to_string(file) {
            Ok(text) if text.contains("-----BEGIN CERTIFICATE-----") => {
                bundle.push_str(text.trim());
                bundle.push('\n');
            }
            Ok(_) => {
                tracing::warn!(file = %file.display(), "not a PEM certificate; sandboxes go without it")
            }
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "a host certificate cannot be read")
            }
        }
    }
    bundle
}

async fn stop_signal() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

fn flush() {
    if let Err(error) = io::stdout().flush() {
        tracing::debug!(%error, "standard output is closed");
    }
}

/// How long creates and ends that are going on may still take when the server stops.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);
/// How long `down` waits for a server to stop after SIGTERM.
pub(crate) const STOP_DEADLINE: Duration = Duration::from_secs(30);
