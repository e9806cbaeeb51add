//! Faults injected into imported pools: counted, seen, survived, cancelled.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::expect_used, reason = "tests")]

mod live;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use live::Live;

/// A mirror `tank` of the disks `a` and `b`, mounted at the path; `None`, with a notice, where nothing can be
/// mounted.
fn mirror(live: &Live) -> Option<PathBuf> {
    let disks = format!("mirror {} {}", live.disk("a", 128), live.disk("b", 128));
    live.mounted_on("-O compression=off", &disks)
}

fn disk(live: &Live, name: &str) -> String {
    live.disks().join(name).display().to_string()
}

/// Runs a line that must fail, or be refused.
fn fails(live: &Live, line: &str) {
    let run = live.run(line);
    assert!(matches!(run.code, 1 | 2), "{line}: {}: {}{}", run.code, run.out, run.err);
}

/// Read, write and checksum errors of a device, as `zpool status` shows them.
fn errors(live: &Live, device: &str) -> [u64; 3] {
    let status = live.ok("zpool status -p tank");
    let line = status.lines().find(|line| line.contains(device)).unwrap().to_owned();
    let mut words = line.split_whitespace().skip(2).map(|word| word.parse().unwrap());
    [words.next().unwrap(), words.next().unwrap(), words.next().unwrap()]
}

#[test]
fn a_device_that_fails_reads_is_counted_and_its_mirror_answers() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let (a, data) = (disk(&live, "a"), vec![0x5a; 4 << 20]);
    fs::write(at.join("file"), &data).unwrap();
    live.ok("zpool sync tank");
    assert!(live.ok("zinject").starts_with("No handlers registered.\n"));
    let said = live.ok(&format!("zinject -a -d {a} -e io -T read tank"));
    assert!(
        said.starts_with("Added handler 1 with the following properties:\n  pool: tank\n  vdev: "),
        "{said}"
    );
    live.ok("zpool scrub -w tank");
    let [reads, writes, wrong] = errors(&live, &a);
    assert!(reads > 0 && writes == 0 && wrong == 0, "{reads} {writes} {wrong}");
    let list = live.ok("zinject");
    assert!(list.contains("  read   io          100.0000%  "), "{list}");
    assert!(live.ok("zpool events").contains("ereport.fs.zfs.io"));
    assert_eq!(live.ok("zinject -c 1"), "removed handler 1\n");
    fails(&live, "zinject -c 1");
    live.ok("zpool clear tank");
    live.ok("zpool scrub -w tank");
    assert_eq!(errors(&live, &a), [0, 0, 0]);
    assert_eq!(fs::read(at.join("file")).unwrap(), data);
}

#[test]
fn flipped_bits_are_checksum_errors_and_a_device_that_fails_all_is_faulted() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let (a, b) = (disk(&live, "a"), disk(&live, "b"));
    fs::write(at.join("file"), vec![0x5a; 4 << 20]).unwrap();
    live.ok("zpool sync tank");
    fails(&live, &format!("zinject -d {a} -e corrupt -T write -f 50 tank"));
    fails(&live, &format!("zinject -d {a} -e checksum tank"));
    fails(&live, "zinject -d nothing -e io tank");
    live.ok(&format!("zinject -q -d {a} -e corrupt -T read -f 100 tank"));
    live.ok("zpool scrub -w tank");
    let [reads, _, wrong] = errors(&live, &a);
    assert!(reads == 0 && wrong > 0, "{reads} {wrong}");
    live.ok("zinject -c all");
    live.ok("zpool clear tank");
    // nxio: the probe fails, too, and the device does not come back before the handler is cancelled.
    live.ok(&format!("zinject -d {b} -e nxio -T all tank"));
    fs::write(at.join("more"), vec![1; 1 << 20]).unwrap();
    live.ok("zpool sync tank");
    let status = || live.ok("zpool status tank");
    let start = Instant::now();
    while !status().contains("DEGRADED") && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let lost = status();
    assert!(["FAULTED", "REMOVED", "UNAVAIL"].iter().any(|state| lost.contains(state)), "{lost}");
    live.ok("zpool clear tank");
    assert!(!status().contains("state: ONLINE"), "{}", status());
    assert_eq!(live.ok("zinject -c all"), "removed all registered handlers\n");
    live.ok("zpool clear tank");
    live.ok("zpool wait -t resilver tank");
    assert!(status().contains("state: ONLINE"), "{}", status());
    // A pool with handlers is in use.
    live.ok(&format!("zinject -d {b} -e io -T write -f 0.0001 tank"));
    assert_eq!(live.fails("zpool export tank"), "cannot export 'tank': pool is busy\n");
    live.ok("zinject -c all");
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert!(live.ok("zinject").starts_with("No handlers registered.\n"));
}

