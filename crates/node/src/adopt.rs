//! The start of a server over sandboxes that outlived the last one.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use hearth_host::process::Process;

use crate::config::OpenError;
use crate::driver::{self, Held};
use crate::instance::Instance;
use crate::record::Record;
use crate::registry::Shared;
use crate::usage::Meter;

/// Reads every record; whose process is provably the same is adopted, what is left is for
/// the sweep.
pub(crate) async fn adopt_all(shared: &Arc<Shared>) -> io::Result<()> {
    for dir in std::fs::read_dir(shared.instance.sandboxes())? {
        let dir = dir?.path();
        let record = match Record::read(&dir) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "a record that cannot be read belongs to nobody");
                continue;
            }
        };
        let id = record.spec.id.clone();
        if let Some(why) = adopt(shared, record).await {
            tracing::info!(sandbox.id = %id, why, "not adopted");
        } else {
            tracing::info!(sandbox.id = %id, "adopted");
        }
    }
    Ok(())
}

async fn adopt(shared: &Arc<Shared>, record: Record) -> Option<&'static str> {
    let Some(proof) = record.process.filter(|p| p.boot_id == shared.boot_id) else {
        return Some("its start did not finish, or the host was started anew");
    };
    let Ok(process) = Process::open_same(proof.pid, proof.start) else {
        return Some("its process is gone");
    };
    let Some(slot) = shared.slots.adopt(record.slot) else {
        return Some("its slot is not this server's");
    };
    if !slot.group.pids().contains(&proof.pid) {
        return Some("its process is not in its control group");
    }
    let Some(entry) = shared.insert(&record.spec, record.control_secret) else {
        return Some("its id is taken");
    };
    let held = Held {
        slot,
        disk: shared.instance.disk(&record.spec.id),
        dir: shared.instance.sandbox(&record.spec.id),
    };
    *entry.usage.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Meter::new(held.slot.group.clone(), held.disk.clone()));
    if let Err(error) = driver::allow(shared, &entry, &held).await {
        tracing::warn!(sandbox.id = %entry.spec.id, %error, "its network policy could not be set again");
    }
    entry.address.send_replace(Some(held.slot.address));
    let shared = Arc::clone(shared);
    tokio::spawn(async move { driver::live(&shared, &entry, held, process).await });
    None
}

/// Puts the agent's program where bundles can name it. Each build has a name of its own: an
/// older sandbox goes on with the older file.
pub(crate) fn place_agent(instance: &Instance, program: &[u8]) -> io::Result<PathBuf> {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    use std::os::unix::fs::PermissionsExt as _;
    let mut hasher = DefaultHasher::new();
    program.hash(&mut hasher);
    let path = instance
        .state()
        .join("agent")
        .join(format!("hearth-agent-{:016x}", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    let temp = path.with_extension("tmp");
    std::fs::write(&temp, program)?;
    std::fs::set_permissions(&temp, std::fs::Permissions::from_mode(0o555))?;
    std::fs::rename(&temp, &path)?;
    Ok(path)
}

/// Sandboxes that are alive keep their addresses: another network has to wait for their end.
pub(crate) fn refuse_changed_network(instance: &Instance) -> Result<(), OpenError> {
    let last =
        Instance::last_net(instance.state()).map_err(OpenError::io("reading the last network"))?;
    let Some(last) = last.filter(|last| *last != instance.net()) else {
        return Ok(());
    };
    let mut records =
        std::fs::read_dir(instance.sandboxes()).map_err(OpenError::io("reading the records"))?;
    if records.next().is_none() {
        return Ok(());
    }
    Err(OpenError::NetChanged {
        last: format!("{}/{}", last.0, last.1),
        asked: instance.cidr(),
    })
}

/// The link of somebody else that has an address in this instance's network.
pub(crate) fn refuse_taken_network(instance: &Instance) -> io::Result<Option<String>> {
    let (net, bits) = instance.net();
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    // proc(5) /proc/net/route: interface, destination (hex, host byte order), ...
    let table = std::fs::read_to_string("/proc/thread-self/net/route")?;
    Ok(table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (link, destination) = (fields.next()?, fields.next()?);
        let destination = u32::from_be(u32::from_str_radix(destination, 16).ok()?);
        let ours = link.starts_with(&instance.link_prefix());
        (destination != 0 && destination & mask == u32::from(net) && !ours).then(|| link.to_owned())
    }))
}
