//! Names, limits and properties of datasets.

use super::*;

/// A pool `tank` of 256 MiB without mounts.
fn tank() -> Live {
    let live = Live::new();
    let disk = live.disk("a", 256);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live
}

fn number(live: &Live, property: &str, dataset: &str) -> u64 {
    live.ok(&format!("zfs get -Hp -o value {property} {dataset}")).trim().parse().unwrap()
}

#[test]
fn names_that_openzfs_cannot_hold_are_refused() {
    let live = tank();
    let (x, y) = ("x".repeat(200), "y".repeat(100));
    live.ok(&format!("zfs create tank/{x}"));
    live.ok(&format!("zfs snapshot tank/{x}@s"));
    assert!(live.fails(&format!("zfs rename tank/{x}@s {y}")).contains("name is too long"));
    live.ok("zfs create tank/z");
    live.ok(&format!("zfs snapshot tank/z@{y}"));
    assert!(live.fails(&format!("zfs rename tank/z tank/{x}/z")).contains("name is too long"));
    live.ok(&format!("zfs clone tank/z@{y} tank/{x}/c"));
    assert!(live.fails(&format!("zfs promote tank/{x}/c")).contains("name is too long"));
    // The longest name there may be.
    let rest = "s".repeat(255 - "tank/@".len() - 200);
    live.ok(&format!("zfs rename tank/{x}@s {rest}"));
    live.export_and_verify("tank");
}

#[test]
fn nothing_is_put_below_a_volume() {
    let live = tank();
    live.ok("zfs create -s -V 1M tank/vol");
    live.ok("zfs create tank/b");
    live.ok("zfs snapshot tank/b@s");
    for line in ["zfs rename tank/b tank/vol/b", "zfs clone tank/b@s tank/vol/c"] {
        assert!(live.fails(line).contains("parent is not a filesystem"), "{line}");
    }
    assert_eq!(live.ok("zfs list -H -o name -r tank"), "tank\ntank/b\ntank/vol\n");
}

#[test]
fn a_dataset_whose_properties_are_refused_is_not_left_behind() {
    let live = tank();
    live.ok("zfs create tank/a");
    live.ok("zfs snapshot tank/a@s");
    for line in ["zfs create -V 10G tank/n", "zfs clone -o refreservation=10G tank/a@s tank/n"] {
        let why = live.fails(line);
        assert!(why.contains("out of space") || why.contains("greater than available"), "{line}: {why}");
        assert_eq!(live.ok("zfs list -H -o name -r tank"), "tank\ntank/a\n", "{line}");
    }
    live.export_and_verify("tank");
}

#[test]
fn a_tree_without_counts_is_counted_when_it_moves_below_a_limit() {
    let live = tank();
    for name in ["l", "m", "m/x"] {
        live.ok(&format!("zfs create tank/{name}"));
    }
    live.ok("zfs set snapshot_limit=none tank/m");
    let state = live.ok("zpool get -H -o value feature@filesystem_limits tank");
    assert_eq!(state, "enabled\n", "no limit is no use of the feature");
    live.ok("zfs set filesystem_limit=10 tank/l");
    live.ok("zfs rename tank/m tank/l/m");
    assert_eq!(number(&live, "filesystem_count", "tank/l"), 2);
    assert_eq!(number(&live, "filesystem_count", "tank/l/m"), 1);
    live.ok("zfs destroy -r tank/l/m");
    assert_eq!(number(&live, "filesystem_count", "tank/l"), 0);
    live.export_and_verify("tank");
}

#[test]
fn a_rename_asks_the_quota_above_both_places() {
    let live = tank();
    live.ok("zfs create -o quota=70M tank/a");
    live.ok("zfs create -o reservation=60M tank/a/p");
    live.ok("zfs create -V 30M tank/a/p/c");
    assert!(live.fails("zfs rename tank/a/p/c tank/a/c").contains("out of space"));
    live.ok("zfs set reservation=30M tank/a/p");
    live.ok("zfs rename tank/a/p/c tank/a/c");
    assert!(live.fails("zfs set reservation=1T tank").contains("greater than available space"));
}

#[test]
fn the_boot_dataset_is_forgotten_when_it_is_destroyed() {
    let live = tank();
    live.ok("zfs create tank/boot");
    live.ok("zpool set bootfs=tank/boot tank");
    live.ok("zfs destroy tank/boot");
    assert_eq!(live.ok("zpool get -H -o value bootfs tank"), "-\n");
    live.export_and_verify("tank");
}

