//! Operations on whole pools and their vdevs, from the command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::path::Path;

use live::Live;

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
fn vdevs_have_properties() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    let value = |name: &str, vdev: &str| live.ok(&format!("zpool get -H -o value,source {name} tank {vdev}"));
    live.ok("zpool set comment=all tank root");
    live.ok(&format!("zpool set comment=one tank {a}"));
    live.ok(&format!("zpool set org.me:x=y tank {a}"));
    live.ok(&format!("zpool set io_n=none tank {a}"));
    live.ok(&format!("zpool set slow_io_t=30 tank {a}"));
    assert_eq!([value("comment", "root-0"), value("comment", &a)], ["all\tlocal\n", "one\tlocal\n"]);
    assert_eq!(value("org.me:x,io_n,slow_io_t", &a), "y\tlocal\n-\tlocal\n30\tlocal\n");
    // Vdevs are shown in the order and under the names of the command line.
    let guid = live.ok(&format!("zpool get -H -o value guid tank {a}")).trim().to_owned();
    let named = live.ok(&format!("zpool get -H -o name size tank {guid} root {a}"));
    assert_eq!(named, format!("{guid}\nroot-0\n{a}\n"));
    live.ok("zpool set org.me:pool=y tank");
    let all = live.ok("zpool get -H -o property all tank");
    assert!(all.find("org.me:pool\n").unwrap() < all.find("feature@").unwrap(), "{all}");
    let lead = "cannot set property for 'tank':";
    assert_eq!(live.fails(&format!("zpool set size=1 tank {a}")), format!("{lead} 'size' is readonly\n"));
    assert_eq!(
        live.fails("zpool set nonsense=1 tank root"),
        format!("{lead} invalid property: 'nonsense'\n")
    );
    let run = live.run("zpool set comment=x tank nodisk");
    assert_eq!((run.code, run.err.as_str()), (22, "cannot find 'nodisk' in 'tank': device not in pool\n"));
    let last = format!("{lead} it is the only vdev on which data can be allocated\n");
    assert_eq!(live.fails(&format!("zpool set allocating=off tank {a}")), last);

    live.ok(&format!("zpool add tank {b}"));
    let available = || live.ok("zfs get -Hp -o value available tank").trim().parse::<u64>().unwrap();
    let both = available();
    live.ok(&format!("zpool set allocating=off tank {a}"));
    assert_eq!(value("allocating", &a), "off\tlocal\n");
    let status = live.ok("zpool status tank");
    assert_eq!(status.matches("     0  (non-allocating)\n").count(), 1, "{status}");
    assert_eq!(live.ok("zpool status -j tank").matches("\"noalloc\":\"1\"").count(), 1);
    assert!(available() < both / 3 * 2, "{} of {both}", available());
    let used = |disk: &str| live.ok(&format!("zpool get -Hp -o value allocated tank {disk}"));
    let before = used(&a).trim().parse::<u64>().unwrap();
    (0..5).for_each(|n| drop(live.ok(&format!("zfs create tank/{n}"))));
    assert!(used(&a).trim().parse::<u64>().unwrap() <= before);
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert_eq!(live.fails(&format!("zpool set allocating=off tank {b}")), last);
    live.ok(&format!("zpool set org.me:x= tank {a}"));
    assert_eq!(value("org.me:x", &a), "-\tdefault\n");
    let internal = live.ok("zpool history -lil tank");
    assert!(internal.contains("vdev set vdev_guid=") && internal.contains(": io_n=-1"), "{internal}");
    live.export_and_verify("tank");
}

#[test]
fn a_pool_gets_the_guid_that_is_asked_for() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    for (word, guid) in [("0123", "123"), ("-1", "18446744073709551615"), ("314", "314")] {
        live.ok(&format!("zpool reguid -g {word} tank"));
        assert_eq!(live.ok("zpool get -H -o value guid tank"), format!("{guid}\n"));
    }
    for bad in ["18446744073709551616", "0xA", "0"] {
        let run = live.run(&format!("zpool reguid -g {bad} tank"));
        assert!(
            run.code == 2 && run.err.starts_with(&format!("invalid GUID: {bad}\nusage:\n")),
            "{}",
            run.err
        );
    }
    live.fails("zpool reguid -g 314 tank");
    live.export_and_verify("tank");
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

