//! The process: start, end, kill, cache file, socket, environment of commands.

use super::live::Live;

fn raidz2(live: &Live) -> String {
    let disks: Vec<String> = (1..=6).map(|n| live.disk(&format!("f{n}"), 128)).collect();
    disks.join(" ")
}

#[test]
fn a_pool_is_made_used_exported_and_imported() {
    let live = Live::new();
    let disks = raidz2(&live);
    live.ok(&format!(
        "zpool create -O mountpoint=none -o comment=mine -O compression=lz4 tank raidz2 {disks}"
    ));
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
    let iostat = live.ok("zpool iostat -Hpv tank");
    assert_eq!(iostat.lines().count(), 8, "{iostat}");
    let cells =
        |line: &str| -> Vec<u64> { line.split('\t').skip(1).map(|cell| cell.parse().unwrap_or(0)).collect() };
    let (pool, disk) = (cells(iostat.lines().next().unwrap()), cells(iostat.lines().last().unwrap()));
    assert!(pool.len() == 6 && pool[0] > 0 && pool[3] > disk[3] && pool[5] > disk[5], "{iostat}");
    let status = live.ok("zpool status -dp tank");
    let cells = |name: &str| {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        status.lines().map(words).find(|words| words.first().is_some_and(|word| word == name)).unwrap()
    };
    assert_eq!(cells("NAME"), ["NAME", "STATE", "READ", "WRITE", "CKSUM", "DIO"]);
    assert_eq!(cells("raidz2-0"), ["raidz2-0", "ONLINE", "0", "0", "0", "0"]);
    let some = live.ok("zpool iostat tank raidz2-0 f1");
    let names: Vec<&str> = some.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names[1] == "vdev" && names[3] == "raidz2-0" && names[4].ends_with("/f1"), "{some}");
    assert_eq!(live.ok("zpool iostat -H f2").lines().count(), 1);
    assert_eq!(live.fails("zpool iostat none"), "Unable to parse pools/vdevs list.\n\n");
    let run = live.run("zpool iostat tank none");
    let why = "Expected either a list of pools, or list of vdevs in \"tank\", but got:\n\tnone (unknown)\n";
    assert!(run.code == 2 && run.err.starts_with(why), "{}", run.err);
    live.export_and_verify("tank");
    assert_eq!(live.run("zpool list").out, "no pools available\n");
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
    live.ok(&format!("zpool create -O mountpoint=none tank raidz2 {disks}"));
    live.ok("zfs create tank/a");
    let name = std::fs::read_to_string(format!("/proc/{}/comm", live.pid().unwrap())).unwrap();
    assert_eq!(name, "aquifer\n");
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
    assert_eq!(live.run("zpool list").out, "no pools available\n");
}

/// The file may name pools: nothing says that there are none, and it is not replaced without a word.
#[test]
fn a_damaged_cache_file_is_an_error_and_is_kept() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 64), live.disk("b", 64));
    live.ok(&format!("zpool create -O mountpoint=none tank {a}"));
    let file = live.run_dir().join("zpool.cache");
    live.signal("-KILL");
    std::fs::write(&file, b"torn").unwrap();
    for line in ["zpool status", "zpool list", "zfs list"] {
        let why = live.fails(line);
        assert!(why.contains("it is damaged") && why.contains("zpool import"), "{line}: {why}");
        assert!(!why.contains("no pools available"), "{line}: {why}");
    }
    let made = live.run(&format!("zpool create -O mountpoint=none new {b}"));
    assert!(made.code == 0 && made.err.contains("zpool.cache.damaged"), "{}", made.err);
    assert_eq!(std::fs::read(live.run_dir().join("zpool.cache.damaged")).unwrap(), b"torn");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    // A running daemon knows its pools whatever happens to the file.
    std::fs::write(&file, b"torn again").unwrap();
    let said = live.run("zpool export new");
    assert!(said.code == 0 && said.err.contains("cache.damaged2"), "{}", said.err);
    live.signal("-KILL");
    assert_eq!(live.ok("zpool list -H -o name"), "tank\n");
    live.export_and_verify("tank");
}

/// Changes acknowledged with success survive kills of the daemon, at any time and any number of times.
#[test]
fn nothing_answered_is_lost_when_the_daemon_is_killed() {
    let live = Live::new();
    let disks: Vec<String> = (1..=3).map(|n| live.disk(&format!("k{n}"), 128)).collect();
    live.ok(&format!("zpool create -O mountpoint=none tank raidz {}", disks.join(" ")));
    let mut random: u64 = 7;
    let mut known: Vec<String> = Vec::new();
    for round in 0..6 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let after = std::time::Duration::from_millis(random >> 33 & 0xff);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut done = Vec::new();
                for n in 0..40 {
                    let name = format!("tank/r{round}-{n}");
                    if live.run(&format!("zfs create {name}")).code != 0 {
                        break;
                    }
                    done.push(name.clone());
                    live.run(&format!("zfs snapshot {name}@s"));
                    if n % 3 == 0 && live.run(&format!("zfs destroy -r {name}")).code == 0 {
                        done.pop();
                    } else if n % 3 == 0 {
                        // It may be gone or not.
                        done.pop();
                        break;
                    }
                }
                done
            });
            std::thread::sleep(after);
            live.signal("-KILL");
            known.extend(worker.join().unwrap());
        });
    }
    let names = live.ok("zfs list -H -o name");
    for name in &known {
        assert!(names.lines().any(|line| line == name), "{name} is lost: {names}");
    }
    assert!(!known.is_empty());
    live.export_and_verify("tank");
}

#[test]
fn a_daemon_without_its_folder_leaves_the_socket_of_the_next() {
    let live = Live::new();
    let [a, b] = ["a", "b"].map(|name| live.disk(name, 96));
    live.ok(&format!("zpool create -O mountpoint=none first {a}"));
    let first = live.pid().unwrap();
    std::fs::rename(live.run_dir(), live.dir.path().join("gone")).unwrap();
    live.ok(&format!("zpool create -O mountpoint=none second {b}"));
    let second = live.pid().unwrap();
    assert_ne!(first, second);
    testkit::live::end(first, "-TERM");
    assert!(live.run_dir().join("socket").exists());
    assert_eq!(live.ok("zpool list -H -o name"), "second\n");
    assert_eq!(live.pid(), Some(second));
    live.ok("zpool export second");
    live.ok(&format!("zpool import -d {a} first"));
    live.export_and_verify("first");
}

/// The search path is that of the command, not that of the one that started the daemon.
#[test]
fn each_command_has_its_own_search_path() {
    let live = Live::new();
    let [_, other] = ["a", "b"].map(|name| live.disk(name, 64));
    let with = |dir: &std::path::Path, line: &str| {
        let out = live.command(line).env("ZPOOL_IMPORT_PATH", dir).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let empty = live.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    live.ok(&format!("zpool create -O mountpoint=none tank {other}"));
    live.ok("zpool export tank");
    // The last pool is gone, so this one starts a daemon.
    let disk = live.disk("keep", 64);
    with(&empty, &format!("zpool create -O mountpoint=none keep {disk}"));
    assert!(with(&live.disks(), "zpool import").contains("tank"));
    assert!(!with(&empty, "zpool import").contains("tank"));
    with(&live.disks(), "zpool import -N tank");
    assert_eq!(live.ok("zpool list -H -o name"), "keep\ntank\n");
    live.export_and_verify("tank");
}
