//! The text of an import listing. Every expectation was taken from OpenZFS 2.3.2, with guids for names.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::expect_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{ALL, interior, label, leaf, write_labels};
use nvpair::NvList;
use zutil::import_listing::{ListingOptions, LoadOutcome, MosFacts, render};
use zutil::names::NameStyle;
use zutil::tree::VdevNode;
use zutil::{PoolCandidate, discover, search};

fn pool(dir: &Path) -> PoolCandidate {
    search(&discover(&[dir.to_owned()]).devices).remove(0)
}

fn show(pool: &PoolCandidate, outcome: &LoadOutcome) -> String {
    let names = NameStyle { guids: true, ..NameStyle::default() };
    render(pool, outcome, ListingOptions { names, hostid: 99 })
}

fn facts(tops: Vec<NvList>) -> MosFacts {
    MosFacts {
        tree: VdevNode::from_config(&interior("root", 0, 7, tops)).unwrap(),
        version: 5000,
        features_disabled: false,
        spares: Vec::new(),
        l2cache: Vec::new(),
        resilvering: false,
        rebuilding: false,
        comment: None,
        errata: 0,
    }
}

fn loaded(facts: MosFacts) -> LoadOutcome {
    LoadOutcome::Loaded(Box::new(facts))
}

/// One disk 11 that is a pool by itself; `change` alters its label.
fn single(change: impl FnOnce(&mut NvList)) -> (tempfile::TempDir, PoolCandidate) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = label("tank", 7, 50, 1, 11, &leaf(0, 11, "/nowhere/a"));
    change(&mut config);
    write_labels(&dir.path().join("a"), &config, &ALL);
    let pool = pool(dir.path());
    (dir, pool)
}

/// A mirror 11, 12 of which the second is missing, and a raidz1 21, 22, 23 of which `lost` are.
fn mixed(lost: &[u64]) -> (tempfile::TempDir, PoolCandidate, LoadOutcome) {
    let dir = tempfile::tempdir().unwrap();
    let mirror = interior("mirror", 0, 10, vec![leaf(0, 11, "/nowhere/a"), leaf(1, 12, "/nowhere/b")]);
    let raidz = interior("raidz", 1, 20, (21..24).map(|g| leaf(g - 21, g, "/nowhere/r")).collect());
    write_labels(&dir.path().join("a"), &label("tank", 7, 50, 2, 11, &mirror), &ALL);
    for guid in (21..24).filter(|guid| !lost.contains(guid)) {
        write_labels(&dir.path().join(guid.to_string()), &label("tank", 7, 50, 2, guid, &raidz), &ALL);
    }
    let pool = pool(dir.path());
    (dir, pool, loaded(facts(vec![mirror, raidz])))
}

#[test]
fn a_healthy_pool() {
    let (dir, pool) = single(|_| {});
    let expected = "  pool: tank\n    id: 7\n state: ONLINE\n\
         action: The pool can be imported using its name or numeric identifier.\n\
         config:\n\n\ttank        ONLINE\n\t  11        ONLINE\n";
    assert_eq!(show(&pool, &LoadOutcome::NotTried), expected);
    let path = dir.path().canonicalize().unwrap().join("a");
    let named = render(&pool, &LoadOutcome::NotTried, ListingOptions::default());
    assert!(named.ends_with(&format!("\n\t  {}  ONLINE\n", path.display())), "{named}");
}

