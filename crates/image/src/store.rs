//! Templates and sandbox disks on one file system that can clone files.
//!
//! `templates/ID.ext4` with `ID.json` beside it never change once named; `sandboxes/ID.ext4`
//! is a sandbox's own. Where the state folder's file system cannot clone (ext4), a sparse
//! btrfs file is mounted in its place; it stays mounted when the server ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use hearth_host::{disk, mount};
use hearth_model::id::{SandboxId, TemplateId};
use hearth_model::sandbox::Size;
use serde::{Deserialize, Serialize};

use crate::base::BaseImage;

/// Free bytes of the pool and of the disk below it under which no new disk is made: thin
/// disks may grow later, and a full pool hurts everybody.
pub const RESERVE_BYTES: u64 = 2 << 30;

/// What is known of a template beside its image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    pub id: TemplateId,
    pub names: Vec<String>,
    pub size: Size,
    /// Names the content.
    pub key: String,
    /// Milliseconds since the epoch.
    pub created_ms: i64,
}

/// How disks are kept; `hearth doctor` says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The state folder's own file system clones files.
    Native,
    /// A btrfs file in the state folder.
    BtrfsFile,
}

/// The store could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}")]
pub struct OpenError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A sandbox got no disk.
#[derive(Debug, thiserror::Error)]
pub enum CloneError {
    #[error("there is no template {id}")]
    NoTemplate { id: TemplateId },
    #[error("{what} has {free_mib} MiB left; {reserve_mib} MiB are its reserve")]
    NoSpace {
        what: &'static str,
        free_mib: u64,
        reserve_mib: u64,
    },
    #[error("cloning the disk of template {id}")]
    Io {
        id: TemplateId,
        #[source]
        source: io::Error,
    },
}

/// The store of one state folder.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    state: PathBuf,
    kind: Kind,
}

impl Store {
    /// Opens the store below `state`, making and mounting it as needed. Blocking.
    ///
    /// # Errors
    /// When it cannot be made or mounted.
    pub fn open(state: &Path) -> Result<Self, OpenError> {
        // The mount table, which is searched below, has whole paths.
        let state = std::fs::create_dir_all(state)
            .and_then(|()| state.canonicalize())
            .map_err(|source| OpenError {
                action: "making",
                path: state.to_owned(),
                source,
            })?;
        let state = state.as_path();
        let dir = state.join("store");
        let fault = |action| {
            let path = dir.clone();
            move |source| OpenError {
                action,
                path,
                source,
            }
        };
        std::fs::create_dir_all(&dir).map_err(fault("making"))?;
        let file = state.join("store.btrfs");
        let kind = if file.exists() || !disk::can_clone(&dir).map_err(fault("probing"))? {
            if !is_other_file_system(state, &dir).map_err(fault("looking for"))? {
                // Launchers of other instances copy the mount table: below a shared mount
                // their copies go when this one goes, and none holds the file.
                mount::make_shared_root(&dir).map_err(fault("preparing"))?;
                mount_file(state, &file, &dir).map_err(fault("mounting"))?;
            }
            Kind::BtrfsFile
        } else {
            Kind::Native
        };
        for part in ["templates", "sandboxes"] {
            std::fs::create_dir_all(dir.join(part)).map_err(fault("making the parts of"))?;
        }
        Ok(Self {
            dir,
            state: state.to_owned(),
            kind,
        })
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Unmounts a btrfs file; for `hearth down`.
    ///
    /// # Errors
    /// When it is in use.
    pub fn close(&self) -> io::Result<()> {
        unmount(&self.dir)
    }

    /// The same for a store that nobody opened, as `hearth prepare` leaves one.
    ///
    /// # Errors
    /// When it is in use.
    pub fn close_at(state: &Path) -> io::Result<()> {
        match state.canonicalize() {
            Ok(state) => unmount(&state.join("store")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn template_path(&self, id: &TemplateId, ext: &str) -> PathBuf {
        self.dir.join("templates").join(format!("{id}.{ext}"))
    }

    fn sandbox_path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join("sandboxes").join(format!("{id}.ext4"))
    }

    /// All templates; one whose description cannot be read is left out, with a warning.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn templates(&self) -> io::Result<Vec<Template>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(self.dir.join("templates"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "json") {
                match std::fs::read(&path).and_then(|b| Ok(serde_json::from_slice::<Template>(&b)?))
                {
                    Ok(template) => all.push(template),
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "a template cannot be read")
                    }
                }
            }
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Takes the base image in as the template `base`, in place of an older one. Running
    /// sandboxes keep the blocks they share with the older one. Blocking; seconds where the
    /// cache is on another file system.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn import_base(&self, image: &BaseImage, size: Size) -> io::Result<Template> {
        let id = TemplateId::parse("base").map_err(io::Error::other)?;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let template = Template {
            id: id.clone(),
            names: vec!["base".into()],
            size,
            key: image.key.clone(),
            created_ms: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
        };
        let known = self.templates()?.into_iter().find(|t| t.id == id);
        if known
            .as_ref()
            .is_some_and(|t| t.key == template.key && t.size == template.size)
        {
            return known.ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let target = self.template_path(&id, "ext4");
        if known.as_ref().is_none_or(|t| t.key != template.key) {
            let temp = self.template_path(&id, "ext4.tmp");
            remove_file(&temp)?;
            if disk::clone_file(&image.path, &temp).is_err() {
                copy_sparse(&image.path, &temp)?;
            }
            File::open(&temp)?.sync_all()?;
            std::fs::rename(&temp, &target)?;
        }
        let json = self.template_path(&id, "json");
        let temp = self.template_path(&id, "json.tmp");
        std::fs::write(&temp, serde_json::to_vec_pretty(&template)?)?;
        std::fs::rename(temp, json)?;
        Ok(template)
    }

