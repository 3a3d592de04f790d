//! What a sandbox uses, read on the host's side: the guest cannot falsify it.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hearth_host::cgroup::Group;
use hearth_host::disk;
use hearth_model::node::Usage;
use hearth_model::sandbox::SandboxSpec;

/// Shortest time two CPU readings are apart; a closer one repeats the last share.
const MIN_GAP: Duration = Duration::from_millis(500);

/// Reads one sandbox, remembering the last CPU time.
#[derive(Debug)]
pub(crate) struct Meter {
    group: Group,
    disk: PathBuf,
    last: (Instant, u64),
    pct: f64,
}

impl Meter {
    pub(crate) fn new(group: Group, disk: PathBuf) -> Self {
        // From now on: the first reading tells what was used until then.
        let begun = group.counters().map_or(0, |c| c.cpu_ns);
        Self {
            group,
            disk,
            last: (Instant::now(), begun),
            pct: 0.0,
        }
    }

    /// None when the sandbox is just ending.
    pub(crate) fn read(&mut self, spec: &SandboxSpec) -> Option<Usage> {
        let counters = self.group.counters().ok()?;
        let space = disk::space(&self.disk).ok()?;
        let now = Instant::now();
        let (at, ns) = self.last;
        if now - at >= MIN_GAP {
            let used = Duration::from_nanos(counters.cpu_ns.saturating_sub(ns));
            self.pct = used.as_secs_f64() / (now - at).as_secs_f64() * 100.0;
            self.last = (now, counters.cpu_ns);
        }
        let at_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_millis();
        Some(Usage {
            at_ms: i64::try_from(at_ms).unwrap_or(i64::MAX),
            vcpu: spec.size.vcpu,
            cpu_pct: self.pct,
            mem_used: counters.memory_bytes.saturating_sub(counters.cache_bytes),
            mem_total: spec.size.memory_mib << 20,
            mem_cache: counters.cache_bytes,
            disk_used: space.total.saturating_sub(space.free),
            disk_total: space.total,
        })
    }
}
