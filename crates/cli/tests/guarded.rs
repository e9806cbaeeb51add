//! Pools and devices that belong to another system or program, or did meanwhile, are not taken, changed or read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs;
use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::spa::Spa;
use live::Live;

fn line_of(status: &str, disk: &str) -> String {
    status.lines().find(|line| line.contains(disk)).unwrap().to_owned()
}

/// Makes txgs in the pool.
fn go_on(spa: &Arc<Spa>, txgs: usize) {
    for n in 0..txgs {
        let comment = vec![("comment".to_owned(), PropValue::Text(format!("{n}")))];
        spa.sync_task(move |spa, tx| spa.props().set(&comment, tx)).unwrap();
    }
}

/// A mirror of `a` and `b`, of which `b` was used by another system for so many txgs while it was out of use here.
fn half_lived_elsewhere(txgs: usize) -> (Live, [String; 2]) {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 96));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    live.ok("zfs create tank/before");
    live.ok("zpool export tank");
    let elsewhere = tempfile::tempdir().unwrap();
    let (moved, hidden) = (elsewhere.path().join("b"), elsewhere.path().join("hidden"));
    fs::copy(&b, &moved).unwrap();
    // The labels lead to it.
    fs::create_dir(&hidden).unwrap();
    fs::rename(&a, hidden.join("a")).unwrap();
    let spa = testkit::pools::import_dir(elsewhere.path(), "tank").unwrap();
    go_on(&spa, txgs);
    spa.export().unwrap();
    drop(spa);
    fs::copy(hidden.join("a"), &a).unwrap();
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok(&format!("zpool offline tank {b}"));
    fs::copy(&moved, &b).unwrap();
    (live, [a, b])
}

#[test]
fn a_disk_with_a_later_state_of_the_pool_is_refused() {
    let (live, [a, b]) = half_lived_elsewhere(40);
    let before = fs::read(&b).unwrap();
    let told = live.ok(&format!("zpool online tank {b}"));
    assert!(told.contains("has a later state of the pool") && told.contains("zpool labelclear -f"), "{told}");
    for retry in ["zpool clear tank", "zpool reopen tank"] {
        assert!(live.ok(retry).contains("has a later state of the pool"), "{retry}");
    }
    let status = live.ok("zpool status tank");
    assert!(line_of(&status, &b).contains("UNAVAIL") && line_of(&status, &a).contains("ONLINE"), "{status}");
    live.ok("zpool sync tank");
    assert!(before == fs::read(&b).unwrap(), "the disk was written");
    // As the message says.
    live.ok(&format!("zpool labelclear -f {b}"));
    live.ok(&format!("zpool replace tank {b}"));
    live.ok("zpool wait -t resilver tank");
    live.ok("zpool scrub -w tank");
    let status = live.ok("zpool status tank");
    assert!(status.contains(" state: ONLINE") && status.contains("scrub repaired 0B"), "{status}");
    live.export_and_verify("tank");
}

#[test]
fn a_disk_that_another_system_used_for_a_while_gets_everything_anew() {
    let (live, [_, b]) = half_lived_elsewhere(20);
    (0..60).for_each(|n| drop(live.ok(&format!("zpool set comment={n} tank"))));
    assert_eq!(live.ok(&format!("zpool online tank {b}")), "");
    live.ok("zpool wait -t resilver tank");
    live.ok("zpool scrub -w tank");
    let status = live.ok("zpool status tank");
    assert!(status.contains("scrub repaired 0B") && status.contains(" with 0 errors"), "{status}");
    live.export_and_verify("tank");
}

