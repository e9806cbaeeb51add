//! Memory of the daemon: settings, counters, and the documented limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use live::Live;

const MIB: u64 = 1 << 20;

fn kstat(live: &Live, name: &str) -> i64 {
    kstats(live, [name])[0]
}

/// Several counters of one moment.
fn kstats<const N: usize>(live: &Live, names: [&str; N]) -> [i64; N] {
    let text = live.ok("kstat");
    names.map(|name| {
        let row = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        row.unwrap_or_else(|| panic!("no {name} in {text}"))
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    })
}

fn conf(live: &Live, text: &str) {
    std::fs::DirBuilder::new().recursive(true).create(live.run_dir()).unwrap();
    std::fs::set_permissions(live.run_dir(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(live.run_dir().join("aquifer.conf"), text).unwrap();
}

#[test]
fn settings_come_from_their_file_and_are_set_at_once() {
    let live = Live::new();
    conf(&live, "zfs_arc_max = 40M\noptions zfs zfs_txg_timeout=2\nzfs_nonsense=3\n");
    assert_eq!(
        live.ok("get -H -p zfs_arc_max zfs_txg_timeout"),
        "zfs_arc_max\t41943040\tlocal\nzfs_txg_timeout\t2\tlocal\n"
    );
    assert!(live.fails("set zfs_arc_max=1G").contains("no daemon is running"));
    assert!(live.fails("arcstat").contains("no pools are imported"));
    let disk = live.disk("a", 128);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    assert!(live.log().contains("there is no setting 'zfs_nonsense'"), "{}", live.log());
    assert_eq!((kstat(&live, "c_max"), kstat(&live, "c_min")), (40 << 20, 20 << 20));
    (0..20).for_each(|n| drop(live.ok(&format!("zfs create tank/d{n}"))));
    let size = kstat(&live, "size");
    live.ok("set zfs_arc_max=64K zfs_dirty_data_max=100M");
    assert!(size > 64 << 10 && kstat(&live, "size") <= 64 << 10, "{size} {}", kstat(&live, "size"));
    assert_eq!(live.ok("get -H zfs_dirty_data_max"), "zfs_dirty_data_max\t100M\tlocal\n");
    // None of several is set when one can't be.
    assert!(live.fails("set zfs_arc_max=1G zfs_txg_timeout=0").contains("zfs_txg_timeout is from 1"));
    assert_eq!(kstat(&live, "c_max"), 64 << 10);
    live.ok("set --save zfs_arc_max=48M");
    assert_eq!(kstat(&live, "c_max"), 48 << 20);
    let saved = std::fs::read_to_string(live.run_dir().join("aquifer.conf")).unwrap();
    assert_eq!(
        saved,
        "zfs_arc_max = 48M\noptions zfs zfs_txg_timeout=2\nzfs_nonsense=3\n".replace("48M", "50331648")
    );
    live.export_and_verify("tank");
}

#[test]
fn a_machine_that_is_short_of_memory_gets_some_back() {
    let live = Live::new();
    // More is to stay free than any machine has.
    conf(&live, "zfs_arc_max = 40M\nzfs_arc_min = 1M\nzfs_arc_sys_free = 1E\n");
    live.ok(&format!("zpool create -O mountpoint=none tank {}", live.disk("a", 128)));
    assert_eq!((kstat(&live, "c"), kstat(&live, "arc_no_grow")), (1 << 20, 1));
    assert!(kstat(&live, "memory_available_bytes") < 0 && kstat(&live, "arc_need_free") > 0);
    live.ok("set zfs_arc_sys_free=1");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while kstat(&live, "c") < 40 << 20 && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!((kstat(&live, "c"), kstat(&live, "arc_no_grow")), (40 << 20, 0));
}

/// Memory of the daemon alone, in bytes.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// Reads past the kernel's cache, so that the daemon is asked.
fn read_all(path: &Path, buf: &mut [u8], each: &mut dyn FnMut()) {
    const O_DIRECT: i32 = 0o40000;
    let mut file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(path).unwrap();
    while file.read(buf).unwrap() > 0 {
        each();
    }
}

/// Much more is written and read than may be kept; then the counters are looked at, which it moved.
#[test]
fn the_promise_of_memory_is_kept_under_load() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    const ARC: u64 = 16 * MIB;
    const DIRTY: u64 = 16 * MIB;
    /// The limit of `docs/memory.md` for everything else.
    const REST: u64 = 128 * MIB;
    let live = Live::new();
    conf(&live, &format!("zfs_arc_max = {ARC}\nzfs_dirty_data_max = {DIRTY}\n"));
    let mount = live.dir.path().join("mnt");
    live.ok(&format!("zpool create -O mountpoint={} tank {}", mount.display(), live.disk("a", 1024)));
    let pid = live.pid().unwrap();
    let mut most = 0;
    let mut look = || most = most.max(resident(pid));
    let mut rng = 7_u64;
    let mut buf = vec![0; 1 << 20];
    for n in 0..5 {
        let mut file = File::create(mount.join(format!("f{n}"))).unwrap();
        for _ in 0..64 {
            for word in buf.chunks_exact_mut(8) {
                rng = rng.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                word.copy_from_slice(&rng.to_le_bytes());
            }
            file.write_all(&buf).unwrap();
            look();
        }
        read_all(&mount.join(format!("f{n}")), &mut buf, &mut look);
    }
    // Small blocks, each with a page of its own.
    for n in 0..1500 {
        std::fs::write(mount.join(format!("small{n}")), &buf[..512 + n]).unwrap();
    }
    (0..1500).for_each(|n| drop(std::fs::read(mount.join(format!("small{n}"))).unwrap()));
    look();
    assert!(most <= ARC + DIRTY + REST, "{} MiB", most / MIB);
    assert!(most > 2 * MIB, "no listing was read");
    eprintln!("at most {} MiB of own memory", most / MIB);
    let [size, recent, frequent, headers] = kstats(&live, ["size", "mru_size", "mfu_size", "hdr_size"]);
    assert!(size > (ARC / 2) as i64 && size <= ARC as i64, "{size}");
    assert_eq!(size, recent + frequent + headers);
    let all: i64 = ["hits", "iohits", "misses"].iter().map(|name| kstat(&live, name)).sum();
    // On a busy machine reading ahead finds more of the blocks before they are asked for.
    let missed = ["demand_data_misses", "prefetch_data_misses"].map(|name| kstat(&live, name));
    let deleted = kstat(&live, "deleted");
    assert!(missed.iter().sum::<i64>() > 100 && all > 1000 && deleted > 1000, "{missed:?} {all} {deleted}");
    counters_are_shown(&live);
    live.ok("set zfs_arc_max=1M");
    assert!(kstat(&live, "size") <= 1 << 20);
    live.export_and_verify("tank");
}

/// Few bytes change in each of many indirect blocks: all of these together are 750 MiB.
#[test]
fn the_promise_of_memory_is_kept_by_scattered_small_writes() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    const MOST: u64 = (16 + 16 + 128) * MIB;
    let live = Live::new();
    conf(&live, "zfs_arc_max = 16M\nzfs_dirty_data_max = 16M\n");
    let mount = live.dir.path().join("mnt");
    let options = format!("-O mountpoint={} -O recordsize=512 -O atime=off", mount.display());
    live.ok(&format!("zpool create {options} tank {}", live.disk("a", 1024)));
    let pid = live.pid().unwrap();
    let file = File::create(mount.join("f")).unwrap();
    let mut most = 0;
    for n in 0..6000_u64 {
        file.write_all_at(&[b'x'; 512], (n * 7919 % 6000) << 19).unwrap();
        most = most.max(if n % 16 == 0 { resident(pid) } else { 0 });
    }
    std::thread::scope(|all| {
        let sync = all.spawn(|| live.ok("zpool sync"));
        while !sync.is_finished() {
            most = most.max(resident(pid));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    drop(file);
    assert!(most > 2 * MIB && most <= MOST, "{} MiB", most / MIB);
    live.export_and_verify("tank");
}

/// Streams with slow readers keep the blocks that they have read ahead; one limit holds for all streams together.
#[test]
fn the_promise_of_memory_is_kept_by_many_sends() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    const STREAMS: usize = 12;
    const MOST: u64 = (16 + 16 + 128) * MIB;
    let live = Live::new();
    conf(&live, "zfs_arc_max = 16M\nzfs_dirty_data_max = 16M\n");
    let mount = live.dir.path().join("mnt");
    let options = format!("-O mountpoint={} -O recordsize=4k -O compression=off", mount.display());
    live.ok(&format!("zpool create {options} tank {}", live.disk("a", 512)));
    let pid = live.pid().unwrap();
    let mut file = File::create(mount.join("f")).unwrap();
    (0..40).for_each(|n| file.write_all(&vec![n; 1 << 20]).unwrap());
    drop(file);
    live.ok("zfs snapshot tank@a");
    let start = |_| live.command("zfs send tank@a").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut streams: Vec<std::process::Child> = (0..STREAMS).map(start).collect();
    let mut most = 0;
    for _ in 0..400 {
        most = most.max(resident(pid));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // None waits for another one.
    for stream in &mut streams {
        let mut first = [0; 1 << 16];
        stream.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    }
    assert!(most > 2 * MIB && most <= MOST, "{} MiB", most / MIB);
    for mut stream in streams {
        stream.kill().unwrap();
        stream.wait().unwrap();
    }
    live.export_and_verify("tank");
}

/// Many readers of a few bytes each, in records of which a few fill the cache: each read takes columns, the block that is made
/// of them, and the decoded one. Two of the disks are missing.
#[test]
fn the_promise_of_memory_is_kept_by_many_readers_of_large_records() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    const O_DIRECT: i32 = 0o40000;
    const MOST: u64 = (16 + 64 + 128) * MIB;
    const READERS: u64 = 32;
    const SIZE: u64 = 128 * MIB;
    let live = Live::new();
    conf(&live, "zfs_arc_max = 16M\nzfs_dirty_data_max = 64M\n");
    let mount = live.dir.path().join("mnt");
    let options = format!("-O mountpoint={} -O recordsize=16M -O compression=off", mount.display());
    let disks: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(|name| live.disk(name, 192)).into();
    live.ok(&format!("zpool create {options} tank raidz2 {}", disks.join(" ")));
    let pid = live.pid().unwrap();
    let mut file = File::create(mount.join("f")).unwrap();
    (0..SIZE / MIB).for_each(|n| file.write_all(&vec![n as u8; 1 << 20]).unwrap());
    drop(file);
    live.ok("zpool sync");
    disks.iter().take(2).for_each(|disk| drop(live.ok(&format!("zpool offline tank {disk}"))));
    let path = mount.join("f");
    let read = |reader: u64| {
        let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).unwrap();
        let mut buf = vec![0; 4096];
        for n in 0..3 {
            let at = (reader * 7 + n * 5) * 16 * MIB % SIZE + reader * 4096;
            file.read_exact_at(&mut buf, at).unwrap();
            assert!(buf.iter().all(|byte| *byte == (at / MIB) as u8), "at {at}");
        }
    };
    let mut most = 0;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|reader| scope.spawn(move || read(reader))).collect();
        while !readers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            most = most.max(resident(pid));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    assert!(most > 2 * MIB && most <= MOST, "{} MiB", most / MIB);
    live.export_and_verify("tank");
}

