//! Differences that OpenZFS's own suite and readers of the code found, each in its smallest form.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod datasets;
#[path = "../live/mod.rs"]
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

#[test]
fn files_have_the_sectors_of_the_settings() {
    let live = Live::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| live.disk(name, 80));
    let ashifts = || {
        let config = live.ok("zdb -C tank");
        let rows = config.lines().filter_map(|line| line.trim().strip_prefix("ashift: "));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("set vdev_file_physical_ashift=12");
    live.ok(&format!("zpool add --allow-ashift-mismatch tank {b}"));
    live.ok(&format!("zpool add --allow-ashift-mismatch -o ashift=10 tank {c}"));
    assert_eq!(ashifts(), ["9", "12", "10"]);
    live.ok("zpool set ashift=11 tank");
    let e = live.disk("e", 80);
    live.ok(&format!("zpool add --allow-ashift-mismatch tank {e}"));
    assert_eq!(ashifts(), ["9", "12", "10", "11"], "the pool's property counts before the sectors");
    // A disk that joins a vdev need not suit its physical sectors.
    live.ok(&format!("zpool attach -w tank {a} {d}"));
    live.export_and_verify("tank");
}

#[test]
fn a_resilver_begins_anew_by_command_with_its_feature_only() {
    let live = Live::new();
    let a = live.disk("a", 64);
    live.ok(&format!("zpool create -d -O mountpoint=none tank {a}"));
    assert_eq!(
        live.fails("zpool resilver tank"),
        "cannot restart resilver on tank: this action requires the resilver_defer feature\n"
    );
    live.ok("zpool set feature@resilver_defer=enabled tank");
    live.ok("zpool resilver tank");
    live.ok("zpool destroy tank");
}

#[test]
fn trims_are_counted_and_known_of_a_faulted_disk() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 1024));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    live.ok("set zfs_trim_metaslab_skip=1");
    live.ok("zpool trim -w tank");
    live.ok("set zfs_trim_metaslab_skip=0");
    let trims =
        || -> u64 { live.ok(&format!("zpool get -Hp -o value trim_bytes tank {a}")).trim().parse().unwrap() };
    let some = trims();
    let rows = live.ok("zpool iostat -pr tank");
    let row = rows.lines().find(|line| line.starts_with("16M")).unwrap_or_default();
    assert_ne!(row.split_whitespace().nth(11), Some("0"), "trims that were not joined: {rows}");
    live.ok("zpool trim -w tank");
    let all = trims() - some;
    assert!(some > 0 && all > 2 * some, "{some} without, {all} with metaslabs that were never used");
    live.ok(&format!("zpool offline -f tank {a}"));
    live.ok("zpool sync tank");
    let status = live.ok("zpool status -t tank");
    assert!(!status.contains("trim unsupported"), "{status}");
    live.ok("zpool clear tank");
    live.export_and_verify("tank");
}

#[test]
fn a_vdev_of_which_one_side_is_whole_is_removed() {
    let live = Live::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| live.disk(name, 256));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} mirror {c} {d}"));
    live.ok("set aquifer_fault_agents=0");
    live.ok(&format!("zpool offline -f tank {a}"));
    live.ok(&format!("zpool offline -f tank {d}"));
    live.ok("zfs create tank/fs");
    live.ok("zpool sync tank");
    live.ok("set zfs_remove_max_segment=32768 metaslab_force_ganging=16384");
    live.ok("zpool remove -w tank mirror-0");
    assert!(!live.ok("zpool status tank").contains("mirror-0"), "{}", live.ok("zpool status tank"));
    live.ok("zpool clear tank");
    live.ok("zpool wait -t resilver tank");
    live.ok("zpool scrub -w tank");
    assert!(live.ok("zpool status tank").contains("with 0 errors"), "{}", live.ok("zpool status tank"));
    live.export_and_verify("tank");
}

#[test]
fn a_cache_file_leads_to_devices_that_were_renamed_or_added_since() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 64), live.disk("b", 64));
    let (cache, old) = (live.dir.path().join("cache"), live.dir.path().join("old"));
    let (cache, old) = (cache.display(), old.display());
    live.ok(&format!("zpool create -O mountpoint=none -o cachefile={cache} tank {a}"));
    std::fs::copy(cache.to_string(), old.to_string()).unwrap();
    live.ok(&format!("zpool add tank {b}"));
    live.ok("zpool export tank");
    std::fs::rename(&a, format!("{a}.new")).unwrap();
    live.ok(&format!("zpool import -c {old} tank"));
    let status = live.ok("zpool status tank");
    assert!(status.contains(&format!("{a}.new")) && status.contains(&b), "{status}");
    let both = live.run("zpool import -a tank");
    assert!(both.code == 2 && both.err.contains("too many arguments"), "{}", both.err);
}

