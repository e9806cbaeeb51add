//! Pools of old versions, from the command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use live::Live;

#[test]
fn pools_of_every_age_are_upgraded() {
    let live = Live::new();
    for (version, next) in [(1, 12), (14, 26)] {
        let disk = live.disk(&format!("v{version}"), 64);
        live.ok(&format!("zpool create -o version={version} -O mountpoint=none tank {disk}"));
        live.ok("zfs create tank/a");
        live.ok("zfs snapshot tank/a@old");
        live.ok("zfs clone tank/a@old tank/c");
        assert!(live.ok("zpool upgrade").contains(&format!("\n---  ------------\n{version:>2}   tank\n")));
        live.ok(&format!("zpool upgrade -V {next} tank"));
        assert_eq!(live.ok("zpool get -H -o value version tank"), format!("{next}\n"));
        live.ok("zfs create tank/b");
        let said = live.ok("zpool upgrade tank");
        let first = format!("\nSuccessfully upgraded 'tank' from version {next} to feature flags.\nEnabled");
        assert!(said.contains(&first), "{said}");
        live.ok("zfs snapshot -r tank@new");
        live.ok("zfs promote tank/c");
        live.ok("zfs destroy -r tank/a");
        live.ok("zfs clone tank/b@new tank/d");
        live.ok("zfs destroy tank/c@new");
        live.export_and_verify("tank");
        std::fs::remove_file(disk).unwrap();
    }
    assert_eq!(live.run("zpool upgrade -V 999 tank").code, 2);
}

/// OpenZFS of then would not know them, and zfs-fuse indeed takes no pool that has data in block pointers.
#[test]
fn an_old_pool_has_nothing_that_came_later() {
    if !testkit::zdb::installed() {
        println!("SKIPPED: no zdb here");
        return;
    }
    let forms = [("-o version=2", 16), ("-o version=23", 32), ("-d", 48), ("", 48)];
    for (number, (form, header)) in forms.into_iter().enumerate() {
        let live = Live::new();
        let disk = live.disk("disk", 100);
        live.ok(&format!("zpool create {form} -O mountpoint=none tank {disk}"));
        live.ok("zpool export tank");
        let text = testkit::zdb::run(&live.disks(), "tank", &["-ddddd"]).unwrap();
        let (mut lines, is_new) = (text.lines(), number == 3);
        let meta = lines.find(|line| line.starts_with("Dataset mos ")).unwrap();
        assert_eq!((meta.contains(" lz4 "), meta.contains(" lzjb ")), (is_new, !is_new), "{form}: {meta}");
        assert_eq!(text.contains("EMBEDDED"), is_new, "{form}");
        lines.find(|line| line.ends_with("bpobj (Z=uncompressed)")).unwrap();
        let bonus: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(bonus, [header.to_string().as_str(), "bonus", "bpobj", "header"], "{form}");
    }
}