#[test]
fn a_file_at_the_path_of_a_spare_or_cache_device_stays_as_it_is() {
    let live = Live::new();
    let [a, b, s, c] = ["a", "b", "s", "c"].map(|name| live.disk(name, 96));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} spare {s} cache {c}"));
    live.ok("zpool export tank");
    let kept = [&s, &c].map(|path| {
        let kept = format!("{path}.kept");
        fs::rename(path, &kept).unwrap();
        kept
    });
    // A pool of its own at the one place, a file that is no device at the other.
    let other = Live::new();
    let o = other.disk("o", 96);
    other.ok(&format!("zpool create -O mountpoint=none other {o}"));
    other.ok("zpool export other");
    fs::copy(&o, &s).unwrap();
    fs::write(&c, vec![7; 96 << 20]).unwrap();
    let before = [&s, &c].map(|path| fs::read(path).unwrap());

    // The folder holds the moved devices, too, which would be found by their labels.
    live.ok(&format!("zpool import -d {a} -d {b} tank"));
    let status = live.ok("zpool status tank");
    assert!(
        line_of(&status, &s).contains("FAULTED") && line_of(&status, &s).contains("corrupted data"),
        "{status}"
    );
    assert!(
        line_of(&status, &c).contains("FAULTED") && line_of(&status, &c).contains("corrupted data"),
        "{status}"
    );
    live.ok("zpool scrub -w tank");
    live.ok(&format!("zpool offline -f tank {b}"));
    live.ok("zpool reopen tank");
    // Other programs may use them.
    for path in [&s, &c] {
        let options = blkdev::OpenOptions { mode: blkdev::OpenMode::Exclusive, ..Default::default() };
        blkdev::FileDevice::open(path, options).unwrap();
    }
    let now = [&s, &c].map(|path| fs::read(path).unwrap());
    assert!(before == now, "one of them was written");
    live.ok("zpool clear tank");

    // The devices come back.
    for (path, kept) in [&s, &c].into_iter().zip(&kept) {
        fs::rename(kept, path).unwrap();
    }
    live.ok("zpool reopen tank");
    let status = live.ok("zpool status tank");
    assert!(line_of(&status, &s).contains("AVAIL") && line_of(&status, &c).contains("ONLINE"), "{status}");
    let taken = blkdev::OpenOptions { mode: blkdev::OpenMode::Exclusive, ..Default::default() };
    assert!(blkdev::FileDevice::open(&c, taken).is_err(), "the pool does not hold its cache device");
    live.ok("zpool wait tank");
    live.export_and_verify("tank");
}

#[test]
fn a_pool_of_another_system_needs_force_whatever_is_done_with_it() {
    let live = Live::new();
    let dir = live.disks().display().to_string();
    testkit::pools::create_dir(&live.disks(), "tank", 96 << 20).unwrap().export().unwrap();
    // Another system took it, and went.
    drop(testkit::pools::import_dir(&live.disks(), "tank").unwrap());
    let spa = testkit::pools::import_dir(&live.disks(), "tank").unwrap();
    go_on(&spa, 1);
    drop(spa);
    for options in ["", "-o readonly=on ", "-F "] {
        let refused = live.fails(&format!("zpool import -N -d {dir} {options}tank"));
        assert!(refused.contains("pool was previously in use from another system"), "{options}: {refused}");
    }
    live.ok(&format!("zpool import -f -N -d {dir} -o readonly=on tank"));
    live.ok("zpool export tank");
    // Destroyed by that system.
    testkit::pools::import_dir(&live.disks(), "tank").unwrap().destroy().unwrap();
    let refused = live.fails(&format!("zpool import -D -N -d {dir} tank"));
    assert!(refused.contains("pool was previously in use from another system"), "{refused}");
    live.ok(&format!("zpool import -D -f -N -d {dir} tank"));
    live.ok("zpool export tank");
}

#[test]
fn a_pool_with_a_cache_file_of_its_own_is_not_imported_by_the_next_daemon() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    let file = live.dir.path().join("other.cache");
    live.ok(&format!("zpool create -O mountpoint=none -o cachefile={} one {a}", file.display()));
    live.ok(&format!("zpool create -O mountpoint=none -o cachefile=none two {b}"));
    live.ok(&format!("zpool create -O mountpoint=none three {c}"));
    live.signal("-KILL");
    assert_eq!(live.ok("zpool list -H -o name"), "three\n");
    live.ok(&format!("zpool import -c {} one", file.display()));
    live.ok(&format!("zpool import -d {} -o cachefile=none two", live.disks().display()));
    // A pool that leaves its cache file for the daemon's is imported again.
    live.ok("zpool set cachefile= two");
    live.ok(&format!("zpool set cachefile={} three", file.display()));
    live.signal("-KILL");
    assert_eq!(live.ok("zpool list -H -o name"), "one\ntwo\n");
}
