//! Effects of a replayed log on permissions, set-id bits and attributes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::Bench;
use testkit::pools;
use zpl::write::{NewNode, Overrides, RenameKind, Settings, XattrMode, mount};
use zpl::{FileKind, pflags};

fn node(kind: FileKind, perm: u64) -> NewNode<'static> {
    NewNode::new(kind, perm, 1000, 100)
}

/// The images as a power cut would leave them.
fn crashed(bench: &Bench) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), dir.path());
    dir
}

/// A record was permitted when it was made: the change that permitted it may be in no record before it.
#[test]
fn flags_and_projects_do_not_refuse_records() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let flags = |file: u64, value: u64| {
        let which = pflags::IMMUTABLE | pflags::PROJINHERIT;
        fs.attrs().set(file, &Settings { flags: Some((value, which)), ..Settings::default() }).unwrap();
    };
    let project = |file: u64, projid: u64| {
        fs.attrs().set(file, &Settings { projid: Some(projid), ..Settings::default() }).unwrap();
    };
    let make =
        |name: &str| fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600)).unwrap();
    let folder =
        |name: &str| fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Directory, 0o700)).unwrap();
    make("prime");
    fs.fsync(0).unwrap();
    let [removed, target, linked] = ["removed", "target", "linked"].map(make);
    let [moved, into] = ["moved", "into"].map(make);
    let [into_dir, link_dir, empty] = ["into-dir", "link-dir", "empty"].map(folder);
    [removed, target, empty].iter().for_each(|file| flags(*file, pflags::IMMUTABLE));
    for dir in [into_dir, link_dir] {
        project(dir, 5);
        flags(dir, pflags::PROJINHERIT);
    }
    bench.spa.sync().unwrap();
    [removed, target, empty].iter().for_each(|file| flags(*file, 0));
    fs.dirs().unlink(fs.root, b"removed").unwrap();
    fs.dirs().rmdir(fs.root, b"empty").unwrap();
    fs.dirs().rename((fs.root, b"moved"), (fs.root, b"target"), RenameKind::Plain, (0, 0)).unwrap();
    flags(into_dir, 0);
    fs.dirs().rename((fs.root, b"into"), (into_dir, b"into"), RenameKind::Plain, (0, 0)).unwrap();
    project(linked, 5);
    fs.dirs().link(linked, link_dir, b"link").unwrap();
    let _ = (moved, into);
    let acked = make("acked");
    fs.data().write(acked, 0, b"precious", true).unwrap();
    fs.fsync(acked).unwrap();
    let after = crashed(&bench);
    let spa = pools::import_dir(after.path(), "wpool").unwrap();
    let again = mount(&spa, "wpool", Overrides::default()).unwrap();
    let replayed = again.replayed().unwrap();
    assert!(replayed.error.is_none() && replayed.done >= 6, "{replayed:?}");
    let mut bytes = [0; 8];
    let found = again.dirs().lookup(again.root, b"acked").unwrap().unwrap().object;
    assert_eq!(again.data().read(found, 0, &mut bytes).unwrap(), 8);
    assert_eq!(&bytes, b"precious");
    for (dir, name, is) in [
        (again.root, "removed", false),
        (again.root, "empty", false),
        (again.root, "moved", false),
        (again.root, "target", true),
        (into_dir, "into", true),
        (link_dir, "link", true),
    ] {
        assert_eq!(again.dirs().lookup(dir, name.as_bytes()).unwrap().is_some(), is, "{name}");
    }
    again.unmount().unwrap();
}

/// The bits that a write by another user clears stay away after a crash.
#[test]
fn set_id_bits_that_a_write_clears_are_cleared_by_the_log() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"suid", &node(FileKind::Regular, 0o4777)).unwrap();
    fs.fsync(0).unwrap();
    bench.spa.sync().unwrap();
    fs.data().write(file, 0, b"#!evil", false).unwrap();
    fs.fsync(file).unwrap();
    let after = crashed(&bench);
    let spa = pools::import_dir(after.path(), "wpool").unwrap();
    let again = mount(&spa, "wpool", Overrides::default()).unwrap();
    assert!(again.replayed().unwrap().done >= 2);
    let mut bytes = [0; 6];
    assert_eq!(again.data().read(file, 0, &mut bytes).unwrap(), 6);
    assert_eq!((&bytes, again.attrs().get(file).unwrap().mode() & 0o7777), (b"#!evil", 0o777));
    again.unmount().unwrap();
}