/// A boot pool with one feature more is one that the boot loader cannot read.
#[test]
fn a_compatibility_set_holds_until_it_is_changed() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 64), live.disk("b", 64));
    live.ok(&format!("zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none tank {a}"));
    let said = live.fails("zpool set feature@blake3=enabled tank");
    assert!(said.contains("\nas it is not specified in this pool's current compatibility set.\n"), "{said}");
    assert_eq!(live.ok("zpool get -H -o value feature@blake3 tank"), "disabled\n");
    let run = live.run("zpool set compatibility=grub2 tank");
    let warning = "Warning: one or more features already enabled on pool 'tank'\n\
        are not present in this compatibility set.\n";
    assert_eq!((run.code, run.err.as_str()), (0, warning));
    live.ok("zpool set compatibility= tank");
    live.ok("zpool set feature@blake3=enabled tank");
    let wish = "-o compatibility=grub2 -o feature@blake3=enabled -O mountpoint=none";
    let run = live.run(&format!("zpool create {wish} two {b}"));
    let warning =
        "Warning: feature \"blake3\" enabled but is not in specified 'compatibility' feature set.\n";
    assert_eq!((run.code, run.err.as_str()), (0, warning));
}

#[test]
fn pool_properties_have_their_time() {
    let live = Live::new();
    let a = live.disk("a", 64);
    let not_now = "property 'bootfs' cannot be set at creation or import time";
    let no_set = "when 'version' is specified, the 'compatibility' feature may only be set to 'legacy'";
    for (wish, why) in [
        ("-o bootfs=tank/x", not_now),
        ("-o readonly=on", "property 'readonly' can only be set at import time"),
        (
            "-o version=28 -o feature@lz4_compress=enabled",
            "'feature@' and 'version' properties cannot be specified together",
        ),
        ("-o compatibility=grub2 -o version=28", no_set),
    ] {
        let said = live.fails(&format!("zpool create {wish} -O mountpoint=none tank {a}"));
        assert!(said.contains(why), "{wish}: {said}");
    }
    // The last of these counts; a feature that others need is enabled nevertheless.
    let wish = "-o cachefile=none -o cachefile= -O mountpoint=/x -O mountpoint=none";
    live.ok(&format!("zpool create {wish} -o feature@extensible_dataset=disabled tank {a}"));
    assert_eq!(live.ok("zfs get -H -o value mountpoint tank"), "none\n");
    let states = live.ok("zpool get -H -o value feature@extensible_dataset,feature@blake3 tank");
    assert!(!states.contains("disabled"), "{states}");
    for (line, code, said) in [
        ("dedupditto=100 tank", 0, "Note: property 'dedupditto' no longer has any effect"),
        ("failmode= tank", 1, "'failmode' must be one of"),
        ("nonsense=1 tank", 1, "invalid property 'nonsense'"),
        ("comment=x nope", 22, "cannot open 'nope': is not a pool"),
    ] {
        let run = live.run(&format!("zpool set {line}"));
        let text = run.out + &run.err;
        assert!(run.code == code && text.contains(said), "{line}: {}: {text}", run.code);
    }
    live.ok("zpool export tank");
    let said = live.fails(&format!("zpool import -d {} -o bootfs=tank tank", live.disks().display()));
    assert!(said.contains(not_now), "{said}");
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
fn a_pool_that_could_not_be_made_as_asked_for_is_none() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    let wish = "-o feature@lz4_compress=disabled -O compression=lz4 -O mountpoint=none";
    live.fails(&format!("zpool create {wish} tank {disk}"));
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zpool destroy tank");
    // A destroyed pool says so, should it be brought back.
    live.ok(&format!("zpool import -D -f -d {} tank", live.disks().display()));
    assert!(live.ok("zpool history tank").contains(" zpool destroy tank\n"));
    live.ok("zpool destroy tank");
}

