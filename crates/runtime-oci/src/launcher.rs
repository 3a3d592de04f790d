//! The process that becomes `runsc`: in place ahead of need, then one line, then exec.
//!
//! Being in the control group and the network namespace costs time that must not be paid
//! during a create. It runs as `hearth launcher SETUP` with the order on standard input;
//! when the server dies its input ends and so does it. Single-threaded on purpose: mount
//! namespaces are per thread group.

use std::ffi::CString;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the launcher answers when it is in place.
pub const ARMED: &str = "armed";

/// Done ahead of need. Given as an argument: no secrets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) netns: PathBuf,
    /// `cgroup.procs` files to write itself into.
    pub(crate) attach: Vec<PathBuf>,
    /// gVisor before autumn 2024 takes a namespace for the host's when
    /// `/proc/sys/net/core` has files, which kernels since 6.11 show in all of them.
    pub(crate) cover_net_core: bool,
}

/// Given on standard input, when needed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) argv: Vec<String>,
    /// Becomes the standard input of the agent.
    pub(crate) boot: String,
    /// Laid over `/proc/meminfo`: the sandbox's kernel takes its memory size from there.
    pub(crate) meminfo: PathBuf,
    /// CPUs the sandbox is shown: its kernel counts those it may run on when it starts.
    /// [`crate::affinity::widen`] gives the others back afterwards.
    pub(crate) cpus: u32,
}

/// Runs the launcher; returns only on failure (or when nothing was ordered).
///
/// # Errors
/// What could not be done, for standard error.
pub fn main(setup: &str) -> io::Result<()> {
    let setup: Setup = serde_json::from_str(setup)?;
    for file in &setup.attach {
        std::fs::write(file, std::process::id().to_string())
            .map_err(|e| io::Error::new(e.kind(), format!("writing {}: {e}", file.display())))?;
    }
    hearth_host::netns::enter(&setup.netns)?;
    raise_descriptor_limit();
    io::stdout().write_all(format!("{ARMED}\n").as_bytes())?;
    io::stdout().flush()?;

    let mut line = Vec::new();
    io::stdin().lock().read_to_end_of_line(&mut line)?;
    if line.is_empty() {
        return Ok(());
    }
    let order: Order = serde_json::from_slice(&line)?;
    hearth_host::mount::own_namespace()?;
    if setup.cover_net_core {
        hearth_host::mount::cover_dir(Path::new("/proc/sys/net/core"))?;
    }
    hearth_host::mount::cover_file(&order.meminfo, Path::new("/proc/meminfo"))?;

    crate::affinity::narrow(order.cpus)?;

    let boot = rustix::fs::memfd_create("boot", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut boot = std::fs::File::from(boot);
    boot.write_all(order.boot.as_bytes())?;
    io::Seek::rewind(&mut boot)?;
    let Some((program, args)) = order.argv.split_first() else {
        return Err(io::Error::other("an order without a program"));
    };
    let program = CString::new(program.as_str())?;
    Err(
        std::process::Command::new(program.to_string_lossy().as_ref())
            .args(args)
            .stdin(boot)
            .exec(),
    )
}

/// gVisor holds a descriptor for each file the sandbox has open.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let have = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: have.maximum,
            maximum: have.maximum,
        },
    ) {
        eprintln!("the descriptor limit stays at {:?}: {e}", have.current);
    }
}

trait ReadLine {
    fn read_to_end_of_line(&mut self, into: &mut Vec<u8>) -> io::Result<()>;
}

impl<R: io::Read> ReadLine for R {
    /// Up to a newline or the end, whichever comes first; nothing is read past it but what
    /// the pipe gave along.
    fn read_to_end_of_line(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let mut chunk = [0u8; 16 * 1024];
        while !into.ends_with(b"\n") {
            match self.read(&mut chunk)? {
                0 => {
                    // Half an order is none.
                    into.clear();
                    return Ok(());
                }
                n => into.extend_from_slice(&chunk[..n]),
            }
        }
        Ok(())
    }
}