    /// Gives a sandbox a disk of its own: a clone of its template's. Blocking, a few ms.
    ///
    /// # Errors
    /// See [`CloneError`].
    pub fn clone_for(
        &self,
        template: &TemplateId,
        sandbox: &SandboxId,
    ) -> Result<PathBuf, CloneError> {
        let fault = |source| CloneError::Io {
            id: template.clone(),
            source,
        };
        let from = self.template_path(template, "ext4");
        if !from.exists() {
            return Err(CloneError::NoTemplate {
                id: template.clone(),
            });
        }
        for (what, at) in [
            ("the disk pool", &self.dir),
            ("the disk below the state folder", &self.state),
        ] {
            let free = disk::space(at).map_err(fault)?.free;
            if free < RESERVE_BYTES {
                return Err(CloneError::NoSpace {
                    what,
                    free_mib: free >> 20,
                    reserve_mib: RESERVE_BYTES >> 20,
                });
            }
        }
        let to = self.sandbox_path(sandbox);
        disk::clone_file(&from, &to).map_err(fault)?;
        Ok(to)
    }

    /// Removes a sandbox's disk; that it is gone already is no error.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, sandbox: &SandboxId) -> io::Result<()> {
        remove_file(&self.sandbox_path(sandbox))
    }

    /// Sandboxes that have a disk here. A file that is not a sandbox's is ignored.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn list_sandbox_images(&self) -> io::Result<Vec<SandboxId>> {
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(self.dir.join("sandboxes"))? {
            let name = entry?.file_name();
            if let Some(id) = name.to_str().and_then(|n| n.strip_suffix(".ext4"))
                && let Ok(id) = SandboxId::parse(id)
            {
                ids.push(id);
            }
        }
        Ok(ids)
    }
}

/// Takes down the file's mount, and the shared one below it.
fn unmount(dir: &Path) -> io::Result<()> {
    while mount::is_mounted(dir)? {
        mount::unmount(dir)?;
    }
    Ok(())
}

/// A bind mount of the folder itself is the same file system.
fn is_other_file_system(state: &Path, dir: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(std::fs::metadata(state)?.dev() != std::fs::metadata(dir)?.dev())
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    use std::ffi::OsStr;
    disk::tool(
        "cp",
        &[
            OsStr::new("--sparse=always"),
            from.as_os_str(),
            to.as_os_str(),
        ],
    )
}

/// Share of the file system below that the btrfs file may grow to, in percent.
const FILE_SHARE: u64 = 90;

fn mount_file(state: &Path, file: &Path, dir: &Path) -> io::Result<()> {
    use std::ffi::OsStr;
    if !file.exists() {
        let temp = file.with_extension("tmp");
        remove_file(&temp)?;
        let size = disk::space(state)?.total / 100 * FILE_SHARE;
        File::create_new(&temp)?.set_len(size & !0xF_FFFF)?;
        // One copy of metadata: the file lies on one disk anyway.
        disk::tool(
            "mkfs.btrfs",
            &[
                OsStr::new("-q"),
                OsStr::new("-m"),
                OsStr::new("single"),
                temp.as_os_str(),
            ],
        )?;
        std::fs::rename(&temp, file)?;
    }
    disk::mount_btrfs(file, dir).map(|_| ())
}
