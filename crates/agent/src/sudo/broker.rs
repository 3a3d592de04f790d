//! The side that can: runs in the agent, as root. It believes the kernel about who asks and
//! nobody about anything else.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::oneshot;

use super::request::{MAX_REQUEST, Mode, Request};
use super::{SOCKET, answer, shown};
use crate::agent::Agent;
use crate::filesystem::open_plain;
use crate::sys::{self, Exit, Program, SpawnError, Step, Terminal};
use crate::users;

/// Commands at once. The guest's processes are bounded anyway; this bounds the agent's files.
const MAX_COMMANDS: usize = 1024;
/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept: out of files, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is read of `/etc/passwd` and `/etc/group` at most, in bytes.
const MAX_TABLE: u64 = 1024 * 1024;
/// Groups whose members administer.
const ADMINISTRATORS: [&str; 3] = ["sudo", "wheel", "admin"];
/// Where a command without a slash is looked for, whatever the caller's PATH.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The broker of one agent.
#[derive(Debug, Clone)]
struct Broker {
    agent: Arc<Agent>,
}

/// Begins to listen. `/.hearth` is made by the template and is root's.
///
/// # Errors
/// The kernel's.
pub(crate) fn listen() -> io::Result<UnixListener> {
    match std::fs::remove_file(SOCKET) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(SOCKET)?;
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o666))?;
    rustix::net::sockopt::set_socket_passcred(&listener, true)?;
    Ok(listener)
}