/// An attribute that moves from its file into the list is there after a crash, with the old or the new value.
#[test]
fn an_attribute_that_moves_is_not_lost_in_a_crash() {
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("xattr", 2);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let file = fs.dirs().create(fs.root, b"file", &node(FileKind::Regular, 0o600)).unwrap();
    fs.xattrs().set(file, b"user.a", Some(&[1; 50_000]), XattrMode::Set).unwrap();
    fs.fsync(0).unwrap();
    bench.spa.sync().unwrap();
    fs.xattrs().set(file, b"user.a", Some(b"new"), XattrMode::Set).unwrap();
    let other = fs.dirs().create(fs.root, b"other", &node(FileKind::Regular, 0o600)).unwrap();
    fs.data().write(other, 0, b"x", true).unwrap();
    fs.fsync(other).unwrap();
    let after = crashed(&bench);
    let spa = pools::import_dir(after.path(), "wpool").unwrap();
    let again = mount(&spa, "wpool", Overrides::default()).unwrap();
    assert!(again.xattrs().get(file, b"user.a").unwrap().is_some());
    again.unmount().unwrap();
}

/// The log of a frozen pool has what no txg has been written for, too.
#[test]
fn an_unmount_right_after_a_freeze_logs_the_last_changes() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let make = |name: &[u8]| fs.dirs().create(fs.root, name, &node(FileKind::Regular, 0o600)).unwrap();
    fs.fsync(make(b"prime")).unwrap();
    bench.spa.freeze().unwrap();
    fs.data().write(make(b"late"), 0, b"hello", true).unwrap();
    fs.unmount().unwrap();
    bench.spa.export().unwrap();
    let spa = pools::import_dir(bench.dir.path(), "wpool").unwrap();
    let again = mount(&spa, "wpool", Overrides::default()).unwrap();
    let found = again.dirs().lookup(again.root, b"late").unwrap().expect("the file is replayed").object;
    let mut bytes = [0; 5];
    assert_eq!((again.data().read(found, 0, &mut bytes).unwrap(), &bytes), (5, b"hello"));
    again.unmount().unwrap();
}

/// The state on disk of a frozen pool does not change; its intent logs have all that came after, however many txgs that was.
#[test]
fn records_of_a_frozen_pool_are_replayed() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let make =
        |name: &str| fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular, 0o600)).unwrap();
    make("prime");
    // A chain must be there already.
    fs.fsync(0).unwrap();
    bench.spa.freeze().unwrap();
    for at in 0..20_u8 {
        let file = make(&format!("{at}"));
        fs.data().write(file, 0, &[at; 5000], true).unwrap();
        if at % 3 == 0 {
            fs.fsync(file).unwrap();
        }
        bench.spa.sync().unwrap();
    }
    // The unmount commits what no fsync asked for.
    fs.dirs().unlink(fs.root, b"prime").unwrap();
    fs.unmount().unwrap();
    bench.spa.export().unwrap();
    let spa = pools::import_dir(bench.dir.path(), "wpool").unwrap();
    let again = mount(&spa, "wpool", Overrides::default()).unwrap();
    assert!(again.replayed().unwrap().error.is_none());
    assert!(again.dirs().lookup(again.root, b"prime").unwrap().is_none());
    for at in 0..20_u8 {
        let found = again.dirs().lookup(again.root, format!("{at}").as_bytes()).unwrap().unwrap().object;
        let mut bytes = [0; 5000];
        assert_eq!(again.data().read(found, 0, &mut bytes).unwrap(), 5000);
        assert!(bytes.iter().all(|byte| *byte == at));
    }
    again.unmount().unwrap();
    spa.export().unwrap();
    bench.zdb(&["-bcc", "wpool"]);
}

/// The feature `zilsaxattr` is in use since the log began: the first attribute after that is in the log as well.
#[test]
fn the_first_attribute_of_a_frozen_pool_is_replayed() {
    let bench = Bench::new(256 << 20, |_| {});
    bench.set("xattr", 2);
    let fs = mount(&bench.spa, "wpool", Overrides::default()).unwrap();
    let make = |name: &[u8]| fs.dirs().create(fs.root, name, &node(FileKind::Regular, 0o600)).unwrap();
    fs.fsync(make(b"prime")).unwrap();
    bench.spa.freeze().unwrap();
    let file = make(b"file");
    fs.xattrs().set(file, b"user.a", Some(b"value"), XattrMode::Set).unwrap();
    fs.unmount().unwrap();
    bench.spa.export().unwrap();
    let spa = pools::import_dir(bench.dir.path(), "wpool").unwrap();
    let again = mount(&spa, "wpool", Overrides::default()).unwrap();
    let found = again.dirs().lookup(again.root, b"file").unwrap().expect("the file is replayed").object;
    assert_eq!(again.xattrs().get(found, b"user.a").unwrap().as_deref(), Some(&b"value"[..]));
    again.unmount().unwrap();
}
