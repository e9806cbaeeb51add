//! Disks that are taken out of use, declared faulted, lost and brought back, from the command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use live::Live;
use serde_json::Value;

fn state_of<'a>(status: &'a str, disk: &str) -> &'a str {
    let line = status.lines().find(|line| line.contains(disk)).unwrap();
    line.split_whitespace().nth(1).unwrap()
}

#[test]
fn a_disk_goes_offline_and_comes_back() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 96));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b}"));
    assert_eq!(live.ok("zpool status -x"), "all pools are healthy\n");
    assert_eq!(live.fails("zpool offline tank nodisk"), "cannot offline nodisk: no such device in pool\n");
    assert_eq!(live.ok("zpool offline tank a"), "");
    let status = live.ok("zpool status tank");
    assert!(
        status.starts_with(
            "  pool: tank\n state: DEGRADED\nstatus: One or more devices has been taken offline"
        )
    );
    assert!(status.contains("\naction: Online the device using 'zpool online' or replace"), "{status}");
    assert_eq!([state_of(&status, "mirror-0"), state_of(&status, &a)], ["DEGRADED", "OFFLINE"]);
    assert!(live.ok("zpool status -x").contains("  pool: tank\n"));
    live.ok(&format!("zpool create -O mountpoint=none well {}", live.disk("well", 64)));
    let named = live.ok("zpool status -x tank well");
    assert!(named.contains("  pool: tank\n") && named.ends_with("pool 'well' is healthy\n"), "{named}");
    live.ok("zpool destroy well");
    let ill = live.ok("zpool status -e tank");
    assert!(ill.contains(&a) && ill.contains("mirror-0") && !ill.contains(&b), "{ill}");
    assert_eq!(live.ok("zpool list -H -o health tank"), "DEGRADED\n");
    assert_eq!(
        live.fails(&format!("zpool offline tank {b}")),
        format!("cannot offline {b}: no valid replicas\n")
    );
    live.ok("zfs create tank/while");

    // The state lasts until it is changed.
    live.signal("-KILL");
    assert_eq!(state_of(&live.ok("zpool status tank"), &a), "OFFLINE");
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.ok("zfs create tank/later");

    assert_eq!(live.ok(&format!("zpool online tank {a}")), "");
    let status = live.ok("zpool status tank");
    assert_eq!([state_of(&status, "tank "), state_of(&status, &a)], ["ONLINE", "ONLINE"]);
    live.ok("zpool wait -t resilver tank");
    let status = live.ok("zpool status tank");
    let line = status.lines().find(|line| line.starts_with("  scan: ")).unwrap();
    assert!(line.starts_with("  scan: resilvered ") && line.contains(" with 0 errors on "), "{status}");
    assert_eq!(live.ok("zpool status -x"), "all pools are healthy\n");
    live.ok("zpool offline tank b");
    live.ok("zpool online tank b");
    live.ok("zpool wait tank");
    assert_eq!(live.ok("zfs list -Hr -o name tank"), "tank\ntank/later\ntank/while\n");

    let events = live.ok("zpool events tank");
    assert!(events.starts_with("TIME                           CLASS\n"), "{events}");
    let classes: Vec<&str> =
        events.lines().skip(1).map(|line| line.split_whitespace().nth(4).unwrap()).collect();
    for class in ["sysevent.fs.zfs.vdev_online", "resource.fs.zfs.statechange", "sysevent.fs.zfs.pool_import"]
    {
        assert!(classes.contains(&class), "{class}: {events}");
    }
    let verbose = live.ok("zpool events -vH");
    let change = "        vdev_laststate = \"OFFLINE\" (0x2)\n";
    assert!(
        verbose.contains(change) && verbose.contains("        vdev_state = \"ONLINE\" (0x7)\n"),
        "{verbose}"
    );
    assert!(live.ok("zpool events -c").starts_with("cleared "));
    assert_eq!(live.ok("zpool events -H"), "");
    live.export_and_verify("tank");
}

