//! The agent's Connect services and their messages, generated from `proto/` by `build.rs`.
//! JSON is the codec clients use; the generated types read camelCase and snake_case names
//! and skip fields they do not know.

#![allow(
    clippy::all,
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    missing_debug_implementations,
    unreachable_pub,
    unexpected_cfgs,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/rpc.rs"));
