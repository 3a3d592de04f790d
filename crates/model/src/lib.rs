//! The nouns and rules of Hearth: ids, specs, sizes, states, reasons, limits.
//!
//! No IO, no clock and no wire format live here: time comes in as an argument, and the
//! rooms at the edge of each process convert from and to what is spoken on the wire.
//! Start with [`sandbox::SandboxSpec`] and [`state::step`].

pub mod end;
pub mod id;
pub mod limits;
pub mod node;
pub mod route;
pub mod sandbox;
pub mod secret;
pub mod signature;
pub mod state;
