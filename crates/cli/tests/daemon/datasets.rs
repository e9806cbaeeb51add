//! Changes of datasets, also concurrent ones.

use super::live::Live;

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
    let set = live.run("zfs set sharesmb=on tank/a");
    assert_eq!((set.code, set.err.as_str()), (0, ""));
    assert!(live.log().contains("tank/a: sharesmb=on: nothing"), "{}", live.log());
    live.ok("zfs inherit sharenfs tank/a");
    live.ok("zfs rename tank/a tank/b");
    live.ok("zfs set sharesmb=off tank");
    status("tank/b: sharesmb=on: nothing is shared yet");
    assert_eq!(live.ok("zpool status -x"), "all pools are healthy\n");
    let json = || -> serde_json::Value {
        let doc: serde_json::Value = serde_json::from_str(&live.ok("zpool status -j tank")).unwrap();
        doc["pools"]["tank"]["notes"].clone()
    };
    assert_eq!(json(), serde_json::json!(["tank/b: sharesmb=on: nothing is shared yet"]));
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
        (
            "zfs inherit quota tank",
            "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\nuse 'zfs inherit -S quota' to revert to received value",
        ),
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
        let run = live.run(&format!("zfs {verb} tank/e@s"));
        let why = "cannot open 'tank/e@s': snapshot delimiter '@' is not expected here\n";
        assert!(run.code != 0 && run.err.starts_with(why), "{verb}: {}", run.err);
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
