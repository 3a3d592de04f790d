//! Watchers against the real kernel.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use super::*;
use crate::files::staged::StagedFile;
use crate::filesystem::metadata::Pairs;
use crate::filesystem::path::Caller;

const DEADLINE: Duration = Duration::from_secs(20);

fn spec(path: &Path, reach: Reach, detail: Detail) -> Spec {
    Spec {
        path: path.to_owned(),
        reach,
        detail,
        network_mounts: NetworkMounts::Refuse,
    }
}

fn watches() -> Watches {
    Watches::new(Arc::default())
}

async fn next(watch: &Watch) -> Next {
    tokio::time::timeout(DEADLINE, watch.next())
        .await
        .expect("an event before the deadline")
}

/// Events until one is `last`, repeated ones left out.
async fn until(watch: &Watch, last: (&str, Change)) -> Vec<(String, Change)> {
    let mut seen = Vec::new();
    loop {
        let Next::Event(event) = next(watch).await else {
            panic!("no event any more; so far: {seen:?}");
        };
        let event = (event.name, event.change);
        let is_last = event == (last.0.to_owned(), last.1);
        if seen.last() != Some(&event) {
            seen.push(event);
        }
        if is_last {
            return seen;
        }
    }
}

fn owned(list: &[(&str, Change)]) -> Vec<(String, Change)> {
    list.iter()
        .map(|(name, change)| ((*name).to_owned(), *change))
        .collect()
}

#[tokio::test]
async fn every_change_of_one_directory() {
    use Change::*;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    let watch = watches()
        .start(spec(dir.path(), Reach::Directory, Detail::Name))
        .await
        .unwrap();
    fs::write(at("sub/unseen"), "").unwrap();
    fs::write(at("a"), "x").unwrap();
    fs::set_permissions(at("a"), Permissions::from_mode(0o600)).unwrap();
    fs::rename(at("a"), at("b")).unwrap();
    fs::remove_file(at("b")).unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/unseen"), "").unwrap();
    fs::write(at("end"), "").unwrap();
    assert_eq!(
        until(&watch, ("end", Create)).await,
        owned(&[
            ("a", Create),
            ("a", Write),
            ("a", Chmod),
            ("a", Rename),
            ("b", Create),
            ("b", Remove),
            ("d", Create),
            ("end", Create),
        ])
    );
}

#[tokio::test]
async fn tree_with_directories_made_later_moved_and_removed() {
    use Change::*;
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("old/deep")).unwrap();
    let watches = watches();
    let watch = watches
        .start(spec(dir.path(), Reach::Tree, Detail::Name))
        .await
        .unwrap();
    fs::write(at("old/deep/f"), "").unwrap();
    assert_eq!(
        until(&watch, ("old/deep/f", Create)).await,
        owned(&[("old/deep/f", Create)])
    );

    // However fast they are filled, nothing in new directories is missed.
    fs::create_dir_all(at("n/e/w")).unwrap();
    fs::write(at("n/e/w/f"), "content").unwrap();
    let seen = until(&watch, ("n/e/w/f", Write)).await;
    for name in ["n", "n/e", "n/e/w", "n/e/w/f"] {
        let creations = seen
            .iter()
            .filter(|event| **event == (name.to_owned(), Create));
        assert_eq!(creations.count(), 1, "{name} in {seen:?}");
    }

    // Renamed inside: new names from then on.
    fs::rename(at("n"), at("m")).unwrap();
    let seen = until(&watch, ("m", Create)).await;
    assert!(seen.contains(&("n".to_owned(), Rename)), "{seen:?}");
    fs::write(at("m/e/w/g"), "").unwrap();
    assert_eq!(
        until(&watch, ("m/e/w/g", Create)).await.last().unwrap().0,
        "m/e/w/g"
    );

    // Moved out: no longer ours.
    fs::rename(at("m"), outside.path().join("m")).unwrap();
    until(&watch, ("m", Rename)).await;
    wait_for_directories(&watches, 3).await;
    fs::write(outside.path().join("m/e/unseen"), "").unwrap();
    fs::write(at("seen"), "").unwrap();
    assert_eq!(
        until(&watch, ("seen", Create)).await,
        owned(&[("seen", Create)])
    );

    // Moved in: ours, and what is in it is news.
    fs::rename(outside.path().join("m"), at("back")).unwrap();
    fs::write(at("back/e/h"), "").unwrap();
    until(&watch, ("back/e/h", Create)).await;

    fs::remove_dir_all(at("old")).unwrap();
    until(&watch, ("old", Remove)).await;
    drop(watch);
    wait_for_directories(&watches, 0).await;
}