#[test]
fn a_file_whose_blocks_fail_gives_an_error_and_is_listed() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let file = at.join("file");
    fs::write(&file, vec![0x5a; 1 << 20]).unwrap();
    fs::write(at.join("other"), vec![0x5a; 1 << 20]).unwrap();
    live.ok("zpool sync tank");
    let path = file.display();
    fails(&live, "zinject -t data -e checksum relative");
    fails(&live, &format!("zinject -t nothing -e checksum {path}"));
    // The second record only.
    let said = live.ok(&format!("zinject -a -t data -e checksum -r 131072 {path}"));
    assert!(said.contains("range: [1, 1)\n"), "{said}");
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::read(at.join("other")).unwrap().len(), 1 << 20);
    live.ok("zpool sync tank");
    let status = live.ok("zpool status -v tank");
    assert!(
        status.contains("mnt/file") || status.contains("tank:/file") || status.contains("tank/file"),
        "{status}"
    );
    let list = live.ok("zinject");
    assert!(list.contains("[1, 1]"), "{list}");
    live.ok("zinject -c all");
    assert_eq!(fs::read(&file).unwrap(), vec![0x5a; 1 << 20]);
    live.ok(&format!("zinject -a -t data -C 0 -e io {path}"));
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(5));
    live.ok("zinject -c all");
    live.ok("zpool clear tank");
    // Without -e the reads fail, and no checksum is wrong.
    live.ok(&format!("zinject -a -t data {path}"));
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(5));
    let status = live.ok("zpool status -p tank");
    let a = disk(&live, "a");
    let row: Vec<&str> = status.lines().find(|line| line.contains(&a)).unwrap().split_whitespace().collect();
    assert!(row[2] != "0" && row[4] == "0", "{status}");
}

#[test]
fn a_delayed_device_makes_a_sync_slow() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let a = disk(&live, "a");
    fails(&live, &format!("zinject -d {a} -D 0:1 tank"));
    live.ok(&format!("zinject -d {a} -D 200:1 -T write tank"));
    fs::write(at.join("file"), vec![0x5a; 1 << 20]).unwrap();
    let start = Instant::now();
    live.ok("zpool sync tank");
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    let list = live.ok("zinject");
    assert!(list.contains("       200      1  100.0000%"), "{list}");
    live.ok("zinject -c all");
    fails(&live, "zinject -p spa_vdev_exit tank");
}

/// Each slow request is an event, unless that is switched off for the disk.
#[test]
fn slow_requests_are_events() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let (a, b) = (disk(&live, "a"), disk(&live, "b"));
    live.ok("set zio_slow_io_ms=50");
    live.ok(&format!("zpool set slow_io_events=off tank {b}"));
    for disk in [&a, &b] {
        live.ok(&format!("zinject -d {disk} -D 100:1 -T write tank"));
    }
    fs::write(at.join("file"), vec![0x5a; 1 << 20]).unwrap();
    live.ok("zpool sync tank");
    live.ok("zinject -c all");
    let mut events = String::new();
    for _ in 0..50 {
        events = live.ok("zpool events -v tank");
        if events.contains("ereport.fs.zfs.delay") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let delays = events.split("class = \"ereport.fs.zfs.delay\"").skip(1);
    let of_disks: Vec<bool> = delays.map(|event| event.contains(&a)).collect();
    assert!(!of_disks.is_empty() && of_disks.iter().all(|is_a| *is_a), "{events}");
    assert!(events.contains("zio_delay = "), "{events}");
}

