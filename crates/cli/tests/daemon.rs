//! Pools that the daemon owns, driven by the built binary and judged by zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use live::Live;

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

#[test]
fn snapshots_of_one_dataset_at_once_all_succeed() {
    let live = Live::new();
    let disk = live.disk("a", 64);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create tank/a");
    let taking = (0..12).map(|at| live.command(&format!("zfs snapshot -r tank/a@{at}")).spawn().unwrap());
    let taking: Vec<_> = taking.collect();
    assert!(taking.into_iter().all(|mut child| child.wait().unwrap().success()));
    assert_eq!(live.ok("zfs list -H -t snapshot -o name").lines().count(), 12);
    live.export_and_verify("tank");
}

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

#[test]
fn datasets_are_cloned_promoted_renamed_and_rolled_back() {
    let live = Live::new();
    let disk = live.disk("d", 256);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create tank/a");
    live.ok("zfs snapshot tank/a@1");
    live.ok("zfs clone -o compression=off tank/a@1 tank/c");
    for named in ["tank/a@1", "-r tank@1"] {
        assert_eq!(
            live.fails(&format!("zfs destroy {named}")),
            "cannot destroy 'tank/a@1': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\ntank/c\n"
        );
    }
    live.ok("zfs promote tank/c");
    assert_eq!(live.ok("zfs get -H -o value origin tank/a"), "tank/c@1\n");
    live.ok("zfs rename tank/c tank/d");
    live.ok("zfs rename tank/d@1 tank/d@one");
    assert_eq!(
        live.fails("zfs snapshot tank/d@two tank/d@three"),
        "cannot create snapshots : multiple snapshots of same fs not allowed\nno snapshots were created\n"
    );
    live.ok("zfs snapshot tank/d@two");
    live.ok("zfs snapshot tank/d@three");
    live.ok("zfs bookmark tank/d@two #mark");
    assert_eq!(
        live.fails("zfs rollback tank/d@one"),
        "cannot rollback to 'tank/d@one': more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots and bookmarks:\ntank/d@two\ntank/d@three\ntank/d#mark\n"
    );
    live.ok("zfs rollback -r tank/d@one");
    assert_eq!(live.ok("zfs list -H -o name -t all"), "tank\ntank/a\ntank/d\ntank/d@one\n");
    live.ok("zfs hold keep tank/d@one");
    let held = "cannot destroy snapshot tank/d@one: it's being held. Run 'zfs holds -r tank/d@one' to see holders.\n";
    assert_eq!(live.fails("zfs destroy -R tank/d"), held);
    live.ok("zfs release keep tank/d@one");
    live.ok("zfs destroy -R tank/d");
    assert_eq!(live.ok("zfs list -H -o name -t all"), "tank\n");
    live.export_and_verify("tank");
}

#[test]
fn bookmarks_are_copied_into_clones_of_their_future() {
    let live = Live::new();
    let disk = live.disk("d", 256);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create tank/a");
    for name in ["early", "origin"] {
        live.ok(&format!("zfs snapshot tank/a@{name}"));
        live.ok(&format!("zfs bookmark tank/a@{name} #{name}"));
    }
    live.ok("zfs clone tank/a@origin tank/c");
    live.ok("zfs snapshot tank/a@late");
    live.ok("zfs bookmark @late tank/a#late");
    live.ok("zfs bookmark tank/a#early tank/c#early");
    live.ok("zfs bookmark tank/a#origin tank/c#own");
    let guid = |name: &str| live.ok(&format!("zfs get -H -o value guid {name}"));
    assert_eq!(guid("tank/c#early"), guid("tank/a@early"));
    let later = |source: &str| {
        assert_eq!(
            live.fails(&format!("zfs bookmark {source} tank/c#late")),
            "cannot create bookmark 'tank/c#late': source is not an ancestor of the new bookmark's dataset\n"
        );
    };
    later("tank/a#late");
    later("tank/a@late");
    // One name can't stand twice where the bookmarks of both would be.
    assert_eq!(live.fails("zfs promote tank/c"), "cannot promote 'tank/c': both have a bookmark 'early'\n");
    live.ok("zfs destroy tank/a#early");
    live.ok("zfs destroy tank/a@early");
    live.ok("zfs promote tank/c");
    live.ok("zfs snapshot tank/c@end");
    for gone in ["tank/c#early", "tank/c#own", "tank/c#origin"] {
        live.ok(&format!("zfs destroy {gone}"));
    }
    assert_eq!(live.ok("zfs list -H -o name -t bookmark"), "tank/a#late\n");
    live.export_and_verify("tank");
}

