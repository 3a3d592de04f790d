//! Small files of the server's own that hold secrets.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Puts `bytes` in place of what is at `path`, readable by its owner only. A reader sees the
/// old or the new file whole.
///
/// # Errors
/// When it cannot be written; the old file is as it was then.
pub fn replace_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temp = path.with_extension("tmp");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temp)?;
    file.write_all(bytes)?;
    std::fs::rename(temp, path)
}
