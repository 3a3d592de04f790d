//! The side that is called: asks the broker, carries the terminal and the signals, ends as
//! the command ended. Single-threaded; no runtime.

use std::fs::File;
use std::io::{self, IoSlice, IsTerminal as _, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::termios::{
    OptionalActions, Termios, Winsize, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use super::options::{self, Wish};
use super::request::{MAX_REQUEST, Request};
use super::{SOCKET, answer};

/// Signals that go on to the command. The terminal's own arrive there by the terminal.
const FORWARDED: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
];
/// What sudo ends with when there was no command to end.
const EXIT_OWN: u8 = 1;
/// Bytes of a terminal carried at once.
const PIECE: usize = 16 * 1024;

/// How the command ended.
enum End {
    Code(i32),
    Signal(i32),
}

/// Runs as `sudo`.
pub(crate) fn main() -> ExitCode {
    let environment: Vec<_> = std::env::vars_os().collect();
    let request = match options::parse(std::env::args_os().skip(1), &environment) {
        Ok(Wish::Run(request)) => *request,
        Ok(Wish::Nothing) => return ExitCode::SUCCESS,
        Ok(Wish::Say(text)) => {
            // A reader that went away has what it wanted.
            let _ = io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(text) => return fail(&text),
    };
    match run(request) {
        Ok(End::Code(code)) => ExitCode::from(u8::try_from(code & 0xFF).unwrap_or(u8::MAX)),
        Ok(End::Signal(number)) => {
            die_of(number);
            ExitCode::from(u8::try_from(128 + (number & 0x7F)).unwrap_or(u8::MAX))
        }
        Err(error) => fail(&format!("sudo: {error}")),
    }
}

fn fail(text: &str) -> ExitCode {
    // When standard error is gone, the exit code says it alone.
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::from(EXIT_OWN)
}

/// Ends this process as the command ended, so that a shell sees the same.
fn die_of(number: i32) {
    if let Ok(signal) = Signal::try_from(number) {
        let mut set = SigSet::empty();
        set.add(signal);
        if nix::sys::signal::raise(signal).is_ok() {
            // Delivered here, as it was blocked until now.
            let _ = set.thread_unblock();
        }
    }
}

fn run(mut request: Request) -> io::Result<End> {
    if request.directory.is_empty() {
        request.directory = std::env::current_dir()
            .map_or_else(|_| b"/".to_vec(), |dir| dir.as_os_str().as_bytes().to_vec());
    }
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let own_terminal = stdin.is_terminal() && is_in_front(stdin.as_fd());
    if own_terminal {
        let size = tcgetwinsize(&stdin)?;
        request.terminal = Some((size.ws_col, size.ws_row));
        request.on_terminal = [stdout.is_terminal(), stderr.is_terminal()];
    }
    let body = request.encode();
    if body.len() > MAX_REQUEST {
        return Err(io::Error::other("the command is too long"));
    }

    let signals = catch_signals()?;
    let mut socket = UnixStream::connect(SOCKET)
        .map_err(|e| io::Error::other(format!("the sandbox's agent does not answer: {e}")))?;
    // The broker's greeting: from now on it sees who writes.
    socket.read_exact(&mut [0])?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    send_files(
        &socket,
        &length.to_be_bytes(),
        &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
    )?;
    socket.write_all(&body)?;

    let mut started = [0u8; 5];
    let master = receive(&socket, &mut started)?;
    if started[0] == answer::REFUSED {
        let [_, a, b, c, d] = started;
        let mut text = Vec::new();
        let limit = u64::from(u32::from_be_bytes([a, b, c, d])).min(64 * 1024);
        (&socket).take(limit).read_to_end(&mut text)?;
        return Err(io::Error::other(super::shown(&text)));
    }
    if started[0] != answer::STARTED {
        return Err(io::Error::other("the sandbox's agent answers nonsense"));
    }
    match master {
        None => follow(&socket, &signals, None),
        Some(master) => {
            let raw = Raw::enter()?;
            let done = follow(&socket, &signals, Some(File::from(master)));
            drop(raw);
            done
        }
    }
}

/// In the background a program must leave the terminal's mode alone.
fn is_in_front(terminal: BorrowedFd<'_>) -> bool {
    tcgetpgrp(terminal).is_ok_and(|front| front == rustix::process::getpgrp())
}

fn catch_signals() -> io::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in FORWARDED.into_iter().chain([Signal::SIGWINCH]) {
        set.add(signal);
    }
    set.thread_block()?;
    Ok(SignalFd::with_flags(
        &set,
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?)
}

/// Carries bytes and signals until the broker says how it ended.
fn follow(
    mut socket: &UnixStream,
    signals: &SignalFd,
    mut master: Option<File>,
) -> io::Result<End> {
    let stdin = io::stdin();
    let mut typed = master.is_some();
    let mut ended: Option<End> = None;
    let mut buffer = vec![0u8; PIECE];
    loop {
        // What the terminal still holds is read to its end after the command ended.
        if master.is_none()
            && let Some(end) = ended
        {
            return Ok(end);
        }
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let socket_at = ended.is_none().then(|| {
            fds.push(PollFd::new(socket.as_fd(), PollFlags::POLLIN));
            fds.len() - 1
        });
        let master_at = master.as_ref().map(|master| {
            fds.push(PollFd::new(master.as_fd(), PollFlags::POLLIN));
            fds.len() - 1
        });
        let typed_at = (typed && master.is_some()).then(|| {
            fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
            fds.len() - 1
        });
        let wait = if ended.is_some() {
            PollTimeout::from(DRAIN_MS)
        } else {
            PollTimeout::NONE
        };
        let woken = match poll(&mut fds, wait) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other?,
        };
        let is_ready = |at: Option<usize>| {
            at.is_some_and(|at| fds[at].revents().is_some_and(|r| !r.is_empty()))
        };
        let (signalled, said, shown, written) = (
            is_ready(Some(0)),
            is_ready(socket_at),
            is_ready(master_at),
            is_ready(typed_at),
        );
        drop(fds);
        if woken == 0 {
            // Something else keeps the terminal open; the command is gone.
            master = None;
            continue;
        }
        if shown && let Some(file) = &mut master {
            match file.read(&mut buffer) {
                Ok(0) => master = None,
                Ok(n) => {
                    let mut out = io::stdout();
                    out.write_all(&buffer[..n])?;
                    out.flush()?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The last one that had the terminal open is gone.
                Err(_) => master = None,
            }
        }
        if written && let Some(file) = &mut master {
            match rustix::io::read(&stdin, &mut *buffer)? {
                0 => typed = false,
                // A command that is gone reads nothing; its end is on its way.
                n => typed = file.write_all(&buffer[..n]).is_ok(),
            }
        }
        if signalled {
            while let Ok(Some(info)) = signals.read_signal() {
                let number = i32::try_from(info.ssi_signo).unwrap_or(0);
                match &master {
                    Some(master) if number == libc::SIGWINCH => {
                        let size: Winsize = tcgetwinsize(&stdin)?;
                        tcsetwinsize(master, size)?;
                    }
                    _ if number == libc::SIGWINCH => {}
                    _ => socket.write_all(&[u8::try_from(number).unwrap_or(0)])?,
                }
            }
        }
        if said {
            let mut last = [0u8; 5];
            socket
                .read_exact(&mut last)
                .map_err(|_| io::Error::other("the sandbox's agent went away"))?;
            let [kind, a, b, c, d] = last;
            let number = i32::from_be_bytes([a, b, c, d]);
            ended = Some(if kind == answer::EXITED {
                End::Code(number)
            } else {
                End::Signal(number)
            });
        }
    }
}

/// How long the rest of a terminal's output may stand still after the command ended.
const DRAIN_MS: u8 = 200;

fn send_files(socket: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("no room for the standard files"));
    }
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Reads an answer and the file that may be attached to it.
fn receive(mut socket: &UnixStream, answer: &mut [u8; 5]) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = {
        let mut into = [io::IoSliceMut::new(&mut answer[..])];
        recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes
    };
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    if got == 0 {
        return Err(io::Error::other(
            "you are not a member of the group sudo, or the agent went away",
        ));
    }
    socket.read_exact(&mut answer[got..])?;
    Ok(file)
}

/// Our terminal without a mind of its own; the other one has it.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing more can be done about a terminal that is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}