#[test]
fn differences_are_those_of_this_moment() {
    let live = Live::new();
    let (disk, at) = (live.disk("d", 256), live.disks().join("mnt").display().to_string());
    live.ok(&format!("zpool create -m {at} tank {disk}"));
    std::fs::write(format!("{at}/old"), b"old").unwrap();
    live.ok("zfs snapshot tank@1");
    std::fs::write(format!("{at}/new"), b"new").unwrap();
    std::fs::remove_file(format!("{at}/old")).unwrap();
    let lines = live.ok("zfs diff tank@1");
    assert_eq!(lines, format!("M\t{at}/\n-\t{at}/old\n+\t{at}/new\n"));
    assert_eq!(live.ok("zfs holds tank@1"), "NAME  TAG  TIMESTAMP\n");
    let waited = live.ok("zpool wait -T u -t scrub tank 1");
    assert!(waited.lines().next().unwrap().parse::<u64>().is_ok(), "{waited}");
    assert!(live.run("zpool events bad@name").err.starts_with("invalid pool name 'bad@name'"));
    // Either end may lack the file system.
    assert_eq!(live.ok("zfs diff @1 tank"), lines);
    live.ok("zfs snapshot tank@2");
    assert_eq!(live.ok("zfs diff @1 tank@2"), lines);
    live.fails("zfs diff @1 @2");
    live.ok("zfs destroy tank@2");
    // A legacy file system has no other place than where it is mounted.
    let legacy = live.disks().join("legacy").display().to_string();
    std::fs::create_dir(&legacy).unwrap();
    live.ok("zfs create -o mountpoint=legacy tank/l");
    live.ok(&format!("mount.zfs tank/l {legacy}"));
    live.ok("zfs snapshot tank/l@1");
    std::fs::write(format!("{legacy}/new"), b"new").unwrap();
    assert_eq!(live.ok("zfs diff tank/l@1"), format!("M\t{legacy}/\n+\t{legacy}/new\n"));
    assert!(std::process::Command::new("umount").arg(&legacy).status().unwrap().success());
    live.ok("zfs destroy -r tank/l");
    assert_eq!(live.ok("zfs list -H -o name -t all"), "tank\ntank@1\n");
    live.export_and_verify("tank");
}

#[test]
fn settings_of_which_nothing_comes_yet_are_told_of() {
    let live = Live::new();
    let disk = live.disk("d", 128);
    let made = live.run(&format!("zpool create -O mountpoint=none -O sharesmb=on tank {disk}"));
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    let status = |what: &str| {
        let text = live.ok("zpool status tank");
        let lines = text.lines().skip_while(|line| !line.contains("no effect")).skip(1);
        let lines: Vec<&str> = lines.take_while(|line| line.starts_with('\t')).map(str::trim).collect();
        assert_eq!(lines.join("; "), what, "{text}");
    };
    let smb = "sharesmb=on: nothing is shared yet";
    status(&format!("tank: {smb}"));
    live.ok("zfs create -o sharenfs=on tank/a");
    status(&format!("tank/a: sharenfs=on: nothing is shared yet; tank: {smb}"));
    let set = live.run("zfs set sharesmb=guest_ok=y tank/a");
    assert_eq!((set.code, set.err.as_str()), (0, ""));
    assert!(live.log().contains("tank/a: sharesmb=guest_ok=y: nothing"), "{}", live.log());
    live.ok("zfs inherit sharenfs tank/a");
    live.ok("zfs rename tank/a tank/b");
    live.ok("zfs set sharesmb=off tank");
    status("tank/b: sharesmb=guest_ok=y: nothing is shared yet");
    assert_eq!(live.ok("zpool status -x"), "all pools are healthy\n");
    let json = || -> serde_json::Value {
        let doc: serde_json::Value = serde_json::from_str(&live.ok("zpool status -j tank")).unwrap();
        doc["pools"]["tank"]["notes"].clone()
    };
    assert_eq!(json(), serde_json::json!(["tank/b: sharesmb=guest_ok=y: nothing is shared yet"]));
    live.ok("zfs destroy tank/b");
    status("");
    assert_eq!(json(), serde_json::Value::Null);
    live.export_and_verify("tank");
}

