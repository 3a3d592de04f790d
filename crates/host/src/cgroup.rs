//! Control groups through whichever layout the host has.
//!
//! - v2: one tree with the controllers in it; a process is born in its group (`spawn`).
//! - v1 and hybrid: one tree per controller. Moving a process by writing `cgroup.procs`
//!   waits for an RCU grace period (measured: 12 ms and more), so whoever starts a process
//!   attaches a launcher ahead of need. On a hybrid host the bare v2 tree is used besides,
//!   for `cgroup.kill`.
//!
//! A group's limits are plain numbers; reading them back is part of the interface, because
//! a limit that was written is not yet a limit that holds.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for a killed group to become empty.
const KILL_DEADLINE: Duration = Duration::from_secs(20);

/// The layout of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// The unified tree carries the controllers.
    V2 { root: PathBuf },
    /// Trees per controller; `unified` is the v2 tree without controllers, where mounted.
    V1 {
        trees: V1Trees,
        unified: Option<PathBuf>,
    },
}

/// Mount points of the v1 controllers that limits need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct V1Trees {
    pub cpu: PathBuf,
    pub cpuacct: PathBuf,
    pub memory: PathBuf,
    pub pids: PathBuf,
    /// IO limits; some kernels are built without.
    pub blkio: Option<PathBuf>,
}

/// Why control groups cannot be used on this host.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    #[error("reading the mount table")]
    Mounts(#[source] io::Error),
    #[error(
        "the {controller} controller is in neither a v1 nor the v2 tree; mount it (for example `mount -t cgroup -o {controller} {controller} /sys/fs/cgroup/{controller}`)"
    )]
    Missing { controller: &'static str },
}

/// A file of a group could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}")]
pub struct GroupError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GroupError {
    let path = path.to_owned();
    move |source| GroupError {
        action,
        path,
        source,
    }
}

impl Layout {
    /// Reads the mount table.
    ///
    /// # Errors
    /// When a controller that limits need is mounted nowhere.
    pub fn detect() -> Result<Self, DetectError> {
        let table = fs::read_to_string("/proc/self/mounts").map_err(DetectError::Mounts)?;
        let mounts: Vec<(&str, &str, Vec<&str>)> = table
            .lines()
            .filter_map(|line| {
                let mut f = line.split(' ');
                let (_, at, kind, opts) = (f.next()?, f.next()?, f.next()?, f.next()?);
                Some((at, kind, opts.split(',').collect()))
            })
            .collect();
        let v2 = mounts
            .iter()
            .find(|m| m.1 == "cgroup2")
            .map(|m| PathBuf::from(m.0));
        if let Some(root) = &v2 {
            let have = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            if ["cpu", "memory", "pids"]
                .iter()
                .all(|c| have.split_whitespace().any(|h| h == *c))
            {
                return Ok(Self::V2 { root: root.clone() });
            }
        }
        let tree = |controller: &'static str| {
            mounts
                .iter()
                .find(|m| m.1 == "cgroup" && m.2.contains(&controller))
                .map(|m| PathBuf::from(m.0))
                .ok_or(DetectError::Missing { controller })
        };
        Ok(Self::V1 {
            trees: V1Trees {
                cpu: tree("cpu")?,
                cpuacct: tree("cpuacct")?,
                memory: tree("memory")?,
                pids: tree("pids")?,
                blkio: tree("blkio").ok(),
            },
            unified: v2,
        })
    }

    /// A word for people: `v2`, `hybrid` or `v1`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "v2",
            Self::V1 {
                unified: Some(_), ..
            } => "hybrid",
            Self::V1 { unified: None, .. } => "v1",
        }
    }

    fn trees(&self) -> Vec<&Path> {
        match self {
            Self::V2 { root } => vec![root],
            Self::V1 { trees, unified } => {
                let mut all: Vec<&Path> = vec![&trees.memory, &trees.pids];
                for t in [&trees.cpu, &trees.cpuacct]
                    .into_iter()
                    .chain(trees.blkio.as_ref())
                {
                    if !all.contains(&t.as_path()) {
                        all.push(t);
                    }
                }
                all.extend(unified.as_deref());
                all
            }
        }
    }

    /// Makes the parent of an instance's groups and, on v2, hands the controllers down to it.
    ///
    /// # Errors
    /// When a folder or `cgroup.subtree_control` cannot be written.
    pub fn make_parent(&self, parent: &str) -> Result<(), GroupError> {
        for tree in self.trees() {
            let dir = tree.join(parent);
            fs::create_dir_all(&dir).map_err(fault("making", &dir))?;
        }
        if let Self::V2 { root } = self {
            for dir in [root.clone(), root.join(parent)] {
                let file = dir.join("cgroup.subtree_control");
                let have = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
                let wanted: Vec<String> = ["cpu", "memory", "pids", "io"]
                    .iter()
                    .filter(|c| have.split_whitespace().any(|h| h == **c))
                    .map(|c| format!("+{c}"))
                    .collect();
                fs::write(&file, wanted.join(" ")).map_err(fault("writing", &file))?;
            }
        }
        Ok(())
    }

    /// Names of the groups below `parent`, over all trees.
    pub fn children(&self, parent: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .trees()
            .iter()
            .filter_map(|t| fs::read_dir(t.join(parent)).ok())
            .flatten()
            .filter_map(|e| e.ok().filter(|e| e.path().is_dir()))
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Removes the (empty) parent from all trees.
    pub fn remove_parent(&self, parent: &str) {
        for tree in self.trees() {
            if let Err(e) = fs::remove_dir(tree.join(parent)) {
                tracing::debug!(tree = %tree.display(), error = %e, "the parent group stays");
            }
        }
    }
}

