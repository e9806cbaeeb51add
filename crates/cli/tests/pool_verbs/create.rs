//! Pools created, with their properties and classes, and extended.

use super::live::Live;

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
fn an_add_is_shown_or_refused_in_advance() {
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
