//! The host's own Debian mirror, read from its apt configuration, so that no mirror is named
//! in Hearth and a host behind a private one works.

use std::io;
use std::path::Path;

/// One entry, in the form both files boil down to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    /// What apt must know to trust the mirror: `signed-by=PATH`, `trusted=yes`.
    options: Vec<String>,
}

/// Codename of the host's release, from `os-release`.
pub(crate) fn codename(os_release: &str) -> Option<String> {
    os_release
        .lines()
        .find_map(|l| l.strip_prefix("VERSION_CODENAME="))
        .map(|v| v.trim_matches('"').to_owned())
        .filter(|v| !v.is_empty())
}

/// One-line entries (`sources.list`, `*.list`) of the codename's main suites.
pub(crate) fn lines_for(codename: &str, etc_apt: &Path) -> io::Result<Vec<String>> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(dir) = std::fs::read_dir(etc_apt.join("sources.list.d")) {
        files.extend(dir.flatten().map(|e| e.path()));
    }
    files.sort();
    let mut lines = Vec::new();
    for file in files {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let entries = match file.extension().and_then(|e| e.to_str()) {
            Some("sources") => deb822(&text),
            Some("list") => one_line(&text),
            _ => continue,
        };
        for entry in entries {
            for suite in &entry.suites {
                let ours = suite == codename
                    || suite
                        .strip_prefix(codename)
                        .is_some_and(|s| s == "-updates" || s == "-security");
                if !ours || !entry.components.iter().any(|c| c == "main") {
                    continue;
                }
                let options = match entry.options.join(" ") {
                    none if none.is_empty() => none,
                    some => format!("[{some}] "),
                };
                // A disc is in the drive of whoever installed this host.
                let uris = entry.uris.iter().filter(|uri| !uri.starts_with("cdrom:"));
                lines.extend(uris.map(|uri| format!("deb {options}{uri} {suite} main")));
            }
        }
    }
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// A key that stands in the entry itself, or one known by its fingerprint, is left to
/// mmdebstrap, which knows Debian's own.
fn trust(signed_by: Option<&str>, trusted: Option<&str>) -> Vec<String> {
    let path = signed_by.filter(|key| key.starts_with('/') && !key.contains(char::is_whitespace));
    let trusted = trusted.filter(|value| value.eq_ignore_ascii_case("yes"));
    let path = path.map(|path| format!("signed-by={path}"));
    path.into_iter()
        .chain(trusted.map(|_| "trusted=yes".to_owned()))
        .collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn deb822(text: &str) -> Vec<Entry> {
    text.split("\n\n")
        .filter_map(|paragraph| {
            let field = |name: &str| {
                let mut value = String::new();
                let mut inside = false;
                for line in paragraph.lines().filter(|l| !l.starts_with('#')) {
                    if line.starts_with([' ', '\t']) {
                        if inside {
                            value.push(' ');
                            value.push_str(line.trim());
                        }
                        continue;
                    }
                    inside = false;
                    if let Some((key, rest)) = line.split_once(':')
                        && key.eq_ignore_ascii_case(name)
                    {
                        rest.trim().clone_into(&mut value);
                        inside = true;
                    }
                }
                value
            };
            let is_deb = words(&field("Types")).iter().any(|t| t == "deb");
            let enabled = !field("Enabled").eq_ignore_ascii_case("no");
            (is_deb && enabled).then(|| Entry {
                uris: words(&field("URIs")),
                suites: words(&field("Suites")),
                components: words(&field("Components")),
                options: trust(Some(&field("Signed-By")), Some(&field("Trusted"))),
            })
        })
        .collect()
}

fn one_line(text: &str) -> Vec<Entry> {
    text.lines()
        .filter_map(|line| {
            let rest = line.trim().strip_prefix("deb")?;
            let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
            // Options stand in brackets before the address.
            let (options, rest) = match rest.strip_prefix('[') {
                Some(options) => options.split_once(']')?,
                None => ("", rest),
            };
            let option = |name: &str| {
                options.split_whitespace().find_map(|o| {
                    let (key, value) = o.split_once('=')?;
                    key.eq_ignore_ascii_case(name).then_some(value)
                })
            };
            let options = trust(option("signed-by"), option("trusted"));
            let mut fields = rest
                .split('#')
                .next()?
                .split_whitespace()
                .map(str::to_owned);
            Some(Entry {
                uris: vec![fields.next()?],
                suites: vec![fields.next()?],
                components: fields.collect(),
                options,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_and_only_the_main_suites() {
        let dir = std::env::temp_dir().join(format!("hearth-sources-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sources.list.d")).unwrap();
        std::fs::write(
            dir.join("sources.list"),
            "# deb http://no.test/ x main\ndeb\t[ signed-by=/k trusted=no arch=amd64 ] http://a.test/debian bookworm main contrib # why\ndeb http://b.test/apt tool-bookworm main\ndeb cdrom:[Debian]/ bookworm main\ndeb-src http://f.test bookworm main\n",
        )
        .unwrap();
        std::fs::write(
            dir.join("sources.list.d/debian.sources"),
            "Types: deb\n# a note\nURIs: http://c.test/debian\nSuites: bookworm bookworm-updates\n bookworm-backports\nComponents: main\nTrusted: Yes\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n\nTypes: deb\nURIs: http://d.test/sec\nSuites: bookworm-security\nComponents: main\nEnabled: no\n",
        )
        .unwrap();
        std::fs::write(
            dir.join("sources.list.d/x.sources.disabled"),
            "Types: deb\nURIs: http://e.test\nSuites: bookworm\nComponents: main\n",
        )
        .unwrap();
        let lines = lines_for("bookworm", &dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            lines,
            [
                "deb [signed-by=/k] http://a.test/debian bookworm main",
                "deb [trusted=yes] http://c.test/debian bookworm main",
                "deb [trusted=yes] http://c.test/debian bookworm-updates main",
            ]
        );
    }

    #[test]
    fn the_codename_is_read() {
        assert_eq!(
            codename("ID=debian\nVERSION_CODENAME=trixie\n"),
            Some("trixie".into())
        );
        assert_eq!(codename("ID=debian\n"), None);
    }
}
