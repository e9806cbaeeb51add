//! Incremental streams of files whose blocks, dnodes and attributes have other sizes than before, and receives onto mounts.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, clippy::indexing_slicing, reason = "tests")]

mod live;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use live::{Live, Run};
use rustix::fs::XattrFlags;

/// Sends with `line` into a file.
fn sent(live: &Live, line: &str) -> PathBuf {
    let path = live.dir.path().join("stream");
    let file = File::create(&path).unwrap();
    let run: Run = live.command(line).stdout(Stdio::from(file)).output().unwrap().into();
    assert_eq!(run.code, 0, "{line}: {}", run.err);
    path
}

fn fed(live: &Live, line: &str, stream: &Path) -> Run {
    live.command(line).stdin(Stdio::from(File::open(stream).unwrap())).output().unwrap().into()
}

fn piped(live: &Live, send: &str, receive: &str) {
    let run = fed(live, receive, &sent(live, send));
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{send} | {receive}");
}

/// Bytes that do not repeat.
fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A file whose blocks a stream without `-L` has split keeps them, and what a later stream with `-L` does not have. Streams
/// without `-L` after one with it are refused.
#[test]
fn large_blocks_may_be_switched_on_but_not_off() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create -o recordsize=1M tank/src");
    let file = at.join("src/file");
    let first = noise(1_500_000, 1);
    fs::write(&file, &first).unwrap();
    live.ok("zfs snapshot tank/src@1");
    let mut all = first.clone();
    all.resize(2 << 20, 0);
    all.extend(noise(1_500_000, 2));
    fs::write(&file, &all).unwrap();
    // The first block is as it was.
    live.ok("zfs rollback tank/src@1");
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, &all[2 << 20..], 2 << 20).unwrap();
    drop(open);
    live.ok("zfs snapshot tank/src@2");
    for (name, options) in [("plain", ""), ("packed", "-c ")] {
        piped(&live, &format!("zfs send {options}tank/src@1"), &format!("zfs receive tank/{name}"));
        piped(&live, &format!("zfs send {options}-L -i @1 tank/src@2"), &format!("zfs receive tank/{name}"));
        assert!(fs::read(at.join(name).join("file")).unwrap() == all, "{name}");
    }
    piped(&live, "zfs send -L tank/src@1", "zfs receive tank/large");
    let run = fed(&live, "zfs receive tank/large", &sent(&live, "zfs send -i @1 tank/src@2"));
    let why = "incremental send stream requires -L (--large-block), to match previous receive.";
    assert!(run.code == 1 && run.err.contains(why), "{}", run.err);
    assert!(fs::read(at.join("large/file")).unwrap() == first);
    live.export_and_verify("tank");
}

/// Attributes in spill blocks stay when a file gets larger blocks, and objects take the places of larger ones.
#[test]
fn files_with_other_sizes_than_before_are_received_whole() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    let key = live.dir.path().join("key");
    fs::write(&key, "a passphrase").unwrap();
    live.ok(&format!(
        "zfs create -o xattr=sa -o dnodesize=1k -o encryption=on -o keyformat=passphrase -o keylocation=file://{} tank/src",
        key.display()
    ));
    let src = at.join("src");
    for i in 0..20 {
        fs::write(src.join(format!("old{i}")), noise(3000, i)).unwrap();
    }
    live.ok("zfs set dnodesize=legacy tank/src");
    fs::write(src.join("file"), noise(16384, 7)).unwrap();
    for i in 0..8 {
        let (name, value) = (format!("user.attribute{i}"), format!("{i}").repeat(200));
        rustix::fs::setxattr(src.join("file"), name, value.as_bytes(), XattrFlags::empty()).unwrap();
    }
    live.ok("zfs snapshot tank/src@1");
    for i in 0..20 {
        fs::remove_file(src.join(format!("old{i}"))).unwrap();
    }
    // New objects get the places of the old ones.
    live.ok("zfs unmount tank/src");
    live.ok("zfs mount tank/src");
    for i in 0..40 {
        fs::write(src.join(format!("new{i}")), noise(3000, i)).unwrap();
    }
    let grown = noise(100_000, 8);
    fs::write(src.join("file"), &grown).unwrap();
    live.ok("zfs snapshot tank/src@2");
    for (name, options) in [("raw", "-w "), ("plain", "")] {
        piped(&live, &format!("zfs send {options}tank/src@1"), &format!("zfs receive -u tank/{name}"));
        piped(&live, &format!("zfs send {options}-i @1 tank/src@2"), &format!("zfs receive -u tank/{name}"));
    }
    live.ok(&format!("zfs load-key -L file://{} tank/raw", key.display()));
    for name in ["raw", "plain"] {
        live.ok(&format!("zfs mount tank/{name}"));
        let dir = at.join(name);
        assert!(fs::read(dir.join("file")).unwrap() == grown, "{name}");
        for i in 0..8 {
            let mut value = [0; 300];
            let len =
                rustix::fs::getxattr(dir.join("file"), format!("user.attribute{i}"), &mut value[..]).unwrap();
            assert_eq!(value[..len], *format!("{i}").repeat(200).as_bytes(), "{name}");
        }
        for i in 0..40 {
            assert!(fs::read(dir.join(format!("new{i}"))).unwrap() == noise(3000, i), "{name}/new{i}");
        }
    }
    live.export_and_verify("tank");
}