fn counters_are_shown(live: &Live) {
    let lines = |line: &str| -> Vec<String> { live.ok(line).lines().map(str::to_owned).collect() };
    // As OpenZFS 2.3's prints it.
    let usual = "    time  read  ddread  ddh%  dmread  dmh%  pread  ph%   size      c  avail";
    let arcstat = lines("arcstat 0.1 21");
    assert_eq!((arcstat.len(), arcstat[0].as_str(), arcstat[21].as_str()), (23, usual, usual));
    assert!(arcstat[1].len() == usual.len() && arcstat[1].contains("16M"), "{arcstat:?}");
    let literal = lines("zarcstat -p -s , -f time,c,size,hit% 0.1 2");
    assert_eq!((literal.len(), literal[0].as_str()), (3, "time,c,size,hit%"));
    assert_eq!(literal[1].split(',').nth(1), Some("16777216"), "{literal:?}");
    let extended = lines("arcstat -x");
    assert_eq!(extended[0], "    time   mfu   mru  mfug  mrug   unc  eskip  mtxmis  dread  pread  read");
    assert_eq!(lines("arcstat -a")[0].split_whitespace().count(), lines("arcstat -v").len());
    assert!(live.fails("arcstat -f time,nonsense").contains("nonsense"));
    live.ok("arcstat -o out.txt -f c 0.1 1");
    assert_eq!(std::fs::read_to_string(live.disks().join("out.txt")).unwrap(), "    c\n  16M\n");
    let summary = live.ok("arc_summary");
    for text in
        ["Max target size:", "Demand data misses:", "MRU metadata size:", "L2ARC not detected", "zfs_arc_max"]
    {
        assert!(summary.contains(text), "{summary}");
    }
    assert!(summary.lines().all(|line| line.len() <= 72), "{summary}");
    let section = live.ok("arc_summary -s archits");
    assert!(section.contains("ARC total accesses:") && !section.contains("Tunables"));
    assert!(live.ok("arc_summary -p 2").contains("ARC total accesses:"));
    assert!(live.ok("arc_summary -p 6").contains("zfs_arc_max"));
    assert_eq!(live.fails("arc_summary -p 7"), "Error: Page \"7\" not supported\n");
    assert!(live.ok("arc_summary -d -s tunables").contains("# Bytes of decoded blocks"));
    assert!(live.ok("arc_summary -g").contains("|DDDD"));
    assert!(live.fails("arc_summary -s nonsense").contains("unknown"));
}