/// Serves for ever.
pub(crate) async fn serve(listener: UnixListener, agent: Arc<Agent>) {
    let broker = Broker { agent };
    let room = Arc::new(Semaphore::new(MAX_COMMANDS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "sudo: accepting failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Over the bound the caller's connection is closed, and it says so.
        if let Ok(place) = Arc::clone(&room).try_acquire_owned() {
            let broker = broker.clone();
            tokio::spawn(async move {
                if let Err(error) = broker.answer(stream).await {
                    tracing::debug!(%error, "sudo: a caller went away");
                }
                drop(place);
            });
        }
    }
}

/// Why a command does not run; the caller sees it behind `sudo: `.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{name} is not in the sudoers: no member of the groups sudo, wheel or admin")]
    Stranger { name: String },
    #[error("unknown user {name}")]
    NoUser { name: String },
    #[error("unknown group {name}")]
    NoGroup { name: String },
    #[error("{command}: command not found")]
    NotFound { command: String },
    #[error("unable to execute {command}: {source}")]
    Spawn {
        command: String,
        #[source]
        source: SpawnError,
    },
    #[error("no terminal: {0}")]
    NoTerminal(#[source] io::Error),
    #[error("the request makes no sense")]
    Nonsense,
    #[error("reading {table} failed: {source}")]
    Table {
        table: &'static str,
        #[source]
        source: io::Error,
    },
}

/// A caller, as the kernel names it, with the standard files it brought.
struct Caller {
    uid: u32,
    gid: u32,
    files: [OwnedFd; 3],
}

/// A command that runs.
struct Started {
    pid: i32,
    end: oneshot::Receiver<Exit>,
    master: Option<OwnedFd>,
}

impl Broker {
    async fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        rustix::net::sockopt::set_socket_passcred(&stream, true)?;
        let hearing = async {
            stream.write_all(b"+").await?;
            let (caller, length) = hear(&stream).await?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MAX_REQUEST {
                return Err(io::Error::other("the request is too long"));
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            Ok((caller, body))
        };
        let (caller, body) = tokio::time::timeout(PATIENCE, hearing)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let broker = self.clone();
        let outcome = tokio::task::spawn_blocking(move || {
            let request = Request::decode(&body).ok_or(Refusal::Nonsense)?;
            broker.start(&caller, &request)
        })
        .await
        .map_err(io::Error::other)?;
        match outcome {
            Ok(started) => self.follow(stream, started).await,
            Err(refusal) => {
                let text = refusal.to_string();
                let length = u32::try_from(text.len()).unwrap_or(0);
                let mut out = vec![answer::REFUSED];
                out.extend(length.to_be_bytes());
                out.extend(text.into_bytes());
                stream.write_all(&out).await
            }
        }
    }

    /// Passes signals on and tells the end. When the caller is gone before, it was killed:
    /// so is what it ran.
    async fn follow(&self, mut stream: UnixStream, mut started: Started) -> io::Result<()> {
        let pid = started.pid;
        let told = tell_started(&stream, started.master.as_ref()).await;
        drop(started.master.take());
        if let Err(error) = told {
            self.kill(pid);
            return Err(error);
        }
        let mut signals = [0u8; 16];
        loop {
            tokio::select! {
                exit = &mut started.end => {
                    let (kind, number) = match exit {
                        Ok(Exit::Code(code)) => (answer::EXITED, code),
                        Ok(Exit::Signal { number, .. }) => (answer::KILLED, number),
                        Err(_) => (answer::KILLED, libc::SIGKILL),
                    };
                    let mut out = vec![kind];
                    out.extend(number.to_be_bytes());
                    return stream.write_all(&out).await;
                }
                read = stream.read(&mut signals) => match read {
                    Ok(0) | Err(_) => {
                        self.kill(pid);
                        return Ok(());
                    }
                    Ok(n) => {
                        for number in &signals[..n] {
                            if let Ok(signal) = Signal::try_from(i32::from(*number)) {
                                self.agent.processes.reaper.signal(pid, signal);
                            }
                        }
                    }
                },
            }
        }
    }

    fn kill(&self, pid: i32) {
        self.agent.processes.reaper.signal(pid, Signal::SIGKILL);
    }

    fn start(&self, caller: &Caller, request: &Request) -> Result<Started, Refusal> {
        let tables = Tables::read()?;
        let asking = tables.by_uid(caller.uid);
        if !tables.may(caller.uid, caller.gid, asking.as_ref()) {
            let name = asking.map_or_else(|| format!("uid {}", caller.uid), |a| a.name);
            return Err(Refusal::Stranger { name });
        }
        let no_user = || Refusal::NoUser {
            name: shown(&request.user),
        };
        let target = match &request.user[..] {
            b"" => tables.by_uid(0).ok_or_else(no_user)?,
            name => match number(name) {
                Some(uid) => tables.by_uid(uid).unwrap_or_else(|| Account::nameless(uid)),
                None => tables.by_name(&shown(name)).ok_or_else(no_user)?,
            },
        };
        let mut groups =
            users::find(&target.name).map_or_else(|_| vec![target.gid], |user| user.groups);
        let mut gid = target.gid;
        if !request.group.is_empty() {
            gid = number(&request.group)
                .or_else(|| tables.group(&shown(&request.group)))
                .ok_or_else(|| Refusal::NoGroup {
                    name: shown(&request.group),
                })?;
            groups.insert(0, gid);
        }

        let command = Line::of(request, &target)?;
        let environment = environment(request, &target, asking.as_ref(), caller, &command);
        let home = target.home.as_str();
        let directory = if request.mode == Mode::Login {
            home.as_bytes()
        } else {
            &request.directory
        };
        let directory = CString::new(directory).map_err(|_| Refusal::Nonsense)?;

        let terminal = match request.terminal {
            None => None,
            Some((cols, rows)) => {
                let (master, slave) = sys::open_terminal().map_err(Refusal::NoTerminal)?;
                sys::resize_terminal(master.as_fd(), cols, rows).map_err(Refusal::NoTerminal)?;
                Some((master, slave))
            }
        };
        let slave = terminal.as_ref().map(|(_, slave)| slave.as_fd());
        let [stdin, stdout, stderr] = &caller.files;
        let mut program = Program {
            candidates: &command.candidates,
            arguments: &command.arguments,
            environment: &environment,
            directory: &directory,
            stdin: slave.unwrap_or_else(|| stdin.as_fd()),
            stdout: pick(slave, request.on_terminal[0], stdout),
            stderr: pick(slave, request.on_terminal[1], stderr),
            terminal: if slave.is_some() {
                Terminal::Stdin
            } else {
                Terminal::None
            },
            uid: target.uid,
            gid,
            groups: &groups,
            confines: self.agent.confines(),
        };
        let mut outcome = self.agent.processes.reaper.spawn(&program);
        if matches!(&outcome, Err(e) if e.step == Step::Directory) {
            // A folder that is gone or closed to the target: the command still runs.
            program.directory = c"/";
            outcome = self.agent.processes.reaper.spawn(&program);
        }
        match outcome {
            Ok((pid, end)) => {
                tracing::info!(
                    pid,
                    uid = caller.uid,
                    target = target.uid,
                    "sudo started a command"
                );
                Ok(Started {
                    pid,
                    end,
                    master: terminal.map(|(master, _)| master),
                })
            }
            Err(error)
                if error.step == Step::Execute
                    && error.source.raw_os_error() == Some(libc::ENOENT) =>
            {
                Err(Refusal::NotFound {
                    command: command.name,
                })
            }
            Err(source) => Err(Refusal::Spawn {
                command: command.name,
                source,
            }),
        }
    }
}

fn pick<'a>(slave: Option<BorrowedFd<'a>>, on_terminal: bool, file: &'a OwnedFd) -> BorrowedFd<'a> {
    slave
        .filter(|_| on_terminal)
        .unwrap_or_else(|| file.as_fd())
}

/// The first bytes of a caller: a length, with its identity and its files attached.
async fn hear(stream: &UnixStream) -> io::Result<(Caller, u32)> {
    stream
        .async_io(Interest::READABLE, || {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8), ScmCredentials(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut length = [0u8; 4];
            let got = recvmsg(
                stream,
                &mut [io::IoSliceMut::new(&mut length)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )?
            .bytes;
            let mut who = None;
            let mut files = Vec::new();
            for message in control.drain() {
                match message {
                    RecvAncillaryMessage::ScmCredentials(ids) => {
                        who = Some((ids.uid.as_raw(), ids.gid.as_raw()))
                    }
                    RecvAncillaryMessage::ScmRights(brought) => files.extend(brought),
                    _ => {}
                }
            }
            match (who, <[OwnedFd; 3]>::try_from(files)) {
                (Some((uid, gid)), Ok(files)) if got == length.len() => {
                    Ok((Caller { uid, gid, files }, u32::from_be_bytes(length)))
                }
                _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
            }
        })
        .await
}

async fn tell_started(stream: &UnixStream, master: Option<&OwnedFd>) -> io::Result<()> {
    stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let file = master.map(|master| [master.as_fd()]);
            if let Some(file) = &file {
                control.push(SendAncillaryMessage::ScmRights(file));
            }
            let bytes = [answer::STARTED, 0, 0, 0, 0];
            sendmsg(
                stream,
                &[IoSlice::new(&bytes)],
                &mut control,
                SendFlags::NOSIGNAL,
            )?;
            Ok(())
        })
        .await
}

