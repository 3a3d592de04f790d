//! Control groups on this host, through whichever layout it has. Needs root.

use std::os::fd::AsFd as _;
use std::path::Path;

use hearth_host::cgroup::{Group, IoLimits, Layout, Limits};
use hearth_host::process::Process;
use hearth_host::spawn;

const LIMITS: Limits = Limits {
    cpu_milli: 500,
    memory_bytes: 64 << 20,
    pids: 32,
};

fn parent(test: &str) -> String {
    format!("hearth-test-{test}-{}", std::process::id())
}

#[tokio::test]
async fn a_process_is_born_in_its_group_and_ends_with_it() {
    let layout = Layout::detect().expect("control groups");
    let parent = parent("born");
    layout.make_parent(&parent).expect("a parent");
    let group = Group::at(&layout, &parent, "one");
    group.create().expect("a group");
    group.limit(&LIMITS).expect("limits");
    assert_eq!(group.read_back().expect("readable"), LIMITS);
    assert_eq!(layout.children(&parent), ["one"]);

    let null = std::fs::File::open("/dev/null").expect("null");
    let dir = group.birth_dir();
    let child = spawn::spawn(
        Path::new("/bin/sleep"),
        &["1000"],
        [null.as_fd(), null.as_fd(), null.as_fd()],
        dir.as_deref(),
    )
    .expect("it starts");
    // What a launcher does for itself on v1.
    for file in group.attach_files() {
        std::fs::write(&file, child.pid.to_string()).expect("attached");
    }
    assert_eq!(group.pids(), [child.pid]);
    if let Some(dir) = dir {
        let born = std::fs::read_to_string(dir.join("cgroup.procs")).expect("readable");
        assert_eq!(born.trim(), child.pid.to_string());
    }
    let process = Process::open(child.pid).expect("alive");
    assert!(Process::open_same(child.pid, process.start()).is_ok());
    assert!(
        Process::open_same(child.pid, process.start() + 1).is_err(),
        "another process of that number"
    );

    let killed = group.clone();
    tokio::task::spawn_blocking(move || killed.kill_and_remove())
        .await
        .expect("no panic")
        .expect("ended");
    assert_eq!(child.wait().await.expect("reaped"), 128 + 9);
    process.exited().await.expect("watched");
    assert!(group.counters().is_err() && layout.children(&parent).is_empty());
    layout.remove_parent(&parent);
    for tree in ["memory", "pids", "cpu", "unified"] {
        assert!(
            !Path::new("/sys/fs/cgroup")
                .join(tree)
                .join(&parent)
                .exists()
        );
    }
}

#[tokio::test]
async fn the_pids_limit_is_hit() {
    let layout = Layout::detect().expect("control groups");
    let parent = parent("pids");
    layout.make_parent(&parent).expect("a parent");
    let group = Group::at(&layout, &parent, "one");
    group.create().expect("a group");
    group.limit(&Limits { pids: 8, ..LIMITS }).expect("limits");
    let attach: Vec<String> = group
        .attach_files()
        .iter()
        .map(|f| format!("echo $$ > {};", f.display()))
        .collect();
    let script = format!(
        "{} for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 100 & done",
        attach.join(" ")
    );
    let null = std::fs::File::open("/dev/null").expect("null");
    let (log_read, log) = std::io::pipe().expect("a pipe");
    let child = spawn::spawn(
        Path::new("/bin/sh"),
        &["-c", &script],
        [null.as_fd(), null.as_fd(), log.as_fd()],
        group.birth_dir().as_deref(),
    )
    .expect("it starts");
    drop(log);
    assert_ne!(
        child.wait().await.expect("reaped"),
        0,
        "twelve processes where eight may be"
    );
    assert!(group.counters().expect("readable").pids <= 8);
    let killed = group.clone();
    tokio::task::spawn_blocking(move || killed.kill_and_remove())
        .await
        .expect("no panic")
        .expect("ended");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut { log_read }, &mut said).expect("readable");
    assert!(said.contains("fork"), "{said}");
    layout.remove_parent(&parent);
}

/// No host of ours carries its controllers on v2: the files and formats of that layout are
/// checked on a plain folder, and a process is born in a real v2 group above.
#[test]
fn v2_files_have_the_kernels_names_and_formats() {
    let root = tempfile::tempdir().expect("a folder");
    let layout = Layout::V2 {
        root: root.path().to_owned(),
    };
    let dir = root.path().join("p/one");
    std::fs::create_dir(root.path().join("p")).expect("a folder");
    let group = Group::at(&layout, "p", "one");
    group.create().expect("a group");
    assert!(
        group.create().is_err(),
        "a group that is there is somebody's"
    );
    // The kernel makes a group's files; ours are only written.
    for name in [
        "cpu.max",
        "memory.max",
        "memory.oom.group",
        "pids.max",
        "io.max",
    ] {
        std::fs::write(dir.join(name), "").expect("a file");
    }
    group.limit(&LIMITS).expect("limits");
    group
        .limit_io(&IoLimits {
            major: 7,
            minor: 3,
            read_bps: 1000,
            write_bps: 2000,
        })
        .expect("limits");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect(name);
    // Documentation/admin-guide/cgroup-v2.rst
    assert_eq!(read("cpu.max"), "50000 100000");
    assert_eq!(read("memory.max"), (64u64 << 20).to_string());
    assert_eq!(read("memory.oom.group"), "1");
    assert_eq!(read("pids.max"), "32");
    assert_eq!(read("io.max"), "7:3 rbps=1000 wbps=2000");
    assert_eq!(group.read_back().expect("readable"), LIMITS);
    assert!(
        group.attach_files().is_empty(),
        "a process is born in its group on v2"
    );

    for (name, text) in [
        ("cpu.stat", "usage_usec 1234\nuser_usec 1\n"),
        ("memory.current", "4096\n"),
        ("memory.stat", "anon 1\nfile 300\nshmem 100\n"),
        ("memory.events", "low 0\noom 1\noom_kill 2\n"),
        ("pids.current", "5\n"),
    ] {
        std::fs::write(dir.join(name), text).expect("written");
    }
    let counters = group.counters().expect("readable");
    assert_eq!(
        (counters.cpu_ns, counters.memory_bytes, counters.cache_bytes),
        (1_234_000, 4096, 200)
    );
    assert_eq!((counters.oom_kills, counters.pids), (2, 5));
}