/// Hard limits of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// CPUs, in thousandths: 2000 is two whole CPUs.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
    pub pids: u64,
}

/// Throughput limits of one block device, bytes per second each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoLimits {
    pub major: u32,
    pub minor: u32,
    pub read_bps: u64,
    pub write_bps: u64,
}

/// Counters of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// CPU time of all its processes, in nanoseconds.
    pub cpu_ns: u64,
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that is page cache. Shared memory is not: a sandbox's own
    /// memory is.
    pub cache_bytes: u64,
    pub oom_kills: u64,
    pub pids: u64,
}

/// Period of the CPU quota, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// One group over all trees of the layout. Dropping it does not remove it: a group outlives
/// the server on purpose.
#[derive(Debug, Clone)]
pub struct Group {
    layout: Layout,
    /// `parent/name`, relative to each tree.
    path: PathBuf,
}

impl Group {
    /// Names a group; nothing is made.
    pub fn at(layout: &Layout, parent: &str, name: &str) -> Self {
        Self {
            layout: layout.clone(),
            path: Path::new(parent).join(name),
        }
    }

    /// Makes the group in every tree. One that is there already is somebody's: refused.
    ///
    /// # Errors
    /// When a folder cannot be made.
    pub fn create(&self) -> Result<(), GroupError> {
        for tree in self.layout.trees() {
            let dir = tree.join(&self.path);
            fs::create_dir(&dir).map_err(fault("making", &dir))?;
        }
        Ok(())
    }

    /// The v2 folder a process can be born in, where the host has one.
    pub fn birth_dir(&self) -> Option<PathBuf> {
        match &self.layout {
            Layout::V2 { root } => Some(root.join(&self.path)),
            Layout::V1 { unified, .. } => unified.as_ref().map(|u| u.join(&self.path)),
        }
    }

    /// The `cgroup.procs` files a process has to write itself into ahead of need: those of
    /// the v1 trees. Empty on v2, where it is born in its group.
    pub fn attach_files(&self) -> Vec<PathBuf> {
        match &self.layout {
            Layout::V2 { .. } => Vec::new(),
            Layout::V1 { unified, .. } => self
                .layout
                .trees()
                .into_iter()
                .filter(|t| unified.as_deref() != Some(*t))
                .map(|t| t.join(&self.path).join("cgroup.procs"))
                .collect(),
        }
    }