/// `#1000`.
fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text.strip_prefix(b"#")?)
        .ok()?
        .parse()
        .ok()
}

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
    shell: String,
}

impl Account {
    fn nameless(uid: u32) -> Self {
        Self {
            name: format!("#{uid}"),
            uid,
            gid: 0,
            home: "/".into(),
            shell: "/bin/sh".into(),
        }
    }
}

/// The sandbox's users and groups, as they are now.
#[derive(Debug)]
struct Tables {
    accounts: Vec<Account>,
    /// Name, number and members.
    groups: Vec<(String, u32, Vec<String>)>,
}

impl Tables {
    fn read() -> Result<Self, Refusal> {
        let table = |table: &'static str| {
            read_table(table).map_err(|source| Refusal::Table { table, source })
        };
        Ok(Self::parse(&table("/etc/passwd")?, &table("/etc/group")?))
    }

    fn parse(passwd: &str, group: &str) -> Self {
        let accounts = passwd.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, shell] = fields[..] else {
                return None;
            };
            let or = |text: &str, other: &str| {
                if text.starts_with('/') {
                    text.to_owned()
                } else {
                    other.to_owned()
                }
            };
            Some(Account {
                name: name.to_owned(),
                uid: uid.parse().ok()?,
                gid: gid.parse().ok()?,
                home: or(home, "/"),
                shell: or(shell, "/bin/sh"),
            })
        });
        let groups = group.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, gid, members] = fields[..] else {
                return None;
            };
            Some((
                name.to_owned(),
                gid.parse().ok()?,
                members.split(',').map(str::to_owned).collect(),
            ))
        });
        Self {
            accounts: accounts.collect(),
            groups: groups.collect(),
        }
    }

    fn by_uid(&self, uid: u32) -> Option<Account> {
        self.accounts.iter().find(|a| a.uid == uid).cloned()
    }

    fn by_name(&self, name: &str) -> Option<Account> {
        self.accounts.iter().find(|a| a.name == name).cloned()
    }

    fn group(&self, name: &str) -> Option<u32> {
        self.groups
            .iter()
            .find(|(n, ..)| n == name)
            .map(|(_, gid, _)| *gid)
    }

    /// Root, and members of the groups that administer, by number or by name.
    fn may(&self, uid: u32, gid: u32, asking: Option<&Account>) -> bool {
        uid == 0
            || self
                .groups
                .iter()
                .filter(|(name, ..)| ADMINISTRATORS.contains(&name.as_str()))
                .any(|(_, number, members)| {
                    *number == gid
                        || asking.is_some_and(|a| a.gid == *number || members.contains(&a.name))
                })
    }
}

