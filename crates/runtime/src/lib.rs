//! The port between a node and what isolates a sandbox.
//!
//! A [`Runtime`] makes a [`Shell`] ahead of need (everything slow that does not depend on
//! the sandbox) and a shell starts an [`Instance`] once. An instance is a process on the
//! host, named by pid and start time; it lives on when the server does not, and is ended
//! through its control group. Tiers differ behind the two traits and nowhere else; what
//! they all must do is written down in [`conformance`].

pub mod conformance;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use hearth_host::cgroup::Group;
use hearth_host::process::Process;
use hearth_model::sandbox::Size;

/// A boxed future: the traits are used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a tier is, for people and for every sandbox object.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Capabilities {
    /// `gvisor`.
    pub tier: &'static str,
    /// The boundary in one sentence.
    pub boundary: &'static str,
    /// Version of the program that draws the boundary.
    pub version: String,
}

/// What a shell needs: a control group to be in and a network namespace to enter.
#[derive(Debug, Clone)]
pub struct ShellPlan {
    pub group: Group,
    pub netns: PathBuf,
}

/// File in a sandbox's folder into which its tier may write why it gave up.
pub const LAST_WORDS: &str = "last-words";

/// What a start needs beyond the shell.
#[derive(Debug, Clone)]
pub struct StartPlan {
    /// Scratch folder of this sandbox on the host; removed with it.
    pub dir: PathBuf,
    /// The sandbox's root disk, mounted.
    pub root: PathBuf,
    /// The agent's program on the host.
    pub agent: PathBuf,
    pub hostname: String,
    pub size: Size,
    /// What the agent reads on its standard input. Holds secrets: never a file, never an argument.
    pub boot: Vec<u8>,
}

/// A shell could not be made.
#[derive(Debug, thiserror::Error)]
#[error("making a {tier} shell: {what}")]
pub struct ShellError {
    pub tier: &'static str,
    pub what: String,
    #[source]
    pub source: Option<std::io::Error>,
}

/// A start failed. The shell is gone; what is left in the control group is the caller's to kill.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{phase}")]
    Io {
        phase: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} ended with status {status}: {log}")]
    Exited {
        program: &'static str,
        status: i32,
        log: String,
    },
    #[error("the agent refused to serve: {reason}")]
    AgentFailed { reason: String },
    #[error("no answer from the agent within {seconds} s: {log}")]
    Silent { seconds: u64, log: String },
}

/// A tier.
pub trait Runtime: Send + Sync + std::fmt::Debug {
    fn capabilities(&self) -> &Capabilities;

    /// Makes a shell: the slow part of a start, done ahead of need.
    fn shell(&self, plan: ShellPlan) -> BoxFuture<'_, Result<Box<dyn Shell>, ShellError>>;
}

/// A start, ready to go. Dropping it unused ends its process.
pub trait Shell: Send + std::fmt::Debug {
    /// Starts the sandbox and returns when its agent serves.
    fn start(self: Box<Self>, plan: StartPlan) -> BoxFuture<'static, Result<Instance, StartError>>;
}

/// A running sandbox: the process whose end is the sandbox's end.
#[derive(Debug)]
pub struct Instance {
    pub process: Process,
}
