//! Every limit has a name, a unit and a reason. Errors quote them from here.

/// Seconds a v2 create lives when the client names no timeout (E2B's default).
pub const DEFAULT_TIMEOUT_S: u64 = 300;
/// The same for the v1 route (E2B's default).
pub const DEFAULT_TIMEOUT_V1_S: u64 = 15;
/// Longest timeout accepted, in seconds: 365 days. Agents live for days; a year is a typing error.
pub const MAX_TIMEOUT_S: u64 = 365 * 24 * 3600;
/// Largest JSON body of the control API, in bytes.
pub const MAX_JSON_BODY: usize = 1024 * 1024;
/// Metadata and environment: entries of one create.
pub const MAX_MAP_ENTRIES: usize = 256;
/// Metadata and environment: bytes of one key.
pub const MAX_MAP_KEY: usize = 256;
/// Metadata and environment: bytes of one value.
pub const MAX_MAP_VALUE: usize = 32 * 1024;
/// Metadata and environment: bytes of all keys and values of one create.
pub const MAX_MAP_TOTAL: usize = 256 * 1024;

/// vCPUs of a sandbox whose template names none (E2B's default).
pub const DEFAULT_VCPU: u32 = 2;
/// Memory of a sandbox whose template names none, in MiB.
pub const DEFAULT_MEMORY_MIB: u64 = 1024;
/// Writable disk of a sandbox whose template names none, in MiB: 20 GB as E2B promises.
pub const DEFAULT_DISK_MIB: u64 = 20 * 1024;
/// Most processes and threads inside one sandbox. gVisor gives up when one address space has
/// 4,095 threads at work; the limit stays below that.
const MAX_GUEST_PIDS: u64 = 4000;
/// Fewest: 1,000 processes work in the smallest sandbox.
const MIN_GUEST_PIDS: u64 = 1200;

/// Processes and threads inside a sandbox of this memory, held inside. Each costs the host
/// memory that the sandbox is not shown (about a third of a MiB under gVisor), so the number
/// goes with the memory: 1,280 at 1 GiB.
pub fn guest_pids(memory_mib: u64) -> u32 {
    let pids = (memory_mib + memory_mib / 4).clamp(MIN_GUEST_PIDS, MAX_GUEST_PIDS);
    u32::try_from(pids).unwrap_or(u32::MAX)
}

/// Port of the agent's public protocol (E2B's envd).
pub const AGENT_PORT: u16 = 49983;
/// Port of the agent's control channel. Never routed by the edge.
pub const CONTROL_PORT: u16 = 49982;
/// The agent protocol version reported to clients: opens every gate of the SDKs.
pub const ENVD_VERSION: &str = "0.6.20";
