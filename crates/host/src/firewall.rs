//! The packet filter: one table per instance, loaded as one transaction when the server
//! starts, never touched on the way of a create.
//!
//! Policy goes by the group of a sandbox's outer link (`link::Links::set_group`): a slot is
//! born in [`GROUP_CLOSED`] and moved to [`GROUP_OPEN`] when its sandbox may reach the outside.

use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// Link group of sandboxes that reach nothing but the resolver.
pub const GROUP_CLOSED: u32 = 0x4845_0001;
/// Link group of sandboxes that reach the public internet.
pub const GROUP_OPEN: u32 = 0x4845_0002;

/// Never reachable from a sandbox: this-network, loopback, link-local (and with it the
/// metadata address), protocol assignments, multicast, reserved, broadcast (RFC 6890), and
/// Azure's host service, which is metadata at a public address.
const NEVER: &str = "0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 192.0.0.0/24, 168.63.129.16/32, 224.0.0.0/4, 240.0.0.0/4";
/// Alibaba's metadata address; it lies in a private range, so it matters where those are open.
const PRIVATE_NEVER: &str = "100.100.100.200/32";
/// Connections of one sandbox at once. The host's table of connections is shared: without a
/// share of its own, one sandbox fills it for everybody (Linux's default is 262,144).
const MAX_CONNECTIONS: u32 = 4096;
/// Private ranges (RFC 1918, RFC 6598): where an operator's own services are. Closed unless
/// the operator opens them.
const PRIVATE: &str = "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10";

/// What the table is made from.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Table name: letters, digits, underscore.
    pub table: String,
    /// Prefix of the outer links' names.
    pub links: String,
    /// The instance's sandboxes, as CIDR.
    pub sandboxes: String,
    /// The one host address sandboxes may speak to, port 53.
    pub resolver: Ipv4Addr,
    pub private_egress: PrivateEgress,
}

/// Whether sandboxes may reach private ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivateEgress {
    Refused,
    Allowed,
}

fn ruleset(r: &Rules) -> String {
    let Rules {
        table,
        links,
        sandboxes,
        resolver,
        private_egress,
    } = r;
    let never = match private_egress {
        PrivateEgress::Refused => format!("{NEVER}, {PRIVATE}"),
        PrivateEgress::Allowed => format!("{NEVER}, {PRIVATE_NEVER}, {sandboxes}"),
    };
    let (open, refuse) = (
        GROUP_OPEN,
        "meta l4proto tcp reject with tcp reset\n    reject with icmpx admin-prohibited",
    );
    format!(
        r#"table inet {table}
delete table inet {table}
table inet {table} {{
  set connections {{
    type ipv4_addr
    size 65536
    flags dynamic
  }}
  chain guest_to_host {{
    ct state established,related accept
    ct state new add @connections {{ ip saddr ct count over {MAX_CONNECTIONS} }} drop
    ip daddr {resolver} udp dport 53 accept
    ip daddr {resolver} tcp dport 53 accept
    counter
    {refuse}
  }}
  chain guest_out {{
    ct state invalid drop
    meta nfproto != ipv4 drop
    ip saddr != {sandboxes} drop
    ip daddr {{ {never} }} counter jump refuse
    ct state established,related accept
    ct state new add @connections {{ ip saddr ct count over {MAX_CONNECTIONS} }} drop
    iifgroup {open} counter accept
    counter jump refuse
  }}
  chain refuse {{
    {refuse}
  }}
  chain spoof {{
    type filter hook prerouting priority -150; policy accept;
    iifname "{links}*" meta nfproto != ipv4 drop
    iifname "{links}*" ip saddr != {sandboxes} drop
    iifname "{links}*" fib saddr . iif oif 0 drop
  }}
  chain arriving {{
    type filter hook input priority -10; policy accept;
    iifname "{links}*" jump guest_to_host
  }}
  chain passing {{
    type filter hook forward priority -10; policy accept;
    iifname "{links}*" oifname "{links}*" counter jump refuse
    iifname "{links}*" jump guest_out
    oifname "{links}*" ct state established,related accept
    oifname "{links}*" counter drop
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {sandboxes} oifname != "{links}*" masquerade
  }}
}}
"#
    )
}

/// Loads the table in place of an older one, atomically. Blocking (starts `nft`).
///
/// # Errors
/// When `nft` cannot be started or refuses; its own words are in the text.
pub fn load(rules: &Rules) -> io::Result<()> {
    nft(&ruleset(rules))
}

/// Removes the table; that it is not there is no error. Blocking.
///
/// # Errors
/// When `nft` cannot be started or refuses.
pub fn remove(table: &str) -> io::Result<()> {
    nft(&format!("table inet {table}\ndelete table inet {table}\n"))
}

fn nft(text: &str) -> io::Result<()> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            io::Error::new(
                e.kind(),
                format!("starting nft (Debian package nftables): {e}"),
            )
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    let out = child.wait_with_output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "nft refused the ruleset: {}",
        String::from_utf8_lossy(&out.stderr).trim()
    )))
}
