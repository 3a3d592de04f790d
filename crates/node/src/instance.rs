//! The names an instance of Hearth uses on its host. Two instances with two state folders
//! never touch each other's things: each name carries the instance's four hex digits.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use hearth_host::mount;
use hearth_model::id::SandboxId;

/// Where the network of the last start is kept: sandboxes that are alive have its addresses.
const NET_FILE: &str = "sandbox-net";

/// The names of one instance.
#[derive(Debug, Clone)]
pub struct Instance {
    state: PathBuf,
    tag: String,
    net: (Ipv4Addr, u8),
}

impl Instance {
    /// Reads the instance's tag from the state folder, or draws one.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn open(state: &Path, net: (Ipv4Addr, u8)) -> io::Result<Self> {
        std::fs::create_dir_all(state)?;
        let file = state.join("instance");
        let tag = match std::fs::read_to_string(&file) {
            Ok(text) if text.trim().len() == 4 => text.trim().to_owned(),
            _ => {
                // The id type has the random source already; any four hex digits do.
                let random = hearth_model::secret::Secret::random();
                let tag = random.expose()[..4].to_owned();
                std::fs::write(&file, &tag)?;
                tag
            }
        };
        Ok(Self {
            state: state.to_owned(),
            tag,
            net,
        })
    }

    /// The network the instance used last; none before its first start.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn last_net(state: &Path) -> io::Result<Option<(Ipv4Addr, u8)>> {
        let text = match std::fs::read_to_string(state.join(NET_FILE)) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        Ok(text
            .trim()
            .split_once('/')
            .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?))))
    }

    pub(crate) fn remember_net(&self) -> io::Result<()> {
        std::fs::write(self.state.join(NET_FILE), self.cidr())
    }

    /// Makes the folders, with `run` shared so that unmounts reach every launcher.
    pub(crate) fn make_dirs(&self) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&self.state, std::fs::Permissions::from_mode(0o700))?;
        std::fs::create_dir_all(self.run())?;
        mount::make_shared_root(&self.run())?;
        for dir in [
            self.netns_dir(),
            self.disks(),
            self.sandboxes(),
            self.state.join("agent"),
        ] {
            std::fs::create_dir_all(dir)?;
        }
        Ok(())
    }

    pub fn state(&self) -> &Path {
        &self.state
    }
    /// Everything that is mounted or belongs to a running sandbox.
    pub fn run(&self) -> PathBuf {
        self.state.join("run")
    }
    pub fn netns_dir(&self) -> PathBuf {
        self.run().join("netns")
    }
    pub fn disks(&self) -> PathBuf {
        self.run().join("disks")
    }
    pub fn sandboxes(&self) -> PathBuf {
        self.run().join("sandboxes")
    }
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }
    pub(crate) fn disk(&self, id: &SandboxId) -> PathBuf {
        self.disks().join(id.as_str())
    }
    pub(crate) fn netns(&self, slot: u32) -> PathBuf {
        self.netns_dir().join(slot.to_string())
    }
    /// Prefix of the outer links' names.
    pub fn link_prefix(&self) -> String {
        format!("h{}-", self.tag)
    }
    pub(crate) fn link(&self, slot: u32) -> String {
        format!("{}{slot}", self.link_prefix())
    }
    pub fn table(&self) -> String {
        format!("hearth_{}", self.tag)
    }
    /// Parent of the sandboxes' control groups.
    pub fn group_parent(&self) -> String {
        format!("hearth-{}", self.tag)
    }
    pub(crate) fn group_name(slot: u32) -> String {
        format!("s{slot}")
    }
    pub(crate) fn net(&self) -> (Ipv4Addr, u8) {
        self.net
    }
    /// The network as CIDR.
    pub fn cidr(&self) -> String {
        format!("{}/{}", self.net.0, self.net.1)
    }
    fn at(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.net.0) + offset)
    }
    /// The one host address sandboxes may speak to.
    pub fn resolver(&self) -> Ipv4Addr {
        self.at(1)
    }
    /// Slots are /30s; the first one is the resolver's.
    pub(crate) fn slots(&self) -> u32 {
        (1u32 << (32 - u32::from(self.net.1).min(30))) / 4
    }
    pub(crate) fn gateway(&self, slot: u32) -> Ipv4Addr {
        self.at(slot * 4 + 1)
    }
    pub(crate) fn address(&self, slot: u32) -> Ipv4Addr {
        self.at(slot * 4 + 2)
    }
}