#[test]
fn what_add_would_do_is_shown_and_refused() {
    let live = Live::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -o ashift=12 -O mountpoint=none tank mirror {a} {b}"));
    let guid = live.ok(&format!("zpool get -H -o value guid tank {a}"));
    let shown = live.ok(&format!("zpool add -n -g tank mirror {c} {d}"));
    assert!(
        shown.contains(&format!("\n\t    {guid}"))
            && shown.ends_with(&format!("\t  mirror\n\t    {c}\n\t    {d}\n"))
    );
    let single = live.fails(&format!("zpool add tank {c}"));
    assert!(single.contains("mismatched replication level"), "{single}");
    let ashift = live.fails(&format!("zpool add -o ashift=9 tank mirror {c} {d}"));
    assert_eq!(ashift, "cannot add to 'tank': new vdev has a different ashift than the vdevs of the pool\n");
    live.ok(&format!("zpool add -o ashift=9 --allow-ashift-mismatch tank mirror {c} {d}"));
    live.ok("zpool export tank");
    let e = live.disk("e", 64);
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok(&format!("zpool add --allow-replication-mismatch tank {e}"));
    // The pool's own vdevs differ now, so that no new one can be like them.
    live.ok(&format!("zpool add -o ashift=12 --allow-ashift-mismatch tank {}", live.disk("f", 64)));
    live.export_and_verify("tank");
}

#[test]
fn spares_and_cache_devices_are_not_taken() {
    let (live, other) = (Live::new(), Live::new());
    let [a, b, spare, cache] = ["a", "b", "spare", "cache"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} spare {spare} cache {cache}"));
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    for disk in [&spare, &cache] {
        // Not by another daemon either, and not even with `-f`.
        let why = other.fails(&format!("zpool create -f -O mountpoint=none other {disk}"));
        assert!(
            why.starts_with("cannot create 'other': one or more vdevs refer to the same device"),
            "{why}"
        );
        let why = live.fails(&format!("zpool labelclear -f {disk}"));
        let kind = if *disk == spare { "SPARE" } else { "L2CACHE" };
        let advice = "Offline the disk first to clear its label.";
        assert_eq!(why, format!("{disk} is a member ({kind}) of pool \"tank\". {advice}\n"));
    }
    // Pools may have the same spare.
    live.ok(&format!("zpool create -O mountpoint=none two {b} spare {spare}"));
    live.ok("zpool destroy tank");
    assert!(live.fails(&format!("zpool labelclear -f {spare}")).contains("pool \"two\""));
    live.ok(&format!("zpool labelclear -f {cache}"));
    live.ok("zpool destroy two");
}

#[test]
fn scripts_and_what_goes_on_with_a_device_are_columns() {
    use std::os::unix::fs::PermissionsExt;
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} cache {c}"));
    let script = live.run_dir().join("hello");
    let text = "#!/bin/sh\necho who=$(basename $VDEV_UPATH)\n[ $(basename $VDEV_PATH) = b ] || echo more\n";
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = |line: &str, as_root: &str| {
        let mut command = live.command(line);
        command.env("ZPOOL_SCRIPTS_PATH", live.run_dir()).env("ZPOOL_SCRIPTS_AS_ROOT", as_root);
        let done = command.output().unwrap();
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    if rustix::process::geteuid().is_root() {
        let refusal = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
        assert_eq!(run("zpool status -c hello", "0").1, refusal);
    }
    let (text, _) = run("zpool status -it -c hello,none", "1");
    let line = |end: &str| assert!(text.lines().any(|line| line.ends_with(end)), "{end} in {text}");
    line("CKSUM  who");
    line("0     0     0    a  more  (uninitialized)  (untrimmed)");
    line("0     0     0    b  (uninitialized)  (untrimmed)");
    let (text, _) = run("zpool iostat -H -c hello tank 0.1 2", "1");
    let ends: Vec<&str> = text.lines().map(|line| line.rsplit('\t').next().unwrap()).collect();
    assert!(ends.iter().filter(|end| end.ends_with("    a  more")).count() == 2, "{text}");
    assert!(ends.iter().filter(|end| end.ends_with("    c  more")).count() == 2, "{text}");
    let (text, _) = run("zpool status -j -c hello", "1");
    assert_eq!(text.matches("\"who\":\"").count(), 3, "{text}");
    assert!(live.ok("zpool status -D").ends_with("\n dedup: no DDT entries\n"));
    live.ok("zpool export tank");
}

