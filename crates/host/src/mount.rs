//! Mounts that the other rooms need, and the question what is mounted where.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// Mount points at or below `dir`, deepest first.
///
/// # Errors
/// When the mount table cannot be read.
pub fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|l| l.split(' ').nth(4))
        .map(|p| PathBuf::from(p.replace("\\040", " ")))
        .filter(|p| p.starts_with(dir))
        .collect();
    found.sort_by_key(|p| std::cmp::Reverse(p.as_os_str().len()));
    Ok(found)
}

/// Whether something is mounted exactly at `dir`.
///
/// # Errors
/// When the mount table cannot be read.
pub fn is_mounted(dir: &Path) -> io::Result<bool> {
    Ok(below(dir)?.iter().any(|p| p == dir))
}

/// Makes `dir` a mount whose submounts are shared: what is mounted and unmounted below it
/// reaches the private mount namespaces of launchers, so none of them pins a disk.
///
/// # Errors
/// When the kernel refuses.
pub fn make_shared_root(dir: &Path) -> io::Result<()> {
    if !is_mounted(dir)? {
        rustix::mount::mount_bind(dir, dir)?;
    }
    rustix::mount::mount_change(dir, MountPropagationFlags::SHARED)?;
    Ok(())
}

/// Puts this thread's process into a mount namespace of its own that receives unmounts from
/// the host and sends nothing back. Single-threaded callers only (launchers).
///
/// # Errors
/// When the kernel refuses.
pub fn own_namespace() -> io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )?;
    Ok(())
}

/// Covers `dir` by an empty tmpfs.
///
/// # Errors
/// When the kernel refuses.
pub fn cover_dir(dir: &Path) -> io::Result<()> {
    rustix::mount::mount("tmpfs", dir, "tmpfs", MountFlags::RDONLY, Some(c"size=4k"))?;
    Ok(())
}

/// Covers one file by another.
///
/// # Errors
/// When the kernel refuses.
pub fn cover_file(with: &Path, file: &Path) -> io::Result<()> {
    rustix::mount::mount_bind(with, file)?;
    Ok(())
}

/// Unmounts `dir`; that nothing is mounted there is no error. Detaches when it is busy, so
/// that the name is free at once and the rest follows when its last user is gone.
///
/// # Errors
/// When the kernel refuses for another reason.
pub fn unmount(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(e) if e == rustix::io::Errno::INVAL || e == rustix::io::Errno::NOENT => Ok(()),
        Err(e) if e == rustix::io::Errno::BUSY => {
            rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}
