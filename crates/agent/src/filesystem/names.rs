//! Names of user and group ids, for what an entry reports. Read from the sandbox's own
//! files whenever these changed, because users come and go; ids without a name are shown as numbers.

use std::collections::HashMap;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};

/// What is read of `/etc/passwd` and `/etc/group` at most, in bytes: the guest writes them.
const MAX_READ: u64 = 1024 * 1024;

/// A look-up table for one request.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

/// The last table made, and what the files looked like then: under gVisor to read them
/// takes longer than all else that a request does.
static LAST: Mutex<Option<(Stamps, Arc<Names>)>> = Mutex::new(None);

/// Device, inode, size, and time of change of both files; none for one that is missing.
type Stamps = [Option<(u64, u64, u64, i64, i64)>; 2];

impl Names {
    pub(crate) fn load() -> Arc<Self> {
        let stamps = ["/etc/passwd", "/etc/group"].map(stamp);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((same, names)) if *same == stamps => Arc::clone(names),
            _ => {
                let names = Arc::new(Self {
                    users: parse(&read("/etc/passwd")),
                    groups: parse(&read("/etc/group")),
                });
                *last = Some((stamps, Arc::clone(&names)));
                names
            }
        }
    }

    pub(crate) fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    pub(crate) fn group(&self, gid: u32) -> String {
        self.groups
            .get(&gid)
            .cloned()
            .unwrap_or_else(|| gid.to_string())
    }
}

fn stamp(path: &str) -> Option<(u64, u64, u64, i64, i64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.len(),
        found.ctime(),
        found.ctime_nsec(),
    ))
}

/// A missing or unreadable table means numbers instead of names, which `ls` does too.
fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    let outcome = super::open_plain(path.as_ref())
        .and_then(|file| file.take(MAX_READ).read_to_end(&mut bytes));
    if let Err(error) = outcome {
        tracing::debug!(path, %error, "no names for ids");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Both files hold `name:x:id:...`. The first name of an id wins, as in the C library.
fn parse(text: &str) -> HashMap<u32, String> {
    let mut table = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(Ok(id))) =
            (fields.next(), fields.next(), fields.next().map(str::parse))
        {
            table.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_name_wins_and_rubbish_is_skipped() {
        let table =
            parse("root:x:0:0::/root:/bin/sh\n\nbad\ntoor:x:0:0\nuser:x:1000:1000\nx:y:z\n");
        assert_eq!(table[&0], "root");
        assert_eq!(table[&1000], "user");
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn unknown_id_is_a_number() {
        let names = Names::load();
        assert_eq!(names.user(0), "root");
        assert_eq!(names.group(4_000_000_000), "4000000000");
    }
}
