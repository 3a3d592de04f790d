//! How a process ended, in the words clients know.

use std::time::Duration;

use crate::sys::Exit;

/// A process's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) exit: Exit,
    pub(crate) cause: Cause,
}

/// Who ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Itself, or a signal from anywhere.
    Itself,
    /// The agent, because the command had a timeout of that length.
    Timeout(Duration),
    /// The agent's memory guard.
    Memory,
}

impl Ending {
    /// -1 when a signal ended it.
    pub(crate) fn code(&self) -> i32 {
        match self.exit {
            Exit::Code(code) => code,
            Exit::Signal { .. } => -1,
        }
    }

    pub(crate) fn is_exit(&self) -> bool {
        matches!(self.exit, Exit::Code(_))
    }

    /// `exit status 1`, `signal: killed`.
    pub(crate) fn status(&self) -> String {
        match self.exit {
            Exit::Code(code) => format!("exit status {code}"),
            Exit::Signal { number, dumped } => {
                let name =
                    signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned);
                let core = if dumped { " (core dumped)" } else { "" };
                format!("signal: {name}{core}")
            }
        }
    }

    /// Why it counts as failed; none when it ended well.
    pub(crate) fn error(&self) -> Option<String> {
        match self.cause {
            Cause::Timeout(limit) => Some(timeout_text(limit)),
            Cause::Memory => Some("killed: the sandbox ran out of memory".into()),
            Cause::Itself if self.exit == Exit::Code(0) => None,
            Cause::Itself => Some(self.status()),
        }
    }
}

/// What a client reads after its command's timeout.
pub(crate) fn timeout_text(limit: Duration) -> String {
    let ms = limit.as_millis();
    if ms.is_multiple_of(1000) {
        format!("killed: command timeout of {} s", ms / 1000)
    } else {
        format!("killed: command timeout of {ms} ms")
    }
}

/// As Go's runtime says it on Linux, which is what clients of E2B have seen.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SIGABRT => "aborted",
        libc::SIGALRM => "alarm clock",
        libc::SIGBUS => "bus error",
        libc::SIGCHLD => "child exited",
        libc::SIGCONT => "continued",
        libc::SIGFPE => "floating point exception",
        libc::SIGHUP => "hangup",
        libc::SIGILL => "illegal instruction",
        libc::SIGINT => "interrupt",
        libc::SIGIO => "I/O possible",
        libc::SIGKILL => "killed",
        libc::SIGPIPE => "broken pipe",
        libc::SIGPROF => "profiling timer expired",
        libc::SIGPWR => "power failure",
        libc::SIGQUIT => "quit",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGSTKFLT => "stack fault",
        libc::SIGSYS => "bad system call",
        libc::SIGTERM => "terminated",
        libc::SIGTRAP => "trace/breakpoint trap",
        libc::SIGUSR1 => "user defined signal 1",
        libc::SIGUSR2 => "user defined signal 2",
        libc::SIGVTALRM => "virtual timer expired",
        libc::SIGXCPU => "CPU time limit exceeded",
        libc::SIGXFSZ => "file size limit exceeded",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(exit: Exit, cause: Cause, expected: (i32, bool, &str, Option<&str>)) {
        let ending = Ending { exit, cause };
        let error = ending.error();
        assert_eq!(
            (
                ending.code(),
                ending.is_exit(),
                ending.status().as_str(),
                error.as_deref()
            ),
            expected
        );
    }

    #[test]
    fn words_of_each_ending() {
        let killed = Exit::Signal {
            number: 9,
            dumped: false,
        };
        check(
            Exit::Code(0),
            Cause::Itself,
            (0, true, "exit status 0", None),
        );
        check(
            Exit::Code(3),
            Cause::Itself,
            (3, true, "exit status 3", Some("exit status 3")),
        );
        check(
            killed,
            Cause::Itself,
            (-1, false, "signal: killed", Some("signal: killed")),
        );
        check(
            killed,
            Cause::Timeout(Duration::from_secs(60)),
            (
                -1,
                false,
                "signal: killed",
                Some("killed: command timeout of 60 s"),
            ),
        );
        check(
            killed,
            Cause::Timeout(Duration::from_millis(1500)),
            (
                -1,
                false,
                "signal: killed",
                Some("killed: command timeout of 1500 ms"),
            ),
        );
        let rare = Exit::Signal {
            number: 34,
            dumped: true,
        };
        check(
            rare,
            Cause::Itself,
            (
                -1,
                false,
                "signal: signal 34 (core dumped)",
                Some("signal: signal 34 (core dumped)"),
            ),
        );
    }
}
