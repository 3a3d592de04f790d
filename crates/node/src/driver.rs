//! One sandbox's life on this node: take what it needs, start it, wait for its end, give
//! everything back in reverse. One task per sandbox; nobody else touches its resources.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hearth_egress::dns::Policy;
use hearth_host::cgroup::{IoLimits, Limits};
use hearth_host::disk;
use hearth_host::firewall::GROUP_OPEN;
use hearth_host::process::Process;
use hearth_image::store::CloneError;
use hearth_model::end::EndCause;
use hearth_model::limits;
use hearth_model::node::{CreateError, Report, Started};
use hearth_model::sandbox::{Internet, SandboxSpec};
use hearth_model::secret::Secret;
use hearth_runtime::StartPlan;
use hearth_wire::boot::{Boot, Fixups};
use tokio::sync::oneshot;

use crate::record::{Proof, Record};
use crate::registry::{Entry, Shared, died};
use crate::slot::{ReadySlot, Slot, blocking, chain};
use crate::usage::Meter;

/// Memory of a sandbox's group beyond what the sandbox is shown: the sentry and the gofer
/// (measured: 17 MiB idle) ...
const OVERHEAD_MIB: u64 = 160;
/// ... and, in KiB, what each process inside costs outside (measured: 340 KiB).
const OVERHEAD_KIB_PER_PROCESS: u64 = 360;
/// Host tasks for each process inside: gVisor runs every address space in a process of its
/// own with a few threads. A backstop; the sandbox's own kernel refuses first.
const HOST_PIDS_PER_GUEST: u64 = 4;
/// Host tasks of an empty sandbox, generously.
const HOST_PIDS_BASE: u64 = 1024;
/// Memory the host keeps for itself; creates are refused below it.
const HOST_RESERVE_MIB: u64 = 512;

/// What a sandbox holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) slot: Slot,
    pub(crate) disk: PathBuf,
    pub(crate) dir: PathBuf,
}

/// Makes a sandbox. The work is a task of its own: a caller that goes away does not leave
/// half a sandbox.
pub(crate) async fn create(
    shared: &Arc<Shared>,
    spec: SandboxSpec,
) -> Result<Started, CreateError> {
    check_memory()?;
    let entry = shared
        .insert(&spec, Secret::random())
        .ok_or_else(|| CreateError::StartFailed {
            detail: "a sandbox of this id is there already".into(),
        })?;
    let (answer, answered) = oneshot::channel();
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        match start(&shared, &entry).await {
            Ok((held, process)) => {
                let started = Started {
                    address: held.slot.address,
                    tier: shared.runtime.capabilities().tier,
                };
                // A caller that went away has control's timer to end what it asked for.
                drop(answer.send(Ok(started)));
                live(&shared, &entry, held, process).await;
            }
            Err(error) => {
                tracing::warn!(sandbox.id = %entry.spec.id, error = %chain(&error), "a create failed");
                let error = if entry.end.is_cancelled() {
                    CreateError::Ended
                } else {
                    error
                };
                forget(&shared, &entry);
                drop(answer.send(Err(error)));
            }
        }
    });
    answered.await.unwrap_or(Err(CreateError::StartFailed {
        detail: "its driver ended".into(),
    }))
}

fn check_memory() -> Result<(), CreateError> {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free_kib = info
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|r| r.trim().trim_end_matches(" kB").parse::<u64>().ok());
    match free_kib {
        Some(kib) if kib / 1024 < HOST_RESERVE_MIB => Err(CreateError::NoCapacity {
            what: format!(
                "the host has {} MiB of memory left; {HOST_RESERVE_MIB} MiB are its reserve",
                kib / 1024
            ),
        }),
        _ => Ok(()),
    }
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> CreateError {
    let what = what.to_owned();
    move |e| CreateError::StartFailed {
        detail: format!("{what}: {e}"),
    }
}

