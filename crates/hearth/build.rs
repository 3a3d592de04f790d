//! Finds the agent that is embedded: `make build` made it first.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=HEARTH_AGENT_BIN");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!(
        "../../target/{arch}-unknown-linux-gnu/agent/hearth-agent"
    ));
    let agent = std::env::var_os("HEARTH_AGENT_BIN").map_or(default, PathBuf::from);
    println!("cargo::rerun-if-changed={}", agent.display());
    let Ok(agent) = agent.canonicalize() else {
        println!(
            "cargo::error=the agent is not at {}; run `make build`, which builds it first, or set HEARTH_AGENT_BIN",
            agent.display()
        );
        return;
    };
    println!("cargo::rustc-env=HEARTH_AGENT={}", agent.display());
}
