//! The command line of `sudo(8)`, as far as it means something without passwords.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::request::{Mode, Request};

/// What a command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Run(Box<Request>),
    /// Something that is answered without the broker: text for standard output.
    Say(String),
    /// A password to renew or to forget, and there is none.
    Nothing,
}

const USAGE: &str =
    "usage: sudo [-EHins] [-u user] [-g group] [-D directory] [VAR=value] [command [arg ...]]";

/// Options of one letter that need a value which is of no use here.
const VALUES_IGNORED: &[u8] = b"CRTUprthac";
/// Options of one letter that change nothing here: there is no password to ask for, and a
/// command has its own process group anyway.
const IGNORED: &[u8] = b"ABNPSbkn";

/// Variables that pass by themselves, beside those that begin with `LC_`.
const KEPT: [&[u8]; 9] = [
    b"TERM",
    b"COLORTERM",
    b"LANG",
    b"LANGUAGE",
    b"TZ",
    b"DISPLAY",
    b"XAUTHORITY",
    b"LS_COLORS",
    b"NO_COLOR",
];
/// Variables that are the target's own even with `-E`.
const NEVER_KEPT: [&[u8]; 5] = [b"PATH", b"USER", b"LOGNAME", b"SHELL", b"MAIL"];

/// Reads the arguments behind the program's name. `environment` is the caller's.
///
/// # Errors
/// What is wrong, for standard error.
pub(super) fn parse(
    arguments: impl Iterator<Item = OsString>,
    environment: &[(OsString, OsString)],
) -> Result<Wish, String> {
    let mut arguments = arguments.map(OsString::into_vec).peekable();
    let mut request = Request::default();
    let (mut keep_all, mut set_home) = (false, false);
    let mut kept_names: Vec<Vec<u8>> = Vec::new();
    let mut settles_alone: Option<u8> = None;
    while let Some(word) = arguments.next_if(|word| word.starts_with(b"-") && word.len() > 1) {
        if word == b"--" {
            break;
        }
        if let Some(long) = word.strip_prefix(b"--") {
            let (name, given) = match long.iter().position(|b| *b == b'=') {
                Some(at) => (&long[..at], Some(long[at + 1..].to_vec())),
                None => (long, None),
            };
            let mut value = || {
                given.clone().or_else(|| arguments.next()).ok_or_else(|| {
                    format!(
                        "sudo: option '--{}' needs a value\n{USAGE}",
                        super::shown(name)
                    )
                })
            };
            match name {
                b"user" => request.user = value()?,
                b"group" => request.group = value()?,
                b"chdir" => request.directory = value()?,
                b"preserve-env" => match given {
                    Some(names) => {
                        kept_names.extend(names.split(|b| *b == b',').map(<[u8]>::to_vec))
                    }
                    None => keep_all = true,
                },
                b"login" => request.mode = Mode::Login,
                b"shell" => request.mode = Mode::Shell,
                b"set-home" => set_home = true,
                b"validate" => settles_alone = Some(b'v'),
                b"remove-timestamp" => settles_alone = Some(b'K'),
                b"list" => settles_alone = Some(b'l'),
                b"help" => settles_alone = Some(b'h'),
                b"version" => settles_alone = Some(b'V'),
                b"non-interactive" | b"stdin" | b"askpass" | b"background" | b"bell"
                | b"preserve-groups" | b"reset-timestamp" | b"no-update" => {}
                b"prompt" | b"close-from" | b"host" | b"command-timeout" | b"other-user"
                | b"chroot" => {
                    value()?;
                }
                other => return Err(unknown(&format!("--{}", super::shown(other)))),
            }
            continue;
        }
        let mut letters = word[1..].iter().enumerate();
        while let Some((at, letter)) = letters.next() {
            let is_alone = word.len() == 2 && arguments.peek().is_none();
            let mut value = || {
                // What follows in the word, else the next word.
                let attached = word[1..][at + 1..].to_vec();
                letters.by_ref().for_each(drop);
                if !attached.is_empty() {
                    return Ok(attached);
                }
                arguments.next().ok_or_else(|| {
                    format!(
                        "sudo: option '-{}' needs a value\n{USAGE}",
                        char::from(*letter)
                    )
                })
            };
            match letter {
                b'u' => request.user = value()?,
                b'g' => request.group = value()?,
                b'D' => request.directory = value()?,
                b'E' => keep_all = true,
                b'H' => set_home = true,
                b'i' => request.mode = Mode::Login,
                b's' => request.mode = Mode::Shell,
                b'v' | b'K' | b'l' | b'V' => settles_alone = Some(*letter),
                b'h' if is_alone => settles_alone = Some(b'h'),
                b'k' if is_alone => return Ok(Wish::Nothing),
                b'e' => {
                    return Err(
                        "sudo: editing files (-e) is not offered here; use sudo and an editor"
                            .into(),
                    );
                }
                letter if IGNORED.contains(letter) => {}
                letter if VALUES_IGNORED.contains(letter) => {
                    value()?;
                }
                other => return Err(unknown(&format!("-{}", char::from(*other)))),
            }
        }
    }
    match settles_alone {
        Some(b'v' | b'K') => return Ok(Wish::Nothing),
        Some(b'h') => return Ok(Wish::Say(format!("{USAGE}\n"))),
        Some(b'V') => {
            return Ok(Wish::Say(format!(
                "Hearth's sudo {}, for sandboxes without set-uid programs\n",
                env!("CARGO_PKG_VERSION")
            )));
        }
        Some(_) => {
            return Ok(Wish::Say(
                "Members of the groups sudo, wheel and admin may run:\n    (ALL : ALL) NOPASSWD: ALL\n".into(),
            ));
        }
        None => {}
    }

    for (name, value) in environment {
        let (name, value) = (name.as_bytes(), value.as_bytes());
        let by_name = kept_names.iter().any(|kept| kept == name);
        let by_custom = KEPT.contains(&name) || name.starts_with(b"LC_");
        let own = NEVER_KEPT.contains(&name) || name.starts_with(b"SUDO_");
        let home = name == b"HOME" && (set_home || !keep_all && !by_name);
        if (by_name || !own && (keep_all || by_custom)) && !home {
            request.environment.push([name, b"=", value].concat());
        }
    }
    while let Some(variable) = arguments.next_if(|word| is_assignment(word)) {
        request.environment.push(variable);
    }
    request.command = arguments.collect();
    if request.command.is_empty() && request.mode == Mode::Command {
        return Err(USAGE.to_owned());
    }
    Ok(Wish::Run(Box::new(request)))
}