#[test]
fn a_disk_is_declared_faulted_and_cleared() {
    let live = Live::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| live.disk(name, 96));
    live.ok(&format!("zpool create -O mountpoint=none tank raidz {a} {b} {c}"));
    live.ok(&format!("zpool offline -f tank {b}"));
    let status = live.ok("zpool status tank");
    assert!(
        status.contains("status: One or more devices are faulted in response to persistent errors."),
        "{status}"
    );
    assert!(
        status.lines().any(|line| line.contains(&b)
            && line.contains("FAULTED")
            && line.ends_with("  external device fault")),
        "{status}"
    );
    let json: Value = serde_json::from_str(&live.ok("zpool status -j tank")).unwrap();
    let disk = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["raidz1-0"]["vdevs"][&b];
    assert_eq!((&disk["state"], &disk["aux"]), (&"FAULTED".into(), &"EXTERNAL".into()), "{json}");
    live.ok("zfs create tank/while");
    let warned = live.ok(&format!("zpool online tank {b}"));
    let want = "onlined, but remains in faulted state\nuse 'zpool clear' to restore a faulted device\n";
    assert_eq!(warned, format!("warning: device '{b}' {want}"));
    live.ok(&format!("zpool clear tank {b}"));
    assert_eq!(state_of(&live.ok("zpool status tank"), &b), "ONLINE");

    // Gone while it was out of use.
    live.ok(&format!("zpool offline -t tank {b}"));
    let aside = live.dir.path().join("aside");
    std::fs::rename(&b, &aside).unwrap();
    let warned = live.ok(&format!("zpool online tank {b}"));
    assert!(
        warned.ends_with("use 'zpool replace' to replace devices that are no longer present\n"),
        "{warned}"
    );
    let status = live.ok("zpool status tank");
    assert!(status.contains("status: One or more devices could not be opened."), "{status}");
    assert_eq!(state_of(&status, &b), "UNAVAIL");
    std::fs::rename(&aside, &b).unwrap();
    assert_eq!(live.ok(&format!("zpool online tank {b}")), "");
    assert_eq!(state_of(&live.ok("zpool status -s tank"), &b), "ONLINE");
    assert!(live.ok("zpool status -s tank").contains("READ WRITE CKSUM  SLOW\n"));
    live.export_and_verify("tank");
}

#[test]
fn a_cache_device_goes_offline_and_comes_back() {
    let live = Live::new();
    let [a, cache] = ["a", "cache"].map(|name| live.disk(name, 128));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} cache {cache}"));
    let state = || state_of(&live.ok("zpool status tank"), &cache).to_owned();
    assert_eq!(state(), "ONLINE");
    assert_eq!(live.ok(&format!("zpool offline tank {cache}")), "");
    assert_eq!(state(), "OFFLINE");
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert_eq!(state(), "OFFLINE");
    assert_eq!(live.ok(&format!("zpool online tank {cache}")), "");
    assert_eq!(state(), "ONLINE");
    live.export_and_verify("tank");
}