#[test]
fn missing_devices_with_and_without_replicas() {
    let (_dir, pool, outcome) = mixed(&[22]);
    let expected = "  pool: tank\n    id: 7\n state: DEGRADED\n\
         status: One or more devices are missing from the system.\n\
         action: The pool can be imported despite missing or damaged devices.  The\n\
         \tfault tolerance of the pool may be compromised if imported.\n   \
         see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\n\
         config:\n\n\ttank        DEGRADED\n\t  10        DEGRADED\n\t    11      ONLINE\n\
         \t    12      UNAVAIL  cannot open\n\t  20        DEGRADED\n\t    21      ONLINE\n\
         \t    22      UNAVAIL  cannot open\n\t    23      ONLINE\n";
    assert_eq!(show(&pool, &outcome), expected);
    assert_eq!(show(&pool, &LoadOutcome::NotTried), expected, "labels alone tell as much here");

    let (_dir, pool, outcome) = mixed(&[21, 22]);
    let text = show(&pool, &outcome);
    assert!(text.contains("\n\ttank        UNAVAIL  insufficient replicas\n"), "{text}");
    assert!(
        text.contains("action: The pool cannot be imported. Attach the missing\n\tdevices and try again.\n")
    );
    assert!(text.contains("/msg/ZFS-8000-3C\n"));
}

#[test]
fn a_missing_top_is_known_from_the_pools_own_config_only() {
    let (_dir, pool, outcome) = mixed(&[21, 22, 23]);
    let text = show(&pool, &outcome);
    assert!(
        text.contains("\n\t  20        UNAVAIL  insufficient replicas\n\t    21      UNAVAIL  cannot open\n")
    );
    let text = show(&pool, &LoadOutcome::NotTried);
    assert!(text.contains("\n\ttank        UNAVAIL  missing device\n"), "{text}");
    assert!(text.ends_with(
        "\n\n\tAdditional devices are known to be part of this pool, though their\n\
         \texact configuration cannot be determined.\n"
    ));
    let text = show(&pool, &LoadOutcome::Corrupt);
    assert!(text.contains("FAULTED  corrupted data\n"));
}

#[test]
fn unreadable_metadata() {
    let (_dir, pool) = single(|_| {});
    let expected = "  pool: tank\n    id: 7\n state: FAULTED\n\
         status: The pool metadata is corrupted.\n\
         action: The pool cannot be imported due to damaged devices or data.\n   \
         see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-72\n\
         config:\n\n\ttank        FAULTED  corrupted data\n\t  11        ONLINE\n";
    assert_eq!(show(&pool, &LoadOutcome::Corrupt), expected);
    let (_dir, pool) = single(|label| {
        label.add("state", 0u64).add("hostid", 5u64).add("hostname", "elsewhere");
    });
    let text = show(&pool, &LoadOutcome::Corrupt);
    assert!(text.contains(
        "action: The pool cannot be imported due to damaged devices or data.\n\
         \tThe pool may be active on another system, but can be imported using\n\tthe '-f' flag.\n   see: "
    ));
}

#[test]
fn pools_of_another_host_and_destroyed_ones() {
    let (_dir, pool) = single(|label| {
        label.add("state", 0u64).add("hostid", 5u64).add("hostname", "elsewhere");
    });
    let text = show(&pool, &LoadOutcome::NotTried);
    assert!(text.contains(
        "status: The pool was last accessed by another system.\n\
         action: The pool can be imported using its name or numeric identifier and\n\
         \tthe '-f' flag.\n   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-EY\n"
    ));
    let (_dir, pool) = single(|label| {
        label.add("state", 2u64).add("comment", "the old one");
    });
    let text = show(&pool, &LoadOutcome::NotTried);
    assert!(text.contains("\n state: ONLINE (DESTROYED)\n") && text.contains("\ncomment: the old one\n"));
}