#[test]
fn properties_are_set_inherited_and_refused() {
    let live = Live::new();
    let disk = live.disk("d", 256);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    live.ok("zfs create -p tank/a/b");
    live.ok("zfs set compression=gzip atime=off quota=50M tank/a");
    let got = live.ok("zfs get -H -o property,value,source compression,atime,quota tank/a/b");
    assert_eq!(
        got,
        "compression\tgzip\tinherited from tank/a\natime\toff\tinherited from tank/a\nquota\tnone\tdefault\n"
    );
    live.ok("zfs inherit compression tank/a");
    assert_eq!(live.ok("zfs get -H -o value,source compression tank/a"), "on\tdefault\n");
    live.ok("zfs set org.example:note=hello tank/a");
    assert_eq!(live.ok("zfs get -H -o value org.example:note tank/a/b"), "hello\n");
    live.ok("zfs set userquota@1000=10M tank/a");
    // Exit codes of the kernel's OpenZFS.
    let codes = [("zfs set used=1 tank", 255), ("zfs set a:b=1 tank/nope", 1), ("zfs load-key tank", 255)];
    codes.into_iter().for_each(|(line, code)| assert_eq!(live.run(line).code, code, "{line}"));
    assert_eq!(live.run("zfs list tank/nope").out, "");
    for (line, what) in [
        ("zfs set used=1 tank", "cannot set property for 'tank': 'used' is readonly"),
        ("zfs set nonsense=1 tank", "cannot set property for 'tank': invalid property 'nonsense'"),
        (
            "zfs set recordsize=3 tank",
            "cannot set property for 'tank': 'recordsize' must be power of 2 from 512B to 16M",
        ),
        ("zfs set atime=maybe tank", "cannot set property for 'tank': 'atime' must be one of 'on | off'"),
        ("zfs set atime=on tank/none", "cannot open 'tank/none': dataset does not exist"),
        ("zfs inherit quota tank", "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear"),
        ("zfs create tank/x/y", "cannot create 'tank/x/y': parent does not exist"),
        ("zfs create tank/a", "cannot create 'tank/a': dataset already exists"),
        ("zfs create none/a", "cannot create 'none/a': no such pool 'none'"),
        (
            "zfs destroy tank/a",
            "cannot destroy 'tank/a': filesystem has children\nuse '-r' to destroy the following datasets:\ntank/a/b",
        ),
        ("zfs destroy tank@x", "could not find any snapshots to destroy; check snapshot names."),
        ("zpool destroy none", "cannot open 'none': no such pool"),
        ("zpool set size=1 tank", "cannot set property for 'tank': 'size' is readonly"),
    ] {
        assert_eq!(live.fails(line), format!("{what}\n"), "{line}");
    }
    live.ok("zfs create -V 8M tank/v");
    live.ok("zfs set volsize=16M tank/v");
    assert_eq!(live.ok("zfs get -H -p -o value volsize tank/v"), "16777216\n");
    live.ok("zpool set comment=words tank");
    assert_eq!(live.ok("zpool get -H -o value comment tank"), "words\n");
    live.export_and_verify("tank");
}