    fn write(&self, tree: &Path, file: &str, value: &str) -> Result<(), GroupError> {
        let path = tree.join(&self.path).join(file);
        write_existing(&path, value).map_err(fault("writing", &path))
    }

    fn read(&self, tree: &Path, file: &str) -> Result<String, GroupError> {
        let path = tree.join(&self.path).join(file);
        fs::read_to_string(&path).map_err(fault("reading", &path))
    }

    /// Sets the limits.
    ///
    /// # Errors
    /// When a file cannot be written; some limits may then be set already.
    pub fn limit(&self, limits: &Limits) -> Result<(), GroupError> {
        let quota = limits.cpu_milli * CPU_PERIOD_US / 1000;
        match &self.layout {
            Layout::V2 { root } => {
                self.write(root, "cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
                self.write(root, "memory.max", &limits.memory_bytes.to_string())?;
                self.write(root, "memory.swap.max", "0")
                    .or_else(missing_is_fine)?;
                self.write(root, "memory.oom.group", "1")?;
                self.write(root, "pids.max", &limits.pids.to_string())
            }
            Layout::V1 { trees, .. } => {
                self.write(&trees.cpu, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
                self.write(&trees.cpu, "cpu.cfs_quota_us", &quota.to_string())?;
                self.write(
                    &trees.memory,
                    "memory.limit_in_bytes",
                    &limits.memory_bytes.to_string(),
                )?;
                // Without swap accounting in the kernel the file is not there, and without
                // swap it says nothing.
                self.write(
                    &trees.memory,
                    "memory.memsw.limit_in_bytes",
                    &limits.memory_bytes.to_string(),
                )
                .or_else(missing_is_fine)?;
                self.write(&trees.pids, "pids.max", &limits.pids.to_string())
            }
        }
    }

    /// Sets the throughput limits of one device.
    ///
    /// # Errors
    /// When the controller is not there or a file cannot be written.
    pub fn limit_io(&self, io_limits: &IoLimits) -> Result<(), GroupError> {
        let IoLimits {
            major,
            minor,
            read_bps,
            write_bps,
        } = io_limits;
        match &self.layout {
            Layout::V2 { root } => self
                .write(
                    root,
                    "io.max",
                    &format!("{major}:{minor} rbps={read_bps} wbps={write_bps}"),
                )
                // Not every v2 host hands the io controller down.
                .or_else(missing_is_fine),
            Layout::V1 { trees, .. } => match &trees.blkio {
                Some(tree) => {
                    self.write(
                        tree,
                        "blkio.throttle.read_bps_device",
                        &format!("{major}:{minor} {read_bps}"),
                    )?;
                    self.write(
                        tree,
                        "blkio.throttle.write_bps_device",
                        &format!("{major}:{minor} {write_bps}"),
                    )
                }
                None => Ok(()),
            },
        }
    }

    /// The limits as the kernel holds them.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read_back(&self) -> Result<Limits, GroupError> {
        let number = |text: &str| text.trim().parse::<u64>().unwrap_or(u64::MAX);
        match &self.layout {
            Layout::V2 { root } => {
                let cpu = self.read(root, "cpu.max")?;
                let quota = number(cpu.split_whitespace().next().unwrap_or("max"));
                Ok(Limits {
                    cpu_milli: quota.saturating_mul(1000) / CPU_PERIOD_US,
                    memory_bytes: number(&self.read(root, "memory.max")?),
                    pids: number(&self.read(root, "pids.max")?),
                })
            }
            Layout::V1 { trees, .. } => Ok(Limits {
                cpu_milli: number(&self.read(&trees.cpu, "cpu.cfs_quota_us")?).saturating_mul(1000)
                    / CPU_PERIOD_US,
                memory_bytes: number(&self.read(&trees.memory, "memory.limit_in_bytes")?),
                pids: number(&self.read(&trees.pids, "pids.max")?),
            }),
        }
    }

    /// Reads the counters; what the host does not count is zero.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn counters(&self) -> Result<Counters, GroupError> {
        let number = |text: String| text.trim().parse::<u64>().unwrap_or(0);
        match &self.layout {
            Layout::V2 { root } => {
                let stat = self.read(root, "memory.stat")?;
                Ok(Counters {
                    cpu_ns: field(&self.read(root, "cpu.stat")?, "usage_usec ") * 1000,
                    memory_bytes: number(self.read(root, "memory.current")?),
                    cache_bytes: field(&stat, "file ").saturating_sub(field(&stat, "shmem ")),
                    oom_kills: self.oom_kills()?,
                    pids: number(self.read(root, "pids.current")?),
                })
            }
            Layout::V1 { trees, .. } => {
                let stat = self.read(&trees.memory, "memory.stat")?;
                Ok(Counters {
                    cpu_ns: number(self.read(&trees.cpuacct, "cpuacct.usage")?),
                    memory_bytes: number(self.read(&trees.memory, "memory.usage_in_bytes")?),
                    cache_bytes: field(&stat, "cache ").saturating_sub(field(&stat, "shmem ")),
                    oom_kills: self.oom_kills()?,
                    pids: number(self.read(&trees.pids, "pids.current")?),
                })
            }
        }
    }