#[test]
fn a_scrub_finds_a_disk_that_another_program_overwrote() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 64), live.disk("b", 64));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    std::fs::write(&b, vec![0; 64 << 20]).unwrap();
    live.ok("zpool scrub -w tank");
    let status = live.ok("zpool status tank");
    let of_b = status.lines().find(|line| line.contains(&b)).unwrap();
    assert!(of_b.contains("UNAVAIL"), "{status}");
}

#[test]
fn the_state_of_a_checkpoint_has_a_name_of_its_own() {
    let live = Live::new();
    let a = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("zfs create tank/before");
    live.ok("zpool checkpoint tank");
    live.ok("zfs destroy tank/before");
    live.ok("zpool export tank");
    let shown = live.ok(&format!("zdb -k -e -p {} -d tank", live.disks().display()));
    assert!(shown.contains("Dataset tank_CHECKPOINTED_UNIVERSE/before"), "{shown}");
}

/// Quotas of those without one of their own lie in the master node: snapshots, clones and streams have them.
#[test]
fn default_quotas_are_kept_shown_and_inherited_at_creation() {
    let live = Live::new();
    let a = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none -O defaultgroupquota=3G tank {a}"));
    let get = |props: &str, name: &str| live.ok(&format!("zfs get -H -o value {props} {name}"));
    live.ok("zfs create -o casesensitivity=insensitive -o defaultuserquota=1G tank/a");
    let props = "defaultuserquota,defaultgroupquota,defaultprojectobjquota,casesensitivity";
    assert_eq!(get(props, "tank/a"), "1G\n3G\nnone\ninsensitive\n");
    live.ok("zfs set defaultuserobjquota=1000 tank/a");
    live.ok("zfs snapshot tank/a@s");
    live.ok("zfs set defaultuserquota=none defaultuserobjquota=7 tank/a");
    live.ok("zfs create tank/a/below");
    assert_eq!(get("defaultuserobjquota,casesensitivity", "tank/a/below"), "7\ninsensitive\n");
    live.ok("zfs clone tank/a@s tank/c");
    for name in ["tank/a@s", "tank/c"] {
        assert_eq!(get("defaultuserquota,defaultuserobjquota", name), "1G\n1000\n", "{name}");
    }
    let space = live.ok("zfs userspace -Hp -n -o name,quota,objquota tank/c");
    assert_eq!(space, "0\t1073741824\t1000\n");
    live.ok("zfs set userquota@0=5G tank/c");
    assert_eq!(live.ok("zfs userspace -H -n -o quota tank/c"), "5G\n");
    for (line, why) in [
        ("zfs set defaultuserquota=1M tank/a@s", "this property can not be modified for snapshots"),
        ("zfs inherit defaultuserquota tank/a", "'defaultuserquota' property cannot be inherited"),
        ("zfs set defaultuserquota=100mfsd tank/a", "invalid numeric suffix"),
    ] {
        let said = live.fails(line);
        assert!(said.contains(why), "{line}: {said}");
    }
    assert_eq!(live.ok("zpool list -H -o name,all tank").split('\t').nth(1), Some("tank"));
    live.export_and_verify("tank");
}

/// The labels of spares and cache devices name no pool, so the search offers them to every pool in the folder.
#[test]
fn a_pool_is_imported_beside_the_spares_of_another() {
    let live = Live::new();
    let disks: Vec<String> = ["a", "b", "c", "d", "e"].map(|name| live.disk(name, 64)).into();
    let [a, b, c, d, e] = &disks[..] else { panic!("five disks") };
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} spare {c} cache {d}"));
    live.ok(&format!("zpool create -O mountpoint=none other {e}"));
    live.ok("zpool export other");
    live.ok(&format!("zpool import -d {} other", live.disks().display()));
    assert_eq!(live.ok("zpool list -H -o name,health"), "other\tONLINE\ntank\tONLINE\n");
    live.export_and_verify("other");
    live.export_and_verify("tank");
}