#[test]
fn encrypted_datasets_have_their_keys_loaded_and_changed() {
    let live = Live::new();
    let disk = live.disk("d", 256);
    let key = live.dir.path().join("key");
    std::fs::write(&key, "correct horse battery").unwrap();
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    let location = format!("file://{}", key.display());
    live.ok(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 -o keylocation={location} tank/e"
    ));
    live.ok("zfs create tank/e/below");
    assert_eq!(
        live.ok("zfs get -H -o value encryption,keystatus,encryptionroot tank/e/below"),
        "aes-256-gcm\navailable\ntank/e\n"
    );
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
    assert_eq!(live.ok("zfs get -H -o value keystatus tank/e"), "unavailable\n");
    live.ok("zfs load-key -r tank/e");
    assert_eq!(live.ok("zfs get -H -o value keystatus tank/e"), "available\n");
    assert_eq!(live.fails("zfs load-key tank/e"), "Key load error: Key already loaded for 'tank/e'.\n");
    std::fs::write(&key, "another passphrase").unwrap();
    live.ok("zfs change-key tank/e");
    live.ok("zfs snapshot tank/e@s");
    live.ok("zfs unload-key tank/e");
    // Only verbs for keys load one.
    for line in ["zfs userspace tank/e", "zfs groupspace tank/e@s", "zfs diff tank/e@s"] {
        let said = live.fails(line);
        assert!(said.contains("dataset key must be loaded"), "{line}: {said}");
    }
    assert_eq!(live.ok("zfs get -H -o value keystatus tank/e"), "unavailable\n");
    live.ok("zfs load-key tank/e");
    for verb in ["unload-key", "load-key", "change-key", "mount -O", "mount -R"] {
        let said = live.fails(&format!("zfs {verb} tank/e@s"));
        let why = "cannot open 'tank/e@s': operation not applicable to datasets of this type\n";
        assert_eq!(said, why, "{verb}");
    }
    assert_eq!(live.ok("zfs get -H -o value keystatus tank/e"), "available\n");
    // A pool that is only read takes keys, and lets them go.
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} -o readonly=on tank", live.disks().display()));
    live.ok("zfs load-key tank/e");
    live.ok("zfs unload-key tank/e");
    assert_eq!(live.ok("zfs get -H -o value keystatus tank/e"), "unavailable\n");
    live.ok("zpool export tank");
    live.ok(&format!("zpool import -d {} tank", live.disks().display()));
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

/// Lists never show half of a concurrent change.
#[test]
fn lists_are_whole_while_others_change() {
    let live = Live::new();
    let disk = live.disk("d", 256);
    live.ok(&format!("zpool create -O mountpoint=none tank {disk}"));
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let live = &live;
            scope.spawn(move || {
                for n in 0..6 {
                    live.ok(&format!("zfs create tank/w{worker}-{n}"));
                    live.ok(&format!("zfs snapshot tank/w{worker}-{n}@a"));
                    live.ok(&format!("zfs clone tank/w{worker}-{n}@a tank/c{worker}-{n}"));
                    live.ok("zfs list -t all -r tank");
                    live.ok(&format!("zfs destroy -R tank/w{worker}-{n}"));
                }
            });
        }
    });
    assert_eq!(live.ok("zfs list -H -t all -o name"), "tank\n");
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

#[test]
fn features_count_from_when_they_are_asked_for() {
    let live = Live::new();
    let (a, b) = (live.disk("a", 128), live.disk("b", 128));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} special {b}"));
    assert_eq!(live.ok("zpool get -H -o value feature@allocation_classes tank"), "active\n");
    assert_eq!(live.ok("zpool get -H -o value feature@zstd_compress tank"), "enabled\n");
    live.ok("zfs create -o compression=zstd tank/z");
    assert_eq!(live.ok("zpool get -H -o value feature@zstd_compress tank"), "active\n");
    live.ok("zfs destroy tank/z");
    assert_eq!(live.ok("zpool get -H -o value feature@zstd_compress tank"), "enabled\n");
    live.ok("zpool destroy -f tank");
    live.ok(&format!("zpool create -f -d -O mountpoint=none old {a}"));
    let needs = "pool and or dataset must be upgraded to set this property or value";
    for setting in ["dnodesize=auto", "checksum=sha512", "recordsize=1M", "compression=zstd"] {
        assert!(live.fails(&format!("zfs set {setting} old")).contains(needs));
    }
    live.ok("zpool destroy old");
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
