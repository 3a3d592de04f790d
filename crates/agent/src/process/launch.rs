//! From a start request to a running process: directory, environment, program file, pipes
//! or terminal. Blocks for a moment, so it runs on a thread for that.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hearth_wire::rpc::process::ProcessConfig;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::input::{Input, Line};
use super::output::{Channel, Output};
use super::pump::Source;
use super::table::{Process, Table};
use crate::agent::Agent;
use crate::filesystem::path::{Caller, resolve};
use crate::sys::{self, Exit, Program, SpawnError, Step, Terminal};
use crate::users::User;

/// Where programs are looked for when nothing else is said.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Size of a terminal whose client names none.
const DEFAULT_SIZE: Size = Size { cols: 80, rows: 24 };

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) cols: u16,
    pub(crate) rows: u16,
}

impl Size {
    /// Zero counts as the default, and more than a terminal can be as the most it can.
    pub(crate) fn new(cols: u32, rows: u32) -> Self {
        let fit = |wished: u32, default| match wished {
            0 => default,
            wished => u16::try_from(wished).unwrap_or(u16::MAX),
        };
        Self {
            cols: fit(cols, DEFAULT_SIZE.cols),
            rows: fit(rows, DEFAULT_SIZE.rows),
        }
    }
}

/// How the process talks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Talk {
    /// Pipes, standard input empty.
    Output,
    /// Pipes for all three.
    Pipes,
    Terminal(Size),
}

/// What to start.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) config: ProcessConfig,
    pub(crate) tag: Option<String>,
    pub(crate) user: User,
    pub(crate) talk: Talk,
}

/// Started, not yet carried.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) process: Arc<Process>,
    pub(crate) sources: Vec<Source>,
    pub(crate) exit: oneshot::Receiver<Exit>,
}

/// The process was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("{0}")]
    Invalid(String),
    /// A bound of the sandbox's kernel was hit; later it may work.
    #[error("starting '{command}' failed: {reason}")]
    Exhausted { command: String, reason: String },
    #[error("starting '{command}' failed: {reason}")]
    Internal { command: String, reason: String },
}

/// Starts what `order` says and enters it into the table.
///
/// # Errors
/// [`LaunchError`].
pub(crate) fn launch(agent: &Agent, table: &Table, order: Order) -> Result<Started, LaunchError> {
    let Order {
        config,
        tag,
        user,
        talk,
    } = order;
    if config.cmd.is_empty() {
        return Err(LaunchError::Invalid("process.cmd is empty".into()));
    }
    let directory = directory(agent, &user, config.cwd.as_deref().unwrap_or_default())?;
    let environment = environment(agent, &user, &config)?;
    let search = environment.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let candidates = candidates(&config.cmd, &directory, search)?;
    let arguments = std::iter::once(&config.cmd)
        .chain(&config.args)
        .map(|argument| text(argument, "an argument"))
        .collect::<Result<Vec<_>, _>>()?;
    let variables = environment
        .iter()
        .map(|(name, value)| text(format!("{name}={value}"), "an environment variable"))
        .collect::<Result<Vec<_>, _>>()?;
    let place = text(directory.as_os_str(), "cwd")?;

    let failed = |error: io::Error| refuse(&config.cmd, Step::Clone, &error, &directory);
    let Lines { theirs, ours } = Lines::open(talk, &user).map_err(failed)?;
    let program = Program {
        candidates: &candidates,
        arguments: &arguments,
        environment: &variables,
        directory: &place,
        stdin: theirs.stdin.as_fd(),
        stdout: theirs.stdout(),
        stderr: theirs.stderr(),
        terminal: match talk {
            Talk::Terminal(_) => Terminal::Stdin,
            Talk::Output | Talk::Pipes => Terminal::None,
        },
        uid: user.uid,
        gid: user.gid,
        groups: &user.groups,
        confines: agent.confines(),
    };
    // Registered with the event loop before there is a process that a failure would orphan.
    let output = Output::new(Arc::clone(&table.budget));
    let (input, sources) = ours.attach().map_err(failed)?;
    let (pid, exit) = table
        .reaper
        .spawn(&program)
        .map_err(|SpawnError { step, source }| refuse(&config.cmd, step, &source, &directory))?;
    let pid = u32::try_from(pid).unwrap_or_default();
    tracing::info!(pid, command = config.cmd, args = ?config.args, user = user.name, "process started");
    let process = Arc::new(Process::new(pid, tag, config, user.name, input, output));
    table.insert(Arc::clone(&process));
    Ok(Started {
        process,
        sources,
        exit,
    })
}

