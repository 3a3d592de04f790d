//! A small node: it keeps its sandboxes in a map and does what it is told. The real tiers
//! are tested end to end elsewhere; what control needs of a node is this port.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hearth_control::ports::{LogLine, Node, Template};
use hearth_model::end::EndCause;
use hearth_model::id::{SandboxId, TemplateId};
use hearth_model::node::{CreateError, Started, Usage};
use hearth_model::sandbox::{SandboxSpec, Size};
use tokio::sync::watch;

/// What the next creates do.
#[derive(Debug, Clone)]
pub(crate) enum Mood {
    Good,
    Fail(CreateError),
    /// Wait until the mood changes, or a kill comes.
    Hang,
    /// Wait and do not even notice a kill, until the mood changes.
    Deaf,
}

#[derive(Debug)]
pub(crate) struct TestNode {
    mood: watch::Sender<Mood>,
    held: Mutex<HashMap<SandboxId, SandboxSpec>>,
    kills: Mutex<Vec<(SandboxId, EndCause)>>,
    /// Changes with every kill.
    killed: watch::Sender<u64>,
    pub(crate) creates: AtomicUsize,
    pub(crate) lines: Mutex<Vec<LogLine>>,
}

impl TestNode {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            mood: watch::Sender::new(Mood::Good),
            held: Mutex::default(),
            kills: Mutex::default(),
            killed: watch::Sender::new(0),
            creates: AtomicUsize::new(0),
            lines: Mutex::default(),
        })
    }

    pub(crate) fn set_mood(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    pub(crate) fn holds(&self, id: &SandboxId) -> bool {
        self.held.lock().unwrap().contains_key(id)
    }

    pub(crate) fn count(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    pub(crate) fn spec(&self, id: &SandboxId) -> SandboxSpec {
        self.held.lock().unwrap()[id].clone()
    }

    /// It is gone without anybody asking.
    pub(crate) fn lose(&self, id: &SandboxId) {
        self.held.lock().unwrap().remove(id);
    }

    /// It holds something nobody knows.
    pub(crate) fn plant(&self, like: &SandboxId) -> SandboxId {
        let id = SandboxId::random();
        let mut spec = self.spec(like);
        spec.id = id.clone();
        self.held.lock().unwrap().insert(id.clone(), spec);
        id
    }

    pub(crate) fn kills_of(&self, id: &SandboxId) -> Vec<EndCause> {
        let kills = self.kills.lock().unwrap();
        kills
            .iter()
            .filter(|(killed, _)| killed == id)
            .map(|(_, cause)| cause.clone())
            .collect()
    }

    fn was_killed(&self, id: &SandboxId) -> bool {
        !self.kills_of(id).is_empty()
    }

    async fn make(&self, spec: SandboxSpec) -> Result<Started, CreateError> {
        self.creates.fetch_add(1, Ordering::SeqCst);
        let mut mood = self.mood.subscribe();
        let mut killed = self.killed.subscribe();
        loop {
            let now = mood.borrow_and_update().clone();
            killed.borrow_and_update();
            match now {
                Mood::Good => break,
                Mood::Fail(error) => return Err(error),
                Mood::Hang if self.was_killed(&spec.id) => return Err(CreateError::Ended),
                Mood::Hang => {
                    tokio::select! {
                        _ = mood.changed() => {}
                        _ = killed.changed() => {}
                    }
                }
                Mood::Deaf => {
                    let _ = mood.changed().await;
                }
            }
        }
        self.held.lock().unwrap().insert(spec.id.clone(), spec);
        Ok(Started {
            address: std::net::Ipv4Addr::LOCALHOST,
            tier: "test",
        })
    }
}

impl Node for TestNode {
    fn create(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Started, CreateError>> {
        self.make(spec).boxed()
    }

    fn kill(&self, id: SandboxId, cause: EndCause) -> BoxFuture<'_, ()> {
        async move {
            self.held.lock().unwrap().remove(&id);
            self.kills.lock().unwrap().push((id, cause));
            self.killed.send_modify(|count| *count += 1);
        }
        .boxed()
    }

    fn usage(&self, id: SandboxId) -> BoxFuture<'_, Option<Usage>> {
        async move {
            self.holds(&id).then(|| Usage {
                at_ms: now_ms(),
                vcpu: 2,
                cpu_pct: 12.5,
                mem_used: 1 << 20,
                mem_total: 1 << 30,
                mem_cache: 4096,
                disk_used: 7,
                disk_total: 1 << 34,
            })
        }
        .boxed()
    }

    fn logs(&self, _id: SandboxId, start_ms: i64, limit: usize) -> BoxFuture<'_, Vec<LogLine>> {
        async move {
            let lines = self.lines.lock().unwrap();
            lines
                .iter()
                .filter(|line| line.timestamp_ms >= start_ms)
                .take(limit)
                .cloned()
                .collect()
        }
        .boxed()
    }

    fn adopted(&self) -> BoxFuture<'_, Vec<SandboxId>> {
        async move { self.held.lock().unwrap().keys().cloned().collect() }.boxed()
    }

    fn templates(&self) -> Vec<Template> {
        ["base", "other"]
            .into_iter()
            .map(|alias| Template {
                id: TemplateId::parse(&format!("tpl{alias}000000000000")).unwrap(),
                aliases: vec![alias.to_owned()],
                build_id: "6f1a2b3c-0000-4000-8000-000000000001".into(),
                size: Size {
                    vcpu: 2,
                    memory_mib: 1024,
                    disk_mib: 20480,
                },
                envd_version: hearth_model::limits::ENVD_VERSION.into(),
                created_ms: 1_700_000_000_000,
                updated_ms: 1_700_000_000_000,
            })
            .collect()
    }
}

pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

pub(crate) fn line(timestamp_ms: i64, level: &str, message: &str) -> LogLine {
    LogLine {
        timestamp_ms,
        level: level.into(),
        message: message.into(),
        fields: BTreeMap::new(),
    }
}
