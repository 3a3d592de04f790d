//! `scripts/host-packages` derives the backports source from whatever form the host's own
//! source has; a wrong one would break apt on somebody's machine.

use std::fs;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/host-packages");

/// What the script would write, for a host with one source file.
fn derived(file: &str, text: &str) -> String {
    let etc = tempfile::tempdir().expect("this works on a host that is set up");
    fs::create_dir(etc.path().join("sources.list.d")).expect("this works on a host that is set up");
    fs::write(etc.path().join(file), text).expect("this works on a host that is set up");
    let out = Command::new("sh")
        .args([SCRIPT, "--print-backports", "bookworm"])
        .env("HEARTH_APT_ETC", etc.path())
        .output()
        .expect("this works on a host that is set up");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).expect("this works on a host that is set up")
}

const PLAIN: &str =
    "Types: deb\nURIs: http://a.test/debian\nSuites: bookworm-backports\nComponents: main\n";

#[test]
fn one_line_sources_with_and_without_options() {
    let line = "# deb http://old.test/debian bookworm main\n\
        deb-src http://src.test/debian bookworm main\n\
        deb http://sec.test/debian bookworm-security main\n\
        deb http://c.test/debian bookworm contrib\n";
    assert_eq!(derived("sources.list", line), "");
    let line = format!(
        "{line}  deb http://a.test/debian bookworm contrib main # ours\ndeb http://b.test/x bookworm main\n"
    );
    assert_eq!(derived("sources.list", &line), PLAIN);
    let line = "deb [ arch=amd64 signed-by=/usr/share/keyrings/k.gpg ] http://a.test/debian bookworm main\n";
    assert_eq!(
        derived("sources.list.d/debian.list", line),
        format!("{PLAIN}Signed-By: /usr/share/keyrings/k.gpg\n")
    );
}

#[test]
fn paragraphs_with_a_key_file_and_with_a_key_inside() {
    let off = "Types: deb\nURIs: http://off.test/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n";
    assert_eq!(derived("sources.list.d/debian.sources", off), "");
    let on = format!(
        "{off}# a note\nTypes: deb deb-src\nURIs: http://a.test/debian http://b.test/debian\n\
         Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n"
    );
    assert_eq!(
        derived("sources.list.d/debian.sources", &on),
        format!("{PLAIN}Signed-By: /k.gpg\n")
    );
    let inside = "Types: deb\nURIs: http://a.test/debian\nSuites: bookworm\nComponents: main\n\
        Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n -----END PGP PUBLIC KEY BLOCK-----\n";
    assert_eq!(
        derived("sources.list.d/debian.sources", inside),
        format!(
            "{PLAIN}Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n -----END PGP PUBLIC KEY BLOCK-----\n"
        )
    );
}

#[test]
fn a_disabled_file_is_not_read() {
    let text = "Types: deb\nURIs: http://a.test/debian\nSuites: bookworm\nComponents: main\n";
    assert_eq!(derived("sources.list.d/debian.sources.disabled", text), "");
    assert_eq!(derived("sources.list.d/debian.sources", text), PLAIN);
}

#[test]
fn a_satisfied_host_is_left_alone_in_under_a_second() {
    assert!(Path::new(SCRIPT).exists());
    let begun = std::time::Instant::now();
    let out = Command::new("sh")
        .arg(SCRIPT)
        .output()
        .expect("this works on a host that is set up");
    let took = begun.elapsed();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&out.stdout), "");
    assert!(took.as_millis() < 1000, "{took:?}");
}
