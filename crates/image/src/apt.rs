//! How this host's apt reaches its mirror: proxies, certificates and names for private mirrors.
//! They are handed to the one apt that builds a template and never get into it.

use std::io;
use std::path::Path;
use std::process::Command;

/// Endings of `Acquire` options that tell how to reach a server. None of them weakens what is
/// verified.
const REACHING: [&str; 8] = [
    "proxy",
    "proxyautodetect",
    "proxy-auto-detect",
    "cainfo",
    "capath",
    "sslcert",
    "sslkey",
    "issuercert",
];

/// Where apt looks for the names and passwords of mirrors.
const LOGINS: [(&str, &str); 2] = [
    ("Dir::Etc::netrc", "/etc/apt/auth.conf"),
    ("Dir::Etc::netrcparts", "/etc/apt/auth.conf.d"),
];

/// Options in the form of `apt.conf`, without the semicolon.
///
/// # Errors
/// When `apt-config` cannot be run.
pub(crate) fn options_to_reach_a_mirror() -> io::Result<Vec<String>> {
    let out = Command::new("apt-config")
        .args(["dump", "Acquire"])
        .output()?;
    if !out.status.success() {
        return Err(io::Error::other(format!(
            "apt-config failed ({})",
            out.status
        )));
    }
    let mut options = reaching(&String::from_utf8_lossy(&out.stdout));
    for (option, path) in LOGINS {
        if Path::new(path).exists() {
            options.push(format!("{option} \"{path}\""));
        }
    }
    Ok(options)
}

fn reaching(dump: &str) -> Vec<String> {
    dump.lines()
        .filter_map(|line| line.strip_suffix(';'))
        .filter(|line| {
            let Some((option, value)) = line.split_once(' ') else {
                return false;
            };
            // `Acquire::http::Proxy` and, for one server alone, `Acquire::http::Proxy::HOST`.
            let is_reaching = option
                .to_lowercase()
                .split("::")
                .any(|part| REACHING.contains(&part));
            is_reaching && value != "\"\""
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_reaches_a_mirror_is_taken() {
        let dump = r#"Acquire "";
Acquire::AllowInsecureRepositories "1";
Acquire::http::Proxy "http://proxy.test:3128/";
Acquire::https::Proxy "";
Acquire::http::Proxy::mirror.test "DIRECT";
Acquire::https::CaInfo "/etc/ssl/own.pem";
Acquire::https::Verify-Peer "false";
Acquire::Retries "9";
"#;
        assert_eq!(
            reaching(dump),
            [
                r#"Acquire::http::Proxy "http://proxy.test:3128/""#,
                r#"Acquire::http::Proxy::mirror.test "DIRECT""#,
                r#"Acquire::https::CaInfo "/etc/ssl/own.pem""#,
            ]
        );
    }

    #[test]
    fn this_hosts_apt_can_be_asked() {
        options_to_reach_a_mirror().expect("apt-config is here");
    }
}
