//! Pools imported: under other names, from moved devices, in earlier states, without a log.

use std::path::Path;

use super::live::Live;

#[test]
fn a_pool_has_another_name_for_one_import() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none -t tmp real {disk}"));
    assert_eq!(live.ok("zfs list -H -o name"), "tmp\n");
    assert!(live.ok(&format!("zdb -l {disk}")).contains("    name: 'real'\n"));
    assert_eq!(
        live.fails(&format!("zpool create -t a/b other {disk}")),
        "cannot create 'a/b': invalid character '/' in temporary name\nuse 'zfs create' to create a dataset\n"
    );
    live.ok("zpool export tmp");
    let from = format!("-d {}", live.disks().display());
    live.ok(&format!("zpool import {from} -t real once"));
    assert_eq!(live.ok("zpool list -H -o name"), "once\n");
    live.ok("zfs create once/x");
    // It does not come back by itself, under whatever name.
    live.signal("-KILL");
    assert_eq!(live.run("zpool list").out, "no pools available\n");
    live.ok(&format!("zpool import -f {from} real"));
    live.ok("zpool export real");
    live.ok(&format!("zpool import {from} -o readonly=on real other"));
    assert_eq!(live.ok("zfs list -H -o name"), "other\nother/x\n");
    live.ok("zpool export other");
    live.ok(&format!("zpool import {from} real"));
    live.export_and_verify("real");
}

#[test]
fn devices_are_known_where_they_are_now() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    let elsewhere = live.disks().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zpool export tank");
    let moved = elsewhere.join("b");
    std::fs::rename(&disk, &moved).unwrap();
    let file = live.disks().join("cache");
    live.ok(&format!("zpool import -d {} -o cachefile={} tank", elsewhere.display(), file.display()));
    assert!(
        live.ok(&format!("zdb -l {}", moved.display())).contains(&format!("path: '{}'", moved.display()))
    );
    let cached = live.disks().join("kept");
    std::fs::copy(&file, &cached).unwrap();
    // A daemon that comes later imports what its own cache file names, from where it is now.
    live.signal("-KILL");
    assert_eq!(live.ok("zpool list -H -o name"), "");
    live.ok(&format!("zpool import -c {} tank", cached.display()));
    live.signal("-KILL");
    assert_eq!(live.ok("zpool list -H -o name"), "tank\n");
    live.ok("zpool export tank");
    assert!(live.ok(&format!("zpool import -c {}", cached.display())).contains("  pool: tank\n"));
    live.ok(&format!("zpool import -c {} tank", cached.display()));
    assert_eq!(
        live.fails("zpool import -c nofile tank"),
        "failed to open cache file: No such file or directory\n"
    );
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", elsewhere.display()));
    live.ok("zpool destroy tank");
}

/// OpenZFS posts an event and writes the file later.
#[test]
fn a_cache_file_that_cannot_be_written_fails_no_command() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    // Not even root can write a file in the place of a folder.
    let new = live.run_dir().join("zpool.cache.new");
    std::fs::create_dir(&new).unwrap();
    for line in [
        "zpool set comment=x tank".to_owned(),
        format!("zpool add tank {b}"),
        format!("zpool create -O mountpoint=none two {c}"),
        "zpool export two".to_owned(),
        format!("zpool import -d {} two", live.disks().display()),
    ] {
        let run = live.run(&line);
        // The file does not name the pool that leaves.
        let told = run.err.contains("zpool.cache") || line == "zpool export two";
        assert!(run.code == 0 && told, "{line}: {}: {}", run.code, run.err);
    }
    assert_eq!(live.ok("zpool list -H -o name,comment"), "tank\tx\ntwo\t-\n");
    assert!(live.ok("zpool events").contains("ereport.fs.zfs.config_cache_write"));
    std::fs::remove_dir(&new).unwrap();
    for (value, why) in [
        ("/tmp/", "'/tmp/' is not a valid file"),
        ("/tmp/..", "'/tmp/..' is not a valid file"),
        ("/tmp/none/cache", "'/tmp/none' is not a valid directory"),
    ] {
        let said = live.fails(&format!("zpool set cachefile={value} tank"));
        assert!(said.contains(why), "{value}: {said}");
    }
    assert_eq!(live.ok("zpool get -H -o value,source cachefile tank"), "-\tdefault\n");
    live.ok("zpool export two");
    live.export_and_verify("tank");
}