/// The figures are those of the kernel's OpenZFS 2.3.2 for the same steps.
#[test]
fn a_mirror_grows_with_its_disks() {
    let live = Live::new();
    let [a, b, cache] = ["a", "b", "cache"].map(|name| live.disk(name, 300));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} cache {cache}"));
    [&a, &b].into_iter().for_each(|disk| {
        std::fs::File::options().write(true).open(disk).unwrap().set_len(400 << 20).unwrap();
    });
    // SIZE and EXPANDSZ of the pool, the mirror and its disks.
    let sizes = || {
        let list = live.ok("zpool list -Hv tank");
        let columns = |line: &str| {
            let words: Vec<&str> = line.trim_start().split('\t').collect();
            format!("{} {}", words[1], words[5])
        };
        list.lines().take(4).map(columns).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(sizes(), "288M -, 288M -, 300M -, 300M -", "the size is not probed yet");
    live.ok(&format!("zpool online -e tank {a}"));
    assert_eq!(sizes(), "288M 96M, 288M 96M, 400M -, 400M 96M");
    assert_eq!(live.ok("zpool get -Hpo value expandsize tank"), "100663296\n");
    live.ok(&format!("zpool online -e tank {b}"));
    assert_eq!(sizes(), "384M -, 384M -, 400M -, 400M -");
    let history = live.ok("zpool history -il tank");
    assert!(history.contains("vdev online pool 'tank' size: 402653184(+100663296) "), "{history}");
    let why = live.fails(&format!("zpool online -e tank {cache}"));
    assert!(why.ends_with("cannot expand cache devices\n"), "{why}");
    std::fs::File::options().write(true).open(&a).unwrap().set_len(500 << 20).unwrap();
    live.ok("zpool reopen tank");
    assert_eq!(sizes(), "384M -, 384M -, 500M 96M, 400M -", "the other is as small as it was");
    live.export_and_verify("tank");
}

#[test]
fn times_sizes_and_queues_of_requests() {
    let live = Live::new();
    let a = live.disk("a", 96);
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    (0..5).for_each(|n| drop(live.ok(&format!("zfs create tank/d{n}"))));
    let wide = live.ok("zpool iostat -vlq tank");
    let lines: Vec<&str> = wide.lines().collect();
    assert!(lines[0].contains("total_wait     disk_wait    syncq_wait    asyncq_wait"), "{wide}");
    assert!(lines[0].contains("syncq_read    syncq_write   asyncq_read  asyncq_write"), "{wide}");
    let cells = live.ok("zpool iostat -Hplq tank");
    let cells: Vec<&str> = cells.trim_end().split('\t').collect();
    assert_eq!(cells.len(), 1 + 6 + 11 + 14);
    let number = |at: usize| cells[at].parse::<u64>().unwrap_or(0);
    // Neither average bounds the other: writes that the device gets as one count once there, and each for itself in all.
    assert!(number(8) > 0 && number(10) > 0, "writes wait, and the disk works: {cells:?}");
    assert!(cells[18..].iter().all(|n| *n == "0"), "nothing waits: {cells:?}");
    for (flag, title, rows) in [("w", "latency", 37), ("r", "req_size", 16)] {
        let table = live.ok(&format!("zpool iostat -{flag} tank"));
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].is_empty() && lines[1].starts_with("tank ") && lines[2].starts_with(title),
            "{table}"
        );
        assert_eq!(lines.len(), 4 + rows + 1, "{table}");
        let exact = live.ok(&format!("zpool iostat -Hp{flag} tank"));
        assert_eq!(exact.lines().count(), 2 + rows, "{exact}");
    }
    assert_eq!(live.run("zpool iostat -rw tank").code, 2);
    assert_eq!(live.run("zpool iostat -rl tank").code, 2);
}

