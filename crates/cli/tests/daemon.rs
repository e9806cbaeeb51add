//! Pools that the daemon owns, driven by the built binary and judged by zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod live;

use live::Live;

fn raidz2(live: &Live) -> String {
    let disks: Vec<String> = (1..=6).map(|n| live.disk(&format!("f{n}"), 128)).collect();
    disks.join(" ")
}

#[test]
fn a_pool_is_made_used_exported_and_imported() {
    let live = Live::new();
    let disks = raidz2(&live);
    live.ok(&format!("zpool create -o comment=mine -O compression=lz4 tank raidz2 {disks}"));
    live.ok("zfs create -p tank/home/me");
    live.ok("zfs create -V 10M tank/vol");
    live.ok("zfs snapshot -r tank@now");
    let list = live.ok("zfs list -H -t all -o name");
    let all =
        "tank\ntank@now\ntank/home\ntank/home@now\ntank/home/me\ntank/home/me@now\ntank/vol\ntank/vol@now\n";
    assert_eq!(list, all);
    assert_eq!(live.ok("zpool get -H -o value,source comment tank"), "mine\tlocal\n");
    assert_eq!(live.ok("zfs get -H -o value,source compression tank/home"), "lz4\tinherited from tank\n");
    assert_eq!(live.ok("zpool list -H -o name,size,health"), "tank\t704M\tONLINE\n");
    live.export_and_verify("tank");
    assert_eq!(live.run("zpool list").err, "no pools available\n");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert_eq!(live.ok("zfs list -H -t all -o name"), all);
    let history = live.ok("zpool history tank");
    for line in ["zfs create -p tank/home/me", "zfs snapshot -r tank@now", "zpool export tank"] {
        assert!(history.contains(line), "{history}");
    }
    live.ok("zfs destroy -r tank/home");
    live.ok("zfs destroy tank@now");
    assert_eq!(live.ok("zfs list -H -t all -o name"), "tank\ntank/vol\ntank/vol@now\n");
    live.export_and_verify("tank");
}

#[test]
fn a_killed_daemon_comes_back_with_its_pools() {
    let live = Live::new();
    let disks = raidz2(&live);
    live.ok(&format!("zpool create tank raidz2 {disks}"));
    live.ok("zfs create tank/a");
    live.signal("-KILL");
    live.ok("zfs create tank/b");
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/a\ntank/b\n");
    // Asked to end, it exports; the next command has the pool again.
    live.signal("-TERM");
    if testkit::zdb::installed() {
        testkit::zdb::verify(&live.disks(), "tank").unwrap();
    }
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/a\ntank/b\n");
    live.ok("zpool destroy tank");
    assert_eq!(live.run("zpool list").err, "no pools available\n");
}

#[test]
fn devices_of_pools_are_not_taken() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 128), live.disk("b", 128));
    live.ok(&format!("zpool create tank {a}"));
    let lead = "invalid vdev specification\nuse '-f' to override the following errors:\n";
    assert_eq!(
        live.fails(&format!("zpool create other {a}")),
        format!("{lead}{a} is part of active pool 'tank'\n")
    );
    assert_eq!(
        live.fails(&format!("zpool create -f other {a}")),
        format!(
            "invalid vdev specification\nthe following errors must be manually repaired:\n{a} is part of active pool 'tank'\n"
        )
    );
    live.ok("zpool export tank");
    assert_eq!(
        live.fails(&format!("zpool create other {a}")),
        format!("{lead}{a} is part of exported pool 'tank'\n")
    );
    let both = format!("zpool create other {a} mirror {b}");
    assert_eq!(live.fails(&both), "invalid vdev specification: mirror requires at least 2 devices\n");
    let small = live.disk("small", 32);
    assert_eq!(
        live.fails(&format!("zpool create other {small}")),
        "cannot create 'other': one or more devices is less than the minimum size (64M)\n"
    );
    live.ok(&format!("zpool create -f other {a}"));
    assert_eq!(
        live.fails(&format!("zpool create other {b}")),
        "cannot create 'other': pool already exists\n"
    );
    live.export_and_verify("other");
}
