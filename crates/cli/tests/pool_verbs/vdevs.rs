//! Vdevs: properties, counters, initialize, trim, removal.

use super::live::Live;

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
    assert_eq!(
        live.fails(&format!("zpool set size=1 tank {a}")),
        format!("cannot set property size for {a} on tank: 'size' is readonly\n")
    );
    assert_eq!(
        live.fails("zpool set nonsense=1 tank root"),
        "cannot set property nonsense for root on tank: invalid property: 'nonsense'\n"
    );
    let run = live.run("zpool set comment=x tank nodisk");
    assert_eq!((run.code, run.err.as_str()), (22, "cannot find 'nodisk' in 'tank': device not in pool\n"));
    let why = "it is the only vdev on which data can be allocated";
    let last = |disk: &str| format!("cannot set property allocating for {disk} on tank: {why}\n");
    assert_eq!(live.fails(&format!("zpool set allocating=off tank {a}")), last(&a));

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
    assert_eq!(live.fails(&format!("zpool set allocating=off tank {b}")), last(&b));
    live.ok(&format!("zpool set org.me:x= tank {a}"));
    assert_eq!(value("org.me:x", &a), "-\tdefault\n");
    let internal = live.ok("zpool history -lil tank");
    assert!(internal.contains("vdev set vdev_guid=") && internal.contains(": io_n=-1"), "{internal}");
    live.export_and_verify("tank");
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
fn devices_are_removed() {
    let live = Live::new();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(|name| live.disk(name, 128));
    live.ok(&format!("zpool create -O mountpoint=none tank {a} {b} log {c} cache {d} spare {e}"));
    (0..20).for_each(|n| drop(live.ok(&format!("zfs create tank/{n}"))));
    assert_eq!(live.fails("zpool remove tank nodisk"), "cannot remove nodisk: no such device in pool\n");
    assert_eq!(live.fails("zpool remove -s tank"), "cannot cancel removal: operation is not in progress\n");
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