fn read_table(path: &str) -> io::Result<String> {
    let file = open_plain(Path::new(path))?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_TABLE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A command line, ready to be executed.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// As an error names it.
    name: String,
    candidates: Vec<CString>,
    arguments: Vec<CString>,
}

impl Line {
    fn of(request: &Request, target: &Account) -> Result<Self, Refusal> {
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Refusal::Nonsense);
        if request.mode == Mode::Command {
            let program = request.command.first().ok_or(Refusal::Nonsense)?;
            let candidates = if program.contains(&b'/') {
                vec![text(program)?]
            } else {
                let at = |dir: &str| text(&[dir.as_bytes(), b"/", program].concat());
                SEARCH.split(':').map(at).collect::<Result<_, _>>()?
            };
            // An empty name would name the folders themselves.
            if program.is_empty() {
                return Err(Refusal::NotFound {
                    command: String::new(),
                });
            }
            let arguments = request
                .command
                .iter()
                .map(|a| text(a))
                .collect::<Result<_, _>>()?;
            return Ok(Self {
                name: shown(program),
                candidates,
                arguments,
            });
        }
        let shell = target.shell.as_str();
        let base = shell.rsplit('/').next().unwrap_or(shell);
        let zeroth = if request.mode == Mode::Login {
            format!("-{base}")
        } else {
            shell.to_owned()
        };
        let mut arguments = vec![text(zeroth.as_bytes())?];
        if !request.command.is_empty() {
            arguments.push(c"-c".to_owned());
            arguments.push(text(&quoted(&request.command))?);
        }
        Ok(Self {
            name: shell.to_owned(),
            candidates: vec![text(shell.as_bytes())?],
            arguments,
        })
    }
}

/// The words as one line for a shell, each character taken as it is; `$` is left to the
/// shell, as sudo leaves it.
fn quoted(words: &[Vec<u8>]) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        if !line.is_empty() {
            line.push(b' ');
        }
        if word.is_empty() {
            line.extend(b"''");
        }
        for byte in word {
            if !byte.is_ascii_alphanumeric() && *byte < 0x80 && !b"_-$".contains(byte) {
                line.push(b'\\');
            }
            line.push(*byte);
        }
    }
    line
}

