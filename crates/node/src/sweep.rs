//! Removes what belongs to nobody: the rest of a crash, of a failed release, of a start
//! that did not finish. It looks at the host, not at memory of what went wrong, and looks
//! again every [`PERIOD`], so nothing is orphaned for longer than a minute.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hearth_host::mount;
use hearth_model::id::SandboxId;

use crate::driver::{remove_dir, remove_tree};
use crate::registry::Shared;
use crate::slot::blocking;

const PERIOD: Duration = Duration::from_secs(20);

pub(crate) async fn forever(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        once(&shared).await;
    }
}

/// One look at everything this instance may have on the host.
pub(crate) async fn once(shared: &Arc<Shared>) {
    slots(shared).await;
    let moved = Arc::clone(shared);
    if let Err(error) = blocking(move || sandboxes(&moved)).await {
        tracing::warn!(%error, "the sweep of folders and disks did not finish");
    }
}

/// What carries a slot's number and belongs to nobody. The number is claimed before anything
/// is touched, so that no slot is being made of it meanwhile.
async fn slots(shared: &Arc<Shared>) {
    for n in found(shared).await {
        let Some(slot) = shared.slots.adopt(n) else {
            continue;
        };
        tracing::info!(slot = n, "removing a slot that belongs to nobody");
        shared.slots.release(slot).await;
    }
}

/// Numbers of all groups, links and namespaces of this instance.
async fn found(shared: &Shared) -> BTreeSet<u32> {
    let prefix = shared.instance.link_prefix();
    let links = shared.links.names(&prefix).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "links cannot be listed");
        Vec::new()
    });
    let groups = shared.layout.children(&shared.instance.group_parent());
    let pins = std::fs::read_dir(shared.instance.netns_dir())
        .into_iter()
        .flatten()
        .flatten();
    groups
        .iter()
        .filter_map(|name| name.strip_prefix('s')?.parse().ok())
        .chain(
            links
                .iter()
                .filter_map(|name| name.strip_prefix(&prefix)?.parse().ok()),
        )
        .chain(pins.filter_map(|pin| pin.file_name().to_str()?.parse().ok()))
        .collect()
}

fn is_alive(shared: &Shared, name: &std::ffi::OsStr) -> bool {
    name.to_str()
        .and_then(|n| SandboxId::parse(n).ok())
        .is_some_and(|id| shared.entry(&id).is_some())
}

/// Disks, images and folders of sandboxes that are not. One that cannot be removed does not
/// keep the others.
fn sandboxes(shared: &Shared) -> io::Result<()> {
    for entry in std::fs::read_dir(shared.instance.disks())?.flatten() {
        if !is_alive(shared, &entry.file_name()) {
            let at = entry.path();
            note(&at, mount::unmount(&at).and_then(|()| remove_dir(&at)));
        }
    }
    for id in shared.store.list_sandbox_images()? {
        if shared.entry(&id).is_none() {
            note(Path::new(id.as_str()), shared.store.remove(&id));
        }
    }
    for entry in std::fs::read_dir(shared.instance.sandboxes())?.flatten() {
        if !is_alive(shared, &entry.file_name()) {
            note(&entry.path(), remove_tree(&entry.path()));
        }
    }
    Ok(())
}

fn note(what: &Path, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(what = %what.display(), %error, "what belongs to nobody stays; the next sweep looks again");
    }
}

/// Removes what the instance itself made on the host. Its sandboxes are gone already.
pub(crate) async fn dismantle(shared: &Arc<Shared>) {
    shared.slots.drain().await;
    once(shared).await;
    if let Err(error) = shared
        .links
        .remove_host_address(shared.instance.resolver())
        .await
    {
        tracing::warn!(%error, "the resolver's address stays");
    }
    let instance = shared.instance.clone();
    let layout = shared.layout.clone();
    let done = blocking(move || {
        hearth_host::firewall::remove(&instance.table())?;
        layout.remove_parent(&instance.group_parent());
        for at in mount::below(&instance.run())? {
            mount::unmount(&at)?;
        }
        Ok(())
    })
    .await;
    if let Err(error) = done {
        tracing::warn!(%error, "something of the instance stays on the host");
    }
}