#[test]
fn the_creator_gets_the_permissions_of_creators() {
    let live = tank();
    live.ok("zfs create tank/t");
    live.ok("zfs allow -c destroy tank/t");
    live.ok("zfs snapshot tank/t@s");
    live.ok("zfs create -p tank/t/x/y");
    live.ok("zfs clone tank/t@s tank/t/c");
    for name in ["x", "x/y", "c"] {
        let text = live.ok(&format!("zfs allow tank/t/{name}"));
        assert!(text.contains("Local permissions:\n\tuser root destroy"), "{name}: {text}");
    }
}

#[test]
fn names_of_snapshots_ignore_case_where_those_of_files_do() {
    let live = tank();
    live.ok("zfs create -o casesensitivity=insensitive tank/ci");
    live.ok("zfs snapshot tank/ci@Foo");
    assert!(live.fails("zfs snapshot tank/ci@foo").contains("dataset already exists"));
    assert_eq!(live.ok("zfs list -H -o name tank/ci@fOO"), "tank/ci@Foo\n");
    live.ok("zfs bookmark tank/ci@foo tank/ci#Mark");
    assert!(live.fails("zfs bookmark tank/ci@foo tank/ci#mARK").contains("exists"));
    live.ok("zfs destroy tank/ci#mark");
    live.ok("zfs rename tank/ci@FOO bar");
    live.ok("zfs clone tank/ci@BAR tank/c");
    assert!(live.ok("zdb -dddd tank").contains("flags = 10004"));
    live.ok("zfs destroy tank/c");
    live.ok("zfs destroy tank/ci@BAR");
    assert_eq!(live.ok("zfs list -H -t all -o name -r tank/ci"), "tank/ci\n");
    live.export_and_verify("tank");
}

#[test]
fn a_received_quota_comes_into_force_only_where_it_suffices() {
    let live = tank();
    live.ok("zfs create -o quota=10M tank/src");
    live.ok("zfs snapshot tank/src@s");
    let stream = live.dir.path().join("stream");
    let out = std::fs::File::create(&stream).unwrap();
    assert!(live.command("zfs send -p tank/src@s").stdout(out).status().unwrap().success());
    let from = std::fs::File::open(&stream).unwrap();
    assert!(live.command("zfs receive -u tank/dst").stdin(from).status().unwrap().success());
    live.ok("zfs set quota=100M tank/dst");
    live.ok("zfs create -o reservation=20M tank/dst/r");
    assert!(live.fails("zfs inherit -S quota tank/dst").contains("out of space"));
    assert_eq!(number(&live, "quota", "tank/dst"), 100 << 20);
    live.ok("zfs destroy tank/dst/r");
    live.ok("zfs inherit -S quota tank/dst");
    assert_eq!(number(&live, "quota", "tank/dst"), 10 << 20);
}

/// Docker's zfs driver destroys the snapshot of each layer with -d.
#[test]
fn snapshots_that_went_with_their_last_clone_do_not_stop_a_destroy() {
    let live = tank();
    let layers = |top: &str| {
        live.ok(&format!("zfs create tank/{top}"));
        live.ok(&format!("zfs create tank/{top}/base"));
        for n in 1..=3 {
            live.ok(&format!("zfs snapshot tank/{top}/base@{n}"));
            live.ok(&format!("zfs clone tank/{top}/base@{n} tank/{top}/l{n}"));
            live.ok(&format!("zfs destroy -d tank/{top}/base@{n}"));
        }
    };
    layers("docker");
    live.ok("zfs destroy -r tank/docker");
    layers("named");
    live.ok("zfs destroy -R tank/named/base@%");
    assert_eq!(live.ok("zfs list -H -o name -t all -r tank/named"), "tank/named\ntank/named/base\n");
    live.ok("zfs snapshot tank/named@1");
    live.ok("zfs snapshot tank/named@2");
    live.ok("zfs clone tank/named@2 tank/clone");
    live.ok("zfs destroy -d tank/named@2");
    live.ok("zfs rollback -R tank/named@1");
    live.ok("zfs destroy -r tank/named");
    assert_eq!(live.ok("zfs list -H -o name -t all"), "tank\n");
    live.export_and_verify("tank");
}

#[test]
fn a_recursive_inherit_clears_properties_of_snapshots() {
    let live = tank();
    live.ok("zfs create -p tank/a/b");
    live.ok("zfs snapshot -r -o com.x:y=1 tank/a@1");
    live.ok("zfs snapshot -r tank/a@2");
    live.ok("zfs set com.x:y=2 tank/a/b");
    live.ok("zfs inherit -r com.x:y tank/a");
    assert_eq!(live.ok("zfs get -H -r -t all -o value com.x:y tank/a"), "-\n".repeat(6));
    live.export_and_verify("tank");
}