/// A file system that a full stream is to replace is unmounted for it, and stays so with `-u`. A stream of a file system itself
/// is resumed. A value that the pool can't have is not received.
#[test]
fn full_streams_replace_mounted_file_systems() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create tank/src");
    fs::write(at.join("src/file"), noise(4 << 20, 3)).unwrap();
    live.ok("zfs snapshot tank/src@1");
    let part = live.dir.path().join("part");
    let cut = |line: &str| {
        let whole = fs::read(sent(&live, line)).unwrap();
        fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    };
    for (name, options, mounted) in [("left", "-u ", "no\n"), ("again", "", "yes\n")] {
        live.ok(&format!("zfs create tank/{name}"));
        fs::write(at.join(name).join("old"), "old").unwrap();
        cut("zfs send tank/src@1");
        assert_eq!(fed(&live, &format!("zfs receive {options}-s -F tank/{name}"), &part).code, 1);
        let token = live.ok(&format!("zfs get -H -o value receive_resume_token tank/{name}"));
        piped(
            &live,
            &format!("zfs send -t {}", token.trim()),
            &format!("zfs receive {options}-s -F tank/{name}"),
        );
        assert_eq!(live.ok(&format!("zfs get -H -o value mounted tank/{name}")), mounted);
        if mounted == "no\n" {
            live.ok(&format!("zfs mount tank/{name}"));
        }
        assert!(fs::read(at.join(name).join("file")).unwrap() == noise(4 << 20, 3), "{name}");
        assert!(!at.join(name).join("old").exists(), "{name}");
    }
    live.ok("zfs unmount tank/src");
    cut("zfs send tank/src");
    assert_eq!(fed(&live, "zfs receive -u -s tank/head", &part).code, 1);
    let token = live.ok("zfs get -H -o value receive_resume_token tank/head");
    piped(&live, &format!("zfs send -t {}", token.trim()), "zfs receive -u -s tank/head");

    live.ok(&format!("zpool create -d -m none old {}", live.disk("b", 128)));
    live.ok("zfs set recordsize=1M tank/src");
    let stream = sent(&live, "zfs send -p tank/src@1");
    let run = fed(&live, "zfs receive -u old/src", &stream);
    assert!(
        run.code == 0 && run.err.starts_with("cannot receive recordsize property on old/src: "),
        "{}",
        run.err
    );
    assert_eq!(live.ok("zfs get -H -o value recordsize old/src"), "128K\n");
    live.export_and_verify("old");
    live.export_and_verify("tank");
}

/// Reads below a read-only mount keep access times, so a receive finds the target unmodified.
#[test]
fn reading_a_read_only_mount_does_not_modify_it() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create -o relatime=off tank/from");
    fs::write(at.join("from/file"), noise(4096, 1)).unwrap();
    live.ok("zfs snapshot tank/from@a");
    live.ok("zfs snapshot tank/from@b");
    piped(&live, "zfs send tank/from@a", "zfs receive -u -o relatime=off tank/to");
    live.ok("zfs mount -o ro tank/to");
    fs::read(at.join("to/file")).unwrap();
    piped(&live, "zfs send -i @a tank/from@b", "zfs receive tank/to");
    live.export_and_verify("tank");
}

