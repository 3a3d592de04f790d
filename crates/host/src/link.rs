//! Links, addresses and routes, by netlink.
//!
//! One veth pair per namespace slot: the outer end stays on the host, `eth0` is inside. Both
//! ends know each other's hardware address, so no ARP answer is awaited and none is believed.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use futures::TryStreamExt as _;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute};
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

/// Name of the link inside a namespace.
const INNER: &str = "eth0";

/// A netlink connection to the namespace it was opened in.
#[derive(Debug, Clone)]
pub struct Links {
    handle: Handle,
}

/// One slot's link: both ends of a /30.
#[derive(Debug, Clone)]
pub struct SlotLink {
    /// Name of the outer end, at most 15 bytes.
    pub outer: String,
    pub gateway: Ipv4Addr,
    pub address: Ipv4Addr,
}

fn err(e: rtnetlink::Error) -> io::Error {
    match e {
        rtnetlink::Error::NetlinkError(m) => m.to_io(),
        other => io::Error::other(other.to_string()),
    }
}

/// A locally administered address made from the IPv4 one.
fn mac(ip: Ipv4Addr) -> Vec<u8> {
    let mut m = vec![0x02, 0x48];
    m.extend(ip.octets());
    m
}

impl Links {
    /// Opens a connection; its task lives on the current tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    async fn index(&self, name: &str) -> io::Result<u32> {
        let mut found = self
            .handle
            .link()
            .get()
            .match_name(name.to_owned())
            .execute();
        let link = found.try_next().await.map_err(err)?;
        link.map(|l| l.header.index)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    async fn up(&self, index: u32) -> io::Result<()> {
        let message = LinkUnspec::new_with_index(index).up().build();
        self.handle.link().set(message).execute().await.map_err(err)
    }

    /// Names of all links that start with `prefix`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut all = self.handle.link().get().execute();
        let mut names = Vec::new();
        while let Some(link) = all.try_next().await.map_err(err)? {
            for attribute in link.attributes {
                if let LinkAttribute::IfName(name) = attribute
                    && name.starts_with(prefix)
                {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// Deletes a link (and with it its other end); that it is gone already is no error.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn delete(&self, name: &str) -> io::Result<()> {
        match self.index(name).await {
            Ok(index) => self.handle.link().del(index).execute().await.map_err(err),
            Err(e) if not_there(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Gives the host one more address, on `lo`: where the sandboxes' resolver listens. (Not
    /// every kernel has dummy links.)
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn add_host_address(&self, address: Ipv4Addr) -> io::Result<()> {
        let index = self.index("lo").await?;
        self.up(index).await?;
        match self
            .handle
            .address()
            .add(index, IpAddr::V4(address), 32)
            .execute()
            .await
            .map_err(err)
        {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    /// Takes that address away again; that it is gone already is no error.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn remove_host_address(&self, address: Ipv4Addr) -> io::Result<()> {
        let index = self.index("lo").await?;
        let mut found = self
            .handle
            .address()
            .get()
            .set_link_index_filter(index)
            .set_address_filter(IpAddr::V4(address))
            .execute();
        while let Some(message) = found.try_next().await.map_err(err)? {
            self.handle
                .address()
                .del(message)
                .execute()
                .await
                .map_err(err)?;
        }
        Ok(())
    }

    /// Sets the group of a link: what the packet filter's policy goes by.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn set_group(&self, name: &str, group: u32) -> io::Result<()> {
        let message = LinkUnspec::new_with_index(self.index(name).await?)
            .append_extra_attribute(LinkAttribute::Group(group))
            .build();
        self.handle.link().set(message).execute().await.map_err(err)
    }

    /// Finishes the outer end of a slot: filters, address, the inner end's hardware address, up.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn finish_outer(&self, slot: &SlotLink, group: u32) -> io::Result<()> {
        // Before it is up: no packet passes unfiltered. rp_filter=1 drops every source that
        // is not routed to this link, which is each one but the slot's own.
        sysctl(&format!("net/ipv4/conf/{}/rp_filter", slot.outer), "1")?;
        sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", slot.outer), "1")?;
        self.set_group(&slot.outer, group).await?;
        let index = self.index(&slot.outer).await?;
        self.handle
            .address()
            .add(index, IpAddr::V4(slot.gateway), 30)
            .execute()
            .await
            .map_err(err)?;
        self.up(index).await?;
        self.handle
            .neighbours()
            .add(index, IpAddr::V4(slot.address))
            .link_local_address(&mac(slot.address))
            .state(NeighbourState::Permanent)
            .replace()
            .execute()
            .await
            .map_err(err)
    }
}

/// Makes the namespace pinned at `at` with its end of the slot's link up and routed. Its
/// outer end appears in `host` (a namespace descriptor), down. Blocking.
///
/// # Errors
/// When the kernel refuses; nothing is left then but an empty file at `at`.
pub fn make_inner(at: &Path, slot: &SlotLink, host: OwnedFd) -> io::Result<()> {
    let (slot, at_owned) = (slot.clone(), at.to_owned());
    let made = crate::netns::create(at, move || {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        rt.block_on(async move {
            sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
            let links = Links::open()?;
            let outer = LinkMessageBuilder::<LinkUnspec>::new()
                .name(slot.outer.clone())
                .address(mac(slot.gateway))
                .setns_by_fd(host.as_raw_fd())
                .build();
            let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
                .name(INNER.into())
                .address(mac(slot.address))
                .set_info_data(InfoData::Veth(InfoVeth::Peer(outer)))
                .build();
            links.handle.link().add(pair).execute().await.map_err(err)?;
            links.up(links.index("lo").await?).await?;
            let index = links.index(INNER).await?;
            links
                .handle
                .address()
                .add(index, IpAddr::V4(slot.address), 30)
                .execute()
                .await
                .map_err(err)?;
            links.up(index).await?;
            links
                .handle
                .neighbours()
                .add(index, IpAddr::V4(slot.gateway))
                .link_local_address(&mac(slot.gateway))
                .state(NeighbourState::Permanent)
                .replace()
                .execute()
                .await
                .map_err(err)?;
            let route = RouteMessageBuilder::<Ipv4Addr>::new()
                .gateway(slot.gateway)
                .build();
            links.handle.route().add(route).execute().await.map_err(err)
        })
    });
    if made.is_err()
        && let Err(e) = crate::netns::remove(&at_owned)
    {
        tracing::warn!(at = %at_owned.display(), error = %e, "a namespace stays behind");
    }
    made
}

/// Writes a kernel setting of the current namespace, by its path below `/proc/sys`.
///
/// # Errors
/// When the file is not there or refuses the value.
pub fn sysctl(key: &str, value: &str) -> io::Result<()> {
    let path = PathBuf::from("/proc/sys").join(key);
    match std::fs::write(&path, value) {
        // A kernel without IPv6 needs none of it switched off.
        Err(e) if e.kind() == io::ErrorKind::NotFound && key.starts_with("net/ipv6/") => Ok(()),
        Err(e) => Err(io::Error::new(
            e.kind(),
            format!("writing {}: {e}", path.display()),
        )),
        Ok(()) => Ok(()),
    }
}

/// The descriptor of the current namespace.
///
/// # Errors
/// When it cannot be opened.
pub fn current_namespace() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
}

fn not_there(e: &io::Error) -> bool {
    // ENODEV is what netlink says of an unknown link name.
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(19)
}
