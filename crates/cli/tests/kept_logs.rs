//! Intent logs from the command line. One that can't be replayed: the message of the mount, the content under `-o ro` and
//! `readonly=on`, and discarding the log. The counters of logs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::path::Path;

use live::Live;

const LINES: [&str; 2] = ["TX_REMOVE", "TX_WRITE"];

/// The forged pool, imported without mounts; `None`, with a notice, where nothing can be mounted.
fn imported(live: &Live) -> Option<String> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return None;
    }
    testkit::kept_log::forge(&live.disks(), "wpool");
    let at = live.dir.path().join("mnt").display().to_string();
    live.ok(&format!("zpool import -f -N -d {} wpool", live.disks().display()));
    // The property is set; the file system cannot be mounted there.
    let set = live.run(&format!("zfs set mountpoint={at} wpool"));
    assert!(set.code == 0 && set.err.contains("cannot be replayed"), "{}: {}", set.code, set.err);
    Some(at)
}

fn content(at: &str) -> Vec<u8> {
    let bytes = std::fs::read(Path::new(at).join("file")).unwrap();
    [0, 1000, 2000].map(|place| bytes[place]).to_vec()
}

#[test]
fn a_log_with_a_bad_record_is_shown_listed_and_given_up() {
    let live = Live::new();
    let Some(at) = imported(&live) else { return };
    let said = live.fails("zfs mount wpool");
    if said.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {said}");
        return;
    }
    assert!(said.contains("2 records of its intent log wait; 'zfs discard-log' gives them up"), "{said}");
    assert!(said.contains("REMOVE"), "{said}");
    // The other file system is not concerned: it was mounted when its mountpoint was set.
    live.ok("zfs unmount wpool/other");
    // All but the bad record is shown, by an option and by the property; nothing of it is written.
    live.ok("zfs mount -o ro wpool");
    assert_eq!(content(&at), [2, 3, 1]);
    assert!(std::fs::write(Path::new(&at).join("file"), b"x").is_err());
    live.ok("zfs unmount wpool");
    live.ok("zfs set readonly=on wpool");
    live.ok("zfs mount wpool");
    assert_eq!(content(&at), [2, 3, 1]);
    live.ok("zfs unmount wpool");
    live.ok("zfs inherit readonly wpool");
    assert!(live.fails("zfs mount wpool").contains("discard-log"));
    // Listed, then given up.
    for (line, end) in
        [("zfs discard-log -n wpool", "2 records wait"), ("zfs discard-log wpool", "2 records are lost")]
    {
        let told = live.ok(line);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines.iter().zip(LINES).all(|(line, kind)| line.starts_with(kind)), "{told}");
        assert!(told.contains("never was") && lines.last() == Some(&end), "{told}");
    }
    assert_eq!(live.ok("zfs discard-log wpool"), "0 records are lost\n");
    live.ok("zfs mount wpool");
    assert_eq!(content(&at), [2, 1, 1]);
    std::fs::write(Path::new(&at).join("new"), b"x").unwrap();
    assert!(live.fails("zfs discard-log wpool@none").contains("wpool@none"));
    live.export_and_verify("wpool");
}