async fn wait_for_directories(watches: &Watches, count: usize) {
    tokio::time::timeout(DEADLINE, async {
        while watches.budget.directories.load(Ordering::Relaxed) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{:?} directories, not {count}", watches.budget));
}

#[tokio::test]
async fn entries_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let watch = watches()
        .start(spec(dir.path(), Reach::Directory, Detail::Entry))
        .await
        .unwrap();
    fs::write(dir.path().join("f"), "12345").unwrap();
    fs::remove_file(dir.path().join("f")).unwrap();
    fs::write(dir.path().join("g"), "12345").unwrap();
    loop {
        let Next::Event(event) = next(&watch).await else {
            panic!("ended");
        };
        match (&*event.name, event.change) {
            ("f", Change::Remove) => assert_eq!(event.entry, None),
            ("g", Change::Write) => {
                let entry = event.entry.unwrap();
                assert_eq!((&*entry.name, entry.size), ("g", 5));
                assert_eq!(Path::new(&entry.path), dir.path().join("g"));
                break;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn an_upload_looks_like_a_write() {
    use Change::*;
    let dir = tempfile::tempdir().unwrap();
    let caller = Caller {
        uid: 1,
        gid: 1,
        home: "/".into(),
        workdir: None,
    };
    let upload = |name: &str| {
        let mut staged = StagedFile::begin(&dir.path().join(name), &caller).unwrap();
        staged.write(b"content").unwrap();
        staged
            .commit(&Pairs::new(), &MetadataStore::default())
            .unwrap();
    };
    fs::write(dir.path().join("old"), "").unwrap();
    for reach in [Reach::Directory, Reach::Tree] {
        let watch = watches()
            .start(spec(dir.path(), reach, Detail::Name))
            .await
            .unwrap();
        upload("old");
        upload("new");
        drop(StagedFile::begin(&dir.path().join("given-up"), &caller).unwrap());
        fs::write(dir.path().join("end"), "").unwrap();
        assert_eq!(
            until(&watch, ("end", Create)).await,
            owned(&[
                ("old", Write),
                ("new", Create),
                ("new", Write),
                ("end", Create)
            ])
        );
        fs::remove_file(dir.path().join("new")).unwrap();
        fs::remove_file(dir.path().join("end")).unwrap();
    }
}

#[tokio::test]
async fn refusals() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), "").unwrap();
    let watches = watches();
    let start =
        |name: &str| watches.start(spec(&dir.path().join(name), Reach::Directory, Detail::Name));
    assert!(matches!(start("no").await, Err(FileError::NotFound(_))));
    assert!(matches!(start("f").await, Err(FileError::Invalid(_))));
    // A refused watcher takes no place.
    let mut kept = Vec::new();
    for _ in 0..100 {
        kept.push(start("").await.unwrap());
    }
    assert_eq!(watches.budget.watchers.load(Ordering::Relaxed), 100);
    drop(kept);
    assert_eq!(watches.budget.watchers.load(Ordering::Relaxed), 0);
    watches
        .budget
        .watchers
        .store(MAX_WATCHERS, Ordering::Relaxed);
    let refused = start("").await.unwrap_err();
    assert!(refused.to_string().contains("1024"), "{refused}");
}

#[tokio::test]
async fn watched_directories_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..10 {
        fs::create_dir(dir.path().join(number.to_string())).unwrap();
    }
    let watches = watches();
    watches
        .budget
        .directories
        .store(MAX_DIRECTORIES - 5, Ordering::Relaxed);
    let tree = spec(dir.path(), Reach::Tree, Detail::Name);
    let refused = watches.start(tree.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("8192"), "{refused}");
    assert_eq!(
        watches.budget.directories.load(Ordering::Relaxed),
        MAX_DIRECTORIES - 5
    );
    // One that fits, and then grows: its client is told.
    watches
        .budget
        .directories
        .store(MAX_DIRECTORIES - 11, Ordering::Relaxed);
    let watch = watches.start(tree).await.unwrap();
    fs::create_dir(dir.path().join("one-more")).unwrap();
    while !matches!(next(&watch).await, Next::Lost) {}
}

#[tokio::test]
async fn removal_of_the_directory_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("r");
    fs::create_dir(&root).unwrap();
    let watch = watches()
        .start(spec(&root, Reach::Tree, Detail::Name))
        .await
        .unwrap();
    fs::remove_dir(&root).unwrap();
    until(&watch, (".", Change::Remove)).await;
    loop {
        match next(&watch).await {
            Next::Ended => break,
            Next::Event(_) => {}
            Next::Lost => panic!("nothing was lost"),
        }
    }
}

#[tokio::test]
async fn a_flood_is_bounded_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let watches = watches();
    let watch = watches
        .start(spec(dir.path(), Reach::Directory, Detail::Name))
        .await
        .unwrap();
    let path = dir.path().to_owned();
    let flood = tokio::task::spawn_blocking(move || {
        for number in 0..20_000 {
            fs::create_dir(path.join(number.to_string())).unwrap();
        }
    });
    flood.await.unwrap();
    tokio::time::timeout(DEADLINE, async {
        loop {
            match watch.drain() {
                Err(error) => return assert!(error.to_string().contains("overflow")),
                Ok(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    })
    .await
    .unwrap();
    // And it goes on.
    tokio::time::timeout(DEADLINE, async {
        fs::write(dir.path().join("after"), "").unwrap();
        loop {
            let events = watch.drain().unwrap_or_default();
            if events.iter().any(|event| event.name == "after") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn polled_watchers_are_read_removed_and_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let watches = watches();
    let registry = registry::Registry::default();
    let start = || watches.start(spec(dir.path(), Reach::Directory, Detail::Name));
    let mut now = Instant::now();
    let id = registry.insert(start().await.unwrap(), now);
    assert!(registry.read(&id, now).unwrap().is_empty());
    assert!(matches!(
        registry.read("other", now),
        Err(registry::ReadError::Unknown(_))
    ));
    registry.remove(&id).unwrap();
    registry.remove(&id).unwrap_err();

    let id = registry.insert(start().await.unwrap(), now);
    for _ in 0..3 {
        now += Duration::from_secs(23 * 3600);
        registry.sweep(now);
        registry.read(&id, now).unwrap();
    }
    now += Duration::from_secs(25 * 3600);
    registry.sweep(now);
    registry.read(&id, now).unwrap_err();
    assert_eq!(watches.budget.watchers.load(Ordering::Relaxed), 0);
}
