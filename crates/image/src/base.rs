//! The template `base`: a Debian tree from the host's own mirror, on an ext4 image.
//!
//! Built once per recipe, release and disk size, into the cache; a half-built image never
//! has the final name. Nothing of it needs an image registry.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hearth_host::disk;
use sha2::{Digest as _, Sha256};

use crate::sources;

/// Raised when the tree changes for another reason than its packages.
const RECIPE: u32 = 1;
/// What every sandbox has. `python3-venv` comes along because pip inside a venv needs it.
const PACKAGES: &str = "bash,sudo,python3,python3-pip,python3-venv,nodejs,git,curl,procps,iproute2,ca-certificates,iputils-ping,less,xz-utils,unzip,openssh-client";

/// Why there is no base image.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{action}")]
    Io {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("this host's os-release names no VERSION_CODENAME; `base` is built on Debian")]
    NoCodename,
    #[error(
        "apt on this host has no enabled source with the suite {codename} and the component main"
    )]
    NoMirror { codename: String },
    #[error("mmdebstrap failed ({status}): {said}")]
    Debootstrap { status: String, said: String },
}

fn io_fault(action: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Io { action, source }
}

/// A finished image in the cache.
#[derive(Debug, Clone)]
pub struct BaseImage {
    pub path: PathBuf,
    /// Names recipe, packages, release and size: another key is another image.
    pub key: String,
    pub disk_mib: u64,
}

/// Finds the base image in the cache or builds it (about half a minute). `progress` is told
/// of each long step. Blocking; a second builder waits for the first.
///
/// # Errors
/// See [`BuildError`].
pub fn ensure(
    cache: &Path,
    disk_mib: u64,
    progress: &dyn Fn(&str),
) -> Result<BaseImage, BuildError> {
    let os_release =
        std::fs::read_to_string("/etc/os-release").map_err(io_fault("reading os-release"))?;
    let codename = sources::codename(&os_release).ok_or(BuildError::NoCodename)?;
    let dir = cache.join("templates");
    std::fs::create_dir_all(&dir).map_err(io_fault("making the cache folder"))?;
    let text = format!(
        "{RECIPE} {PACKAGES} {codename} {disk_mib} {} {FINISH} {PROFILE}",
        std::env::consts::ARCH
    );
    let key = hex::encode(&Sha256::digest(text.as_bytes())[..8]);
    let image = BaseImage {
        path: dir.join(format!("base-{key}.ext4")),
        key,
        disk_mib,
    };

    let lock = File::create(dir.join("lock")).map_err(io_fault("opening the cache's lock"))?;
    rustix_lock(&lock).map_err(io_fault("locking the cache"))?;
    if image.path.exists() {
        return Ok(image);
    }
    let mirror = sources::lines_for(&codename, Path::new("/etc/apt"))
        .map_err(io_fault("reading apt's sources"))?;
    if mirror.is_empty() {
        return Err(BuildError::NoMirror { codename });
    }
    let work = dir.join("building");
    clean(&work).map_err(io_fault("removing an unfinished build"))?;
    std::fs::create_dir_all(work.join("mnt")).map_err(io_fault("making a work folder"))?;
    let built = build(&image, &work, &codename, &mirror, progress);
    let cleaned = clean(&work).map_err(io_fault("removing the work folder"));
    built.and(cleaned)?;
    Ok(image)
}

fn rustix_lock(file: &File) -> io::Result<()> {
    file.lock()
}