#[test]
fn damaged_files_of_clones_are_named_by_their_mountpoints() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let file = at.join("file");
    fs::write(&file, vec![0x5a; 1 << 20]).unwrap();
    live.ok("zpool sync tank");
    live.ok(&format!("zinject -t data -e checksum -f 100 -am {}", file.display()));
    assert!(fs::read(&file).is_err());
    live.ok("zinject -c all");
    for line in
        ["snapshot tank@a", "clone tank@a tank/one", "snapshot tank/one@b", "clone tank/one@b tank/two"]
    {
        live.ok(&format!("zfs {line}"));
    }
    live.ok("zfs unmount tank/two");
    let status = live.ok("zpool status -v tank");
    let here = at.display();
    for name in
        [format!("{here}/file"), format!("{here}/one/file"), "tank@a:/file".into(), "tank/two:/file".into()]
    {
        assert!(status.lines().any(|line| line.trim() == name), "{name}: {status}");
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_unavailable_once_it_is_opened_anew() {
    let live = Live::new();
    let (a, b, spare) = (live.disk("a", 64), live.disk("b", 64), live.disk("spare", 64));
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {a} {b} spare {spare}"));
    live.ok(&format!("zinject -d {a} -e nxio -T all -f 100 tank"));
    live.ok("zpool reopen tank");
    let until = Instant::now() + Duration::from_secs(20);
    let says = |what: &[&str]| {
        let status = live.ok("zpool status tank");
        what.iter().all(|what| status.contains(what)).then_some(status)
    };
    while says(&["UNAVAIL", "INUSE"]).is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = live.ok("zpool status tank");
    let line = status.lines().find(|line| line.trim_start().starts_with(&a)).unwrap();
    assert!(line.contains("UNAVAIL") && status.contains("INUSE"), "{status}");
    live.ok("zinject -c all");
    live.ok("zpool clear tank");
    live.export_and_verify("tank");
}

#[test]
fn a_disk_that_a_scrub_repairs_is_marked() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    // More blocks than a scrub repairs at one time.
    live.ok("zfs set recordsize=16K tank");
    fs::write(at.join("file"), vec![7; 20 << 20]).unwrap();
    live.ok("zpool sync tank");
    live.ok("set aquifer_fault_agents=0");
    live.ok("set zfs_scan_vdev_limit=131072");
    live.ok(&format!("zinject -d {} -e io -T read -f 100 tank", disk(&live, "a")));
    live.ok(&format!("zinject -d {} -D 2:1 tank", disk(&live, "a")));
    live.ok("zpool scrub tank");
    let marked = || {
        let status = live.ok("zpool status tank");
        let line =
            |name: &str| status.lines().find(|line| line.contains(name)).unwrap().contains("(repairing)");
        (line(&disk(&live, "a")), line(&disk(&live, "b")))
    };
    let until = Instant::now() + Duration::from_secs(60);
    while marked() != (true, false) {
        assert!(Instant::now() < until, "{}", live.ok("zpool status tank"));
    }
    let json = live.ok("zpool status -j tank");
    let count = |word: &str| json.matches(&format!("\"{word}\":")).count();
    assert_eq!([count("scan_processed"), count("self_healed")], [1, 1], "{json}");
    live.ok("zinject -c all");
    live.ok("zpool wait -t scrub tank");
    assert_eq!(marked(), (false, false));
    live.export_and_verify("tank");
}