/// OpenZFS panics when it imports a pool whose datasets have values of features that the pool does not have.
#[test]
fn settings_of_later_versions_are_refused() {
    let live = Live::new();
    let upgrade = "pool and or dataset must be upgraded to set this property or value";
    let of_features = "checksum=skein checksum=sha512 checksum=edonr checksum=blake3 dedup=skein compression=lz4 \
        compression=zstd recordsize=1M dnodesize=1k";
    for (version, settings) in [
        (1, "copies=2 copies=1"),
        (4, "compression=gzip compression=gzip-9"),
        (8, "refquota=1G refreservation=1M"),
        (13, "aclinherit=passthrough-x userquota@7=1G"),
        (19, "compression=zle"),
        (20, "dedup=on dedup=verify dedup=off"),
        (28, of_features),
    ] {
        let (disk, other) = (live.disk("a", 64), live.disk("b", 64));
        live.ok(&format!("zpool create -o version={version} -O mountpoint=none tank {disk}"));
        for setting in settings.split_whitespace() {
            let said = live.fails(&format!("zfs set {setting} tank"));
            assert!(said.contains(upgrade), "version {version}, {setting}: {said}");
            let (name, _) = setting.split_once('=').unwrap();
            let source = live.ok(&format!("zfs get -H -o source {name} tank"));
            assert!(
                !source.contains("local") || name.contains('@'),
                "version {version}, {setting}: {source}"
            );
            live.fails(&format!("zfs create -o {setting} tank/a"));
            assert!(!live.ok("zfs list -H -o name").contains("tank/a"), "version {version}, {setting}");
        }
        let wish = settings.split_whitespace().next().unwrap();
        live.fails(&format!("zpool create -o version={version} -O {wish} -O mountpoint=none other {other}"));
        assert_eq!(live.ok("zpool list -H -o name"), "tank\n");
        // The space of a volume is reserved by the property that the version has.
        live.ok("zfs create -V 4M tank/v");
        let property = if version < 9 { "reservation" } else { "refreservation" };
        assert_ne!(live.ok(&format!("zfs get -Hp -o value {property} tank/v")), "0\n", "version {version}");
        live.ok("zfs set volsize=8M tank/v");
        live.export_and_verify("tank");
    }
}

#[test]
fn permissions_and_properties_of_snapshots_came_later() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -o version=7 -O mountpoint=none tank {disk}"));
    live.fails("zfs allow everyone snapshot tank");
    live.fails("zfs snapshot -o a:b=c tank@s");
    assert_eq!(live.ok("zfs list -H -t snapshot"), "");
    live.ok("zpool upgrade -V 12 tank");
    live.ok("zfs allow everyone snapshot tank");
    live.ok("zfs snapshot -o a:b=c tank@s");
    live.export_and_verify("tank");
}

/// OpenZFS opens no pool with a vdev that its version does not have.
#[test]
fn vdevs_of_later_versions_are_refused() {
    let live = Live::new();
    let unfit = "operation not supported on this type of pool: ";
    for (version, base, form) in [
        (3, "", "raidz2 a b c"),
        (17, "", "raidz3 a b c d"),
        (7, "a", "log b"),
        (3, "a", "spare b"),
        (10, "a", "cache b"),
    ] {
        for disk in ["a", "b", "c", "d"] {
            live.disk(disk, 64);
        }
        let old = version - 1;
        let disks = live.disks().display().to_string();
        let paths = |text: &str| -> String {
            let path = |word: &str| if word.len() == 1 { format!("{disks}/{word}") } else { word.to_owned() };
            text.split_whitespace().map(path).collect::<Vec<_>>().join(" ")
        };
        let (first, later) = (paths(base), paths(form));
        let said =
            live.fails(&format!("zpool create -o version={old} -O mountpoint=none tank {first} {later}"));
        assert!(said.contains(unfit), "{form}: {said}");
        let first = if base.is_empty() { paths("e") } else { first };
        live.disk("e", 64);
        live.ok(&format!("zpool create -o version={old} -O mountpoint=none tank {first}"));
        let said = live.fails(&format!("zpool add -f tank {later}"));
        assert!(said.contains(unfit), "{form}: {said}");
        live.ok(&format!("zpool upgrade -V {version} tank"));
        live.ok(&format!("zpool add -f tank {later}"));
        live.export_and_verify("tank");
    }
}

#[test]
fn a_log_leaves_a_hole_only_where_the_version_has_holes() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 64));
    live.ok(&format!("zpool create -o version=18 -O mountpoint=none tank {a} log {b}"));
    live.ok(&format!("zpool add tank {c}"));
    let said = live.fails(&format!("zpool remove tank {b}"));
    assert!(said.contains("pool must be upgraded to support log removal"), "{said}");
    live.ok("zpool upgrade -V 19 tank");
    live.ok(&format!("zpool remove tank {b}"));
    live.export_and_verify("tank");
}