/// Rows of a long listing are made again for printing: they are the same as those of a short one, in every format.
#[test]
fn a_listing_longer_than_what_is_kept_is_complete() {
    const FILE_SYSTEMS: usize = 40;
    const SNAPSHOTS: usize = 30;
    let live = Live::new();
    live.ok(&format!("zpool create -O mountpoint=none tank {}", live.disk("a", 256)));
    (1..FILE_SYSTEMS).for_each(|n| drop(live.ok(&format!("zfs create tank/d{n:02}"))));
    live.ok("zfs set com.example:last=set tank/d39");
    (0..SNAPSHOTS).for_each(|n| drop(live.ok(&format!("zfs snapshot -r tank@s{n}"))));
    let all = live.ok("zfs get -H -r all tank");
    for name in ["tank", "tank@s0", "tank/d17@s29", "tank/d39"] {
        let wanted = format!("{name}\t");
        let lines: Vec<&str> = all.lines().filter(|line| line.starts_with(&wanted)).collect();
        assert_eq!(lines.join("\n") + "\n", live.ok(&format!("zfs get -H all {name}")), "{name}");
    }
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let padded = live.ok("zfs get -r all tank");
    assert_eq!(words(padded.split_once('\n').unwrap().1), words(&all));
    let json: serde_json::Value = serde_json::from_str(&live.ok("zfs get -j -r all tank")).unwrap();
    let datasets = json["datasets"].as_object().unwrap();
    assert_eq!(datasets.len(), FILE_SYSTEMS * (SNAPSHOTS + 1));
    let count: usize = datasets.values().map(|one| one["properties"].as_object().unwrap().len()).sum();
    assert_eq!(count, all.lines().count());
    let listed = live.ok("zfs list -H -t all -o name,used -S name");
    let mut sorted: Vec<&str> = listed.lines().collect();
    assert_eq!(sorted.len(), datasets.len());
    sorted.sort_by_key(|line| std::cmp::Reverse(line.split('\t').next().unwrap().to_owned()));
    assert_eq!(sorted, listed.lines().collect::<Vec<_>>());
    live.export_and_verify("tank");
}

/// Snapshots of one dataset at the same time wait for one another.
#[test]
fn concurrent_snapshots_of_one_dataset_all_succeed() {
    const THREADS: usize = 6;
    const EACH: usize = 5;
    let live = Live::new();
    live.ok(&format!("zpool create -O mountpoint=none tank {}", live.disk("a", 128)));
    live.ok("zfs create tank/a");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let live = &live;
            scope.spawn(move || {
                (0..EACH).for_each(|n| drop(live.ok(&format!("zfs snapshot tank/a@{thread}-{n}"))));
            });
        }
    });
    assert_eq!(live.ok("zfs list -H -t snapshot -o name tank/a").lines().count(), THREADS * EACH);
    live.export_and_verify("tank");
}
