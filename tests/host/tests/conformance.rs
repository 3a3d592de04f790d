//! The conformance suite on the gVisor tier, through a real node with a real disk, in a
//! network namespace of its own. Needs root, `runsc`, and the built binaries (`make build`).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hearth_host::cgroup::{Group, IoLimits, Layout};
use hearth_image::store::Store;
use hearth_model::id::{SandboxId, TeamId, TemplateId};
use hearth_model::limits;
use hearth_model::sandbox::{Internet, SandboxSpec, Size};
use hearth_model::secret::Secret;
use hearth_node::{Node, NodeConfig};
use hearth_runtime::BoxFuture;
use hearth_runtime::conformance::{CHECKS, Live, Output, Subject};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;

/// A script that takes longer is stuck.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(120);

fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

#[test]
fn gvisor_conforms() {
    let scratch = tempfile::Builder::new()
        .prefix("hearth-conformance-")
        .tempdir_in("/var/tmp")
        .expect("a folder");
    let at = scratch.path().join("netns");
    hearth_host::netns::create(&at, || Ok(())).expect("a network namespace");
    let enter = at.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(move || hearth_host::netns::enter(&enter).expect("the namespace is there"))
        .build()
        .expect("a runtime");
    let state = scratch.path().join("state");
    // On a thread of the runtime: this one is not in the namespace.
    let failures = runtime
        .block_on(async { tokio::spawn(run(state)).await })
        .expect("the suite ran");
    drop(runtime);
    hearth_host::netns::remove(&at).expect("the namespace goes");
    assert!(failures.is_empty(), "{failures:#?}");
}

async fn run(state: PathBuf) -> Vec<String> {
    let (node, store) = open(&state).await;
    let subject = OnNode {
        node: node.clone(),
        state,
    };
    let mut failures = Vec::new();
    for (name, check) in CHECKS {
        let begun = Instant::now();
        match check(&subject).await {
            Ok(()) => println!("ok      {name} ({:.1} s)", begun.elapsed().as_secs_f32()),
            Err(saw) => {
                println!("FAILED  {name}: {saw}");
                failures.push(format!("{name}: {saw}"));
            }
        }
    }
    node.end_all().await;
    store.close().expect("the store closes");
    failures
}

async fn open(state: &Path) -> (Node, Arc<Store>) {
    let cache =
        PathBuf::from(std::env::var("HEARTH_CACHE_DIR").unwrap_or("/var/cache/hearth".into()));
    let size = Size {
        vcpu: limits::DEFAULT_VCPU,
        memory_mib: limits::DEFAULT_MEMORY_MIB,
        disk_mib: limits::DEFAULT_DISK_MIB,
    };
    let at = state.to_owned();
    // Blocking, and about half a minute where the cache is empty.
    let opened = tokio::task::spawn_blocking(move || {
        let store = Store::open(&at).expect("the store opens");
        let image = hearth_image::base::ensure(&cache, size.disk_mib, &|step| println!("{step}"))
            .expect("base is built");
        store.import_base(&image, size).expect("base is taken in");
        store
    });
    let store = Arc::new(opened.await.expect("no panic"));
    let agent = target_dir().join(format!(
        "{}-unknown-linux-gnu/agent/hearth-agent",
        std::env::consts::ARCH
    ));
    let agent = std::fs::read(&agent)
        .unwrap_or_else(|e| panic!("{}: {e}; run `make build`", agent.display()));
    let config = NodeConfig {
        state_dir: state.to_owned(),
        sandbox_net: (Ipv4Addr::new(10, 231, 0, 0), 16),
        dns_upstream: vec!["127.0.0.1:9".parse().expect("an address")],
        private_egress: hearth_host::firewall::PrivateEgress::Refused,
        ca_bundle: String::new(),
        agent: Box::leak(agent.into_boxed_slice()),
        ready_slots: 2,
        disk_bps: 1 << 30,
    };
    let runsc = hearth_runtime_oci::Runsc::probe().expect("runsc");
    let program =
        std::fs::canonicalize(target_dir().join("release/hearth")).expect("`make build` was run");
    let tier = Arc::new(hearth_runtime_oci::Gvisor::new(runsc, program));
    let (node, _) = Node::open(config, tier, Arc::clone(&store))
        .await
        .expect("the node opens");
    (node, store)
}

/// Sandboxes as the node makes them.
struct OnNode {
    node: Node,
    state: PathBuf,
}

impl Subject for OnNode {
    fn start(&self, size: Size) -> BoxFuture<'_, Result<Box<dyn Live>, String>> {
        Box::pin(async move {
            let spec = SandboxSpec {
                id: SandboxId::random(),
                team: TeamId::parse("conformance").map_err(|e| e.to_string())?,
                template: TemplateId::parse("base").map_err(|e| e.to_string())?,
                size: Size {
                    disk_mib: limits::DEFAULT_DISK_MIB,
                    ..size
                },
                env: BTreeMap::new(),
                internet: Internet::Closed,
                access_token: Secret::random(),
            };
            let started = self
                .node
                .create(spec.clone())
                .await
                .map_err(|e| e.to_string())?;
            let record = self
                .state
                .join("run/sandboxes")
                .join(spec.id.as_str())
                .join("record.json");
            let record: serde_json::Value =
                serde_json::from_slice(&std::fs::read(record).map_err(|e| e.to_string())?)
                    .map_err(|e| e.to_string())?;
            let slot = record["slot"].as_u64().ok_or("no slot in the record")?;
            let tag =
                std::fs::read_to_string(self.state.join("instance")).map_err(|e| e.to_string())?;
            let layout = Layout::detect().map_err(|e| e.to_string())?;
            Ok(Box::new(Sandbox {
                disk: self.state.join("run/disks").join(spec.id.as_str()),
                group: Group::at(
                    &layout,
                    &format!("hearth-{}", tag.trim()),
                    &format!("s{slot}"),
                ),
                pid: record["process"]["pid"]
                    .as_i64()
                    .and_then(|p| i32::try_from(p).ok())
                    .ok_or("no pid")?,
                node: self.node.clone(),
                address: started.address,
                spec,
            }) as Box<dyn Live>)
        })
    }
}