#[test]
fn a_pool_without_one_of_its_vdevs_is_not_written() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} {b}"));
    live.ok("zpool destroy tank");
    live.ok(&format!("zpool create -O mountpoint=none other {b}"));
    let why = live.fails(&format!("zpool import -D -f -d {} tank", live.disks().display()));
    assert!(why.contains("one or more devices is currently unavailable"), "{why}");
    live.ok("zpool destroy other");
}

#[test]
fn an_import_goes_back_and_sets_what_is_asked_for() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create tank/before");
    live.ok("zpool sync tank");
    let json: serde_json::Value = serde_json::from_str(&live.ok("zpool list -j --json-int tank")).unwrap();
    let txg = json["pools"]["tank"]["txg"].as_u64().unwrap();
    live.ok("zfs create tank/after");
    live.ok("zpool export tank");
    let import = format!("zpool import -d {}", live.disks().display());
    let run = live.run(&format!("{import} -n tank"));
    assert!(
        run.code == 2 && run.err.starts_with("-n or -X only meaningful with -F\nusage:\n"),
        "{}",
        run.err
    );
    // It opens as it is, so there is nothing to go back for.
    assert_eq!(live.ok(&format!("{import} -Fn tank")), "");
    let said = live.ok(&format!("{import} -T {txg} -o readonly=on tank"));
    assert!(said.starts_with("Pool tank returned to its state as of "), "{said}");
    live.ok("zpool export tank");
    live.ok(&format!("{import} -T {txg} -o comment=back tank"));
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/before\n");
    assert_eq!(live.ok("zpool get -H -o value comment tank"), "back\n");
    live.ok("zfs create tank/other");
    assert_eq!(live.ok("zpool wait -Ht free,scrub tank 1"), "0\t0\n");
    live.export_and_verify("tank");
}

/// Labels of a device that has left the pool still say which it was.
#[test]
fn an_import_goes_back_to_before_a_device_was_replaced_or_removed() {
    for change in ["replace", "remove"] {
        // Blocks of a state older than the last three may have been overwritten: then another pool is tried.
        assert!((0..5).any(|_| goes_back(change)), "{change}");
    }
}

/// Whether a pool could be imported in its state before the change; false when that was overwritten.
fn goes_back(change: &str) -> bool {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 512));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} {b}"));
    live.ok("zfs create tank/before");
    live.ok("zpool sync tank");
    let json: serde_json::Value = serde_json::from_str(&live.ok("zpool list -j --json-int tank")).unwrap();
    let txg = json["pools"]["tank"]["txg"].as_u64().unwrap();
    match change {
        "replace" => live.ok(&format!("zpool replace -w tank {b} {c}")),
        _ => live.ok(&format!("zpool remove -w tank {b}")),
    };
    live.ok("zpool export tank");
    if change == "replace" {
        std::fs::remove_file(&c).unwrap();
    }
    let run = live.run(&format!("zpool import -d {} -T {txg} tank", live.disks().display()));
    if run.code != 0 && run.err.contains("matches its checksum") {
        return false;
    }
    assert_eq!(run.code, 0, "{change}: {}", run.err);
    let status = live.ok("zpool status -P tank");
    assert!(status.contains(&a) && status.contains(&b) && !status.contains(&c), "{change}: {status}");
    // Without it, an older state was taken because blocks of the wanted one were overwritten.
    let is_wanted = live.ok("zfs list -H -o name").contains("tank/before");
    live.export_and_verify("tank");
    is_wanted
}