#[test]
fn a_refused_size_leaves_the_volume_usable_and_readonly_refuses_all() {
    let live = Live::new();
    let a = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.ok("zfs create -s -V 16M tank/v");
    assert!(
        live.fails("zfs set volsize=16777217 tank/v").contains("must be a multiple of volume block size")
    );
    live.ok("zfs set volsize=32M tank/v");
    live.ok("zfs set readonly=on tank/v");
    let why = live.fails("zfs set volsize=16M tank/v");
    assert!(why.contains("cannot set property for 'tank/v': dataset is read-only"), "{why}");
    assert_eq!(live.ok("zfs get -Hp -o value volsize tank/v").trim(), "33554432");
    live.ok("zfs destroy tank/v");
    live.export_and_verify("tank");
}

/// OpenZFS 2.4 prints no time without pools, and the header again for other pools.
#[test]
fn a_repeated_report_shows_pools_that_come_and_go() {
    let live = Live::new();
    let out = live.dir.path().join("out");
    let file = std::fs::File::options().create(true).append(true).open(&out).unwrap();
    let mut command = live.command("zpool iostat -T u 0.1");
    let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let seen = |what: &str| {
        let found = || std::fs::read_to_string(&out).unwrap().contains(what);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !found() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(text.contains(what), "{what}: {text}");
        std::fs::write(&out, "").unwrap();
        text
    };
    let without = seen("no pools available\n");
    assert!(without.lines().all(|line| line == "no pools available"), "{without}");
    let (a, b) = (live.disk("a", 64), live.disk("b", 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    assert!(seen("\ntank ").contains("bandwidth"));
    live.ok(&format!("zpool create -O mountpoint=none other {b}"));
    assert!(seen("\nother ").contains("bandwidth"));
    live.ok("zpool export other");
    live.ok("zpool export tank");
    seen("no pools available\n");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert!(seen("\ntank ").contains("bandwidth"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(live.run("zpool iostat none 0.1").code, 1);
    // Named pools that go are passed over until they are back.
    let mut command = live.command("zpool iostat tank 0.1");
    let file = std::fs::File::options().append(true).open(&out).unwrap();
    let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    seen("\ntank ");
    live.ok("zpool export tank");
    let gone = seen("no pools available\n");
    assert!(!gone.contains("cannot open"), "{gone}");
    testkit::live::end(child.id().try_into().unwrap(), "-TERM");
    child.wait().unwrap();
    let rest = std::fs::read_to_string(&out).unwrap();
    assert!(rest.lines().all(|line| line == "no pools available"), "{rest}");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.export_and_verify("tank");
}

#[test]
fn a_pool_exported_hard_stays_in_its_cache_file() {
    let live = Live::new();
    let (disk, cache) = (live.disk("a", 64), live.dir.path().join("cache"));
    live.ok(&format!("zpool create -o cachefile={} -O mountpoint=none tank {disk}", cache.display()));
    live.ok("zfs create tank/fs");
    live.ok("zpool export -F tank");
    assert_eq!(live.ok("zpool list -H"), "");
    let found = live.ok(&format!("zpool import -d {}", live.disks().display()));
    assert!(found.contains("state: ONLINE"), "{found}");
    live.ok(&format!("zpool import -c {} tank", cache.display()));
    live.ok("zfs list tank/fs");
    live.export_and_verify("tank");
}

/// As much parity protects as much, over however many disks.
#[test]
fn vdevs_with_as_much_parity_may_differ_in_width() {
    let live = Live::new();
    let all: Vec<String> = (0..14).map(|n| live.disk(&format!("d{n}"), 512)).collect();
    let disks = |from: usize, to: usize| all[from..to].join(" ");
    for (kind, other) in [("draid", "draid"), ("raidz", "raidz"), ("raidz", "draid")] {
        let (first, second) = (disks(0, 3), disks(3, 7));
        live.ok(&format!("zpool create -O mountpoint=none tank {kind} {first} {other} {second}"));
        live.ok(&format!("zpool add tank {kind} {}", disks(7, 10)));
        let said = live.fails(&format!("zpool add tank raidz2 {}", disks(10, 14)));
        let lead = "mismatched replication level: pool and new vdev with different redundancy";
        assert!(said.contains(&format!("{lead}, {kind} and raidz vdevs, 1 vs. 2")), "{said}");
        live.ok("zpool destroy tank");
    }
    let said = live.fails(&format!("zpool create tank raidz {} raidz2 {}", disks(0, 3), disks(3, 7)));
    assert!(said.contains("raidz and raidz vdevs with different redundancy, 1 vs. 2 are present"), "{said}");
}
