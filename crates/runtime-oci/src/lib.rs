//! gVisor through its OCI command line, `runsc`.
//!
//! A shell is a launcher process ([`launcher`]): in its control group and network namespace
//! ahead of need, waiting for one line. [`bundle`] writes what the line refers to; `runsc
//! run --detach` then starts the sentry, and the agent's first line on the pipe is the
//! proof of life.
//!
//! Not here: what the sandbox is for, its disk, its network policy (all the node's).

mod affinity;
mod bundle;
pub mod launcher;
mod version;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hearth_host::cgroup::Group;
use hearth_host::process::Process;
use hearth_host::spawn::{self, Child};
use hearth_runtime::{
    BoxFuture, Capabilities, Instance, Runtime, Shell, ShellError, ShellPlan, StartError, StartPlan,
};
use hearth_wire::boot;
use tokio::io::AsyncReadExt as _;

pub use version::{ProbeError, Runsc};

/// How long a launcher may take to be in place. It waits for RCU on a loaded host.
const ARM_DEADLINE: Duration = Duration::from_secs(20);
/// How long from the start of `runsc` to the agent's line. 100 at once on two cores take
/// about 15 s.
const START_DEADLINE: Duration = Duration::from_secs(45);
/// Bytes of `runsc`'s log that go into an error.
const LOG_TAIL: usize = 2000;

/// The gVisor tier.
#[derive(Debug)]
pub struct Gvisor {
    capabilities: Capabilities,
    runsc: Runsc,
    /// The program that is started as `PROGRAM launcher ...`.
    program: PathBuf,
}

impl Gvisor {
    /// Uses the `runsc` that was probed; `program` is the binary that contains [`launcher`].
    pub fn new(runsc: Runsc, program: PathBuf) -> Self {
        let capabilities = Capabilities {
            tier: "gvisor",
            boundary: "system calls are served by a kernel in user space; no guest instruction reaches the host's kernel interface directly",
            version: runsc.version.clone(),
        };
        Self {
            capabilities,
            runsc,
            program,
        }
    }
}

impl Runtime for Gvisor {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn shell(&self, plan: ShellPlan) -> BoxFuture<'_, Result<Box<dyn Shell>, ShellError>> {
        Box::pin(async move {
            let shell = GvisorShell::arm(self, plan).await?;
            Ok(Box::new(shell) as Box<dyn Shell>)
        })
    }
}

/// A launcher in place.
#[derive(Debug)]
struct GvisorShell {
    runsc: Runsc,
    netns: PathBuf,
    group: Group,
    child: Option<Child>,
    order: File,
    answers: Lines,
    log: File,
}

fn shell_fault(what: &str) -> impl FnOnce(io::Error) -> ShellError {
    let what = what.to_owned();
    move |e| ShellError {
        tier: "gvisor",
        what,
        source: Some(e),
    }
}

impl GvisorShell {
    async fn arm(gvisor: &Gvisor, plan: ShellPlan) -> Result<Self, ShellError> {
        let setup = launcher::Setup {
            netns: plan.netns.clone(),
            attach: plan.group.attach_files(),
            cover_net_core: gvisor.runsc.needs_net_core_cover,
        };
        let setup = serde_json::to_string(&setup)
            .map_err(|e| shell_fault("writing its setup")(e.into()))?;
        let (order_read, order) = pipe().map_err(shell_fault("making a pipe"))?;
        let (answer, answer_write) = pipe().map_err(shell_fault("making a pipe"))?;
        let log = memfd("runsc-log").map_err(shell_fault("making a log"))?;
        let group = plan.group.birth_dir();
        let child = spawn::spawn(
            &gvisor.program,
            &["launcher", &setup],
            [order_read.as_fd(), answer_write.as_fd(), log.as_fd()],
            group.as_deref(),
        )
        .map_err(shell_fault("starting the launcher"))?;
        drop((order_read, answer_write));
        let mut shell = Self {
            runsc: gvisor.runsc.clone(),
            netns: plan.netns,
            group: plan.group,
            child: Some(child),
            order: File::from(order),
            answers: Lines::new(answer).map_err(shell_fault("watching a pipe"))?,
            log,
        };
        match tokio::time::timeout(ARM_DEADLINE, shell.answers.next()).await {
            Ok(Ok(Some(line))) if line == launcher::ARMED => Ok(shell),
            Ok(Err(e)) => Err(shell_fault("reading from the launcher")(e)),
            Ok(Ok(_)) => {
                let what = format!("the launcher ended: {}", tail(&shell.log));
                Err(ShellError {
                    tier: "gvisor",
                    what,
                    source: None,
                })
            }
            Err(_) => {
                let what = format!(
                    "the launcher was not in place after {} s",
                    ARM_DEADLINE.as_secs()
                );
                Err(ShellError {
                    tier: "gvisor",
                    what,
                    source: None,
                })
            }
        }
    }

