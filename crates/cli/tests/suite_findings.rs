//! Differences that OpenZFS's own suite found, each in its smallest form.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use live::Live;

#[test]
fn special_vdevs_need_their_feature_and_may_be_named_apart() {
    let live = Live::new();
    let disks: Vec<String> = ["a", "b", "c", "d"].map(|name| live.disk(name, 64)).into();
    let (a, b, c, d) = (&disks[0], &disks[1], &disks[2], &disks[3]);
    let why = live.fails(&format!("zpool create -f -d -O mountpoint=none tank {a} special {b}"));
    assert!(why.contains("operation not supported on this type of pool"), "{why}");
    live.ok(&format!("zpool create -f -d -O mountpoint=none tank {a}"));
    let why = live.fails(&format!("zpool add -f tank special {b}"));
    assert!(why.contains("operation not supported on this type of pool"), "{why}");
    live.ok("zpool destroy tank");
    live.ok(&format!("zpool create -f -O mountpoint=none tank {a} special {b} special {c} dedup {d}"));
    for value in ["200", "12345", "16777216"] {
        live.ok(&format!("zfs set special_small_blocks={value} tank"));
        assert_eq!(live.ok("zfs get -Hp -o value special_small_blocks tank").trim(), value);
    }
    let why = live.fails("zfs set special_small_blocks=16777217 tank");
    assert!(why.contains("must be between zero and 16M"), "{why}");
    live.ok("zfs create -V 1M -o special_small_blocks=32K tank/vol");
    live.export_and_verify("tank");
}

#[test]
fn bootfs_is_a_file_system_of_the_pool() {
    let live = Live::new();
    let a = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("zfs create tank/fs");
    live.ok("zfs create -V 1M tank/vol");
    live.ok("zpool set bootfs=tank/fs tank");
    assert_eq!(live.ok("zpool get -H -o value,source bootfs tank"), "tank/fs\tlocal\n");
    assert!(live.fails("zpool set bootfs=tank/vol tank").contains("not supported on this type of pool"));
    live.ok("zpool set bootfs= tank");
    assert_eq!(live.ok("zpool get -H -o value bootfs tank"), "-\n");
}

#[test]
fn the_notice_on_features_heeds_compatibility() {
    let live = Live::new();
    let a = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none -o compatibility=compat-2018 tank {a}"));
    assert!(!live.ok("zpool status tank").contains("status:"), "all allowed features are enabled");
    for (set, words) in [
        ("compat-2020", "features are not enabled"),
        ("legacy", "enabled on the pool despite not being"),
        ("off", "features are not enabled"),
    ] {
        live.ok(&format!("zpool set compatibility={set} tank"));
        let status = live.ok("zpool status tank");
        assert!(status.contains(words), "{set}: {status}");
    }
    live.export_and_verify("tank");
}
