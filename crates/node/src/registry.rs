//! The node: which sandboxes it has, and the calls control and the edge make.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hearth_host::cgroup::Layout;
use hearth_host::firewall::{self, Rules};
use hearth_host::link::Links;
use hearth_image::store::Store;
use hearth_model::end::EndCause;
use hearth_model::id::SandboxId;
use hearth_model::node::{CreateError, Endpoint, Report, Started, Usage};
use hearth_model::sandbox::SandboxSpec;
use hearth_model::secret::Secret;
use hearth_runtime::Runtime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::agent_client::{self, LogLine, LogsError};
use crate::config::{NodeConfig, OpenError};
use crate::instance::Instance;
use crate::slot::Slots;
use crate::{adopt, driver, sweep, usage};

/// Reports that wait for control at most; a full queue holds drivers back, never loses one.
const REPORTS: usize = 1024;

/// How the edge reaches a sandbox, and how it learns that it is gone.
#[derive(Debug, Clone)]
pub struct Reached {
    pub endpoint: Endpoint,
    /// Cancelled the moment the sandbox is dead or being ended.
    pub gone: CancellationToken,
}

/// One sandbox, as the registry has it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) spec: SandboxSpec,
    pub(crate) control_secret: Secret,
    /// Set once its agent answered.
    pub(crate) address: watch::Sender<Option<Ipv4Addr>>,
    /// Asks the driver to end it.
    pub(crate) end: CancellationToken,
    /// The edge cuts its streams.
    pub(crate) gone: CancellationToken,
    /// Everything was given back.
    pub(crate) released: CancellationToken,
    pub(crate) usage: Mutex<Option<usage::Meter>>,
}

/// What drivers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: NodeConfig,
    pub(crate) instance: Instance,
    pub(crate) layout: Layout,
    pub(crate) links: Links,
    pub(crate) store: Arc<Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) dns: hearth_egress::dns::Policies,
    pub(crate) agent: PathBuf,
    pub(crate) boot_id: String,
    pub(crate) entries: Mutex<HashMap<SandboxId, Arc<Entry>>>,
    /// Starts that run at once: more only slow each other down.
    pub(crate) starting: Semaphore,
    pub(crate) reports: mpsc::Sender<Report>,
}

impl Shared {
    pub(crate) fn entry(&self, id: &SandboxId) -> Option<Arc<Entry>> {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned()
    }

    pub(crate) fn insert(&self, spec: &SandboxSpec, control_secret: Secret) -> Option<Arc<Entry>> {
        let entry = Arc::new(Entry {
            spec: spec.clone(),
            control_secret,
            address: watch::Sender::new(None),
            end: CancellationToken::new(),
            gone: CancellationToken::new(),
            released: CancellationToken::new(),
            usage: Mutex::new(None),
        });
        match self
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(spec.id.clone())
        {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(v) => {
                v.insert(Arc::clone(&entry));
                Some(entry)
            }
        }
    }

    pub(crate) fn remove(&self, id: &SandboxId) {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
    }

    fn ids(&self) -> Vec<SandboxId> {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .keys()
            .cloned()
            .collect()
    }
}

/// Runs sandboxes on this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