fn text(value: impl AsRef<OsStr>, what: &str) -> Result<CString, LaunchError> {
    CString::new(value.as_ref().as_bytes())
        .map_err(|_| LaunchError::Invalid(format!("{what} contains a NUL byte")))
}

/// The directory the process starts in. One that the request names must be there; a default
/// that is missing gives way to `/`, as for a login.
fn directory(agent: &Agent, user: &User, wished: &str) -> Result<PathBuf, LaunchError> {
    let caller = Caller::new(user.clone(), agent);
    let path = resolve(wished, &caller)
        .map_err(|error| LaunchError::Invalid(format!("cwd '{}': {error}", shorten(wished))))?;
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => Ok(path),
        _ if wished.is_empty() => Ok(PathBuf::from("/")),
        Ok(_) => Err(LaunchError::Invalid(format!(
            "cwd '{}' is not a directory",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LaunchError::Invalid(
            format!("cwd '{}' does not exist", path.display()),
        )),
        Err(error) => Err(LaunchError::Invalid(format!(
            "cwd '{}' cannot be entered: {error}",
            path.display()
        ))),
    }
}

/// The user's variables, then the sandbox's, then the request's: later wins.
fn environment(
    agent: &Agent,
    user: &User,
    config: &ProcessConfig,
) -> Result<BTreeMap<String, String>, LaunchError> {
    let mut all = BTreeMap::from([
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
        ("HOME".to_owned(), user.home.to_string_lossy().into_owned()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
    ]);
    all.extend(agent.boot.env.clone());
    for (name, value) in &config.envs {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(LaunchError::Invalid(format!(
                "process.envs has the name '{}'; a name is not empty and has no '=' and no NUL",
                shorten(&name.replace('\0', "\\0"))
            )));
        }
        all.insert(name.clone(), value.clone());
    }
    Ok(all)
}

/// The files that `command` may mean, in the order of `search`.
fn candidates(command: &str, directory: &Path, search: &str) -> Result<Vec<CString>, LaunchError> {
    if command.contains('/') {
        return Ok(vec![text(directory.join(command), "process.cmd")?]);
    }
    search
        .split(':')
        // An empty part means the current directory.
        .map(|part| text(directory.join(part).join(command), "process.cmd"))
        .collect()
}

fn shorten(value: &str) -> String {
    value.chars().take(128).collect()
}

/// Sorts a failure: what the caller asked for, what the sandbox has run out of, the rest.
fn refuse(command: &str, step: Step, error: &io::Error, directory: &Path) -> LaunchError {
    let command = shorten(command);
    let errno = error.raw_os_error().unwrap_or_default();
    let exhausted = [
        libc::EAGAIN,
        libc::ENOMEM,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOSPC,
    ];
    if exhausted.contains(&errno) {
        let reason = format!("the sandbox is out of processes, files, memory or disk ({error})");
        return LaunchError::Exhausted { command, reason };
    }
    match step {
        Step::Directory => LaunchError::Invalid(format!(
            "cwd '{}' cannot be entered: {error}",
            directory.display()
        )),
        Step::Execute if errno == libc::ENOENT => {
            LaunchError::Invalid(format!("command '{command}' not found"))
        }
        Step::Execute => LaunchError::Invalid(format!("command '{command}' cannot run: {error}")),
        Step::Clone
        | Step::Session
        | Step::Terminal
        | Step::Group
        | Step::Descriptors
        | Step::User => LaunchError::Internal {
            command,
            reason: format!("{step:?}: {error}"),
        },
    }
}

/// The descriptors of a new process, theirs and ours.
#[derive(Debug)]
struct Lines {
    theirs: Theirs,
    ours: Ours,
}

#[derive(Debug)]
struct Theirs {
    stdin: OwnedFd,
    /// None: the same as standard input, a terminal.
    outputs: Option<(OwnedFd, OwnedFd)>,
}

#[derive(Debug)]
enum Ours {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    Terminal(OwnedFd),
}

impl Lines {
    fn open(talk: Talk, user: &User) -> io::Result<Self> {
        if let Talk::Terminal(size) = talk {
            let (master, slave) = sys::open_terminal()?;
            sys::resize_terminal(master.as_fd(), size.cols, size.rows)?;
            hand_over(&slave, user);
            return Ok(Self {
                theirs: Theirs {
                    stdin: slave,
                    outputs: None,
                },
                ours: Ours::Terminal(master),
            });
        }
        let (stdin, our_stdin) = match talk {
            Talk::Pipes => {
                let (theirs, ours) = pipe()?;
                (theirs, Some(ours))
            }
            Talk::Output | Talk::Terminal(_) => (std::fs::File::open("/dev/null")?.into(), None),
        };
        let (our_stdout, stdout) = pipe()?;
        let (our_stderr, stderr) = pipe()?;
        for theirs in our_stdin
            .is_some()
            .then_some(&stdin)
            .into_iter()
            .chain([&stdout, &stderr])
        {
            hand_over(theirs, user);
        }
        Ok(Self {
            theirs: Theirs {
                stdin,
                outputs: Some((stdout, stderr)),
            },
            ours: Ours::Pipes {
                stdin: our_stdin,
                stdout: our_stdout,
                stderr: our_stderr,
            },
        })
    }
}

/// Programs open their own files again by name (`/dev/stderr`, a terminal's path), which
/// only the owner may. Not every kernel has an owner here.
fn hand_over(fd: &OwnedFd, user: &User) {
    let uid = rustix::fs::Uid::from_raw(user.uid);
    let gid = rustix::fs::Gid::from_raw(user.gid);
    if let Err(error) = rustix::fs::fchown(fd, Some(uid), Some(gid)) {
        tracing::debug!(%error, "a file of a process keeps its owner");
    }
}

impl Theirs {
    fn stdout(&self) -> BorrowedFd<'_> {
        match &self.outputs {
            Some((stdout, _)) => stdout.as_fd(),
            None => self.stdin.as_fd(),
        }
    }

    fn stderr(&self) -> BorrowedFd<'_> {
        match &self.outputs {
            Some((_, stderr)) => stderr.as_fd(),
            None => self.stdin.as_fd(),
        }
    }
}