/// Takes slot, folder and disk, starts the shell, confirms. On failure all is given back.
async fn start(shared: &Arc<Shared>, entry: &Arc<Entry>) -> Result<(Held, Process), CreateError> {
    let _permit = shared
        .starting
        .acquire()
        .await
        .map_err(|_| CreateError::Ended)?;
    if entry.end.is_cancelled() {
        return Err(CreateError::Ended);
    }
    let id = &entry.spec.id;
    let ReadySlot { slot, shell } = shared.slots.take().await.map_err(|e| match e {
        crate::slot::SlotError::Exhausted { .. } => CreateError::NoCapacity {
            what: e.to_string(),
        },
        other => CreateError::StartFailed {
            detail: format!("making a slot: {}", chain(&other)),
        },
    })?;
    let held = Held {
        slot,
        disk: shared.instance.disk(id),
        dir: shared.instance.sandbox(id),
    };
    // Not cut off: its blocking part would go on alone and make a disk for nobody.
    let prepared = prepare(shared, entry, &held).await;
    let work = async {
        prepared?;
        let plan = plan(shared, entry, &held)?;
        let instance = shell
            .start(plan)
            .await
            .map_err(|e| CreateError::StartFailed { detail: chain(&e) })?;
        let proof = Proof {
            pid: instance.process.pid(),
            start: instance.process.start(),
            boot_id: shared.boot_id.clone(),
        };
        write_record(&held, entry, Some(proof)).map_err(failed("writing its record"))?;
        Ok(instance.process)
    };
    let result = tokio::select! {
        result = work => result,
        () = entry.end.cancelled() => Err(CreateError::Ended),
    };
    match result {
        Ok(process) => Ok((held, process)),
        Err(e) => {
            release(shared, entry, held).await;
            Err(e)
        }
    }
}

fn write_record(held: &Held, entry: &Entry, process: Option<Proof>) -> io::Result<()> {
    let record = Record {
        spec: entry.spec.clone(),
        slot: held.slot.number.get(),
        control_secret: entry.control_secret.clone(),
        process,
    };
    record.write(&held.dir)
}

/// Folder, record, disk, limits and policy: everything before the first instruction.
async fn prepare(shared: &Arc<Shared>, entry: &Arc<Entry>, held: &Held) -> Result<(), CreateError> {
    let spec = &entry.spec;
    std::fs::create_dir_all(&held.dir).map_err(failed("making its folder"))?;
    write_record(held, entry, None).map_err(failed("writing its record"))?;

    let (store, template, id, at) = (
        Arc::clone(&shared.store),
        spec.template.clone(),
        spec.id.clone(),
        held.disk.clone(),
    );
    let device = blocking(move || {
        Ok(store
            .clone_for(&template, &id)
            .map_err(|e| match e {
                CloneError::NoTemplate { .. } => CreateError::NoTemplate {
                    template: template.to_string(),
                },
                CloneError::NoSpace { .. } => CreateError::NoCapacity { what: chain(&e) },
                other => CreateError::StartFailed {
                    detail: chain(&other),
                },
            })
            .and_then(|image| {
                std::fs::create_dir_all(&at).map_err(failed("making its mount point"))?;
                disk::mount_image(&image, &at)
                    .map_err(|e| failed("mounting its disk")(io::Error::other(e)))
            }))
    })
    .await
    .map_err(failed("making its disk"))??;

    let group = &held.slot.group;
    let pids = u64::from(limits::guest_pids(spec.size.memory_mib));
    let limit = |e| CreateError::StartFailed {
        detail: format!("setting its limits: {}", chain(&e)),
    };
    group
        .limit(&Limits {
            cpu_milli: u64::from(spec.size.vcpu) * 1000,
            memory_bytes: ((spec.size.memory_mib + OVERHEAD_MIB) << 20)
                + ((pids * OVERHEAD_KIB_PER_PROCESS) << 10),
            pids: pids * HOST_PIDS_PER_GUEST + HOST_PIDS_BASE,
        })
        .map_err(limit)?;
    group
        .limit_io(&IoLimits {
            major: device.major,
            minor: device.minor,
            read_bps: shared.config.disk_bps,
            write_bps: shared.config.disk_bps,
        })
        .map_err(limit)?;
    *entry.usage.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Meter::new(group.clone(), held.disk.clone()));
    allow(shared, entry, held)
        .await
        .map_err(failed("opening its network"))
}

/// Applies the network policy. A slot is born closed, so a failure here leaves it closed.
pub(crate) async fn allow(shared: &Shared, entry: &Entry, held: &Held) -> io::Result<()> {
    let policy = match entry.spec.internet {
        Internet::Open => {
            shared.links.set_group(&held.slot.link, GROUP_OPEN).await?;
            Policy::Open
        }
        Internet::Closed => Policy::Closed,
    };
    shared.dns.set(held.slot.address, policy);
    Ok(())
}

