//! The packet filter: whether ours can be loaded, and whether another one of the host's would
//! drop what sandboxes send.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Finding;
use crate::serve::ServeArgs;

/// The kinds of rule the server loads; `nft -c` asks the kernel and changes nothing.
const RULES: &str = "table inet hearth_doctor {
  chain spoof {
    type filter hook prerouting priority -150; policy accept;
    iifname \"hearth*\" fib saddr . iif oif 0 drop
  }
  chain passing {
    type filter hook forward priority -10; policy accept;
    ct state established,related accept
    iifgroup 7 counter accept
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }
  chain leaving {
    type nat hook postrouting priority srcnat; policy accept;
    oifname \"hearth*\" masquerade
  }
}
";

pub(super) fn check(serve: &ServeArgs) -> Vec<Finding> {
    let mut findings = vec![nft(), forwarding()];
    let (net, bits) = serve.sandbox_net;
    findings.extend(dropping_policies(&format!("{net}/{bits}")));
    findings
}

fn nft() -> Finding {
    let tried = || -> std::io::Result<std::process::Output> {
        let mut child = Command::new("nft")
            .args(["-c", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(RULES.as_bytes())?;
        }
        child.wait_with_output()
    };
    match tried() {
        Ok(out) if out.status.success() => Finding::ok(
            "nftables",
            "the kernel takes rules of every kind the server loads",
        ),
        Ok(out) => Finding::fail(
            "nftables",
            format!(
                "nft refuses the server's kinds of rule: {}",
                first_line(&out.stderr)
            ),
            "a kernel with nf_tables, nft_fib_inet, nft_reject_inet, nft_ct, nft_masq is needed (`modprobe` them)",
        ),
        Err(e) => Finding::fail(
            "nftables",
            format!("starting nft: {e}"),
            "apt-get install nftables (or `make up`)",
        ),
    }
}

fn forwarding() -> Finding {
    match std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward") {
        Ok(text) if text.trim() == "1" => Finding::ok("ip forwarding", "on"),
        Ok(_) => Finding::warn(
            "ip forwarding",
            "off; the server turns it on when it starts",
            "nothing to do, unless something of yours turns it off again (net.ipv4.ip_forward = 1)",
        ),
        Err(e) => Finding::fail(
            "ip forwarding",
            format!("net.ipv4.ip_forward: {e}"),
            "mount /proc",
        ),
    }
}

/// Base chains of other tables whose policy is to drop. An accept of ours does not overrule
/// them: a packet has to pass each table.
fn dropping_policies(net: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(rules) = output("nft", &["-j", "list", "chains"]) {
        for (table, chain, hook) in dropping_chains(&rules) {
            let (what, rule) = match hook.as_str() {
                "forward" => (
                    "what sandboxes send to the outside may be dropped",
                    format!(
                        "`nft insert rule {table} {chain} ip saddr {net} accept` and `... ip daddr {net} ct state established,related accept`"
                    ),
                ),
                _ => (
                    "what sandboxes ask the resolver may be dropped",
                    format!(
                        "`nft insert rule {table} {chain} ip saddr {net} meta l4proto {{ tcp, udp }} th dport 53 accept`"
                    ),
                ),
            };
            findings.push(Finding::warn(
                "other filters",
                format!("{table} {chain} drops what no rule of it accepts: {what}"),
                format!("unless its rules accept {net} already: {rule}"),
            ));
        }
    }
    // Rules of the old interface are in no nft listing.
    if let Some(rules) = output("iptables-legacy-save", &["-t", "filter"])
        && rules.lines().any(|l| l.starts_with(":FORWARD DROP"))
    {
        findings.push(Finding::warn(
            "other filters",
            "iptables-legacy FORWARD drops what no rule of it accepts: what sandboxes send may be dropped",
            format!("iptables-legacy -I FORWARD -s {net} -j ACCEPT; iptables-legacy -I FORWARD -d {net} -j ACCEPT"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("other filters", "none that drops by default"));
    }
    findings
}

/// Family and table, chain, hook of each foreign base chain that drops by default.
fn dropping_chains(json: &str) -> Vec<(String, String, String)> {
    let Ok(listing) = serde_json::from_str::<Value>(json) else {
        return Vec::new();
    };
    let text = |chain: &Value, name: &str| chain[name].as_str().unwrap_or_default().to_owned();
    listing["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| &item["chain"])
        .filter(|c| c["policy"] == "drop" && (c["hook"] == "forward" || c["hook"] == "input"))
        .filter(|c| c["family"] != "ip6" && !text(c, "table").starts_with("hearth_"))
        .map(|c| {
            (
                format!("{} {}", text(c, "family"), text(c, "table")),
                text(c, "name"),
                text(c, "hook"),
            )
        })
        .collect()
}

/// What a program printed, when it is there and worked.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text)
        .lines()
        .next()
        .unwrap_or("no reason given")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_foreign_chains_that_drop_are_told() {
        let chain = |family: &str, table: &str, hook: &str, policy: &str| {
            format!(
                r#"{{"chain":{{"family":"{family}","table":"{table}","name":"c","hook":"{hook}","policy":"{policy}"}}}}"#
            )
        };
        let listing = [
            r#"{"metainfo":{"version":"1"}}"#.to_owned(),
            chain("ip", "filter", "forward", "drop"),
            chain("inet", "firewalld", "input", "drop"),
            chain("ip", "filter", "output", "drop"),
            chain("ip6", "filter", "forward", "drop"),
            chain("inet", "hearth_12ab", "forward", "drop"),
            chain("ip", "nat", "forward", "accept"),
            r#"{"chain":{"family":"ip","table":"filter","name":"plain"}}"#.to_owned(),
        ]
        .join(",");
        assert_eq!(
            dropping_chains(&format!(r#"{{"nftables":[{listing}]}}"#)),
            [
                ("ip filter".into(), "c".into(), "forward".into()),
                ("inet firewalld".into(), "c".into(), "input".into()),
            ]
        );
        assert!(dropping_chains("").is_empty());
    }
}
