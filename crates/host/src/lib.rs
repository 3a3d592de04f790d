//! Linux made safe: control groups, network namespaces and links, the packet filter,
//! mounts, disks, processes by descriptor.
//!
//! It knows nothing of sandboxes: names and paths come from the caller, who made them from
//! parsed ids. The only room (beside one file of the agent) where `unsafe` is allowed.

pub mod cgroup;
pub mod disk;
pub mod file;
pub mod firewall;
pub mod link;
pub mod mount;
pub mod netns;
pub mod process;
pub mod spawn;
