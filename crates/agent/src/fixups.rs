//! Making the sandbox what the boot configuration says, before anything is served: its
//! name, its hosts and resolver, its identity, its trust, its bound on processes.
//!
//! The template's files are a stranger's work: every file is replaced by writing beside it
//! and renaming, so that a link planted there is replaced and never followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use hearth_wire::boot::Fixups;

/// The bundle most programs read.
const CA_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where `update-ca-certificates` finds the host's certificates again.
const HOST_CERTIFICATES: &str = "/usr/local/share/ca-certificates/hearth-host.crt";
/// Largest bundle read, in bytes; Debian's has a quarter of a mebibyte.
const MAX_BUNDLE: u64 = 16 * 1024 * 1024;
/// The control group that bounds processes, in the sandbox's own kernel.
pub(crate) const PIDS_GROUP: &str = "/sys/fs/cgroup/pids/hearth";

/// A fix-up failed: the sandbox must not be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FixupError {
    #[error("setting the host name '{name}' failed: {source}")]
    Hostname {
        name: String,
        #[source]
        source: nix::errno::Errno,
    },
    #[error("writing {path} failed: {source}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("reading {path} failed: {source}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("bounding processes at {PIDS_GROUP} failed: {0}")]
    Pids(#[source] io::Error),
    #[error("the kernel's random source failed: {0}")]
    Random(#[source] io::Error),
}

/// Applies all of them. Gives `cgroup.procs` of the group that programs enter.
///
/// # Errors
/// [`FixupError`] of the first that failed.
pub(crate) fn apply(fixups: &Fixups) -> Result<OwnedFd, FixupError> {
    let name = &fixups.hostname;
    nix::unistd::sethostname(name).map_err(|source| FixupError::Hostname {
        name: name.clone(),
        source,
    })?;
    put("/etc/hostname", format!("{name}\n").as_bytes(), 0o644)?;
    let hosts = format!(
        "127.0.0.1 localhost\n::1 localhost\n{} {name}\n",
        fixups.address
    );
    put("/etc/hosts", hosts.as_bytes(), 0o644)?;
    let resolver = format!("nameserver {}\n", fixups.resolver);
    put("/etc/resolv.conf", resolver.as_bytes(), 0o644)?;
    put("/etc/machine-id", machine_id()?.as_bytes(), 0o444)?;
    trust(&fixups.ca_bundle)?;
    bound_processes(fixups.pids_max).map_err(FixupError::Pids)
}

fn put(path: &str, contents: &[u8], mode: u32) -> Result<(), FixupError> {
    let path = Path::new(path);
    replace(path, contents, mode).map_err(|source| FixupError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Puts a new file in `path`'s place, whatever was there.
fn replace(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    fs::create_dir_all(directory)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".hearth-new");
    let beside = PathBuf::from(beside);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&beside)?;
    let written = file
        .write_all(contents)
        .and_then(|()| fs::rename(&beside, path));
    if let Err(error) = written {
        // The first failure is the one to tell.
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    Ok(())
}

/// A fresh identity of the machine, as systemd writes it.
fn machine_id() -> Result<String, FixupError> {
    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(FixupError::Random)?;
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        for half in [byte >> 4, byte & 15] {
            hex.push(char::from_digit(half.into(), 16).unwrap_or('0'));
        }
        hex
    });
    Ok(format!("{hex}\n"))
}

/// Adds the host's certificates to the bundle, and keeps them where the distribution's own
/// tool finds them when it writes the bundle anew.
fn trust(bundle: &str) -> Result<(), FixupError> {
    if bundle.trim().is_empty() {
        return Ok(());
    }
    put(HOST_CERTIFICATES, bundle.as_bytes(), 0o644)?;
    let present = read_bundle(Path::new(CA_CERTIFICATES)).map_err(|source| FixupError::Read {
        path: CA_CERTIFICATES.into(),
        source,
    })?;
    if let Some(whole) = with_bundle(present, bundle) {
        put(CA_CERTIFICATES, &whole, 0o644)?;
    }
    Ok(())
}

/// The bundle with the host's certificates at its end; none when they are there already
/// (a template that was made from a sandbox).
fn with_bundle(mut present: Vec<u8>, bundle: &str) -> Option<Vec<u8>> {
    let bundle = bundle.trim_end().as_bytes();
    if present.windows(bundle.len()).any(|part| part == bundle) {
        return None;
    }
    if present.last().is_some_and(|last| *last != b'\n') {
        present.push(b'\n');
    }
    present.extend_from_slice(bundle);
    present.push(b'\n');
    Some(present)
}

/// A template without a bundle has an empty one; so has one whose bundle is no file.
fn read_bundle(path: &Path) -> io::Result<Vec<u8>> {
    let file = match crate::filesystem::open_plain(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MAX_BUNDLE).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Makes the group that every program enters. The agent stays outside: it must be able to
/// work when programs have used up what they may have.
fn bound_processes(max: u32) -> io::Result<OwnedFd> {
    let group = Path::new(PIDS_GROUP);
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(group.join("pids.max"), max.to_string())?;
    let procs = OpenOptions::new()
        .write(true)
        .open(group.join("cgroup.procs"))?;
    Ok(procs.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn a_link_is_replaced_and_its_target_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        let link = dir.path().join("link");
        fs::write(&target, "theirs").unwrap();
        symlink(&target, &link).unwrap();
        symlink(&target, dir.path().join("link.hearth-new")).unwrap();
        replace(&link, b"ours", 0o444).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(&link).unwrap(), "ours");
        let meta = fs::symlink_metadata(&link).unwrap();
        assert!(meta.is_file());
        assert_eq!(meta.mode() & 0o777, 0o444);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_missing_directory_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        replace(&path, b"x", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn identities_are_fresh_and_well_formed() {
        let (one, two) = (machine_id().unwrap(), machine_id().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.len(), 33);
        assert!(one.trim_end().bytes().all(|b| b.is_ascii_hexdigit()));
    }

    #[test]
    fn certificates_are_added_once() {
        let added = with_bundle(b"first".to_vec(), "second\n\n").unwrap();
        assert_eq!(added, b"first\nsecond\n");
        assert_eq!(with_bundle(added, "second"), None);
        assert_eq!(with_bundle(Vec::new(), "only").unwrap(), b"only\n");
    }
}
