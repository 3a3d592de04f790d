//! The control plane: who may do what, what exists, until when, and why it ended.
//!
//! The binary opens a [`Control`] over a [`ports::Node`], lets it [`Control::recover`],
//! serves [`Control::router`] and runs [`Control::spawn_background`]. The edge asks
//! [`Control::routes`]. `hearth key` uses [`keys::Keys`] alone, in a process of its own.
//!
//! ```text
//!  http ──► parse, page, names      (pure: input to checked values)
//!    │
//!    ▼
//!   app ──► store ──► live          (a change is true when the store has committed it)
//!    │                  ▲
//!    ▼                  │ routes ◄── edge
//!  ports::Node      background: timers, deaths, readings, pruning      recover: at start
//! ```
//!
//! States change in `store::sandboxes` only (`change` and `end`), by `hearth_model::state::step`.

mod app;
mod background;
mod clock;
mod control;
mod http;
pub mod keys;
mod live;
mod names;
mod page;
mod parse;
pub mod ports;
mod recover;
pub mod routes;
mod store;

pub use app::ControlConfig;
pub use control::{Control, EndAllError};
pub use recover::Recovered;
pub use store::{OpenStoreError, StoreError};