/// Labels of other devices do not describe a log device that is gone.
#[test]
fn a_log_that_is_gone_is_named_where_its_pool_cannot_be_imported() {
    let live = Live::new();
    let (a, log) = (live.disk("a", 96), live.disk("log", 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} log {log}"));
    live.signal("-KILL");
    std::fs::remove_file(&log).unwrap();
    let text = live.ok("zpool status -P tank");
    let row = text.lines().find(|line| line.contains(&log)).unwrap_or_default();
    assert!(row.contains("UNAVAIL") && text.contains("\n\tlogs"), "{text}");
    assert!(!text.contains("missing-1"), "{text}");
    live.ok("zpool export tank");
}

/// The reason why a pool can't be imported again is shown by the usual commands, which try again when its disk is back.
#[test]
fn a_pool_whose_disk_is_gone_is_not_forgotten() {
    let live = Live::new();
    let a = live.disk("a", 96);
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    live.signal("-KILL");
    let aside = live.dir.path().join("aside");
    std::fs::rename(&a, &aside).unwrap();
    for words in ["zpool status", "zpool status tank", "zpool status -x"] {
        let text = live.ok(words);
        let parts = [" state: UNAVAIL\n", "could not be imported when the daemon started: ", "cannot open"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    assert_eq!(live.ok("zpool list -Ho name,size,health"), "tank\t-\tUNAVAIL\n");
    assert!(
        live.ok("zpool status -j").contains(r#""state": "UNAVAIL""#)
            || live.ok("zpool status -j").contains(r#""state":"UNAVAIL""#)
    );
    assert!(live.run("zpool get all tank").err.contains("could not be imported when the daemon started: "));
    let run = live.run("zpool clear tank");
    assert!(run.code == 1 && run.err.contains("cannot open 'tank': "), "{}", run.err);
    std::fs::rename(&aside, &a).unwrap();
    live.ok("zpool clear tank");
    assert_eq!(live.ok("zpool list -Ho name,health"), "tank\tONLINE\n");

    // The import of such a pool needs no -d, and an export forgets it.
    live.signal("-KILL");
    std::fs::rename(&a, &aside).unwrap();
    assert_eq!(live.ok("zpool list -Ho health"), "UNAVAIL\n");
    std::fs::rename(&aside, &a).unwrap();
    assert!(live.ok("zpool import").contains("tank"));
    live.ok("zpool import tank");
    live.signal("-KILL");
    std::fs::rename(&a, &aside).unwrap();
    live.ok("zpool export tank");
    assert_eq!(live.ok("zpool list -H"), "");
    std::fs::rename(&aside, &a).unwrap();
    assert_eq!(live.ok("zpool list -H"), "");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    live.export_and_verify("tank");
}

/// A place that takes only so much, as thin disks are; gone with this value.
struct Thin(std::path::PathBuf);

impl Thin {
    /// `None`, and a notice, where nothing may be mounted.
    fn new(at: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let thin = Self(at);
        let done = thin.mount("size=4m").is_ok_and(|status| status.success());
        if !done {
            eprintln!("SKIPPED: nothing may be mounted here: no disk is full underneath its pool");
        }
        done.then_some(thin)
    }

    fn mount(&self, options: &str) -> std::io::Result<std::process::ExitStatus> {
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&self.0).status()
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A disk takes no more writes, so the pool is suspended; it is resumed when there is room again, or exported
/// by force.
#[test]
fn a_suspended_pool_is_cleared_or_let_go() {
    let live = Live::new();
    let Some(thin) = Thin::new(live.disks().join("thin")) else { return };
    let disk = thin.0.join("d");
    std::fs::File::create(&disk).unwrap().set_len(96 << 20).unwrap();
    live.ok(&format!("zpool create -O mountpoint=none tank {}", disk.display()));
    let fill = |name: &str| (0..200).find(|n| live.run(&format!("zfs create tank/{name}{n}")).code != 0);
    let made = fill("a").unwrap();
    assert_eq!(live.ok("zpool list -H -o health tank"), "SUSPENDED\n");
    assert_eq!(live.ok("kstat tank/state"), "SUSPENDED\n");
    assert!(live.ok("zpool status tank").contains("then run 'zpool clear'"));
    live.ok("zfs list -r tank");
    live.fails("zpool export tank");
    assert!(thin.mount("remount,size=8m").unwrap().success());
    live.ok("zpool clear tank");
    assert_eq!(live.ok("zpool list -H -o health tank"), "ONLINE\n");
    assert_eq!(live.ok("kstat tank/state"), "ONLINE\n");
    assert_eq!(live.ok("kstat tank/guid"), live.ok("zpool get -Hp -o value guid tank"));
    let listed = live.ok("zfs list -H -r -o name tank");
    assert!((0..made).all(|n| listed.contains(&format!("tank/a{n}\n"))), "{listed}");

    fill("b").unwrap();
    live.ok("zpool export -f tank");
    assert!(thin.mount("remount,size=64m").unwrap().success());
    live.ok(&format!("zpool import -d {} tank", thin.0.display()));
    let found = live.ok("zfs list -H -r -o name tank");
    assert!((0..made).all(|n| found.contains(&format!("tank/a{n}\n"))), "{found}");
    live.ok("zpool export tank");
    if testkit::zdb::installed() {
        testkit::zdb::verify(&thin.0, "tank").unwrap();
    }
}

/// An import whose first txg cannot be written fails, and the devices are free for the next one.
#[test]
fn an_import_without_room_below_the_pool_can_be_repeated() {
    let live = Live::new();
    let Some(thin) = Thin::new(live.disks().join("thin")) else { return };
    assert!(thin.mount("remount,size=16m").unwrap().success());
    let (disk, filler) = (thin.0.join("d"), thin.0.join("filler"));
    std::fs::File::create(&disk).unwrap().set_len(96 << 20).unwrap();
    live.ok(&format!("zpool create -O mountpoint=none tank {}", disk.display()));
    // Keeps the daemon.
    live.ok(&format!("zpool create -O mountpoint=none other {}", live.disk("b", 96)));
    live.ok("zpool export tank");
    let _ = std::fs::write(&filler, vec![1; 16 << 20]);
    let import = format!("zpool import -d {} tank", thin.0.display());
    let failed = live.fails(&import);
    assert!(failed.contains("take no writes") && !failed.contains("zpool clear"), "{failed}");
    std::fs::remove_file(&filler).unwrap();
    live.ok(&import);
    live.ok("zfs create tank/child");
    live.ok("zpool export tank");
}

/// Offset of a run of 128 KiB of `byte` that both images have.
fn common_run(a: &str, b: &str, byte: u8) -> u64 {
    const RUN: usize = 128 << 10;
    let (a, b) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    let both = a.chunks(RUN).zip(b.chunks(RUN));
    let found = both.into_iter().position(|(a, b)| a.iter().chain(b).all(|have| *have == byte));
    u64::try_from(found.unwrap() * RUN).unwrap()
}

/// A block that can't be reconstructed counts on each leaf, as OpenZFS has it since 2.0: not on the raidz vdev nor on the pool.
/// The file is named at once.
#[test]
fn failed_reconstructions_count_on_the_leaves() {
    use std::os::unix::fs::FileExt;
    let live = Live::new();
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let at = live.dir.path().join("mnt");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| live.disk(name, 96));
    let options = "-O compression=off -O recordsize=128K -O atime=off";
    let made = live
        .run(&format!("zpool create -O mountpoint={} {options} tank raidz1 {a} {b} {c} {d}", at.display()));
    if made.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", made.err);
        return;
    }
    // The parity of three equal columns is equal to them.
    std::fs::write(at.join("f"), vec![0x5a; 16 << 20]).unwrap();
    live.ok("zpool export tank");
    let place = common_run(&a, &b, 0x5a);
    for image in [&a, &b] {
        let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
        file.write_all_at(&vec![0xa5; 128 << 10], place).unwrap();
    }
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert!(std::fs::read(at.join("f")).is_err());
    let (status, damaged) = (live.ok("zpool status -v tank"), at.join("f").display().to_string());
    let row = |name: &str| -> Vec<String> {
        let line = status.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect()
    };
    assert_eq!(row("tank"), ["ONLINE", "0", "0", "0"], "{status}");
    assert_eq!(row("raidz1-0"), ["ONLINE", "0", "0", "0"], "{status}");
    let counts = [&a, &b, &c, &d].map(|disk| row(disk)[3].clone());
    assert!(counts[0] != "0" && counts.iter().all(|count| *count == counts[0]), "{status}");
    assert!(status.contains("Permanent errors") && status.contains(&damaged), "{status}");
    assert!(status.contains("ZFS-8000-8A"), "{status}");
    live.ok("zpool sync tank");
    let synced = live.ok("zpool status -v tank");
    assert!(synced.contains(&damaged), "{synced}");
}

#[test]
fn a_word_names_one_device_and_a_vdev_needs_no_parity() {
    let live = Live::new();
    ["x", "y"].iter().for_each(|dir| std::fs::create_dir(live.disks().join(dir)).unwrap());
    let [x, y, c, d, e, cache] = ["x/disk", "y/disk", "c", "d", "e", "f"].map(|name| live.disk(name, 96));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {x} {y}"));
    assert_eq!(live.fails("zpool offline tank disk"), "cannot offline disk: no such device in pool\n");
    live.ok("zpool offline tank x/disk");
    live.ok("zpool online tank x/disk");
    live.ok("zpool wait tank");
    let guid: u64 = live.ok(&format!("zpool get -Hp -o value guid tank {y}")).trim().parse().unwrap();
    assert_eq!(live.ok(&format!("zpool get -H -o value path tank 0x{guid:x}")), format!("{y}\n"));
    live.ok(&format!("zpool offline tank 0x{guid:x}"));
    assert_eq!(state_of(&live.ok("zpool status tank"), &y), "OFFLINE");

    live.ok(&format!("zpool create -O mountpoint=none rz raidz {c} {d} {e} cache {cache}"));
    assert_eq!(live.ok("zpool get -H -o value children rz root"), "raidz-0\n");
    for name in ["raidz-0", "raidz1-0"] {
        assert_eq!(live.ok(&format!("zpool get -H -o value parity rz {name}")), "1\n");
        live.ok(&format!("zpool set org:a={name} rz {name}"));
        assert!(live.ok(&format!("zpool iostat rz {name}")).contains("raidz1-0"), "{name}");
    }
    assert_eq!(live.ok(&format!("zpool get -H raidz_expanding,sit_out rz {c}")).lines().count(), 1);
    assert!(live.run("zpool get parity rz raidz2-0").err.contains("raidz2-0 (unknown)"));
    assert!(live.ok(&format!("zpool iostat rz {cache}")).contains(&cache));
}

/// A wrong request is refused before a device is written.
#[test]
fn a_pool_whose_encryption_lacks_a_format_leaves_its_devices_alone() {
    let live = Live::new();
    let a = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none old {a}"));
    live.ok("zpool export old");
    let before = std::fs::read(live.disks().join("a")).unwrap();
    let why = live.fails(&format!("zpool create -f -O encryption=on new {a}"));
    assert_eq!(why, "cannot create 'new': Keyformat required for new encryption root.\n");
    assert!(std::fs::read(live.disks().join("a")).unwrap() == before, "the device was written");
}

/// A spare of two pools that failed while one of them used it, and was detached there, still has that pool's label.
#[test]
fn a_shared_spare_that_failed_in_use_keeps_no_pool_from_import() {
    let live = Live::new();
    let [a, b, c, d, s] = ["a", "b", "c", "d", "s"].map(|name| live.disk(name, 128));
    live.ok(&format!("zpool create -O mountpoint=none p mirror {a} {b} spare {s}"));
    live.ok(&format!("zpool create -f -O mountpoint=none q mirror {c} {d} spare {s}"));
    live.ok(&format!("zpool offline -f p {a}"));
    live.ok("zpool wait -t resilver p");
    for _ in 0..100 {
        if live.ok("zpool status p").contains("INUSE") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    live.ok(&format!("zpool offline -f p {s}"));
    live.ok(&format!("zpool detach p {s}"));
    live.ok("zpool export -f p");
    live.ok(&format!("zpool import -d {} p", live.disks().display()));
    live.ok("zpool destroy -f p");
    live.export_and_verify("q");
}
