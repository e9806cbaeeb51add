//! A daemon that starts takes a pool of its cache file only in the state in which it left it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use live::Live;

/// A mirror, and the daemon that had it is killed.
fn left() -> Live {
    let live = Live::new();
    let (a, b) = (live.disk("a", 128), live.disk("b", 128));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    live.ok("zfs create tank/old");
    live
}

fn refused(live: &Live, what: &str) {
    let why = live.ok("zpool status");
    assert!(live.fails("zpool clear tank").contains(what));
    assert!(why.contains("tank") && why.contains(what) && why.contains("zpool import"), "{why}");
}

/// A half that was offline lacks what was written since: the pool is not taken from it alone, and nothing on it changes.
#[test]
fn a_half_that_was_offline_is_not_the_pool() {
    let live = left();
    let (a, b) = (live.disks().join("a"), live.disks().join("b"));
    live.ok(&format!("zpool offline tank {}", b.display()));
    live.ok("zfs create tank/new");
    live.signal("-KILL");
    let away = live.disks().parent().unwrap().join("away");
    std::fs::rename(&a, &away).unwrap();
    let before = std::fs::read(&b).unwrap();
    refused(&live, "state of txg");
    assert!(std::fs::read(&b).unwrap() == before, "b was written");
    live.signal("-TERM");
    std::fs::rename(&away, &a).unwrap();
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/new\ntank/old\n");
    live.export_and_verify("tank");
}

/// Another system did something to the pool while the daemon was away.
#[test]
fn a_pool_that_changed_hands_is_not_taken() {
    for (deeds, what) in [
        (&["zpool destroy tank"][..], "it was destroyed"),
        (&["zpool export tank"], "it was exported"),
        (&["zpool export tank", "zpool import -d DISKS tank other", "zpool export other"], "it was exported"),
    ] {
        let live = left();
        live.signal("-KILL");
        let other = Live::new();
        let disks = live.disks().display().to_string();
        other.ok(&format!("zpool import -d {disks} tank"));
        for deed in deeds {
            other.ok(&deed.replace("DISKS", &disks));
        }
        let before = std::fs::read(live.disks().join("a")).unwrap();
        refused(&live, what);
        assert!(std::fs::read(live.disks().join("a")).unwrap() == before, "{what}: a was written");
    }
}

/// A daemon that ends exports its pools, and the next one takes them; but not those that were elsewhere in between.
#[test]
fn an_exported_pool_comes_back_unless_it_was_elsewhere() {
    let live = left();
    live.signal("-TERM");
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/old\n");
    live.signal("-TERM");
    let other = Live::new();
    let disks = live.disks().display().to_string();
    other.ok(&format!("zpool import -d {disks} tank"));
    other.ok("zpool export tank");
    refused(&live, "another system used and exported it");
    live.ok(&format!("zpool import -d {disks} tank"));
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/old\n");
    live.export_and_verify("tank");
}