fn unknown(option: &str) -> String {
    format!("sudo: unknown option {option}\n{USAGE}")
}

fn is_assignment(word: &[u8]) -> bool {
    let name = word.split(|b| *b == b'=').next().unwrap_or_default();
    name.len() < word.len()
        && name
            .first()
            .is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &[&str]) -> Request {
        let environment = [
            ("HOME", "/h"),
            ("TERM", "vt"),
            ("LC_ALL", "C"),
            ("X", "1"),
            ("PATH", "/p"),
        ]
        .map(|(n, v)| (n.into(), v.into()));
        match parse(line.iter().map(OsString::from), &environment) {
            Ok(Wish::Run(request)) => *request,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn texts(list: &[Vec<u8>]) -> Vec<String> {
        list.iter().map(|text| super::super::shown(text)).collect()
    }

    #[test]
    fn the_command_begins_where_options_end() {
        let check = |line: &[&str], command: &[&str]| {
            assert_eq!(texts(&run(line).command), command, "{line:?}")
        };
        check(&["id", "-u"], &["id", "-u"]);
        check(&["-n", "id", "-n"], &["id", "-n"]);
        check(&["-nE", "--", "-odd"], &["-odd"]);
        check(&["A=1", "B=", "env", "C=2"], &["env", "C=2"]);
        check(&["-p", "prompt", "-C", "3", "true"], &["true"]);
        check(&["-uroot", "-", "x"], &["-", "x"]);
        check(&["-h", "host", "id"], &["id"]);
        check(&["=x"], &["=x"]);
        check(&["-i"], &[]);
    }

    #[test]
    fn users_groups_and_folders() {
        for line in [
            &["-u", "a", "-g", "b", "-D", "/d", "x"][..],
            &["-ua", "-gb", "-D/d", "x"],
            &["--user=a", "--group", "b", "--chdir=/d", "x"],
            &["-nua", "-g", "b", "-D", "/d", "x"],
        ] {
            let request = run(line);
            assert_eq!(
                (&*request.user, &*request.group, &*request.directory),
                (&b"a"[..], &b"b"[..], &b"/d"[..]),
                "{line:?}"
            );
        }
    }

    #[test]
    fn little_of_the_environment_passes() {
        let check = |line: &[&str], expected: &[&str]| {
            assert_eq!(texts(&run(line).environment), expected, "{line:?}")
        };
        check(&["x"], &["TERM=vt", "LC_ALL=C"]);
        check(&["V=2", "x"], &["TERM=vt", "LC_ALL=C", "V=2"]);
        check(&["-E", "x"], &["HOME=/h", "TERM=vt", "LC_ALL=C", "X=1"]);
        check(&["-EH", "x"], &["TERM=vt", "LC_ALL=C", "X=1"]);
        check(
            &["--preserve-env=X,PATH", "x"],
            &["TERM=vt", "LC_ALL=C", "X=1", "PATH=/p"],
        );
    }

    #[test]
    fn what_needs_no_broker() {
        let parse = |line: &[&str]| parse(line.iter().map(OsString::from), &[]);
        for line in [
            &["-v"][..],
            &["-k"],
            &["-K"],
            &["-n", "-v"],
            &["--validate"],
        ] {
            assert_eq!(parse(line), Ok(Wish::Nothing), "{line:?}");
        }
        for line in [&["-l"][..], &["-V"], &["--help"], &["-h"], &["-nl"]] {
            assert!(matches!(parse(line), Ok(Wish::Say(_))), "{line:?}");
        }
        for line in [
            &[][..],
            &["-n"],
            &["-u"],
            &["--user"],
            &["-Z", "x"],
            &["--odd", "x"],
            &["-e", "f"],
        ] {
            assert!(parse(line).is_err(), "{line:?}");
        }
    }
}