fn plan(shared: &Shared, entry: &Entry, held: &Held) -> Result<StartPlan, CreateError> {
    let spec = &entry.spec;
    let boot = Boot {
        sandbox_id: spec.id.to_string(),
        template_id: spec.template.to_string(),
        agent_port: limits::AGENT_PORT,
        control_port: limits::CONTROL_PORT,
        access_token: Some(spec.access_token.expose().to_owned()),
        control_secret: entry.control_secret.expose().to_owned(),
        env: spec.env.clone(),
        default_user: "user".into(),
        default_workdir: None,
        fixups: Some(Fixups {
            hostname: spec.id.to_string(),
            address: held.slot.address.to_string(),
            resolver: shared.instance.resolver().to_string(),
            ca_bundle: shared.config.ca_bundle.clone(),
            pids_max: limits::guest_pids(spec.size.memory_mib),
            memory_bytes: spec.size.memory_mib << 20,
            disk_bytes: spec.size.disk_mib << 20,
        }),
    };
    Ok(StartPlan {
        dir: held.dir.clone(),
        root: held.disk.clone(),
        agent: shared.agent.clone(),
        hostname: spec.id.to_string(),
        size: spec.size,
        boot: serde_json::to_vec(&boot)
            .map_err(|e| failed("writing its boot configuration")(e.into()))?,
    })
}

/// From the agent's answer to the end.
pub(crate) async fn live(shared: &Arc<Shared>, entry: &Arc<Entry>, held: Held, process: Process) {
    entry.address.send_replace(Some(held.slot.address));
    let cause = tokio::select! {
        () = entry.end.cancelled() => None,
        watched = process.exited() => {
            if let Err(error) = watched {
                tracing::error!(sandbox.id = %entry.spec.id, %error, "its process cannot be watched; ending it");
            }
            Some(died(held.slot.group.oom_kills().unwrap_or(0)))
        }
        () = out_of_memory(&held.slot) => Some(EndCause::OutOfMemory),
    };
    if cause.is_some() {
        log_last_words(entry, &held);
    }
    // First the clients, then the processes: nobody waits on a stream of the dead.
    entry.gone.cancel();
    process.kill();
    release(shared, entry, held).await;
    forget(shared, entry);
    if let Some(cause) = cause {
        report(shared, entry, cause).await;
    }
}

/// Bytes of a tier's last words that go into the log.
const LAST_WORDS: usize = 4096;

/// What the tier said when it gave up: for the operator, never for clients, as the guest may
/// have had a hand in it.
fn log_last_words(entry: &Entry, held: &Held) {
    let said = std::fs::read(held.dir.join(hearth_runtime::LAST_WORDS)).unwrap_or_default();
    let said = &said[..said.len().min(LAST_WORDS)];
    if !said.is_empty() {
        let said = String::from_utf8_lossy(said);
        tracing::warn!(sandbox.id = %entry.spec.id, said = ?said, "the tier gave up");
    }
}

/// How often a sandbox is asked whether the kernel killed part of it.
const OOM_PERIOD: Duration = Duration::from_secs(1);

/// Returns when the kernel killed a process of the group for memory. Without `oom.group`
/// (v1) it may be one that carries a single guest process, after which the rest would hang.
async fn out_of_memory(slot: &Slot) {
    loop {
        tokio::time::sleep(OOM_PERIOD).await;
        if slot.group.oom_kills().is_ok_and(|kills| kills > 0) {
            return;
        }
    }
}

async fn report(shared: &Shared, entry: &Entry, cause: EndCause) {
    let report = Report::Died {
        id: entry.spec.id.clone(),
        cause,
    };
    if shared.reports.send(report).await.is_err() {
        tracing::debug!(sandbox.id = %entry.spec.id, "nobody takes reports any more");
    }
}

fn forget(shared: &Shared, entry: &Entry) {
    shared.remove(&entry.spec.id);
    entry.gone.cancel();
    entry.released.cancel();
}

/// Gives everything back, in reverse. What fails is left to the sweep.
pub(crate) async fn release(shared: &Arc<Shared>, entry: &Entry, held: Held) {
    let Held {
        slot,
        disk: at,
        dir,
    } = held;
    *entry.usage.lock().unwrap_or_else(PoisonError::into_inner) = None;
    shared.dns.remove(slot.address);
    shared.slots.release(slot).await;
    let (store, id) = (Arc::clone(&shared.store), entry.spec.id.clone());
    let cleaned = blocking(move || {
        hearth_host::mount::unmount(&at)?;
        remove_dir(&at)?;
        store.remove(&id).map_err(io::Error::other)?;
        remove_tree(&dir)
    })
    .await;
    if let Err(error) = cleaned {
        tracing::warn!(sandbox.id = %entry.spec.id, %error, "its disk stays for the sweep");
    }
}

pub(crate) fn remove_dir(at: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_dir(at) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

pub(crate) fn remove_tree(at: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_dir_all(at) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