#[test]
fn versions_and_features_that_labels_tell() {
    let (_dir, pool) = single(|label| {
        label.add("version", 999u64);
    });
    let outcome = LoadOutcome::from_label(&pool).unwrap();
    let text = show(&pool, &outcome);
    assert!(text.contains("\n\ttank        UNAVAIL  newer version\n") && text.contains("ZFS-8000-A5"));

    let text = show(&pool, &LoadOutcome::HostidRequired);
    let lines = "status: The pool has the multihost property on.  It cannot\n\
         \tbe safely imported when the system hostid is not set.\n\
         action: Set a unique system hostid with the zgenhostid(8) command.\n   see: ";
    assert!(text.contains("\n\ttank        UNAVAIL  currently in use\n") && text.contains(lines), "{text}");

    let (_dir, pool) = single(|label| {
        let mut features = NvList::new();
        for guid in ["com.delphix:hole_birth", "org.example:time_travel"] {
            features.push(guid, nvpair::NvValue::Boolean);
        }
        label.add("features_for_read", nvpair::NvValue::List(features));
    });
    let outcome = LoadOutcome::from_label(&pool).unwrap();
    let expected = "  pool: tank\n    id: 7\n state: UNAVAIL\n\
         status: The pool uses the following feature(s) not supported on this system:\n\
         \torg.example:time_travel\n\
         action: The pool cannot be imported. Access the pool on a system that supports\n\
         \tthe required feature(s), or recreate the pool from backup.\n\
         config:\n\n\ttank        UNAVAIL  unsupported feature(s)\n\t  11        ONLINE\n";
    assert_eq!(show(&pool, &outcome), expected);
}

#[test]
fn old_versions_disabled_features_and_errata() {
    let upgrade = "action: The pool can be imported using its name or numeric identifier, though\n\
         \tsome features will not be available without an explicit 'zpool upgrade'.\n";
    let (_dir, pool) = single(|label| {
        label.add("version", 28u64);
    });
    let text = show(&pool, &LoadOutcome::NotTried);
    assert!(text.contains("status: The pool is formatted using a legacy on-disk version.\n"));
    assert!(text.contains(upgrade));
    let (_dir, pool) = single(|_| {});
    let with = |change: fn(&mut MosFacts)| {
        let mut facts = facts(vec![leaf(0, 11, "/nowhere/a")]);
        change(&mut facts);
        show(&pool, &loaded(facts))
    };
    let text = with(|facts| facts.features_disabled = true);
    assert!(text.contains(
        "status: Some supported features are not enabled on the pool.\n\
         \t(Note that they may be intentionally disabled if the\n\t'compatibility' property is set.)\n"
    ));
    assert!(text.contains(upgrade));
    let text = with(|facts| facts.errata = 1);
    assert!(text.contains("status: Errata #1 detected.\n") && text.contains("by running 'zpool scrub'\n"));
    assert!(with(|facts| facts.resilvering = true).contains("status: One or more devices were being resilv"));
}

/// A disk 11, a dedup disk 12, a special disk 13, a log 14, a cache 15, a spare 16.
fn classes(dir: &Path, absent: u64) -> LoadOutcome {
    let top = |guid: u64, bias: Option<&str>| {
        let mut top = leaf(guid - 11, guid, "/nowhere/x");
        top.add("is_log", u64::from(guid == 14));
        if let Some(bias) = bias {
            top.add("alloc_bias", bias);
        }
        top
    };
    for guid in (11..15).filter(|guid| *guid != absent) {
        let config = label("tank", 7, 50, 4, guid, &top(guid, None));
        write_labels(&dir.join(guid.to_string()), &config, &ALL);
    }
    let tops = vec![top(11, None), top(12, Some("dedup")), top(13, Some("special")), top(14, None)];
    let mut facts = facts(tops);
    facts.l2cache = vec![VdevNode::from_config(&leaf(0, 15, "/c")).unwrap()];
    facts.spares = vec![VdevNode::from_config(&leaf(0, 16, "/s")).unwrap()];
    loaded(facts)
}

#[test]
fn classes_have_their_sections() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = classes(dir.path(), 0);
    let text = show(&pool(dir.path()), &outcome);
    assert!(text.ends_with(
        "config:\n\n\ttank        ONLINE\n\t  11        ONLINE\n\tcache\n\t  15\n\tspares\n\t  16\n\
         \tdedup\t\n\t  12        ONLINE\n\tspecial\t\n\t  13        ONLINE\n\tlogs\t\n\t  14        ONLINE\n"
    ));
}

