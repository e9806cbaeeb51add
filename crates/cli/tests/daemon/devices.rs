//! Devices of imported pools.

use super::live::Live;

#[test]
fn devices_of_pools_are_not_taken() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 128), live.disk("b", 128));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    let lead = "invalid vdev specification\nuse '-f' to override the following errors:\n";
    assert_eq!(
        live.fails(&format!("zpool create other {a}")),
        format!("{lead}{a} is part of active pool 'tank'\n")
    );
    assert_eq!(
        live.fails(&format!("zpool create -f -O mountpoint=none other {a}")),
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
    live.ok(&format!("zpool create -f -O mountpoint=none other {a}"));
    assert_eq!(
        live.fails(&format!("zpool create other {b}")),
        "cannot create 'other': pool already exists\n"
    );
    live.export_and_verify("other");
}

/// A device may still be in the process of being released, which is waited for; a process that keeps it is
/// named.
#[test]
fn a_device_that_is_let_go_is_waited_for() {
    let live = Live::new();
    let a = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("zpool export tank");
    let hold = || {
        let file = std::fs::File::open(&a).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        file
    };
    let import = format!("zpool import -d {} tank", live.disks().display());
    let kept = hold();
    assert!(live.fails(&import).contains("one or more devices are already in use"));
    drop(kept);
    let kept = hold();
    let free = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(kept);
    });
    live.ok(&import);
    free.join().unwrap();
    live.export_and_verify("tank");
}

/// Vdevs that nothing was written to yet count, and are written to after an import.
#[test]
fn vdevs_without_maps_have_their_space() {
    let live = Live::new();
    let disks: Vec<String> = (1..=6).map(|n| live.disk(&format!("s{n}"), 128)).collect();
    let [a, b, c, d, e, f] = disks.as_slice() else { panic!() };
    live.ok(&format!(
        "zpool create -O mountpoint=none tank raidz {a} {b} {c} special mirror {d} {e} log {f}"
    ));
    let before = live.ok("zpool list -H -p -o size tank");
    live.ok("zpool export tank");
    std::fs::rename(a, live.dir.path().join("away")).unwrap();
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert_eq!(live.ok("zpool list -H -p -o size tank"), before);
    assert_eq!(live.ok("zpool list -H -o health tank"), "DEGRADED\n");
    assert!(live.ok("zpool status -x").contains("could not be opened"));
    live.ok("zfs create tank/a");
    live.ok("zpool export tank");
    std::fs::rename(live.dir.path().join("away"), a).unwrap();
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok("zfs create tank/b");
    live.export_and_verify("tank");
}

#[test]
fn a_disk_that_rots_is_told_of_and_forgotten_when_cleared() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 128));
    live.ok(&format!("zpool create -O mountpoint=none tank raidz {a} {b} {c}"));
    (0..30).for_each(|n| drop(live.ok(&format!("zfs create tank/d{n}"))));
    live.ok("zpool export tank");
    let file = std::fs::OpenOptions::new().write(true).open(&a).unwrap();
    let noise = vec![0xa5; 1 << 20];
    // All but the labels.
    (4..123u64).for_each(|mib| std::os::unix::fs::FileExt::write_all_at(&file, &noise, mib << 20).unwrap());
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok("zfs get -r all tank");
    let status = live.ok("zpool status tank");
    let count = |status: &str, disk: &str| -> String {
        let line = status.lines().find(|line| line.contains(disk)).unwrap();
        line.split_whitespace().nth(4).unwrap().to_owned()
    };
    assert_ne!(count(&status, &a), "0", "{status}");
    assert_eq!(count(&status, &b), "0", "{status}");
    assert!(status.contains("has experienced an unrecoverable error"), "{status}");
    assert!(live.ok("zpool status -x").contains("ZFS-8000-9P"));
    live.ok("zpool clear tank");
    let status = live.ok("zpool status tank");
    assert_eq!(count(&status, &a), "0", "{status}");
    live.export_and_verify("tank");
}