#[test]
fn vdevs_count_what_they_do() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    let counts = |vdev: &str| -> Vec<u64> {
        let text = live.ok(&format!("zpool get -Hp -o value write_ops,write_bytes,claim_ops tank {vdev}"));
        text.lines().map(|n| n.parse().unwrap()).collect()
    };
    // A txg may be written between two questions.
    let stable = || {
        let whole = counts("mirror-0");
        let (one, other) = (counts(&a), counts(&b));
        (whole == counts("mirror-0")).then_some([whole, one, other])
    };
    let [whole, one, other] = (0..100).find_map(|_| stable()).unwrap();
    assert!(one[0] > 0 && one[1] > one[0] * 512, "{one:?}");
    assert_eq!([one[0] + other[0], one[1] + other[1], 0], whole[..], "{one:?} {other:?}");
    live.export_and_verify("tank");
}

#[test]
fn quotas_and_classes_are_there_from_the_beginning() {
    let live = Live::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| live.disk(name, 64));
    let refused = live.fails(&format!("zpool create tank {a} cache mirror {b} {c}"));
    assert_eq!(refused, "invalid vdev specification: cache requires at least 1 devices\n");
    let nobody = live.fails(&format!("zpool create -O userquota@no-such-user=1G tank {a}"));
    assert_eq!(nobody, "cannot create 'tank': 'userquota@no-such-user' has an invalid user/group name\n");
    assert_eq!(live.run("zpool list").out, "no pools available\n");
    let quotas = "-O userquota@7=1G -O groupquota@8=2G -O projectquota@9=3G";
    live.ok(&format!("zpool create -fO mountpoint=none {quotas} tank {a} special raidz {b} {c} {d}"));
    let asked = "zfs get -H -o value userquota@7,groupquota@8,projectquota@9 tank";
    assert_eq!(live.ok(asked), "1G\n2G\n3G\n");
    live.export_and_verify("tank");
    // A pool that is only read goes when it is destroyed, and its disks know nothing of it.
    let import = format!("zpool import -d {}", live.disks().display());
    live.ok(&format!("{import} -o readonly=on tank"));
    live.ok("zpool destroy tank");
    live.ok(&format!("{import} tank"));
    assert_eq!(live.ok(asked), "1G\n2G\n3G\n");
    live.export_and_verify("tank");
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

/// Messages and exit codes are those of the kernel's OpenZFS 2.3.2.
#[test]
fn refusals_are_in_the_kernels_words() {
    let live = Live::new();
    let [a, b, spare] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("zfs create -s -V 4M tank/v");
    assert_eq!(live.ok("zpool get -H -o value,source readonly,bcloneused tank"), "off\t-\n0\t-\n");
    let nope = live.disks().join("nope").display().to_string();
    let unfit = "operation not applicable to datasets of this type";
    for (line, code, said) in [
        ("zfs rollback tank".to_owned(), 1, "cannot open 'tank': missing '@' delimiter in snapshot name".to_owned()),
        ("zfs rename tank/v q/a".to_owned(), 1, "cannot create 'q/a': no such pool 'q'".to_owned()),
        ("zfs mount tank/v".to_owned(), 1, format!("cannot open 'tank/v': {unfit}")),
        ("zfs userspace tank/v".to_owned(), 1, format!("cannot open 'tank/v': {unfit}")),
        ("zfs create -p tank".to_owned(), 0, String::new()),
        ("zfs create -p -V 4M tank/v".to_owned(), 0, String::new()),
        ("zfs create -p tank/v".to_owned(), 1, "cannot create 'tank/v': dataset already exists".to_owned()),
        ("zfs create -p nope".to_owned(), 1, "cannot create 'nope': missing dataset name".to_owned()),
        ("zfs destroy tank@a%b".to_owned(), 1, "could not find any snapshots to destroy; check snapshot names.".to_owned()),
        ("zfs destroy -r tank@%".to_owned(), 1, "could not find any snapshots to destroy; check snapshot names.".to_owned()),
        ("zfs destroy tank/none/x#nope".to_owned(), 1, "bookmark 'tank/none/x#nope' does not exist.".to_owned()),
        ("zfs destroy nope#nope".to_owned(), 1, "bookmark 'nope#nope' does not exist.".to_owned()),
        ("zfs destroy -n tank#nope".to_owned(), 255, "dryrun is not supported with bookmark".to_owned()),
        ("zpool create q b".to_owned(), 1, "cannot open 'b': no such device in /dev\nmust be a full path or shorthand device name".to_owned()),
        ("zpool create q ./b".to_owned(), 1, "cannot open './b': no such device in /dev\nmust be a full path or shorthand device name".to_owned()),
        ("zfs holds tank".to_owned(), 1, "'tank' is not a snapshot\nno datasets available".to_owned()),
        (format!("zpool create mirror {b}"), 1, "cannot create 'mirror': name is reserved\npool name may have been omitted".to_owned()),
        (format!("zpool create -o foo=1 q {b}"), 1, "property 'foo' is not a valid pool or vdev property".to_owned()),
        (format!("zpool create -O foo=1 q {b}"), 1, "property 'foo' is not a valid filesystem property".to_owned()),
        (format!("zpool create -o ashift=99 q {b}"), 1, "invalid 'ashift=99' property: only values between 9 and 16 are allowed.".to_owned()),
        (format!("zpool add tank {nope}"), 1, format!("cannot resolve path '{nope}'")),
        ("zpool get all nope".to_owned(), 1, "Cannot get properties of nope: no such pool available.".to_owned()),
        (format!("zpool online tank {b}"), 1, format!("couldn't find device \"{b}\" in pool \"tank\"")),
        (format!("zpool labelclear {a}"), 1, format!("{a} is a member (ACTIVE) of pool \"tank\"")),
        (format!("zpool labelclear {spare}"), 255, format!("failed to clear label for {spare}")),
        (format!("zpool labelclear {nope}"), 1, format!("failed to open {nope}: No such file or directory")),
        ("zpool import tank".to_owned(), 1, "cannot import 'tank': a pool with that name already exists\nuse the form 'zpool import <pool | id> <newpool>' to give it a new name".to_owned()),
    ] {
        let run = live.run(&line);
        assert_eq!((run.code, run.err.trim_end()), (code, said.as_str()), "{line}");
    }
    live.export_and_verify("tank");
}

