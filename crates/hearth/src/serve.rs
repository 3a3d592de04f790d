//! `hearth serve`: configuration, checked whole before anything is touched, then the wiring.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use hearth_host::firewall::PrivateEgress;
use hearth_model::limits;

use crate::cli::prepare::Sizes;
use crate::cli::{EXIT_USAGE, Failure, Folders, Outcome};
use crate::wiring;

/// Options of the server.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) folders: Folders,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
    /// Address the API, the agents and user ports are served on.
    #[arg(long, env = "HEARTH_LISTEN", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,
    /// Listen beyond loopback although nothing is encrypted.
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// Network the sandboxes' addresses are cut from, /16 to /24; it must be free on this host.
    #[arg(long, default_value = "10.217.0.0/16", value_parser = parse_net)]
    pub(crate) sandbox_net: (Ipv4Addr, u8),
    /// Nameserver the sandboxes' resolver asks, as IP or IP:PORT; may be given several times.
    /// Default: what the host's resolv.conf names.
    #[arg(long = "dns-upstream", value_parser = parse_dns)]
    pub(crate) dns_upstream: Vec<SocketAddr>,
    /// Let sandboxes reach private ranges (RFC 1918 and RFC 6598), which are refused otherwise.
    #[arg(long)]
    pub(crate) allow_private_egress: bool,
    /// Keep the certificate authorities that were added to this host out of the sandboxes.
    #[arg(long)]
    pub(crate) no_host_cas: bool,
    /// Network slots kept ready; 0 makes each one when it is needed.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) ready_slots: u16,
    /// Throughput of each sandbox's disk, in MiB per second each way.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) disk_mib_per_second: u64,
}

const DEFAULT_NET: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 217, 0, 0), 16);

impl ServeArgs {
    /// For `hearth down`: enough to adopt what the last start left, and to end it.
    pub(crate) fn only_to_end(folders: Folders, last_net: Option<(Ipv4Addr, u8)>) -> Self {
        Self {
            folders,
            sizes: Sizes {
                vcpu: limits::DEFAULT_VCPU,
                memory_mib: limits::DEFAULT_MEMORY_MIB,
                disk_mib: limits::DEFAULT_DISK_MIB,
            },
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            insecure_listen: false,
            sandbox_net: last_net.unwrap_or(DEFAULT_NET),
            dns_upstream: Vec::new(),
            allow_private_egress: false,
            no_host_cas: true,
            ready_slots: 0,
            disk_mib_per_second: 512,
        }
    }

    pub(crate) fn private_egress(&self) -> PrivateEgress {
        if self.allow_private_egress {
            PrivateEgress::Allowed
        } else {
            PrivateEgress::Refused
        }
    }
}

fn parse_net(text: &str) -> Result<(Ipv4Addr, u8), String> {
    let rule =
        || format!("{text:?} is not a network like 10.217.0.0/16, /16 to /24, with zero host bits");
    let (address, bits) = text.split_once('/').ok_or_else(rule)?;
    let (address, bits): (Ipv4Addr, u8) = (
        address.parse().map_err(|_| rule())?,
        bits.parse().map_err(|_| rule())?,
    );
    if !(16..=24).contains(&bits) || u32::from(address) & (u32::MAX >> bits) != 0 {
        return Err(rule());
    }
    Ok((address, bits))
}

fn parse_dns(text: &str) -> Result<SocketAddr, String> {
    text.parse::<SocketAddr>()
        .or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53)))
        .map_err(|_| format!("{text:?} is neither an IP address nor IP:PORT"))
}

pub(crate) async fn run(args: ServeArgs) -> Outcome {
    if !args.listen.ip().is_loopback() && !args.insecure_listen {
        return Err(Failure::new(format!(
            "--listen {} is beyond loopback, and without TLS every key and file would cross the network in the clear",
            args.listen
        ))
        .hint("listen on 127.0.0.1 behind a TLS proxy, or add --insecure-listen on a network you trust")
        .code(EXIT_USAGE));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            "serve needs root: it makes namespaces, mounts and control groups",
        )
        .hint("run it as root, for example with sudo")
        .code(EXIT_USAGE));
    }
    start_log();
    raise_descriptor_limit();
    wiring::serve(args).await?;
    Ok(ExitCode::SUCCESS)
}

/// Two descriptors for each client connection, and the edge takes 20,000 of them.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let have = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: have.maximum,
            maximum: have.maximum,
        },
    ) {
        tracing::warn!(%error, limit = have.current, "the descriptor limit stays");
    }
}

fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("HEARTH_LOG")
        // The netlink library warns of every attribute that the kernel has and it has not.
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,netlink_packet_route=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_checked() {
        assert_eq!(
            parse_net("10.217.0.0/16"),
            Ok((Ipv4Addr::new(10, 217, 0, 0), 16))
        );
        for bad in [
            "10.217.0.1/16",
            "10.217.0.0",
            "10.0.0.0/8",
            "10.0.0.0/30",
            "x/16",
            "10.217.0.0/x",
            "",
        ] {
            assert!(parse_net(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nameservers_have_a_default_port() {
        assert_eq!(
            parse_dns("192.0.2.1"),
            Ok(SocketAddr::from(([192, 0, 2, 1], 53)))
        );
        assert_eq!(
            parse_dns("192.0.2.1:5353"),
            Ok(SocketAddr::from(([192, 0, 2, 1], 5353)))
        );
        assert!(parse_dns("dns.test").is_err());
    }
}
