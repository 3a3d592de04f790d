//! From a Debian tree to a root disk, and the store of templates and sandbox disks.
//!
//! - [`base`] builds the template `base` from the host's own package mirror into a cache.
//! - [`store`] holds templates and gives each sandbox a disk of its own, cloned by reference.
//!
//! Nothing here starts a sandbox.

mod apt;
pub mod base;
mod sources;
pub mod store;