#[test]
fn a_pool_without_its_log_is_degraded_and_without_its_dedup_disk_lost() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = classes(dir.path(), 14);
    let text = show(&pool(dir.path()), &outcome);
    assert!(text.contains("\n state: DEGRADED\n"));
    assert!(text.ends_with("\tlogs\t\n\t  14        UNAVAIL  cannot open\n"));

    let dir = tempfile::tempdir().unwrap();
    let outcome = classes(dir.path(), 12);
    let text = show(&pool(dir.path()), &outcome);
    assert!(text.contains(
        "\n\ttank        UNAVAIL  insufficient replicas\n\t  11        ONLINE\n\
         \t  12        UNAVAIL  cannot open\n\t  13        ONLINE\n\tlogs\t\n"
    ));
}

#[test]
fn another_vdevs_label_at_the_expected_path() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let alien = other.path().join("b");
    write_labels(&alien, &label("other", 8, 50, 1, 81, &leaf(0, 81, "/x")), &ALL);
    let blank = other.path().join("c");
    std::fs::File::create(&blank).unwrap().set_len(common::SIZE).unwrap();
    let at = |id, guid, path: &Path| leaf(id, guid, path.to_str().unwrap());
    let children = vec![leaf(0, 11, "/nowhere/a"), at(1, 12, &alien), at(2, 13, &blank)];
    let top = interior("mirror", 0, 10, children);
    write_labels(&dir.path().join("a"), &label("tank", 7, 50, 1, 11, &top), &ALL);
    let text = show(&pool(dir.path()), &LoadOutcome::NotTried);
    assert!(text.contains("status: One or more devices contains corrupted data.\n"));
    assert!(text.contains("/msg/ZFS-8000-4J\n"));
    assert!(text.contains("\n\t    12      FAULTED  corrupted data\n\t    13      UNAVAIL  invalid label\n"));
}

#[test]
fn offline_and_cut_off_devices() {
    let (_dir, pool) = single(|label| {
        let mut top = leaf(0, 11, "/nowhere/a");
        top.add("asize", 1u64 << 40).add("metaslab_shift", 29u64);
        label.add("vdev_tree", nvpair::NvValue::List(top));
    });
    let text = show(&pool, &LoadOutcome::NotTried);
    assert!(
        text.contains(
            "\n\ttank        UNAVAIL  insufficient replicas\n\t  11        UNAVAIL  invalid label\n"
        )
    );
    assert!(text.contains("/msg/ZFS-8000-5E\n"));

    let dir = tempfile::tempdir().unwrap();
    let mut off = leaf(1, 12, "/nowhere/b");
    off.add("offline", 1u64);
    let top = interior("mirror", 0, 10, vec![leaf(0, 11, "/nowhere/a"), off]);
    write_labels(&dir.path().join("a"), &label("tank", 7, 50, 1, 11, &top), &ALL);
    let text = show(&self::pool(dir.path()), &LoadOutcome::NotTried);
    assert!(text.contains("status: One or more devices are offlined.\n"));
    assert!(text.contains("\n\t  10        DEGRADED\n\t    11      ONLINE\n\t    12      OFFLINE\n"));
}

#[test]
fn replaced_devices_are_not_complained_of() {
    let dir = tempfile::tempdir().unwrap();
    let replacing = interior("replacing", 1, 30, vec![leaf(0, 31, "/nowhere/x"), leaf(1, 32, "/nowhere/y")]);
    let top = interior("mirror", 0, 10, vec![leaf(0, 11, "/nowhere/a"), replacing]);
    write_labels(&dir.path().join("a"), &label("tank", 7, 50, 1, 11, &top), &ALL);
    write_labels(&dir.path().join("y"), &label("tank", 7, 50, 1, 32, &top), &ALL);
    let text = show(&pool(dir.path()), &LoadOutcome::NotTried);
    assert!(text.contains("\n state: DEGRADED\naction: "), "{text}");
    assert!(
        text.contains("\n\t    30      DEGRADED\n\t      31    UNAVAIL  cannot open\n\t      32    ONLINE\n")
    );
}