#[test]
fn devices_are_initialized_and_trimmed() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 128));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    assert!(live.ok("zpool status -i tank").contains("(uninitialized)"));
    live.ok("zpool initialize -w tank");
    let status = live.ok("zpool status -i tank");
    assert_eq!(status.matches("(100% initialized, completed at ").count(), 2, "{status}");
    live.ok("zpool initialize -u tank");
    assert!(live.ok("zpool status -i tank").contains("(uninitialized)"));
    live.ok(&format!("zpool trim -w tank {a}"));
    let status = live.ok("zpool status -t tank");
    assert!(status.contains("(100% trimmed, completed at ") && status.contains("(untrimmed)"), "{status}");
    live.ok(&format!("zpool trim -r 1M tank {b}"));
    assert!(live.ok("zpool status -t tank").contains("% trimmed, started at "));
    live.ok(&format!("zpool trim -s tank {b}"));
    assert!(live.ok("zpool status -t tank").contains("% trimmed, suspended, started at "));
    live.ok(&format!("zpool trim -c tank {b}"));
    live.ok("zpool trim tank");
    live.ok("zpool wait -t trim,initialize tank");
    for (line, code, why) in [
        ("zpool initialize tank /none", 255, "cannot initialize '/none': no such device in pool\n"),
        ("zpool initialize -s tank a", 255, "cannot initialize 'a': there is no active initialization\n"),
        ("zpool trim -c tank a", 255, "cannot trim 'a': there is no active trim\n"),
        ("zpool trim -d tank a", 255, "cannot trim 'a': trim operations are not supported by this device\n"),
        ("zpool trim -d -c tank a", 2, "-d cannot be combined with the -c or -s options\n"),
        ("zpool initialize -c -s tank", 2, "-s cannot be combined with other options\n"),
        ("zpool initialize", 2, "missing pool name argument\n"),
    ] {
        let run = live.run(line);
        assert!(run.code == code && run.err.starts_with(why), "{line}: {}: {}", run.code, run.err);
    }
    let history = live.ok("zpool history -i tank");
    assert!(history.contains(&format!("trim vdev={a} complete")), "{history}");
    live.export_and_verify("tank");
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