impl Ours {
    /// Hands our ends to the event loop.
    fn attach(self) -> io::Result<(Input, Vec<Source>)> {
        match self {
            Self::Pipes {
                stdin,
                stdout,
                stderr,
            } => {
                let line = match stdin {
                    None => Line::Nothing,
                    Some(fd) => Line::Pipe(watched(fd)?),
                };
                let source = |channel, fd| -> io::Result<Source> {
                    let fd = Arc::new(watched(fd)?);
                    Ok(Source { channel, fd })
                };
                let sources = vec![
                    source(Channel::Stdout, stdout)?,
                    source(Channel::Stderr, stderr)?,
                ];
                Ok((Input::new(line), sources))
            }
            Self::Terminal(master) => {
                let master = Arc::new(watched(master)?);
                let source = Source {
                    channel: Channel::Terminal,
                    fd: Arc::clone(&master),
                };
                Ok((Input::new(Line::Terminal(master)), vec![source]))
            }
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC)?)
}

fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    sys::watch(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &str, search: &str, expected: &[&str]) {
        let found = candidates(command, Path::new("/work"), search).unwrap();
        let found: Vec<_> = found.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(found, expected, "{command} in {search}");
    }

    #[test]
    fn programs_are_searched_as_shells_do() {
        check("ls", "/a:/b", &["/a/ls", "/b/ls"]);
        check("ls", "/a::b", &["/a/ls", "/work/ls", "/work/b/ls"]);
        check("./ls", "/a", &["/work/./ls"]);
        check("/bin/ls", "/a", &["/bin/ls"]);
        candidates("a\0b", Path::new("/"), "/a").unwrap_err();
    }

    #[test]
    fn sizes_fit() {
        let size = Size::new(0, 100_000);
        assert_eq!((size.cols, size.rows), (80, u16::MAX));
    }
}
