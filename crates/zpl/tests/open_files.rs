//! Open files take no memory for their attributes while no request uses them, and keep their content.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::Bench;
use zpl::FileKind;
use zpl::write::{NewNode, Options, XattrMode};

const FILES: usize = 150;

#[test]
fn attributes_of_open_files_leave_memory() {
    let bench = Bench::new(256 << 20, |_| ());
    let fs = bench.writer(Options::default());
    let value = vec![7; 30_000];
    let new = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let mut files = Vec::new();
    for at in 0..FILES {
        let file = fs.dirs().create(fs.root, format!("{at}").as_bytes(), &new).unwrap();
        for name in [b"user.a", b"user.b"] {
            fs.xattrs().set(file, name, Some(&value), XattrMode::Set).unwrap();
        }
        fs.data().write(file, 0, &[at as u8; 100], true).unwrap();
        drop(fs.open_file(file).unwrap());
        files.push(file);
    }
    bench.spa.sync().unwrap();
    let held = |what: &str| {
        let bytes = fs.attribute_bytes();
        assert!(bytes < 6 << 20, "{what}: {bytes} bytes of {}", FILES * 120_000);
    };
    held("made");
    for &file in &files {
        assert_eq!(fs.xattrs().get(file, b"user.b").unwrap().unwrap(), value);
        drop(fs.open_file(file).unwrap());
    }
    held("read");
    let mut open = fs.open_files();
    open.sort_unstable();
    assert_eq!(open, files, "as open as before");
    (0..FILES).for_each(|at| fs.dirs().unlink(fs.root, format!("{at}").as_bytes()).unwrap());
    bench.spa.sync().unwrap();
    for (at, &file) in files.iter().enumerate() {
        fs.close_file(file).unwrap();
        let mut bytes = [0; 100];
        assert_eq!(fs.data().read(file, 0, &mut bytes).unwrap(), 100, "open once more");
        assert!(bytes.iter().all(|byte| *byte == at as u8));
        fs.close_file(file).unwrap();
        assert!(fs.data().read(file, 0, &mut bytes).is_err(), "the last close removes it");
    }
    assert!(fs.open_files().is_empty());
}

/// The attributes of a file that goes at once need not be stored; those of a file that stays without a name are.
#[test]
fn a_file_that_stays_without_a_name_is_stored_without_links() {
    let bench = Bench::new(256 << 20, |_| ());
    let fs = bench.writer(Options::default());
    let new = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let [gone, open] = [b"gone", b"open"].map(|name| fs.dirs().create(fs.root, name, &new).unwrap());
    drop(fs.open_file(open).unwrap());
    bench.spa.sync().unwrap();
    let bonus = bench.objset.handle(open).unwrap().dnode().bonus().to_vec();
    let held = bench.objset.handle(gone).unwrap();
    [b"gone", b"open"].iter().for_each(|name| fs.dirs().unlink(fs.root, *name).unwrap());
    assert!(held.is_free() && bench.objset.handle(gone).is_err());
    assert_eq!(fs.attrs().get(open).unwrap().links, 0);
    assert_ne!(bench.objset.handle(open).unwrap().dnode().bonus(), bonus);
    bench.spa.sync().unwrap();
    // As after a crash: the attributes are those of the disk.
    let again = bench.writer(Options::default());
    assert!(
        again.attrs().get(open).is_err(),
        "a file of the delete queue goes when the file system is opened"
    );
}

/// Blocks that the property `primarycache` leaves out are read from disk each time.
#[test]
fn blocks_are_kept_in_memory_as_the_property_says() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options { atime: false, ..Options::default() });
    let reads = || bench.spa.pool.zio.stats.reads.load(std::sync::atomic::Ordering::Relaxed);
    for (number, (cached, expected)) in [(2, 0), (1, 1), (0, 1), (2, 0)].into_iter().enumerate() {
        bench.set("primarycache", cached);
        let name = format!("{number}");
        let new = NewNode::new(FileKind::Regular, 0o600, 0, 0);
        let file = fs.dirs().create(fs.root, name.as_bytes(), &new).unwrap();
        fs.data().write(file, 0, &[7; 100_000], true).unwrap();
        bench.spa.sync().unwrap();
        for round in 0..2 {
            let (before, mut bytes) = (reads(), vec![0; 100_000]);
            assert_eq!(fs.data().read(file, 0, &mut bytes).unwrap(), bytes.len());
            assert_eq!(reads() - before, expected, "primarycache {cached}, read {round}");
        }
    }
}