#[test]
fn a_missing_log_is_done_without_only_when_told_to() {
    let live = Live::new();
    let [disk, log] = ["a", "log"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {disk} log {log}"));
    live.ok("zpool export tank");
    let away = live.run_dir().join("log");
    std::fs::rename(&log, &away).unwrap();
    let import = format!("zpool import -d {}", live.disks().display());
    for readonly in ["", "-o readonly=on"] {
        let run = live.run(&format!("{import} {readonly} tank"));
        assert_eq!(run.err, "cannot import 'tank': one or more devices is currently unavailable\n");
        let named = run.out.lines().any(|line| line == format!("\t    {log} [log]"));
        assert!(named && run.out.starts_with("The devices below are missing"), "{}", run.out);
    }
    live.ok(&format!("{import} -m tank"));
    live.ok("zfs create tank/x");
    live.ok("zpool export tank");
    std::fs::rename(&away, &log).unwrap();
    live.ok(&format!("{import} tank"));
    live.export_and_verify("tank");
}

/// Where a log was removed a hole is left: another ZFS without a kernel module made this pool.
#[test]
fn a_pool_whose_log_was_removed_is_written() {
    let live = Live::new();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/removed-log.tar.zst");
    let dir = testkit::golden::fixture(&archive).unwrap();
    for name in ["disk1", "disk2"] {
        std::fs::copy(dir.join(name), live.disks().join(name)).unwrap();
    }
    live.ok(&format!("zpool import -N -d {} removedlog", live.disks().display()));
    live.ok("zfs create -o mountpoint=none removedlog/fs");
    // The sectors of the others are of 4 KiB.
    let new = live.disk("new", 64);
    assert!(live.fails(&format!("zpool add -o ashift=9 removedlog {new}")).contains("different ashift"));
    // The pool's property ashift is 12.
    live.ok(&format!("zpool add removedlog {new}"));
    live.export_and_verify("removedlog");
}

#[test]
fn a_checkpoint_is_taken_gone_back_to_and_discarded() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create tank/before");
    let said = |live: &Live, line: &str| {
        let run = live.run(line);
        assert_ne!(run.code, 0, "{line}");
        run.err
    };
    assert_eq!(
        said(&live, "zpool checkpoint -d tank"),
        "cannot discard checkpoint in 'tank': checkpoint does not exist\n"
    );
    live.ok("zpool checkpoint tank");
    assert!(live.ok("zpool status tank").contains("\ncheckpoint: created "));
    assert_eq!(said(&live, "zpool checkpoint tank"), "cannot checkpoint 'tank': checkpoint exists\n");
    assert_eq!(said(&live, "zpool reguid tank"), "cannot reguid 'tank': checkpoint exists\n");
    live.ok("zfs destroy tank/before");
    live.ok("zpool export tank");
    let import = format!("zpool import -d {}", live.disks().display());
    live.ok(&format!("{import} --rewind-to-checkpoint tank"));
    assert_eq!(live.ok("zfs list -H -o name"), "tank\ntank/before\n");
    assert_eq!(live.ok("zpool get -H -o value checkpoint tank"), "-\n");
    let history = live.ok("zpool history -i tank");
    assert!(history.contains("checkpoint rewind rewound state to txg="), "{history}");
    live.ok("zpool export tank");
    for readonly in ["", "-o readonly=on "] {
        assert_eq!(
            said(&live, &format!("{import} {readonly}--rewind-to-checkpoint tank")),
            "cannot import 'tank': checkpoint does not exist\n"
        );
    }
    live.ok(&format!("{import} tank"));
    live.ok("zpool checkpoint tank");
    live.ok("zfs destroy tank/before");
    live.ok("zpool checkpoint -dw tank");
    live.ok("zpool wait -t discard tank");
    assert!(!live.ok("zpool status tank").contains("checkpoint:"));
    assert!(live.ok("zpool history -i tank").contains("spa discard checkpoint"));
    live.export_and_verify("tank");
}