#[test]
fn a_volume_whose_reservation_is_refused_does_not_grow() {
    let live = tank();
    live.ok("zfs create -V 10M tank/v");
    let reserved = number(&live, "refreservation", "tank/v");
    let why = live.fails("zfs set volsize=400M tank/v");
    assert!(why.contains("size is greater than available space"), "{why}");
    assert_eq!(number(&live, "volsize", "tank/v"), 10 << 20);
    assert_eq!(number(&live, "refreservation", "tank/v"), reserved);
    live.ok("zfs set volsize=30M tank/v");
    let of_30 = number(&live, "refreservation", "tank/v");
    assert!(of_30 > 30 << 20);
    live.ok("zfs set volsize=10M tank/v");
    assert_eq!(number(&live, "refreservation", "tank/v"), reserved);
    // The words of a command mean one state, in any order.
    live.ok("zfs create -s -V 10M tank/thin");
    live.ok("zfs set refreservation=auto volsize=30M tank/thin");
    assert_eq!(number(&live, "refreservation", "tank/thin"), of_30);
    live.ok("zfs set volsize=10M refreservation=40M tank/thin");
    assert_eq!(number(&live, "refreservation", "tank/thin"), 40 << 20);
    live.export_and_verify("tank");
}

#[test]
fn a_volume_has_large_blocks_where_the_pool_has_their_feature() {
    let live = tank();
    live.ok("zfs create -s -V 16M -b 1M tank/large");
    assert_eq!(number(&live, "volblocksize", "tank/large"), 1 << 20);
    let why = live.fails("zfs create -s -V 32M -b 32M tank/huge");
    assert!(why.contains("'volblocksize' must be power of 2 from 512B to 16M"), "{why}");
    live.export_and_verify("tank");
    let b = live.disk("b", 64);
    live.ok(&format!("zpool create -d -O mountpoint=none old {b}"));
    assert!(live.fails("zfs create -s -V 16M -b 256K old/v").contains("must be upgraded"));
    assert_eq!(live.ok("zfs list -H -o name -r old"), "old\n");
    live.export_and_verify("old");
}

#[test]
fn settings_that_no_stream_has_are_not_reset_to_received_ones() {
    let live = tank();
    let key = live.dir.path().join("key");
    std::fs::write(&key, "correct horse battery").unwrap();
    let at = format!("file://{}", key.display());
    live.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation={at} tank/e"));
    assert!(
        live.fails("zfs inherit -S keylocation tank/e").contains("cannot inherit keylocation for 'tank/e'")
    );
    assert_eq!(live.ok("zfs get -H -o value,source keylocation tank/e"), format!("{at}\tlocal\n"));
    let why = live.fails("zfs inherit -S version tank/e");
    assert_eq!(why, "'version' property cannot be reverted to a received value\n");
    live.ok("zfs set defaultuserquota=10M tank/e");
    live.ok("zfs inherit -S defaultuserquota tank/e");
    assert_eq!(live.ok("zfs get -H -o value defaultuserquota tank/e"), "none\n");
    live.export_and_verify("tank");
}

#[test]
fn keys_of_a_list_count_in_their_order() {
    let live = tank();
    live.ok("zfs set com.x:k=1 tank");
    for (name, key) in [("a", 2), ("b", 1), ("c", 2)] {
        live.ok(&format!("zfs create -o com.x:k={key} tank/{name}"));
    }
    let list = |keys: &str| live.ok(&format!("zfs list -H -o name {keys}")).replace('\n', " ");
    assert_eq!(list("-S com.x:k -s name"), "tank/a tank/c tank tank/b ");
    assert_eq!(list("-S com.x:k -S name"), "tank/c tank/a tank/b tank ");
    assert_eq!(list("-s name -S com.x:k"), "tank tank/a tank/b tank/c ");
}

#[test]
fn datasets_below_a_limit_that_was_higher_get_no_deeper() {
    let live = tank();
    live.ok("zfs create -p tank/a/b/c");
    live.ok("set zfs_max_dataset_nesting=5");
    let said = live.fails("zfs create -p tank/a/b/c/d/e");
    assert!(said.contains("is too deep") || said.contains("maximum"), "{said}");
    live.ok("set zfs_max_dataset_nesting=7");
    live.ok("zfs create -p tank/a/b/c/d/e/f");
    live.ok("set zfs_max_dataset_nesting=5");
    live.ok("zfs rename tank/a/b/c/d/e/f tank/a/b/c/d/e/g");
    live.ok("zfs rename tank/a/b tank/a/renamed");
    live.ok("zfs create -p tank/x/y");
    live.fails("zfs rename tank/a/renamed tank/x/y/b");
    live.fails("zfs rename tank/a tank/x/y/a");
    live.ok("zfs rename tank/a/renamed tank/flat");
    live.ok("zfs create tank/flat/c/d/other");
    live.export_and_verify("tank");
}
