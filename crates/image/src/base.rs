//! The template `base`: a Debian tree from the host's own mirror, on an ext4 image.
//!
//! Built once per recipe, release and disk size, into the cache; a half-built image never
//! has the final name. Nothing of it needs an image registry.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use hearth_host::disk;
use sha2::{Digest as _, Sha256};

use crate::sources;

/// Raised when the tree changes for another reason than its packages.
const RECIPE: u32 = 3;
/// How much of mmdebstrap's last words an error holds, in characters.
const SAID: usize = 1500;
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
    // The mount table has whole paths.
    let dir = dir
        .canonicalize()
        .map_err(io_fault("finding the cache folder"))?;
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
    take(&lock, progress).map_err(io_fault("locking the cache"))?;
    // The length is that of another disk when somebody changed the file by hand.
    if std::fs::metadata(&image.path).is_ok_and(|m| m.len() == disk_mib << 20) {
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
    let built = build(&image, &work, &codename, &mirror, &lock, progress);
    let cleaned = clean(&work).map_err(io_fault("removing the work folder"));
    built.and(cleaned)?;
    Ok(image)
}

fn take(lock: &File, progress: &dyn Fn(&str)) -> io::Result<()> {
    match lock.try_lock() {
        Err(std::fs::TryLockError::WouldBlock) => {
            progress("waiting for another process that builds a base image");
            lock.lock()
        }
        Err(std::fs::TryLockError::Error(e)) => Err(e),
        Ok(()) => Ok(()),
    }
}

/// Removes a work folder; what is still mounted in it is unmounted, never entered.
fn clean(work: &Path) -> io::Result<()> {
    for at in hearth_host::mount::below(work)? {
        hearth_host::mount::unmount(&at)?;
    }
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
    lock: &File,
    progress: &dyn Fn(&str),
) -> Result<(), BuildError> {
    let (tar, raw, at) = (
        work.join("tree.tar"),
        work.join("image.ext4"),
        work.join("mnt"),
    );
    progress("building the base tree from this host's Debian mirror (about half a minute)");
    debootstrap(&tar, codename, mirror, lock)?;
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
    // gVisor lays a file system in memory over an empty /tmp: with something in it, what is
    // written there is on the sandbox's disk and counts against its quota.
    let inside_tmp = at.join("tmp/.X11-unix");
    std::fs::create_dir(&inside_tmp)
        .and_then(|()| std::fs::set_permissions(&inside_tmp, Permissions::from_mode(0o1777)))
        .map_err(io_fault("filling /tmp"))?;
    // Written out while it is mounted: another mount namespace may hold it on afterwards.
    disk::tool("sync", &[OsStr::new("-f"), at.as_os_str()])
        .map_err(io_fault("syncing the tree"))?;
    hearth_host::mount::unmount(&at).map_err(io_fault("unmounting the image"))?;
    File::open(&raw)
        .and_then(|f| f.sync_all())
        .map_err(io_fault("syncing the image"))?;
    std::fs::rename(&raw, &image.path).map_err(io_fault("naming the image"))?;
    File::open(work)
        .and_then(|dir| dir.sync_all())
        .map_err(io_fault("syncing the cache folder"))
}

fn debootstrap(
    tar: &Path,
    codename: &str,
    mirror: &[String],
    lock: &File,
) -> Result<(), BuildError> {
    let finish = FINISH.replace("@PROFILE@", PROFILE);
    let hook = tar.with_file_name("finish.sh");
    std::fs::write(&hook, finish).map_err(io_fault("writing the finishing script"))?;
    let temp = tar.with_file_name("tmp");
    std::fs::create_dir(&temp).map_err(io_fault("making a work folder"))?;
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
        .arg(format!("--customize-hook=sh '{}' \"$1\"", hook.display()));
    for option in crate::apt::options_to_reach_a_mirror().map_err(io_fault("asking apt"))? {
        command.arg(format!("--aptopt={option}"));
    }
    command.arg(codename).arg(tar).args(mirror);
    // The tree is made beside the image and not in /tmp, which is memory on some hosts. When
    // this process is killed, mmdebstrap goes on for a while: it holds the lock with us.
    let lock = lock.try_clone().map_err(io_fault("sharing the lock"))?;
    let out = command
        .env("TMPDIR", &temp)
        .env("LC_ALL", "C.UTF-8")
        .stdin(lock)
        .output()
        .map_err(io_fault("starting mmdebstrap (Debian package mmdebstrap)"))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let from = said.char_indices().rev().nth(SAID).map_or(0, |(at, _)| at);
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
# The agent answers to the name sudo where the sandbox's kernel knows no set-uid programs
# (decision 0002); Debian's own stays beside it.
chroot "$root" dpkg-divert --quiet --add --rename --divert /usr/bin/sudo.debian /usr/bin/sudo
ln -s /.hearth/agent "$root/usr/bin/sudo"
# pip installs for everybody, as in the images people know.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -sf python3 "$root/usr/bin/python"
chmod 777 "$root/usr/local" "$root/usr/local/bin" "$root/usr/local/lib" "$root/usr/local/share"
cat > "$root/etc/profile" <<'END_OF_PROFILE'
@PROFILE@
END_OF_PROFILE
rm -f "$root"/etc/profile.d/*
for home in root home/user; do
  rm -f "$root/$home/.bash_profile" "$root/$home/.bash_logout"
  cat > "$root/$home/.profile" <<'END_OF_PROFILE'
# Nothing here forks: every command of a client starts a login shell.
[ -z "$BASH_VERSION" ] || [ ! -r ~/.bashrc ] || . ~/.bashrc
END_OF_PROFILE
  cat > "$root/$home/.bashrc" <<'END_OF_PROFILE'
# The rest is for people at a terminal.
case $- in *i*) ;; *) return ;; esac
PS1='\u@\h:\w\$ '
alias ls='ls --color=auto'
END_OF_PROFILE
done
chroot "$root" chown 1000:1000 /home/user/.profile /home/user/.bashrc
mkdir -p "$root/.hearth" "$root/code"
: > "$root/.hearth/agent"
chmod 777 "$root/code"
: > "$root/etc/machine-id"
rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/hosts"
printf '127.0.0.1 localhost\n::1 localhost\n' > "$root/etc/hosts"
printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
# How this host reaches its mirror, and what it may need to be let in, is the host's own.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
sed -i -e 's/^deb \[[^]]*\] /deb /' -e 's#://[^/@ ]*@#://#' "$root/etc/apt/sources.list"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/log/*.log
"#;

/// `/etc/profile` without a fork: Debian's own costs 60 ms of `id` and `mesg` on gVisor.
const PROFILE: &str = r#"if [ "$EUID" = 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:$HOME/.local/bin
fi
export PATH
umask 022
for part in /etc/profile.d/*.sh; do
  [ ! -r "$part" ] || . "$part"
done
unset part"#;
