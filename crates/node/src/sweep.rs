//! Removes what belongs to nobody: the rest of a crash, of a failed release, of a start
//! that did not finish. It looks at the host, not at memory of what went wrong, and looks
//! again every [`PERIOD`], so nothing is orphaned for longer than a minute.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hearth_host::cgroup::Group;
use hearth_host::mount;
use hearth_model::id::SandboxId;

use crate::driver::{remove_dir, remove_tree};
use crate::instance::Instance;
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

/// Groups first (their processes hold the rest), then links and namespaces.
async fn slots(shared: &Arc<Shared>) {
    for name in shared.layout.children(&shared.instance.group_parent()) {
        let Some(n) = name.strip_prefix('s').and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        if shared.slots.is_taken(n) {
            continue;
        }
        tracing::info!(slot = n, "ending processes that belong to nobody");
        let group = Group::at(
            &shared.layout,
            &shared.instance.group_parent(),
            &Instance::group_name(n),
        );
        if let Ok(Err(error)) = blocking(move || Ok(group.kill_and_remove())).await {
            tracing::warn!(slot = n, %error, "a control group that belongs to nobody stays");
        }
    }
    match shared.links.names(&shared.instance.link_prefix()).await {
        Ok(names) => {
            for name in names {
                let number = name[shared.instance.link_prefix().len()..]
                    .parse::<u32>()
                    .ok();
                if number.is_none_or(|n| !shared.slots.is_taken(n))
                    && let Err(error) = shared.links.delete(&name).await
                {
                    tracing::warn!(link = name, %error, "a link that belongs to nobody stays");
                }
            }
        }
        Err(error) => tracing::warn!(%error, "links cannot be listed"),
    }
    for file in std::fs::read_dir(shared.instance.netns_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let number = file
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok());
        if number.is_none_or(|n| !shared.slots.is_taken(n))
            && let Err(error) = hearth_host::netns::remove(&file.path())
        {
            tracing::warn!(namespace = %file.path().display(), %error, "a namespace that belongs to nobody stays");
        }
    }
}

fn is_alive(shared: &Shared, name: &std::ffi::OsStr) -> bool {
    name.to_str()
        .and_then(|n| SandboxId::parse(n).ok())
        .is_some_and(|id| shared.entry(&id).is_some())
}

fn sandboxes(shared: &Shared) -> io::Result<()> {
    for entry in std::fs::read_dir(shared.instance.disks())? {
        let entry = entry?;
        if !is_alive(shared, &entry.file_name()) {
            mount::unmount(&entry.path())?;
            remove_dir(&entry.path())?;
        }
    }
    for id in shared
        .store
        .list_sandbox_images()
        .map_err(io::Error::other)?
    {
        if shared.entry(&id).is_none() {
            shared.store.remove(&id).map_err(io::Error::other)?;
        }
    }
    for entry in std::fs::read_dir(shared.instance.sandboxes())? {
        let entry = entry?;
        if !is_alive(shared, &entry.file_name()) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
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
