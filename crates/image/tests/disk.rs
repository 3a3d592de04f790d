//! The disk store on this host: real images, real mounts. Needs root.

use std::io::Write as _;
use std::path::PathBuf;

use hearth_host::{disk, mount};
use hearth_image::store::{CloneError, Store};
use hearth_model::id::{SandboxId, TemplateId};
use hearth_model::limits;
use hearth_model::sandbox::Size;

const SIZE: Size = Size {
    vcpu: limits::DEFAULT_VCPU,
    memory_mib: limits::DEFAULT_MEMORY_MIB,
    disk_mib: limits::DEFAULT_DISK_MIB,
};

fn cache_dir() -> PathBuf {
    std::env::var("HEARTH_CACHE_DIR")
        .unwrap_or("/var/cache/hearth".into())
        .into()
}

#[test]
fn disks_are_cloned_apart_and_given_back() {
    let scratch = tempfile::Builder::new()
        .prefix("hearth-disk-")
        .tempdir_in("/var/tmp")
        .expect("a folder");
    let store = Store::open(scratch.path()).expect("the store opens");
    let base = TemplateId::parse("base").expect("an id");
    let (a, b) = (SandboxId::random(), SandboxId::random());
    assert!(matches!(
        store.clone_for(&base, &a),
        Err(CloneError::NoTemplate { .. })
    ));

    let image = hearth_image::base::ensure(&cache_dir(), SIZE.disk_mib, &|step| println!("{step}"))
        .expect("base is built");
    let template = store.import_base(&image, SIZE).expect("base is taken in");
    assert_eq!(
        store.import_base(&image, SIZE).expect("a second time"),
        template
    );
    assert_eq!(store.templates().expect("readable"), [template]);

    let at = scratch.path().join("mnt");
    std::fs::create_dir(&at).expect("a folder");
    let begun = std::time::Instant::now();
    let disk_a = store.clone_for(&base, &a).expect("a disk");
    println!("cloned in {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    disk::mount_image(&disk_a, &at).expect("it mounts");
    println!("mounted in {:?}", begun.elapsed());
    let space = disk::space(&at).expect("a size");
    assert!(
        space.total > 19 << 30 && space.total < 21 << 30,
        "{space:?}"
    );
    assert!(
        at.join("home/user").is_dir()
            && at.join("usr/bin/python3").exists()
            && at.join("usr/bin/node").exists()
    );
    let mut file = std::fs::File::create(at.join("home/user/mine")).expect("writable");
    file.write_all(&vec![7; 8 << 20]).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    mount::unmount(&at).expect("unmounted");

    // The other one does not see it, and neither does the next mount miss it.
    let disk_b = store.clone_for(&base, &b).expect("a disk");
    disk::mount_image(&disk_b, &at).expect("it mounts");
    assert!(!at.join("home/user/mine").exists());
    mount::unmount(&at).expect("unmounted");
    disk::mount_image(&disk_a, &at).expect("it mounts again");
    assert!(at.join("home/user/mine").exists());
    mount::unmount(&at).expect("unmounted");

    let mut listed = store.list_sandbox_images().expect("readable");
    listed.sort();
    let mut both = vec![a.clone(), b.clone()];
    both.sort();
    assert_eq!(listed, both);
    for id in [&a, &b, &b] {
        store.remove(id).expect("removed, and again");
    }
    assert!(store.list_sandbox_images().expect("readable").is_empty());

    // A stranger's mount namespace, made meanwhile, does not hold the file on.
    let stranger = Stranger::start();

    // Opened again over what is mounted, and over what is not.
    drop(store);
    let store = Store::open(scratch.path()).expect("again");
    store.close().expect("closed");
    let file = scratch.path().join("store.btrfs");
    if file.exists() {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while loop_files().contains(&file) {
            assert!(
                until > std::time::Instant::now(),
                "the loop device is still there"
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    drop(stranger);
    let store = Store::open(scratch.path()).expect("after a reboot");
    assert_eq!(store.templates().expect("readable").len(), 1);
    drop(store);
    Store::close_at(scratch.path()).expect("closed by its folder");
    Store::close_at(scratch.path()).expect("and again");
    Store::close_at(&scratch.path().join("none")).expect("nothing to close");
    assert!(mount::below(scratch.path()).expect("readable").is_empty());
}

/// A process in a mount namespace of its own, as another instance's launcher makes it.
struct Stranger(std::process::Child);

impl Stranger {
    fn start() -> Self {
        use std::io::BufRead as _;
        let mut child = std::process::Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "slave",
                "sh",
                "-c",
                "echo up; cat",
            ])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        std::io::BufReader::new(out)
            .read_line(&mut line)
            .expect("it says so");
        assert_eq!(line, "up\n");
        Self(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

/// What the loop devices of this host stand on.
fn loop_files() -> Vec<PathBuf> {
    let devices = std::fs::read_dir("/sys/block").expect("sysfs");
    devices
        .filter_map(|d| std::fs::read_to_string(d.ok()?.path().join("loop/backing_file")).ok())
        .map(|text| PathBuf::from(text.trim_end()))
        .collect()
}
