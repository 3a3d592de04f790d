//! Where sandboxes' disks are, how they are kept (docs/decisions/0001-disk.md) and whether
//! there is room.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use hearth_host::{disk, mount};
use hearth_image::store::RESERVE_BYTES;

use super::Finding;
use crate::cli::Folders;

/// Free space under which a warning is due: a template, and some sandboxes that write.
const ROOM_BYTES: u64 = 10 << 30;

pub(super) fn check(folders: &Folders) -> Vec<Finding> {
    let state = &folders.state_dir;
    let mut findings = vec![permissions(state), kind(state)];
    findings.push(space("space", "the state folder's disk", state));
    let store = state.join("store");
    if mount::is_mounted(&store).unwrap_or(false) {
        findings.push(space("pool", "the disk pool", &store));
    }
    findings.push(template(folders));
    findings
}

fn permissions(state: &Path) -> Finding {
    let name = "state folder";
    match std::fs::metadata(state) {
        Ok(meta) if meta.permissions().mode() & 0o077 == 0 => {
            Finding::ok(name, format!("{}, for root only", state.display()))
        }
        Ok(meta) => Finding::warn(
            name,
            format!(
                "{} has mode {:o}: others can look into it",
                state.display(),
                meta.permissions().mode() & 0o777
            ),
            format!("chmod 700 {}", state.display()),
        ),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Finding::ok(
            name,
            format!(
                "{} is not made yet; the first start makes it",
                state.display()
            ),
        ),
        Err(e) => Finding::fail(
            name,
            format!("{}: {e}", state.display()),
            "run it as root, on a disk that works",
        ),
    }
}

/// The nearest folder above that exists.
fn existing(path: &Path) -> PathBuf {
    path.ancestors()
        .find(|p| p.is_dir())
        .unwrap_or(Path::new("/"))
        .to_owned()
}

fn kind(state: &Path) -> Finding {
    let name = "disks";
    let disk = "each sandbox has an ext4 image of fixed size, cloned from its template's";
    if state.join("store.btrfs").exists() {
        return Finding::ok(
            name,
            format!(
                "{disk}; kept in a btrfs file, {}",
                state.join("store.btrfs").display()
            ),
        );
    }
    let probe = existing(state).join(format!(".hearth-doctor-{}", std::process::id()));
    let tried = std::fs::create_dir(&probe).and_then(|()| {
        let can = disk::can_clone(&probe);
        std::fs::remove_dir(&probe)?;
        can
    });
    match tried {
        Ok(true) => Finding::ok(
            name,
            format!(
                "{disk}; the file system of {} clones files itself",
                state.display()
            ),
        ),
        Ok(false) if btrfs_is_known() => Finding::ok(
            name,
            format!(
                "{disk}; the file system of {} clones no files, so they are kept in a btrfs file there",
                state.display()
            ),
        ),
        Ok(false) => Finding::fail(
            name,
            "the file system clones no files and the kernel has no btrfs",
            "`modprobe btrfs`, or put the state folder on XFS or btrfs (--state-dir)",
        ),
        Err(e) => Finding::fail(
            name,
            format!("writing {}: {e}", probe.display()),
            "run it as root, on a disk that can be written",
        ),
    }
}

fn btrfs_is_known() -> bool {
    let known = |file: &str| {
        std::fs::read_to_string(file).is_ok_and(|t| t.lines().any(|l| l.trim() == "btrfs"))
    };
    if known("/proc/filesystems") {
        return true;
    }
    // The kernel loads it at the first mount where a module is there.
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        std::fs::read_to_string(format!("/lib/modules/{release}/{list}"))
            .is_ok_and(|t| t.contains("/btrfs.ko"))
    })
}

fn space(name: &'static str, what: &str, at: &Path) -> Finding {
    let at = existing(at);
    match disk::space(&at) {
        Ok(space) => {
            let gib = |bytes: u64| bytes >> 30;
            let text = format!(
                "{what} has {} of {} GiB free ({})",
                gib(space.free),
                gib(space.total),
                at.display()
            );
            if space.free < RESERVE_BYTES {
                Finding::fail(
                    name,
                    format!(
                        "{text}; below {} GiB no sandbox is created",
                        gib(RESERVE_BYTES)
                    ),
                    "free some, or put the state folder on a larger disk (--state-dir)",
                )
            } else if space.free < ROOM_BYTES {
                Finding::warn(
                    name,
                    text,
                    "sandboxes' disks grow as they are written: free some",
                )
            } else {
                Finding::ok(name, text)
            }
        }
        Err(e) => Finding::fail(name, format!("{}: {e}", at.display()), "look at the disk"),
    }
}

fn template(folders: &Folders) -> Finding {
    let name = "template";
    if folders.state_dir.join("store/templates/base.json").exists() {
        return Finding::ok(name, "base is in the store");
    }
    let cached = std::fs::read_dir(folders.cache_dir.join("templates")).is_ok_and(|dir| {
        dir.flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with("base-"))
    });
    if cached {
        Finding::ok(
            name,
            format!("base is built, in {}", folders.cache_dir.display()),
        )
    } else {
        Finding::warn(
            name,
            "base is not built yet",
            "`hearth prepare` builds it, in about half a minute; `hearth serve` does so as well",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_folder_is_found() {
        assert_eq!(existing(Path::new("/no/such/folder")), Path::new("/"));
        assert_eq!(
            existing(Path::new("/proc/self/nothing/x")),
            Path::new("/proc/self")
        );
    }
}