    /// Processes of the group the kernel killed for its memory limit.
    ///
    /// # Errors
    /// When the group is gone.
    pub fn oom_kills(&self) -> Result<u64, GroupError> {
        Ok(match &self.layout {
            Layout::V2 { root } => field(&self.read(root, "memory.events")?, "oom_kill "),
            Layout::V1 { trees, .. } => field(
                &self.read(&trees.memory, "memory.oom_control")?,
                "oom_kill ",
            ),
        })
    }

    /// Pids in the group, over all trees.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self
            .layout
            .trees()
            .iter()
            .filter_map(|t| fs::read_to_string(t.join(&self.path).join("cgroup.procs")).ok())
            .flat_map(|text| {
                text.lines()
                    .filter_map(|l| l.parse().ok())
                    .collect::<Vec<i32>>()
            })
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Kills every process of the group, waits until it is empty and removes it. Blocking.
    ///
    /// # Errors
    /// When something is still alive after [`KILL_DEADLINE`], or a folder cannot be removed.
    pub fn kill_and_remove(&self) -> Result<(), GroupError> {
        let deadline = Instant::now() + KILL_DEADLINE;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(dir) = self.birth_dir() {
                let file = dir.join("cgroup.kill");
                if let Err(error) = write_existing(&file, "1")
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::debug!(file = %file.display(), %error, "killing one by one");
                }
            }
            // What is in a v1 tree only, or on a kernel before 5.14 without `cgroup.kill`.
            let pids = self.pids();
            for pid in &pids {
                crate::process::kill(*pid);
            }
            if pids.is_empty() {
                match self.try_remove() {
                    Ok(()) => return Ok(()),
                    Err(e) if Instant::now() > deadline => return Err(e),
                    Err(_) => {}
                }
            } else if Instant::now() > deadline {
                let path = self.path.clone();
                return Err(GroupError {
                    action: "emptying",
                    path,
                    source: io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn try_remove(&self) -> Result<(), GroupError> {
        for tree in self.layout.trees() {
            let dir = tree.join(&self.path);
            match fs::remove_dir(&dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(fault("removing", &dir)(e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The number behind a name in a file of names and numbers; zero when it is not there.
fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|l| l.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or(0)
}

/// Writes a file that is there. `fs::write` would ask to make a missing one, which the
/// kernel answers by "permission denied" instead of "not found".
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?
        .write_all(value.as_bytes())
}

fn missing_is_fine(e: GroupError) -> Result<(), GroupError> {
    if e.source.kind() == io::ErrorKind::NotFound {
        Ok(())
    } else {
        Err(e)
    }
}