    async fn run(mut self: Box<Self>, plan: StartPlan) -> Result<Instance, StartError> {
        let fault = |phase| move |source| StartError::Io { phase, source };
        let pid_file = plan.dir.join("pid");
        bundle::write(&plan, &self.netns).map_err(fault("writing the bundle"))?;
        let order = launcher::Order {
            argv: self.runsc.run_args(&plan.dir, &pid_file),
            boot: String::from_utf8_lossy(&plan.boot).into_owned(),
            meminfo: plan.dir.join(bundle::MEMINFO),
            cpus: plan.size.vcpu,
        };
        let mut line =
            serde_json::to_vec(&order).map_err(|e| fault("writing the order")(e.into()))?;
        line.push(b'\n');
        self.order
            .write_all(&line)
            .map_err(fault("ordering the launcher"))?;

        let Some(child) = self.child.as_ref() else {
            return Err(fault("starting")(io::ErrorKind::NotFound.into()));
        };
        let waited = tokio::time::timeout(START_DEADLINE, async {
            let status = child.wait().await.map_err(fault("waiting for runsc"))?;
            if status != 0 {
                return Err(StartError::Exited {
                    program: "runsc",
                    status,
                    log: tail(&self.log),
                });
            }
            let line = self
                .answers
                .next()
                .await
                .map_err(fault("reading from the agent"))?;
            match line.as_deref() {
                Some(boot::READY_LINE) => Ok(()),
                Some(other) => Err(StartError::AgentFailed {
                    reason: other
                        .trim_start_matches(boot::FAILED_PREFIX)
                        .trim()
                        .to_owned(),
                }),
                None => Err(StartError::AgentFailed {
                    reason: format!("it ended: {}", tail(&self.log)),
                }),
            }
        })
        .await;
        match waited {
            Ok(result) => result?,
            Err(_) => {
                return Err(StartError::Silent {
                    seconds: START_DEADLINE.as_secs(),
                    log: tail(&self.log),
                });
            }
        }
        affinity::widen(&self.group);
        let pid = std::fs::read_to_string(&pid_file)
            .and_then(|t| t.trim().parse::<i32>().map_err(io::Error::other))
            .map_err(fault("reading the sentry's pid"))?;
        let process = Process::open(pid).map_err(fault("opening the sentry"))?;
        if !self.group.pids().contains(&pid) {
            // It ended already, and the number is somebody else's by now.
            return Err(fault("finding the sentry in its group")(
                io::ErrorKind::NotFound.into(),
            ));
        }
        Ok(Instance { process })
    }
}

impl Shell for GvisorShell {
    fn start(self: Box<Self>, plan: StartPlan) -> BoxFuture<'static, Result<Instance, StartError>> {
        Box::pin(self.run(plan))
    }
}

impl Drop for GvisorShell {
    fn drop(&mut self) {
        // Unused, given up or done: it has to be ended and reaped in each case. (A reaped one
        // is named by its descriptor, so no other process is met.)
        if let Some(child) = self.child.take() {
            child.kill();
            if let Ok(handle) = tokio::runtime::Handle::try_current() {
                handle.spawn(async move {
                    if let Err(e) = child.wait().await {
                        tracing::debug!(error = %e, "a launcher was reaped elsewhere");
                    }
                });
            }
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

fn memfd(name: &str) -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create(
        name,
        rustix::fs::MemfdFlags::CLOEXEC,
    )?))
}

/// The end of what `runsc` and the launcher wrote to standard error.
fn tail(log: &File) -> String {
    use std::os::unix::fs::FileExt as _;
    let len = log.metadata().map_or(0, |m| m.len());
    let from = len.saturating_sub(LOG_TAIL as u64);
    let mut bytes = vec![0; LOG_TAIL];
    let read = log.read_at(&mut bytes, from).unwrap_or(0);
    bytes.truncate(read);
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Lines from the pipe that first the launcher and then the agent writes to. The agent is
/// the guest's: a line is bounded.
#[derive(Debug)]
struct Lines {
    pipe: tokio::net::unix::pipe::Receiver,
    have: Vec<u8>,
}

/// Longest line taken from the pipe, in bytes.
const MAX_LINE: usize = 4096;

impl Lines {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            pipe: tokio::net::unix::pipe::Receiver::from_owned_fd(fd)?,
            have: Vec::new(),
        })
    }

    async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.have.iter().position(|b| *b == b'\n') {
                let rest = self.have.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.have, rest);
                line.pop();
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            if self.have.len() > MAX_LINE {
                return Err(io::Error::other(
                    "a line of the agent is longer than 4096 bytes",
                ));
            }
            if self.pipe.read_buf(&mut self.have).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Where `runsc` keeps what it knows of the sandbox, below the sandbox's own folder.
fn state_dir(dir: &Path) -> PathBuf {
    dir.join("runsc")
}