fn clean(work: &Path) -> io::Result<()> {
    hearth_host::mount::unmount(&work.join("mnt"))?;
    match std::fs::remove_dir_all(work) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn build(
    image: &BaseImage,
    work: &Path,
    codename: &str,
    mirror: &[String],
    progress: &dyn Fn(&str),
) -> Result<(), BuildError> {
    let (tar, raw, at) = (
        work.join("tree.tar"),
        work.join("image.ext4"),
        work.join("mnt"),
    );
    progress("building the base tree from this host's Debian mirror (about half a minute)");
    debootstrap(&tar, codename, mirror)?;
    progress("writing the base disk image");
    let file = File::create_new(&raw).map_err(io_fault("making the image"))?;
    file.set_len(image.disk_mib << 20)
        .map_err(io_fault("sizing the image"))?;
    drop(file);
    disk::tool(
        "mkfs.ext4",
        // Inode tables and the journal are zero in a sparse file already.
        &[
            OsStr::new("-q"),
            OsStr::new("-m0"),
            OsStr::new("-E"),
            OsStr::new("lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
            OsStr::new("-O"),
            OsStr::new("^metadata_csum_seed"),
            raw.as_os_str(),
        ],
    )
    .map_err(io_fault("formatting the image"))?;
    disk::mount_image(&raw, &at).map_err(io_fault("mounting the image"))?;
    disk::tool(
        "tar",
        &[
            OsStr::new("-C"),
            at.as_os_str(),
            OsStr::new("--numeric-owner"),
            OsStr::new("--xattrs"),
            OsStr::new("--xattrs-include=*"),
            OsStr::new("-xf"),
            tar.as_os_str(),
        ],
    )
    .map_err(io_fault("unpacking the tree"))?;
    hearth_host::mount::unmount(&at).map_err(io_fault("unmounting the image"))?;
    File::open(&raw)
        .and_then(|f| f.sync_all())
        .map_err(io_fault("syncing the image"))?;
    std::fs::rename(&raw, &image.path).map_err(io_fault("naming the image"))
}

fn debootstrap(tar: &Path, codename: &str, mirror: &[String]) -> Result<(), BuildError> {
    let finish = FINISH.replace("@PROFILE@", PROFILE);
    let hook = tar.with_file_name("finish.sh");
    std::fs::write(&hook, finish).map_err(io_fault("writing the finishing script"))?;
    let mut command = Command::new("mmdebstrap");
    command
        .arg("--quiet")
        .arg("--variant=minbase")
        .arg(format!("--include={PACKAGES}"))
        // A mirror may be a snapshot whose release file is old; its signature still counts.
        .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
        .arg("--aptopt=Acquire::Retries \"3\"")
        .arg("--dpkgopt=path-exclude=/usr/share/man/*")
        .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
        .arg("--dpkgopt=path-include=/usr/share/doc/*/copyright")
        .arg("--dpkgopt=path-exclude=/usr/share/locale/*")
        .arg(format!("--customize-hook=sh '{}' \"$1\"", hook.display()))
        .arg(codename)
        .arg(tar);
    for line in mirror {
        command.arg(line);
    }
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(io_fault("starting mmdebstrap (Debian package mmdebstrap)"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let from = said.char_indices().rev().nth(1500).map_or(0, |(at, _)| at);
    Err(BuildError::Debootstrap {
        status: out.status.to_string(),
        said: said[from..].trim().to_owned(),
    })
}

/// Makes the tree a sandbox's: the user, sudo, profiles. Runs on the host with the tree as `$1`.
const FINISH: &str = r#"set -eu
root=$1
chroot "$root" groupadd -g 1000 user
chroot "$root" useradd -m -u 1000 -g 1000 -s /bin/bash user
chroot "$root" usermod -aG sudo user
printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' > "$root/etc/sudoers.d/user"
chmod 440 "$root/etc/sudoers.d/user"
# pip installs for everybody, as in the images people know.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -sf python3 "$root/usr/bin/python"
chmod 777 "$root/usr/local" "$root/usr/local/bin" "$root/usr/local/lib" "$root/usr/local/share"
cat > "$root/etc/profile" <<'END_OF_PROFILE'
@PROFILE@
END_OF_PROFILE
rm -f "$root"/etc/profile.d/*
for home in root home/user; do
  printf '# Nothing here forks: every command of a client starts a login shell.\n' > "$root/$home/.profile"
  rm -f "$root/$home/.bash_profile" "$root/$home/.bash_logout"
  printf 'PS1="\\u@\\h:\\w\\$ "\nalias ls="ls --color=auto"\n' > "$root/$home/.bashrc"
done
chroot "$root" chown 1000:1000 /home/user/.profile /home/user/.bashrc
mkdir -p "$root/.hearth" "$root/code"
: > "$root/.hearth/agent"
chmod 777 "$root/code"
# gVisor lays a memory file system over an empty /tmp; this one is not empty, so /tmp is on disk.
mkdir -p -m 1777 "$root/tmp/.X11-unix"
chmod 1777 "$root/tmp"
: > "$root/etc/machine-id"
rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/hosts"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$root/etc/hosts"
printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/log/*.log
"#;

/// `/etc/profile` without a fork: Debian's own costs 60 ms of `id` and `mesg` on gVisor.
const PROFILE: &str = r#"if [ "$EUID" = 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:$HOME/.local/bin
fi
export PATH
umask 022"#;