#[test]
fn a_disk_that_a_resilver_could_not_fill_lacks_data_until_another_one() {
    let live = Live::new();
    let Some(at) = mirror(&live) else { return };
    let b = disk(&live, "b");
    live.ok(&format!("zpool offline tank {b}"));
    let file = at.join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    live.ok("zpool sync tank");
    live.ok("set aquifer_fault_agents=0");
    live.ok(&format!("zinject -a -t data -e io {}", file.display()));
    live.ok(&format!("zpool online tank {b}"));
    live.ok("zpool wait -t resilver tank");
    let line = || {
        let status = live.ok("zpool status tank");
        status.lines().find(|line| line.contains(&b)).unwrap().to_owned()
    };
    assert!(line().contains("(lacks data)"), "{}", line());
    live.ok("zinject -c all");
    live.ok("zpool resilver tank");
    live.ok("zpool wait -t resilver tank");
    assert!(!line().contains('('), "{}", line());
    live.ok("zpool clear tank");
    live.export_and_verify("tank");
}

#[test]
fn without_a_primary_cache_each_open_reads_the_devices() {
    let live = Live::new();
    let disks = format!("mirror {} {}", live.disk("a", 128), live.disk("b", 128));
    let Some(at) = live.mounted_on("-O compression=off -O primarycache=metadata", &disks) else { return };
    let file = at.join("file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    live.ok("zpool sync tank");
    live.ok(&format!("zinject -t data -e io {}", file.display()));
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(5));
    live.ok("zinject -c all");
    live.ok("zfs set primarycache=all tank");
    assert_eq!(fs::read(&file).unwrap().len(), 1 << 20);
    live.ok(&format!("zinject -t data -e io {}", file.display()));
    assert_eq!(fs::read(&file).unwrap(), vec![7; 1 << 20]);
}

#[test]
fn a_suspended_pool_is_not_destroyed() {
    let live = Live::new();
    let disks = [live.disk("a", 96), live.disk("b", 96)];
    live.ok(&format!("zpool create -O mountpoint=none tank mirror {} {}", disks[0], disks[1]));
    for disk in &disks {
        live.ok(&format!("zinject -q -d {disk} -e io -T all tank"));
    }
    let why = live.fails("zfs create tank/data");
    assert!(why.contains("pool I/O is currently suspended"), "{why}");
    let why = live.fails("zpool destroy tank");
    assert!(why.contains("pool I/O is currently suspended") && why.contains("'zpool export -f'"), "{why}");
    live.ok("zinject -c all");
    live.ok("zpool clear tank");
    live.ok("zpool destroy tank");
}

#[test]
fn imports_and_exports_are_delayed_and_all_pools_are_opened_side_by_side() {
    let live = Live::new();
    let pools = ["a", "b", "c", "d"];
    for name in pools {
        let disk = live.disk(name, 96);
        live.ok(&format!("zpool create -O mountpoint=none {name} {disk}"));
        fails(&live, &format!("zinject -P import -s 3 {name}"));
        live.ok(&format!("zpool export {name}"));
        let said = live.ok(&format!("zinject -P import -s 3 {name}"));
        assert!(said.ends_with(&format!("  pool: {name}\n time: 3 seconds\n")), "{said}");
    }
    for line in [
        "-P import -s 3 a",
        "-P frob -s 3 e",
        "-P import e",
        "-s 3 e",
        "-P import -s 0 e",
        "-P export -s 3 e",
    ] {
        fails(&live, &format!("zinject {line}"));
    }
    let list = live.ok("zinject");
    assert!(list.contains("  a                    3            import\n"), "{list}");
    let began = Instant::now();
    live.ok(&format!("zpool import -a -d {}", live.disks().display()));
    let took = began.elapsed();
    // One after the other they would take 12 s.
    assert!((3..12).contains(&took.as_secs()), "{took:?}");
    assert_eq!(live.ok("zpool list -H -o name"), "a\nb\nc\nd\n");
    assert!(live.ok("zinject").starts_with("No handlers registered.\n"));
    live.ok("zinject -q -P export -s 2 a");
    let began = Instant::now();
    live.ok("zpool export a");
    assert!(began.elapsed() >= Duration::from_secs(2));
    live.ok("zinject -q -P export -s 3600 b");
    live.ok("zinject -c all");
    live.ok("zpool export b");
}