/// A file system that a full stream replaces is unmounted with those below it, and all are mounted again, also after a failure.
#[test]
fn file_systems_below_a_replaced_one_are_mounted_again() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create tank/src");
    fs::write(at.join("src/file"), noise(1 << 20, 3)).unwrap();
    live.ok("zfs snapshot tank/src@1");
    live.ok("zfs create tank/dst");
    live.ok("zfs create tank/dst/kid");
    fs::write(at.join("dst/kid/own"), "own").unwrap();
    let stream = sent(&live, "zfs send tank/src@1");
    let whole = fs::read(&stream).unwrap();
    fs::write(&stream, &whole[..whole.len() / 2]).unwrap();
    let run = fed(&live, "zfs receive -F tank/dst", &stream);
    assert!(run.code == 1 && run.err.contains("incomplete stream"), "{}", run.err);
    let all_stand = || {
        assert_eq!(live.ok("zfs get -H -r -t filesystem -o value mounted tank/dst"), "yes\nyes\n");
        assert_eq!(fs::read(at.join("dst/kid/own")).unwrap(), b"own");
    };
    all_stand();
    piped(&live, "zfs send tank/src@1", "zfs receive -F tank/dst");
    all_stand();
    assert!(fs::read(at.join("dst/file")).unwrap() == noise(1 << 20, 3));
    // A file in use keeps everything where it is.
    live.ok("zfs destroy tank/dst@1");
    let open = File::open(at.join("dst/file")).unwrap();
    let run = fed(&live, "zfs receive -F tank/dst", &sent(&live, "zfs send tank/src@1"));
    assert!(run.code == 1 && run.err.contains("busy"), "{}", run.err);
    drop(open);
    all_stand();
    live.export_and_verify("tank");
}

/// An incremental stream that takes away the folders in which file systems are mounted leaves those mounted.
#[test]
fn file_systems_below_a_forced_target_stay_mounted() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create tank/src");
    live.ok("zfs snapshot tank/src@0");
    live.ok("zfs snapshot tank/src@1");
    piped(&live, "zfs send tank/src@0", "zfs receive tank/dst");
    for (name, file) in [("tank/dst/kid", "dst/kid/own"), ("tank/dst/kid/deep", "dst/kid/deep/own")] {
        live.ok(&format!("zfs create {name}"));
        fs::write(at.join(file), "own").unwrap();
    }
    piped(&live, "zfs send -i @0 tank/src@1", "zfs receive -F tank/dst");
    assert_eq!(live.ok("zfs get -H -r -t filesystem -o value mounted tank/dst"), "yes\nyes\nyes\n");
    for file in ["dst/kid/own", "dst/kid/deep/own"] {
        assert_eq!(fs::read(at.join(file)).unwrap(), b"own");
    }
    live.export_and_verify("tank");
}

/// The folder of a mount that a forced rollback makes anew does not stop the stream after it.
#[test]
fn a_forced_replication_takes_no_notice_of_folders_of_mounts() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create tank/src");
    live.ok("zfs snapshot tank/src@0");
    live.ok("replicate --writable tank/src tank/dst");
    live.ok("zfs mount tank/dst");
    live.ok("zfs create tank/dst/kid");
    fs::write(at.join("dst/kid/own"), "own").unwrap();
    for snapshot in ["tank/src@1", "tank/src@2"] {
        live.ok(&format!("zfs snapshot {snapshot}"));
        live.ok("zpool sync tank");
        live.ok("replicate --force tank/src tank/dst");
        assert_eq!(fs::read(at.join("dst/kid/own")).unwrap(), b"own");
    }
    live.ok("zfs list tank/dst@2");
    live.export_and_verify("tank");
}