fn environment(
    request: &Request,
    target: &Account,
    asking: Option<&Account>,
    caller: &Caller,
    command: &Line,
) -> Vec<CString> {
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut put = |name: &str, value: &[u8]| {
        all.insert(name.as_bytes().to_vec(), value.to_vec());
    };
    put("PATH", SEARCH.as_bytes());
    put("HOME", target.home.as_bytes());
    put("SHELL", target.shell.as_bytes());
    put("USER", target.name.as_bytes());
    put("LOGNAME", target.name.as_bytes());
    put("MAIL", format!("/var/mail/{}", target.name).as_bytes());
    put("SUDO_USER", asking.map_or(b"", |a| a.name.as_bytes()));
    put("SUDO_UID", caller.uid.to_string().as_bytes());
    put("SUDO_GID", caller.gid.to_string().as_bytes());
    put("SUDO_COMMAND", command.name.as_bytes());
    for variable in &request.environment {
        if let Some(at) = variable
            .iter()
            .position(|b| *b == b'=')
            .filter(|at| *at > 0)
        {
            all.insert(variable[..at].to_vec(), variable[at + 1..].to_vec());
        }
    }
    // None holds a NUL: requests with one were refused, and tables have lines.
    all.into_iter()
        .filter_map(|(name, value)| CString::new([&name[..], b"=", &value].concat()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\nother:x:1001:1001::/home/other:\nwheeler:x:1002:10::relative:/bin/zsh\nbroken:x:a:b\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:user,nobody\nwheel:x:10:\nuser:x:1000:\nother:x:1001:\n";

    #[test]
    fn only_administrators_may() {
        let tables = Tables::parse(PASSWD, GROUP);
        let check = |uid: u32, gid: u32, expected: bool| {
            assert_eq!(
                tables.may(uid, gid, tables.by_uid(uid).as_ref()),
                expected,
                "{uid}:{gid}"
            );
        };
        check(0, 0, true);
        check(1000, 1000, true);
        check(1001, 1001, false);
        // By the group of the process, and by that of the account.
        check(1001, 27, true);
        check(1002, 1002, true);
        check(4242, 4242, false);
        assert_eq!(tables.by_name("broken"), None);
        assert_eq!(tables.by_name("wheeler").unwrap().home, "/");
        assert_eq!(tables.by_name("other").unwrap().shell, "/bin/sh");
    }

    fn line(mode: Mode, words: &[&str]) -> Result<Line, Refusal> {
        let tables = Tables::parse(PASSWD, GROUP);
        let command = words.iter().map(|w| w.as_bytes().to_vec()).collect();
        Line::of(
            &Request {
                mode,
                command,
                ..Request::default()
            },
            &tables.by_uid(0).unwrap(),
        )
    }

    #[test]
    fn commands_are_searched_in_fixed_folders() {
        let found = line(Mode::Command, &["id", "-u"]).unwrap();
        assert_eq!(
            found.candidates.first().unwrap().as_c_str(),
            c"/usr/local/sbin/id"
        );
        assert_eq!(found.arguments, [c"id".to_owned(), c"-u".to_owned()]);
        assert_eq!(
            line(Mode::Command, &["./x"]).unwrap().candidates,
            [c"./x".to_owned()]
        );
        assert!(line(Mode::Command, &[""]).is_err());
    }

    #[test]
    fn shells_get_the_words_back_as_they_were() {
        let login = line(Mode::Login, &["echo", "a b", "", "$HOME", "it's"]).unwrap();
        assert_eq!(
            login.arguments,
            [
                c"-bash".to_owned(),
                c"-c".to_owned(),
                c"echo a\\ b '' $HOME it\\'s".to_owned()
            ]
        );
        assert_eq!(
            line(Mode::Shell, &[]).unwrap().arguments,
            [c"/bin/bash".to_owned()]
        );
    }

    #[test]
    fn numbers_of_users() {
        assert_eq!(number(b"#1000"), Some(1000));
        assert_eq!(number(b"1000"), None);
        assert_eq!(number(b"#x"), None);
    }
}
