//! The node's gateway for what sandboxes send outside. So far it is their resolver
//! ([`dns`]); which addresses they may reach is the packet filter's business
//! (`hearth_host::firewall`).
//!
//! Called by `node`, which says what each sandbox may do.

pub mod dns;