/// A key that the sender has replaced opens no read-only mount either; an unmounted target still receives.
#[test]
fn a_replaced_key_stops_no_receive() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    let key = live.dir.path().join("key");
    fs::write(&key, "a passphrase").unwrap();
    let key = format!("file://{}", key.display());
    live.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation={key} tank/src"));
    let change = |content: &str, snapshot: &str| {
        fs::write(at.join("src/file"), content).unwrap();
        live.ok(&format!("zfs snapshot tank/src@{snapshot}"));
    };
    change("one", "1");
    piped(&live, "zfs send -w tank/src@1", "zfs receive -u -o readonly=on tank/dst");
    let open = || {
        live.ok(&format!("zfs load-key -L {key} tank/dst"));
        live.ok("zfs mount tank/dst");
        fs::read_to_string(at.join("dst/file")).unwrap()
    };
    assert_eq!(open(), "one");
    live.ok(&format!("zfs change-key -o keylocation={key} tank/src"));
    change("two", "2");
    let run = fed(&live, "zfs receive tank/dst", &sent(&live, "zfs send -w -i @1 tank/src@2"));
    assert!(run.code == 1 && run.err.contains("incorrect key"), "{}", run.err);
    let refused = live.fails("zfs mount tank/dst");
    assert!(refused.contains("incorrect key"), "{refused}");
    change("three", "3");
    piped(&live, "zfs send -w -i @2 tank/src@3", "zfs receive tank/dst");
    live.ok("zfs unload-key tank/dst");
    assert_eq!(open(), "three");
    live.export_and_verify("tank");
}

/// New file systems of a package are mounted in their parents, which are mounted for that.
#[test]
fn a_package_mounts_what_is_above_its_new_file_systems() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create -p tank/s/a");
    live.ok("zfs snapshot -r tank/s@1");
    live.ok("zfs create tank/s/a/new");
    live.ok("zfs snapshot -r tank/s@2");
    piped(&live, "zfs send -R tank/s@1", "zfs receive tank/d");
    live.ok("zfs unmount tank/d");
    piped(&live, "zfs send -R -i @1 tank/s@2", "zfs receive -F tank/d");
    assert_eq!(live.ok("zfs list -Ho mounted -r tank/d"), "yes\nyes\nyes\n");
    fs::write(at.join("d/a/new/file"), b"here").unwrap();
    live.ok("zfs destroy -r tank/d");
    live.ok("zpool destroy tank");
}

/// A package leaves the whole tree of its target mounted, also file systems that it does not contain; not those with mount
/// points of their own, and none with `-u`.
#[test]
fn a_package_mounts_the_tree_of_its_target() {
    let live = Live::new();
    let Some(at) = live.mounted_on("", &live.disk("a", 256)) else { return };
    live.ok("zfs create -p tank/s/a");
    live.ok("zfs create tank/s/b");
    live.ok("zfs snapshot -r tank/s@1");
    piped(&live, "zfs send -R tank/s@1", "zfs receive tank/d");
    live.ok("zfs create -u tank/d/own");
    live.ok("zfs create -u -o canmount=noauto tank/d/noauto");
    live.ok("zfs create -u -o canmount=off tank/d/off");
    live.ok(&format!("zfs create -u -o mountpoint={} tank/d/elsewhere", at.join("elsewhere").display()));
    live.ok("zfs unmount tank/d");
    live.ok("zfs snapshot -r tank/s@2");
    let shown = || live.ok("zfs list -Ho name,mounted -r tank/d");
    piped(&live, "zfs send -R -i @1 tank/s@2", "zfs receive -u tank/d");
    assert!(!shown().contains("yes"), "{}", shown());
    // A package without a list of datasets mounts nothing that was there.
    live.ok("zfs snapshot tank/s@3");
    piped(&live, "zfs send -I @2 tank/s@3", "zfs receive tank/d");
    assert!(!shown().contains("yes"), "{}", shown());
    live.ok("zfs snapshot -r tank/s@4");
    piped(&live, "zfs send -R -I @2 tank/s@4", "zfs receive tank/d");
    let all = ["", "/a", "/b", "/elsewhere", "/noauto", "/off", "/own"];
    let is = ["yes", "yes", "yes", "no", "yes", "no", "yes"];
    let want: Vec<String> =
        all.iter().zip(is).map(|(name, mounted)| format!("tank/d{name}\t{mounted}\n")).collect();
    assert_eq!(shown(), want.concat());
    live.ok("zpool destroy tank");
}
