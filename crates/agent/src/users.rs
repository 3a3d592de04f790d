//! Users of the sandbox, read from its own `/etc/passwd` and `/etc/group` each time,
//! because users come and go. The guest writes these files: what is read is bounded, and a
//! line that makes no sense is skipped.

use std::io::Read as _;
use std::path::PathBuf;

use crate::filesystem::open_plain;

/// What is read of each table at most, in bytes.
const MAX_TABLE: u64 = 1024 * 1024;
/// Longest user name (`useradd` allows 32; some directories allow more).
const MAX_NAME: usize = 256;
/// Supplementary groups of one user at most (`NGROUPS_MAX` of Linux is 65536).
const MAX_GROUPS: usize = 1024;

/// One line of `/etc/passwd` with the groups that name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
    /// Every group of the user, the primary one first.
    pub(crate) groups: Vec<u32>,
}

/// Clients see each of these as `unauthenticated`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserError {
    #[error("invalid username: '{0}'")]
    Unknown(String),
    #[error("the Authorization header is not 'Basic' with a base64 'user:password'")]
    Header,
    #[error("invalid username: '{name}': reading {table} failed: {source}")]
    Table {
        name: String,
        table: &'static str,
        #[source]
        source: std::io::Error,
    },
}

/// The user of that name.
///
/// # Errors
/// [`UserError::Unknown`] when there is none, [`UserError::Table`] when the tables cannot
/// be read.
pub(crate) fn find(name: &str) -> Result<User, UserError> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains([':', '\n', '\0']) {
        let shown = name.chars().take(64).collect();
        return Err(UserError::Unknown(shown));
    }
    let table = |table: &'static str| {
        read(table).map_err(|source| UserError::Table {
            name: name.to_owned(),
            table,
            source,
        })
    };
    let passwd = table("/etc/passwd")?;
    let group = table("/etc/group")?;
    parse(name, &passwd, &group).ok_or_else(|| UserError::Unknown(name.to_owned()))
}

fn read(path: &str) -> std::io::Result<String> {
    let file = open_plain(path.as_ref())?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_TABLE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn parse(name: &str, passwd: &str, group: &str) -> Option<User> {
    let mut user = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        // name:password:uid:gid:comment:home:shell
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).filter(|home| home.starts_with('/'));
        Some(User {
            name: name.to_owned(),
            uid,
            gid,
            home: PathBuf::from(home.unwrap_or("/")),
            groups: vec![gid],
        })
    })?;
    for line in group.lines() {
        // name:password:gid:member,member
        let mut fields = line.split(':');
        let (Some(Ok(gid)), Some(members)) = (fields.nth(2).map(str::parse), fields.next()) else {
            continue;
        };
        if members.split(',').any(|member| member == name)
            && !user.groups.contains(&gid)
            && user.groups.len() < MAX_GROUPS
        {
            user.groups.push(gid);
        }
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbad\nuser:x:1000:1001::/home/user:/bin/bash\nodd:x:a:b::/:/bin/sh\nlost:x:5:5::nowhere:/bin/sh\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:user,other\nuser:x:1001:user\ndocker:x:99:user\nodd\n";

    #[test]
    fn finds_ids_home_and_groups() {
        let user = parse("user", PASSWD, GROUP).unwrap();
        assert_eq!((user.uid, user.gid), (1000, 1001));
        assert_eq!(user.home, PathBuf::from("/home/user"));
        assert_eq!(user.groups, [1001, 27, 99]);
        assert_eq!(parse("root", PASSWD, GROUP).unwrap().groups, [0]);
        assert_eq!(
            parse("lost", PASSWD, GROUP).unwrap().home,
            PathBuf::from("/")
        );
    }

    #[test]
    fn rubbish_is_nobody() {
        for name in ["use", "odd", "bad", "user:x", ""] {
            assert_eq!(parse(name, PASSWD, GROUP), None, "{name}");
        }
        for name in ["", "root:x", "ro\not", "\0"] {
            assert!(matches!(find(name), Err(UserError::Unknown(_))), "{name:?}");
        }
        let text = find("no such user").unwrap_err().to_string();
        assert_eq!(text, "invalid username: 'no such user'");
    }
}