impl Node {
    /// Prepares the host, adopts the sandboxes that are alive, removes what belongs to
    /// nobody, and begins to make slots. Reports come out of the receiver.
    ///
    /// # Errors
    /// When the host lacks something; each says what.
    pub async fn open(
        config: NodeConfig,
        runtime: Arc<dyn Runtime>,
        store: Arc<Store>,
    ) -> Result<(Self, mpsc::Receiver<Report>), OpenError> {
        let instance = Instance::open(&config.state_dir, config.sandbox_net)
            .map_err(OpenError::io("opening the state folder"))?;
        instance
            .make_dirs()
            .map_err(OpenError::io("making the state folder's parts"))?;
        adopt::refuse_changed_network(&instance)?;
        instance
            .remember_net()
            .map_err(OpenError::io("remembering the network"))?;
        let layout = Layout::detect()?;
        layout
            .make_parent(&instance.group_parent())
            .map_err(OpenError::Group)?;
        let links = Links::open().map_err(OpenError::io("opening netlink"))?;
        adopt::refuse_taken_network(&instance)
            .map_err(OpenError::io("reading the routes"))?
            .map_or(Ok(()), |link| {
                Err(OpenError::NetInUse {
                    net: instance.cidr(),
                    link,
                })
            })?;
        links
            .add_host_address(instance.resolver())
            .await
            .map_err(OpenError::io("adding the resolver's address"))?;
        hearth_host::link::sysctl("net/ipv4/ip_forward", "1")
            .map_err(OpenError::io("switching forwarding on"))?;
        let rules = Rules {
            table: instance.table(),
            links: instance.link_prefix(),
            sandboxes: instance.cidr(),
            resolver: instance.resolver(),
            private_egress: config.private_egress,
        };
        crate::slot::blocking(move || firewall::load(&rules))
            .await
            .map_err(OpenError::io("loading the packet filter"))?;
        let dns = hearth_egress::dns::Policies::default();
        hearth_egress::dns::serve(
            instance.resolver(),
            config.dns_upstream.clone(),
            dns.clone(),
        )
        .await
        .map_err(OpenError::io("starting the sandboxes' resolver"))?;
        let agent = adopt::place_agent(&instance, config.agent)
            .map_err(OpenError::io("placing the agent"))?;
        let boot_id = crate::record::boot_id().map_err(OpenError::io("reading the boot id"))?;
        let slots = Arc::new(Slots::new(
            &instance,
            &layout,
            &links,
            &runtime,
            config.ready_slots,
        ));
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        let (reports, receiver) = mpsc::channel(REPORTS);
        let shared = Arc::new(Shared {
            config,
            instance,
            layout,
            links,
            store,
            runtime,
            slots: Arc::clone(&slots),
            dns,
            agent,
            boot_id,
            entries: Mutex::new(HashMap::new()),
            starting: Semaphore::new(cpus * 2),
            reports,
        });
        adopt::adopt_all(&shared)
            .await
            .map_err(OpenError::io("reading the records"))?;
        sweep::once(&shared).await;
        tokio::spawn(slots.keep_ready());
        tokio::spawn(sweep::forever(Arc::clone(&shared)));
        Ok((Self { shared }, receiver))
    }

    /// Makes a sandbox and returns when its agent serves. Dropping the future does not stop
    /// the making; [`Node::kill`] does.
    ///
    /// # Errors
    /// See [`CreateError`]; nothing of the sandbox is left then.
    pub async fn create(&self, spec: SandboxSpec) -> Result<Started, CreateError> {
        driver::create(&self.shared, spec).await
    }

    /// Ends a sandbox and returns when everything it held was given back. One that is not
    /// there is ended already.
    pub async fn kill(&self, id: &SandboxId) {
        if let Some(entry) = self.shared.entry(id) {
            entry.end.cancel();
            entry.gone.cancel();
            entry.released.cancelled().await;
        }
    }

    /// Sandboxes this node has, adopted ones included.
    pub fn ids(&self) -> Vec<SandboxId> {
        self.shared.ids()
    }

    /// How to reach a running sandbox.
    pub fn reach(&self, id: &SandboxId) -> Option<Reached> {
        let entry = self.shared.entry(id)?;
        if entry.gone.is_cancelled() {
            return None;
        }
        let address = (*entry.address.borrow())?;
        Some(Reached {
            endpoint: Endpoint {
                address,
                control_secret: entry.control_secret.clone(),
            },
            gone: entry.gone.clone(),
        })
    }

    /// One reading of a running sandbox's use.
    pub fn usage(&self, id: &SandboxId) -> Option<Usage> {
        let entry = self.shared.entry(id)?;
        let mut meter = entry.usage.lock().unwrap_or_else(PoisonError::into_inner);
        meter.as_mut()?.read(&entry.spec)
    }

    /// What the agent logged.
    ///
    /// # Errors
    /// When the sandbox is not running or its agent does not answer well.
    pub async fn logs(
        &self,
        id: &SandboxId,
        start_ms: i64,
        limit: usize,
    ) -> Result<Vec<LogLine>, LogsError> {
        let reached = self.reach(id).ok_or(LogsError::NotRunning)?;
        agent_client::logs(&reached.endpoint, start_ms, limit).await
    }

    /// Ends every sandbox and removes everything this instance made on the host, but not its
    /// store. For `hearth down`.
    pub async fn end_all(&self) {
        for id in self.shared.ids() {
            self.kill(&id).await;
        }
        sweep::dismantle(&self.shared).await;
    }

    /// The isolation of this node's sandboxes.
    pub fn capabilities(&self) -> hearth_runtime::Capabilities {
        self.shared.runtime.capabilities().clone()
    }
}

/// The end cause of a sandbox that died by itself.
pub(crate) fn died(oom_kills: u64) -> EndCause {
    if oom_kills > 0 {
        EndCause::OutOfMemory
    } else {
        EndCause::Crashed {
            detail: "the process that carries it ended".into(),
        }
    }
}