#[test]
fn counters_of_logs_and_datasets_are_those_of_the_operations() {
    let live = Live::new();
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse here");
        return;
    }
    let [disk, log] = ["a", "log"].map(|name| live.disk(name, 128));
    let at = live.dir.path().join("mnt");
    let made = live.run(&format!("zpool create -O mountpoint={} tank {disk} log {log}", at.display()));
    if made.err.contains("not permitted") {
        eprintln!("SKIPPED: FUSE mounts are not allowed here: {}", made.err);
        return;
    }
    assert_eq!(made.code, 0, "{}", made.err);
    live.ok("zfs create -o logbias=throughput tank/large");
    let counts = |name: &str| -> std::collections::BTreeMap<String, String> {
        let text = live.ok(&format!("kstat {name}"));
        let rows = text.lines().skip(2).filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.nth(1)?.to_owned()))
        });
        rows.collect()
    };
    let synced = |path: &Path, bytes: usize| {
        std::fs::write(path, vec![7; bytes]).unwrap();
        std::fs::File::open(path).unwrap().sync_all().unwrap();
    };
    // The first commit of a log waits for the txg that begins the chain.
    ["first", "large/first"].iter().for_each(|name| synced(&at.join(name), 10));
    synced(&at.join("small"), 1000);
    synced(&at.join("large/file"), 256 << 10);
    std::fs::remove_file(at.join("small")).unwrap();
    let object = live.ok("zfs get -Hp -o value objsetid tank").trim().parse::<u64>().unwrap();
    let tank = counts(&format!("tank/objset-{object:#x}"));
    let is = |name: &str, value: &str| assert_eq!(tank[name], value, "{name}: {tank:?}");
    is("dataset_name", "tank");
    is("writes", "2");
    is("nwritten", "1010");
    is("nunlinks", "1");
    is("nunlinked", "1");
    is("zil_itx_needcopy_bytes", "1000");
    is("zil_itx_metaslab_normal_count", "0");
    assert!(
        tank["zil_commit_count"] != "0" && tank["zil_itx_metaslab_slog_bytes"].parse::<u64>().unwrap() > 1000
    );
    let all = counts("zil");
    assert_eq!(all["zil_itx_indirect_bytes"], (256 << 10).to_string(), "{all:?}");
    assert!(live.fails("kstat tank/objset-0x9999").contains("not open"));

    let rows = |line: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        live.ok(line).lines().map(words).collect()
    };
    let table = rows("zilstat -a -f ds,obj,inb,iib,imsc,ses%");
    assert_eq!(table[0], ["ds", "obj", "inb", "iib", "imsc", "ses%"]);
    assert_eq!(table[1][..4], ["tank".to_owned(), format!("{object:#x}"), "1000".to_owned(), "0".to_owned()]);
    assert_eq!((table[2][0].as_str(), table[2][3].as_str(), table.len()), ("tank/large", "256K", 3));
    assert_eq!(rows("zilstat -d tank/large -f pool,ds")[1], ["tank", "tank/large"]);
    assert_eq!(rows("zilstat -p tank").len(), 3);
    assert_eq!(rows("zilstat")[0].len(), 11);
    assert_eq!(rows("zilstat -v").len(), 40);
    assert!(live.fails("zilstat -f cc,none").contains("[\"none\"]"));
    assert!(live.fails("zilstat -p none").contains("does not exist"));
    live.export_and_verify("tank");
}

/// Writes a file and waits until it is in the log.
fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn an_older_state_is_shown_without_the_log_of_later_ones() {
    let live = Live::new();
    let Some(at) = live.mounted() else { return };
    let (doc, important) = (at.join("doc"), at.join("important"));
    put(&important, b"important");
    // The log's chain exists in the state to which the pool goes back.
    for content in [b"first", b"older"] {
        put(&doc, content);
        live.ok("zpool sync tank");
    }
    live.ok("zpool checkpoint tank");
    std::fs::remove_file(&important).unwrap();
    put(&doc, b"newer");
    live.ok("zpool export tank");
    let import = format!("zpool import -d {} -o readonly=on", live.disks().display());
    live.ok(&format!("{import} --rewind-to-checkpoint tank"));
    assert!(important.exists());
    assert_eq!(std::fs::read(&doc).unwrap(), b"older");
    live.ok("zpool export tank");
    live.ok(&format!("{import} tank"));
    assert!(!important.exists());
    assert_eq!(std::fs::read(&doc).unwrap(), b"newer");
    live.ok("zpool export tank");
}

#[test]
fn a_log_on_a_missing_device_is_mentioned() {
    let live = Live::new();
    let disks = format!("{} log {}", live.disk("a", 128), live.disk("l", 128));
    let Some(at) = live.mounted_on("", &disks) else { return };
    put(&at.join("first"), b"1");
    live.ok("zpool sync tank");
    put(&at.join("second"), b"2");
    live.signal("-KILL");
    let _ = std::process::Command::new("umount").arg("-l").arg(&at).status();
    let list = format!("ls -d {} tank:/", live.disks().display());
    let whole = live.run(&list);
    assert!(
        whole.out.contains("second") && !whole.err.contains("not replayed"),
        "{}{}",
        whole.out,
        whole.err
    );
    let verify = format!("verify -q -d {} tank", live.disks().display());
    assert!(live.ok(&verify).contains("all is well"));
    std::fs::remove_file(live.disks().join("l")).unwrap();
    let lost = "the devices do not return all of the log";
    let told = live.run(&list).err;
    assert!(told.contains(&format!("tank: not replayed: {lost}")), "{told}");
    let checked = live.run(&verify);
    assert!(
        checked.code == 2 && checked.out.contains(&format!("intent log of tank: {lost}")),
        "{}",
        checked.out
    );
    assert!(!checked.out.contains("all is well"), "{}", checked.out);
    let import = format!("zpool import -N -m -o readonly=on -d {} tank", live.disks().display());
    let imported = live.run(&import);
    assert!(
        imported.code == 0 && imported.err.contains("tank: its intent log cannot be read whole"),
        "{}",
        imported.err
    );
    live.ok("zpool export tank");
}
