//! Disks: image files cloned by reference, loop-mounted, measured.
//!
//! A sandbox's disk is an ext4 image of its own (decision 0001). Cloning needs a file system
//! with reflinks; where the host has none, a sparse btrfs file gives one.
#![allow(unsafe_code, reason = "loop and clone ioctls have no safe wrapper")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::MountFlags;

/// A block device's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// Bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    /// What an unprivileged writer may still take.
    pub free: u64,
}

// Loop interface, linux/loop.h.
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// FICLONE, linux/fs.h.
const FICLONE: libc::c_ulong = 0x4004_9409;

/// `struct loop_config` of linux/loop.h: a descriptor, the block size, and `loop_info64`
/// with its 64 reserved bytes behind; only the flags of it are used.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info_before_flags: [u8; 52],
    flags: u32,
    info_after_flags: [u8; 176],
    reserved: [u64; 8],
}

/// Tries before giving up on a free loop device: another process may take it in between.
const LOOP_TRIES: u32 = 64;

/// Attaches `image` to a free loop device. The device is let go by the kernel when its last
/// user (the mount) is gone, so a crash leaves none behind.
fn attach(image: &Path) -> io::Result<(PathBuf, File)> {
    let file = OpenOptions::new().read(true).write(true).open(image)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for direct in [LO_FLAGS_DIRECT_IO, 0] {
        for _ in 0..LOOP_TRIES {
            // SAFETY: no pointer is passed; the descriptor is open.
            let n = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if n < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{n}"));
            ensure_node(&path, n)?;
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            let config = LoopConfig {
                fd: u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?,
                block_size: 0,
                info_before_flags: [0; 52],
                flags: LO_FLAGS_AUTOCLEAR | direct,
                info_after_flags: [0; 176],
                reserved: [0; 8],
            };
            // SAFETY: the kernel reads one `loop_config` behind the pointer, which has that
            // size and layout and lives until the call returns.
            let done =
                unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
            if done == 0 {
                return Ok((path, device));
            }
            last = io::Error::last_os_error();
            if last.raw_os_error() != Some(libc::EBUSY) {
                break;
            }
        }
    }
    Err(io::Error::new(
        last.kind(),
        format!("attaching {}: {last}", image.display()),
    ))
}

/// Where no udev runs, nobody makes the node of a new loop device.
fn ensure_node(path: &Path, n: i32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let minor = u32::try_from(n).map_err(io::Error::other)?;
    // Loop devices have major number 7 (Documentation/admin-guide/devices.txt).
    match rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::BlockDevice,
        rustix::fs::Mode::from_raw_mode(0o660),
        rustix::fs::makedev(7, minor),
    ) {
        Err(e) if e != rustix::io::Errno::EXIST => Err(e.into()),
        _ => Ok(()),
    }
}

fn mount_loop(image: &Path, at: &Path, kind: &str, options: &std::ffi::CStr) -> io::Result<Device> {
    use std::os::unix::fs::MetadataExt as _;
    let (path, device) = attach(image)?;
    // Set-uid bits and device nodes mean something inside, to gVisor's kernel, which reads
    // them itself; on the host they must mean nothing.
    rustix::mount::mount(
        &path,
        at,
        kind,
        MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME,
        Some(options),
    )?;
    let number = device.metadata()?.rdev();
    Ok(Device {
        major: rustix::fs::major(number),
        minor: rustix::fs::minor(number),
    })
}

/// Mounts an ext4 image at `at`. Blocking.
///
/// # Errors
/// When no loop device is free or the image is not ext4.
pub fn mount_image(image: &Path, at: &Path) -> io::Result<Device> {
    // Journalled metadata suffices; `discard` gives freed blocks back to the pool.
    mount_loop(image, at, "ext4", c"discard,errors=remount-ro")
}

/// Mounts a btrfs file at `at`. Blocking.
///
/// # Errors
/// When no loop device is free or the file is not btrfs.
pub fn mount_btrfs(image: &Path, at: &Path) -> io::Result<Device> {
    mount_loop(image, at, "btrfs", c"discard=async")
}

/// Makes `to` a copy of `from` that shares its blocks until one of them is written.
///
/// # Errors
/// `EOPNOTSUPP` or `EXDEV` where the file system cannot; `EEXIST` when `to` is there.
pub fn clone_file(from: &Path, to: &Path) -> io::Result<()> {
    let source = File::open(from)?;
    let target = OpenOptions::new().write(true).create_new(true).open(to)?;
    // SAFETY: both descriptors are open; the argument is a number, not a pointer.
    let done = unsafe { libc::ioctl(target.as_raw_fd(), FICLONE, source.as_raw_fd()) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    std::fs::remove_file(to)?;
    Err(error)
}

/// Whether files below `dir` can be cloned.
///
/// # Errors
/// When a probe file cannot be written there.
pub fn can_clone(dir: &Path) -> io::Result<bool> {
    let (a, b) = (dir.join(".clone-probe-a"), dir.join(".clone-probe-b"));
    std::fs::write(&a, [7u8; 4096])?;
    let cloned = clone_file(&a, &b);
    std::fs::remove_file(&a)?;
    match cloned {
        Ok(()) => std::fs::remove_file(&b).map(|()| true),
        Err(_) => Ok(false),
    }
}

/// The space of the file system at `path`.
///
/// # Errors
/// When it cannot be asked.
pub fn space(path: &Path) -> io::Result<Space> {
    let s = rustix::fs::statvfs(path)?;
    Ok(Space {
        total: s.f_blocks * s.f_frsize,
        free: s.f_bavail * s.f_frsize,
    })
}

/// Runs a tool of the host; its own words are in the error. Blocking.
///
/// # Errors
/// When it is missing or fails.
pub fn tool(program: &str, args: &[&std::ffi::OsStr]) -> io::Result<()> {
    let out = Command::new(program)
        .args(args)
        .output()
        .map_err(|e| io::Error::new(e.kind(), format!("starting {program}: {e}")))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(io::Error::other(format!(
        "{program}: {} ({})",
        said.trim(),
        out.status
    )))
}