struct Sandbox {
    node: Node,
    spec: SandboxSpec,
    address: Ipv4Addr,
    group: Group,
    disk: PathBuf,
    pid: i32,
}

impl Live for Sandbox {
    fn sh(&self, script: &str) -> BoxFuture<'_, Result<Output, String>> {
        let script = script.to_owned();
        Box::pin(async move {
            // A dead sandbox's kernel closes no connection: its node says that it is gone.
            let reached = self
                .node
                .reach(&self.spec.id)
                .ok_or("the sandbox is gone")?;
            tokio::select! {
                done = tokio::time::timeout(SCRIPT_DEADLINE, self.start_process(&script)) => {
                    done.map_err(|_| format!("the script is stuck: {script}"))?
                }
                () = reached.gone.cancelled() => Err(format!("the sandbox died of: {script}")),
            }
        })
    }

    fn group(&self) -> Group {
        self.group.clone()
    }

    fn limit_io(&self, bps: u64) -> Result<(), String> {
        use std::os::unix::fs::MetadataExt as _;
        let device = std::fs::metadata(&self.disk)
            .map_err(|e| e.to_string())?
            .dev();
        let number = |n: u64| u32::try_from(n).map_err(|e| e.to_string());
        let io = IoLimits {
            major: number(nix::sys::stat::major(device))?,
            minor: number(nix::sys::stat::minor(device))?,
            read_bps: bps,
            write_bps: bps,
        };
        self.group.limit_io(&io).map_err(|e| e.to_string())
    }

    fn pid(&self) -> i32 {
        self.pid
    }

    fn is_running(&self) -> bool {
        self.node.reach(&self.spec.id).is_some()
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.node.kill(&self.spec.id).await })
    }

    fn died(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let deadline = Instant::now() + Duration::from_secs(60);
            while self.node.ids().contains(&self.spec.id) {
                assert!(
                    Instant::now() < deadline,
                    "the death was not noticed within 60 s"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

impl Sandbox {
    /// `process.Process/Start` by hand: what any client of the agent sends.
    async fn start_process(&self, script: &str) -> Result<Output, String> {
        fn text(e: impl std::fmt::Display) -> String {
            e.to_string()
        }
        let stream = tokio::net::TcpStream::connect((self.address, limits::AGENT_PORT))
            .await
            .map_err(text)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(text)?;
        tokio::spawn(connection);
        let message = serde_json::json!({ "process": { "cmd": "/bin/bash", "args": ["-c", script] }, "stdin": false });
        let message = serde_json::to_vec(&message).map_err(text)?;
        let mut body = vec![0u8];
        body.extend(u32::try_from(message.len()).map_err(text)?.to_be_bytes());
        body.extend(message);
        let request = http::Request::post("/process.Process/Start")
            .header("host", "sandbox")
            .header("content-type", "application/connect+json")
            .header("connect-protocol-version", "1")
            .header("x-access-token", self.spec.access_token.expose())
            // The user by basic authentication: `root:`.
            .header(
                "authorization",
                format!("Basic {}", STANDARD.encode("root:")),
            )
            .body(Full::new(bytes::Bytes::from(body)))
            .map_err(text)?;
        let answer = sender.send_request(request).await.map_err(text)?;
        let bytes = answer.into_body().collect().await.map_err(text)?.to_bytes();
        let mut output = Output {
            status: -1,
            stdout: String::new(),
            stderr: String::new(),
        };
        let mut rest = &bytes[..];
        while rest.len() >= 5 {
            let length = u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
            let frame: serde_json::Value =
                serde_json::from_slice(&rest[5..5 + length]).map_err(text)?;
            let event = &frame["event"];
            for (name, into) in [
                ("stdout", &mut output.stdout),
                ("stderr", &mut output.stderr),
            ] {
                if let Some(data) = event["data"][name].as_str() {
                    into.push_str(&String::from_utf8_lossy(
                        &STANDARD.decode(data).map_err(text)?,
                    ));
                }
            }
            if !event["end"].is_null() {
                let end = &event["end"];
                let status = end["status"].as_str().unwrap_or("");
                output.status = match end["exitCode"].as_i64().unwrap_or(0) {
                    -1 if status.contains("killed") => 137,
                    code => i32::try_from(code).map_err(text)?,
                };
            }
            if !frame["error"].is_null() {
                return Err(frame["error"].to_string());
            }
            rest = &rest[5 + length..];
        }
        Ok(output)
    }
}
