//! Network namespaces with a name in the file system, so that they outlive the server.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::sched::CloneFlags;

/// Makes a new namespace, pins it at `at`, runs `inside` on a thread in it.
///
/// # Errors
/// When the kernel refuses, or what `inside` returned.
pub fn create<T: Send + 'static>(
    at: &Path,
    inside: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = at.to_owned();
    File::create(&path)?;
    on_thread(move || {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
        rustix::mount::mount_bind(Path::new("/proc/thread-self/ns/net"), &path)?;
        inside()
    })
}

/// Moves the calling process (single-threaded: a launcher) into the namespace pinned at `at`.
///
/// # Errors
/// When it is not there or the kernel refuses.
pub fn enter(at: &Path) -> io::Result<()> {
    nix::sched::setns(File::open(at)?, CloneFlags::CLONE_NEWNET)?;
    Ok(())
}

/// Unpins a namespace. It ends with its last process.
///
/// # Errors
/// When the kernel refuses; that it is gone already is no error.
pub fn remove(at: &Path) -> io::Result<()> {
    crate::mount::unmount(at)?;
    match std::fs::remove_file(at) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A thread's namespace is its own: do the work on one that ends with it.
fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    std::thread::Builder::new()
        .name("netns".into())
        .spawn(work)?
        .join()
        .map_err(|_| io::Error::other("the namespace thread panicked"))?
}
