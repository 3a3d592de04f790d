//! From a path as a client wrote it to an absolute one. Purely textual: nothing here
//! touches the disk, and nothing here is a boundary (the agent lives inside the sandbox
//! and acts as its root, as E2B's does; the user has password-less sudo anyway).

use std::path::{Component, Path, PathBuf};

use super::fault::FileError;
use crate::agent::Agent;
use crate::users::User;

/// Longest path in bytes: the kernel's `PATH_MAX` of 4096 counts a closing NUL.
pub(crate) const MAX_PATH: usize = 4095;
/// Longest name of one component in bytes (`NAME_MAX`).
pub(crate) const MAX_NAME: usize = 255;

/// The user a request acts for: what is created becomes theirs, and relative paths are
/// theirs.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
    /// Where relative paths start; none: at `home`.
    pub(crate) workdir: Option<PathBuf>,
}

impl Caller {
    pub(crate) fn new(user: User, agent: &Agent) -> Self {
        Self {
            uid: user.uid,
            gid: user.gid,
            home: user.home,
            workdir: agent.default_workdir(),
        }
    }
}

/// Makes `raw` absolute and clean (no `.`, no `..`, no doubled or trailing slash), the way
/// clients expect it back: `..` is taken textually.
///
/// # Errors
/// [`FileError::Invalid`] for a NUL byte, and for a path or a name over its limit.
pub(crate) fn resolve(raw: &str, caller: &Caller) -> Result<PathBuf, FileError> {
    if raw.contains('\0') {
        return Err(FileError::Invalid(
            "path contains a NUL byte, which no file name can".into(),
        ));
    }
    check_length(raw.len())?;
    let base = caller.workdir.as_deref().unwrap_or(&caller.home);
    let joined = if raw == "~" {
        caller.home.clone()
    } else if let Some(rest) = raw.strip_prefix("~/") {
        caller.home.join(rest.trim_start_matches('/'))
    } else {
        // An absolute `raw` replaces the base.
        base.join(raw)
    };
    let path = clean(&joined);
    check_length(path.as_os_str().len())?;
    if let Some(name) = path.iter().find(|name| name.len() > MAX_NAME) {
        return Err(FileError::Invalid(format!(
            "path has a name of {} bytes; the limit is {MAX_NAME} (NAME_MAX)",
            name.len()
        )));
    }
    Ok(path)
}

fn check_length(length: usize) -> Result<(), FileError> {
    if length > MAX_PATH {
        return Err(FileError::Invalid(format!(
            "path has {length} bytes; the limit is {MAX_PATH} (PATH_MAX)"
        )));
    }
    Ok(())
}

/// `path` without `.`, `..` and spare slashes; absolute whatever was given.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn caller(workdir: Option<&str>) -> Caller {
        Caller {
            uid: 1000,
            gid: 1000,
            home: "/home/user".into(),
            workdir: workdir.map(PathBuf::from),
        }
    }

    fn check(raw: &str, expected: &str) {
        assert_eq!(
            resolve(raw, &caller(None)).expect(raw),
            Path::new(expected),
            "{raw}"
        );
    }

    #[test]
    fn relative_tilde_and_dots() {
        check("a.txt", "/home/user/a.txt");
        check("", "/home/user");
        check(".", "/home/user");
        check("~", "/home/user");
        check("~/x", "/home/user/x");
        check("~//etc", "/home/user/etc");
        check("~x", "/home/user/~x");
        check("a/~", "/home/user/a/~");
        check("/", "/");
        check("/../../etc//passwd/", "/etc/passwd");
        check("../../../../root", "/root");
        check("%2e%2e/a", "/home/user/%2e%2e/a");
        // Look-alikes of a slash and of dots are ordinary names.
        check("․․∕a", "/home/user/․․∕a");
        assert_eq!(
            resolve("a", &caller(Some("/code"))).unwrap(),
            Path::new("/code/a")
        );
        assert_eq!(
            resolve("~/a", &caller(Some("/code"))).unwrap(),
            Path::new("/home/user/a")
        );
    }

    #[test]
    fn limits_are_named() {
        let text = |raw: &str| resolve(raw, &caller(None)).unwrap_err().to_string();
        assert!(text("a\0b").contains("NUL"));
        assert!(text(&"a/".repeat(32 * 1024)).contains("4095"));
        assert!(text(&"a".repeat(256)).contains("255"));
        // Fits by itself, but not below the home directory.
        assert!(text(&"a/".repeat(2045)).contains("4095"));
        resolve(&"a".repeat(255), &caller(None)).unwrap();
        resolve(&format!("/{}", "a/".repeat(2047)), &caller(None)).unwrap();
    }

    proptest! {
        #[test]
        fn result_is_absolute_and_stable(raw in "[a-z./~\u{e9}%]{0,40}") {
            let once = resolve(&raw, &caller(None)).unwrap();
            prop_assert!(once.is_absolute());
            prop_assert!(once.iter().all(|name| name != ".." && name != "."));
            let again = resolve(once.to_str().unwrap(), &caller(None)).unwrap();
            prop_assert_eq!(once, again);
        }
    }
}
