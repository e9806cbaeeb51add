//! Several settings or snapshots in one command: all that OpenZFS takes together.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use live::Live;

fn tank() -> Live {
    let live = Live::new();
    let disk = live.disk("a", 256);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live
}

fn number(live: &Live, property: &str, dataset: &str) -> u64 {
    live.ok(&format!("zfs get -Hp -o value {property} {dataset}")).trim().parse().unwrap()
}

/// The snapshot's stream, as standard input.
fn stream(live: &Live, options: &str) -> std::fs::File {
    let out = live.command(&format!("zfs send {options}")).output().unwrap();
    let file = live.dir.path().join("stream");
    std::fs::write(&file, out.stdout).unwrap();
    std::fs::File::open(file).unwrap()
}

/// As `zfs set` and `zfs create` make them: in the content of the dataset.
#[test]
fn a_clone_takes_quotas_and_a_size_or_is_not_made() {
    let live = tank();
    live.ok("zfs create tank/a");
    live.ok("zfs create -s -V 16M tank/v");
    live.ok("zfs snapshot tank/a@1");
    live.ok("zfs snapshot tank/v@1");
    live.ok("zfs clone -o userquota@0=1G -o defaultuserquota=5M tank/a@1 tank/c");
    let get = |props: &str, name: &str| live.ok(&format!("zfs get -H -o value {props} {name}"));
    assert_eq!(get("userquota@0,defaultuserquota", "tank/c"), "1G\n5M\n");
    live.ok("zfs clone -o volsize=64M -o refreservation=auto tank/v@1 tank/w");
    assert_eq!(get("volsize", "tank/w"), "64M\n");
    assert!(number(&live, "refreservation", "tank/w") > 64 << 20);
    let names = live.ok("zfs list -H -o name -r tank");
    for line in [
        "zfs clone -o refreservation=auto tank/a@1 tank/n",
        "zfs clone -o version=4 tank/a@1 tank/n",
        "zfs clone -o volsize=16777217 tank/v@1 tank/n",
        "zfs clone -o volsize=1G -o refreservation=auto tank/v@1 tank/n",
    ] {
        live.fails(line);
        assert_eq!(live.ok("zfs list -H -o name -r tank"), names, "{line}");
    }
    for (snapshot, line) in [
        ("tank/v@1", "zfs receive -o volsize=32M tank/rv"),
        ("tank/a@1", "zfs receive -u -o defaultuserquota=1G tank/ra"),
    ] {
        assert!(live.command(line).stdin(stream(&live, snapshot)).status().unwrap().success(), "{line}");
    }
    assert_eq!(get("volsize", "tank/rv"), "32M\n");
    assert_eq!(get("defaultuserquota", "tank/ra"), "1G\n");
    live.ok("zpool export tank");
    let shown = live.ok(&format!("zdb -e -p {} -dddd tank", live.disks().display()));
    let mos = shown.split("\nDataset ").find(|part| part.starts_with("mos ")).unwrap();
    assert!(!mos.contains("defaultuserquota = ") && !mos.contains("volsize = "), "{mos}");
}

/// Each is checked against the end of the command, in either order.
#[test]
fn quotas_and_reservations_are_checked_together() {
    let live = tank();
    live.ok("zfs create tank/a");
    for (one, two) in [("quota", "reservation"), ("refquota", "refreservation")] {
        live.ok(&format!("zfs set {one}=5M tank/a"));
        live.fails(&format!("zfs set {two}=10M tank/a"));
        live.ok(&format!("zfs set {two}=10M {one}=20M tank/a"));
        assert_eq!((number(&live, one, "tank/a"), number(&live, two, "tank/a")), (20 << 20, 10 << 20));
        live.fails(&format!("zfs set {one}=5M tank/a"));
        live.ok(&format!("zfs set {one}=5M {two}=1M tank/a"));
        live.fails(&format!("zfs set {one}=2M {two}=4M tank/a"));
        assert_eq!((number(&live, one, "tank/a"), number(&live, two, "tank/a")), (5 << 20, 1 << 20));
        live.fails(&format!("zfs create -o {one}=1M -o {two}=2M tank/n"));
        live.ok(&format!("zfs set {one}=none {two}=none tank/a"));
    }
    live.fails("zfs set reservation=200M refreservation=200M tank/a");
    live.fails("zfs set quota=none reservation=300M tank/a");
    live.ok("zfs snapshot tank/a@1");
    let names = live.ok("zfs list -H -o name -r tank");
    live.fails("zfs clone -o refquota=1M -o refreservation=4M tank/a@1 tank/n");
    assert_eq!(live.ok("zfs list -H -o name -r tank"), names);
    live.export_and_verify("tank");
}

#[test]
fn received_quotas_and_reservations_are_checked_together() {
    let live = tank();
    live.ok("zfs create -o quota=5M tank/a");
    live.ok("zfs snapshot tank/a@1");
    assert!(
        live.command("zfs receive -u tank/b").stdin(stream(&live, "-p tank/a@1")).status().unwrap().success()
    );
    live.ok("zfs set quota=20M tank/a");
    live.ok("zfs set reservation=10M tank/a");
    live.ok("zfs snapshot tank/a@2");
    let run =
        live.command("zfs receive -u tank/b").stdin(stream(&live, "-p -i @1 tank/a@2")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stderr), "");
    assert_eq!(
        (number(&live, "quota", "tank/b"), number(&live, "reservation", "tank/b")),
        (20 << 20, 10 << 20)
    );
}

/// Datasets are made, and single holds released, after `hold -r`.
#[test]
fn holds_are_released_where_they_are() {
    let live = tank();
    live.ok("zfs create tank/a");
    live.ok("zfs create tank/a/old");
    live.ok("zfs snapshot -r tank/a@1");
    live.ok("zfs hold -r keep tank/a@1");
    live.ok("zfs create tank/a/new");
    live.ok("zfs snapshot tank/a/new@1");
    live.ok("zfs release -r keep tank/a@1");
    live.ok("zfs destroy -nr tank/a@1");
    let why = live.fails("zfs release -r keep tank/a@1");
    assert!(why.contains("no such tag on this dataset"), "{why}");
    live.ok("zfs hold keep tank/a/new@1");
    live.fails("zfs hold -r keep tank/a@1");
    live.ok("zfs destroy tank/a@1");
}