/// Errors in the words of a command are reported first, with OpenZFS's exit codes; also for unsupported
/// verbs.
#[test]
fn words_are_looked_at_first() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    for (line, code, why) in [
        ("zpool scrub none", 1, "cannot open 'none': no such pool"),
        ("zpool scrub -s tank", 1, "cannot cancel scrubbing tank: there is no active scrub"),
        ("zpool ddtprune -p 5 none", 255, "cannot open 'none': no such pool"),
        ("zpool trim none", 255, "cannot open 'none': no such pool"),
        ("zpool checkpoint", 2, "missing pool argument\nusage:\n\tcheckpoint "),
        ("zpool remove tank /x", 1, "cannot remove /x: no such device in pool"),
        ("zpool detach tank /x", 255, "cannot detach /x: no such device in pool"),
        ("zpool replace tank /x /y", 255, "cannot replace /x with /y: no such device in pool"),
        ("zfs send tank/none@x", 1, "cannot open 'tank/none@x': dataset does not exist"),
        ("zfs send tank@x", 1, "cannot open 'tank@x': dataset does not exist"),
        ("zpool scrub -s -p tank", 2, "invalid option combination: -s and -p are mutually exclusive"),
        ("zpool scrub", 2, "missing pool name argument"),
        ("zpool resilver", 2, "missing pool name argument"),
        ("zpool remove tank a", 1, "cannot remove a: out of space"),
        ("zfs redact", 2, "too few arguments\nusage:\n\tredact <snapshot> <bookmark> <redaction_snapshot>"),
        ("zfs receive", 2, "missing snapshot argument"),
        ("zfs receive -c tank/new", 1, "cannot receive: failed to read from stream"),
    ] {
        let run = live.run(line);
        assert!(run.code == code && run.err.starts_with(why), "{line}: {}: {}", run.code, run.err);
    }
}

#[test]
fn devices_are_removed() {
    let live = Live::new();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| live.disk(name, 128));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} {b} log {c} cache {d} spare {e}"));
    (0..20).for_each(|n| drop(live.ok(&format!("zfs create tank/{n}"))));
    assert_eq!(live.fails("zpool remove tank nodisk"), "cannot remove nodisk: no such device in pool\n");
    assert_eq!(live.fails("zpool remove -s tank"), "cannot cancel removal: No anode\n");
    for gone in [&c, &d, &e] {
        live.ok(&format!("zpool remove tank {gone}"));
        assert!(!live.ok("zpool status -P tank").contains(gone.as_str()));
        assert_eq!(
            live.fails(&format!("zpool remove tank {gone}")),
            format!("cannot remove {gone}: no such device in pool\n")
        );
    }
    let memory = live.ok(&format!("zpool remove -n tank {b}"));
    assert!(memory.starts_with(&format!("Memory that will be used after removing {b}: ")), "{memory}");
    let exact = live.ok(&format!("zpool remove -np tank {b}"));
    assert!(exact.trim_end().rsplit(' ').next().unwrap().parse::<u64>().unwrap() >= 24, "{exact}");
    // The remaining vdevs would be too small, with the slop space.
    assert_eq!(live.fails(&format!("zpool remove tank {b}")), format!("cannot remove {b}: out of space\n"));
    let large = live.disk("large", 512);
    live.ok(&format!("zpool add -f tank {large}"));
    live.ok(&format!("zpool remove -w tank {b}"));
    let status = live.ok("zpool status -P tank");
    assert!(status.contains("remove: Removal of vdev 1 copied ") && !status.contains(b.as_str()), "{status}");
    assert!(status.contains(" memory used for removed device mappings\n"), "{status}");
    live.ok("zpool wait -t remove tank");
    let raidz = ["r1", "r2", "r3"].map(|name| live.disk(name, 128)).join(" ");
    let what =
        "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs";
    assert_eq!(
        live.fails(&format!("zpool add -f tank raidz {raidz}")),
        format!("cannot add to 'tank': {what}\n")
    );
    let internal = live.ok("zpool history -il tank");
    for record in [
        "vdev remove tank vdev (log) ",
        "vdev remove started tank vdev 1 ",
        "vdev remove completed tank vdev 1",
    ] {
        assert!(internal.contains(record), "{record}: {internal}");
    }
    // The disk belongs to no pool any more.
    live.ok(&format!("zpool create -O mountpoint=none other {b}"));
    live.ok("zpool destroy other");
    live.export_and_verify("tank");
}
