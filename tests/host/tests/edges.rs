//! The rooms and who may depend on whom: reads `cargo metadata` and refuses any other edge.

use std::collections::BTreeMap;
use std::process::Command;

/// A room and the rooms it may use. Arrows point down only; rooms of one level never meet,
/// except that `node` uses `egress`.
const ALLOWED: &[(&str, &[&str])] = &[
    ("hearth-model", &[]),
    ("hearth-wire", &["hearth-model"]),
    ("hearth-host", &[]),
    ("hearth-image", &["hearth-model", "hearth-host"]),
    ("hearth-runtime", &["hearth-model", "hearth-host"]),
    (
        "hearth-runtime-oci",
        &[
            "hearth-model",
            "hearth-wire",
            "hearth-host",
            "hearth-runtime",
        ],
    ),
    ("hearth-agent", &["hearth-model", "hearth-wire"]),
    ("hearth-egress", &[]),
    (
        "hearth-node",
        &[
            "hearth-model",
            "hearth-wire",
            "hearth-host",
            "hearth-image",
            "hearth-runtime",
            "hearth-egress",
        ],
    ),
    ("hearth-control", &["hearth-model", "hearth-wire"]),
    ("hearth-edge", &["hearth-model", "hearth-wire"]),
];
/// The binary wires the rooms and may name them all; the tests of whole tiers do the same.
const TOP: [&str; 2] = ["hearth", "hearth-host-tests"];

#[test]
fn dependencies_point_down() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .expect("cargo runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).expect("cargo metadata is JSON");
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut seen = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        if TOP.contains(&name) {
            continue;
        }
        let may = allowed
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the table of rooms"));
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            if on.starts_with("hearth") {
                assert!(may.contains(&on), "{name} must not use {on}");
            }
        }
        seen += 1;
    }
    assert_eq!(seen, ALLOWED.len(), "a room of the table is gone");
}
