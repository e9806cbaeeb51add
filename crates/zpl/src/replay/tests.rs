//! Records of each kind over a real file system, and the resulting view.

use std::sync::Arc;

use ondisk::Blkptr;
use ondisk::zil::{
    Create, Link, LogRecord, LrCreate, LrLink, LrRemove, LrRename, LrSetattr, LrSetsaxattr, LrTruncate,
    LrWrite, Remove, Rename, Setsaxattr, TxType, Write,
};

use super::apply;
use super::state::OverlayState;
use crate::{FileKind, Filesystem, Inode};

fn filesystem() -> Option<Arc<Filesystem>> {
    let pool = testkit::golden::get("mirror3")?.open().unwrap();
    Some(Filesystem::open(&pool.dsl.dataset("tank").unwrap()).unwrap())
}

/// Applies records of the given types; all must apply.
fn replay(fs: &Arc<Filesystem>, records: Vec<(u64, LogRecord<'_>)>) {
    let mut state = OverlayState::new(fs);
    for (txtype, record) in records {
        apply::record(&mut state, txtype, record).unwrap();
    }
    assert!(fs.overlay.set(state.finish()).is_ok());
}

fn create(doid: u64, foid: u64, mode: u64, name: &[u8]) -> (u64, LogRecord<'_>) {
    let txtype = if mode >> 12 == 4 { TxType::MKDIR } else { TxType::CREATE };
    let lr = LrCreate { doid, foid, mode, uid: 5, gid: 6, r#gen: 1, crtime: [9, 8], rdev: 0 };
    (txtype, LogRecord::Create(Create { lr, attr: None, domains: Vec::new(), name, link: None }))
}

fn write(foid: u64, offset: u64, data: &[u8]) -> (u64, LogRecord<'_>) {
    let lr = LrWrite { foid, offset, length: data.len() as u64, ..LrWrite::default() };
    (TxType::WRITE, LogRecord::Write(Write { lr, data: Some(data) }))
}

fn truncate(foid: u64, offset: u64, length: u64) -> (u64, LogRecord<'static>) {
    (TxType::TRUNCATE, LogRecord::Truncate(LrTruncate { foid, offset, length }))
}

fn content(inode: &Inode) -> Vec<u8> {
    let mut out = vec![0xee; usize::try_from(inode.attr().size).unwrap() + 10];
    let len = inode.read_at(0, &mut out).unwrap();
    out.truncate(len);
    let (lossy, mut again) = (out.len(), vec![0xee; len]);
    assert_eq!((inode.read_lossy(0, &mut again).unwrap().0, &again), (lossy, &out));
    out
}

const NEW_DIR: u64 = 1 << 40;
const NEW_FILE: u64 = NEW_DIR + 1;

#[test]
fn files_and_directories_that_only_the_log_has() {
    let Some(fs) = filesystem() else { return };
    let records = vec![
        create(fs.root, NEW_DIR, 0o040_750, b"dir"),
        create(NEW_DIR, NEW_FILE, 0o100_640, b"file"),
        write(NEW_FILE, 5, b"hello"),
        write(NEW_FILE, 7, b"LL"),
    ];
    replay(&fs, records);
    let file = fs.resolve(b"dir/file", true).unwrap();
    assert_eq!(content(&file), b"\0\0\0\0\0heLLo");
    assert_eq!((file.attr().uid, file.attr().mtime.nsec, file.attr().perm), (5, 8, 0o640));
    let dir = fs.resolve(b"dir", true).unwrap();
    assert_eq!((dir.attr().links, dir.attr().size), (2, 3));
    let names: Vec<_> = dir.entries().unwrap().map(|e| e.unwrap().name).collect();
    assert_eq!(names, [b"file"]);
    let root: Vec<_> = fs.root().unwrap().entries().unwrap().map(|e| e.unwrap().name).collect();
    assert_eq!(root.iter().filter(|n| *n == b"dir").count(), 1);
}

#[test]
fn data_over_committed_data() {
    let Some(fs) = filesystem() else { return };
    let file = fs.resolve(b"d/random-mid", true).unwrap();
    let (number, mut want) = (file.number(), content(&file));
    let records = vec![
        write(number, 1000, b"abc"),
        truncate(number, 2000, 0),
        write(number, 3000, b"z"),
        truncate(number, 10, 5),
    ];
    replay(&fs, records);
    want[1000..1003].copy_from_slice(b"abc");
    want.truncate(2000);
    want.resize(3000, 0);
    want.push(b'z');
    want[10..15].fill(0);
    let file = fs.resolve(b"d/random-mid", true).unwrap();
    assert_eq!(content(&file), want);
    let mut at = 0;
    while let Some(span) = file.span(at, u64::MAX).unwrap() {
        assert_eq!(span.range().start, at);
        at = span.range().end;
    }
    assert_eq!(at, 3001);
}

/// A kernel logs the first of several writes of zeros to a block as a hole of the block's size, and the others without bytes.
#[test]
fn a_hole_of_a_block_is_zeros_in_all_of_it() {
    let Some(fs) = filesystem() else { return };
    let file = fs.resolve(b"d/random-mid", true).unwrap();
    let (number, mut want) = (file.number(), content(&file));
    let mut words = [0; 16];
    words[6] = (8192 >> 9) - 1;
    let lr = LrWrite { foid: number, offset: 12288, length: 4096, ..LrWrite::default() };
    let hole = Write { lr: LrWrite { blkptr: Blkptr::from_words(words), ..lr }, data: None };
    let none = Write { lr: LrWrite { offset: 100, length: 10, ..lr }, data: None };
    replay(&fs, vec![(TxType::WRITE, LogRecord::Write(hole)), (TxType::WRITE, LogRecord::Write(none))]);
    want[8192..16384].fill(0);
    want[100..110].fill(0);
    assert_eq!(content(&fs.resolve(b"d/random-mid", true).unwrap()), want);
}

#[test]
fn names_move_and_go() {
    let Some(fs) = filesystem() else { return };
    let d = fs.resolve(b"d", true).unwrap().number();
    let one = fs.resolve(b"d/one", true).unwrap().number();
    let rename = |source, target| {
        let lr = LrRename { sdoid: d, tdoid: d };
        (TxType::RENAME, LogRecord::Rename(Rename { lr, source, target }))
    };
    let exchange = LogRecord::RenameExchange(Rename {
        lr: LrRename { sdoid: d, tdoid: d },
        source: b"t511",
        target: b"t513",
    });
    let (t511, t513) =
        (fs.resolve(b"d/t511", true).unwrap().number(), fs.resolve(b"d/t513", true).unwrap().number());
    let records = vec![
        rename(b"one", b"t512"),
        (TxType::LINK, LogRecord::Link(Link { lr: LrLink { doid: fs.root, link_obj: one }, name: b"again" })),
        (TxType::REMOVE, LogRecord::Remove(Remove { lr: LrRemove { doid: d }, name: b"fifo" })),
        (TxType::RMDIR, LogRecord::Remove(Remove { lr: LrRemove { doid: d }, name: b"empty-dir" })),
        (TxType::RENAME_EXCHANGE, exchange),
    ];
    let before = fs.resolve(b"d", true).unwrap().attr().clone();
    replay(&fs, records);
    let at = |path: &[u8]| fs.resolve(path, false).map(|i| i.number()).ok();
    assert_eq!((at(b"d/one"), at(b"d/t512"), at(b"again")), (None, Some(one), Some(one)));
    assert_eq!((at(b"d/fifo"), at(b"d/empty-dir")), (None, None));
    assert_eq!((at(b"d/t511"), at(b"d/t513")), (Some(t513), Some(t511)));
    assert_eq!(fs.inode(one).unwrap().attr().links, 2);
    let after = fs.resolve(b"d", true).unwrap().attr().clone();
    assert_eq!((after.size, after.links), (before.size - 3, before.links - 1));
    let dir = fs.resolve(b"d", true).unwrap();
    assert_eq!(dir.entries().unwrap().count() as u64, after.size - 2);
}

#[test]
fn attributes_change() {
    let Some(fs) = filesystem() else { return };
    let one = fs.resolve(b"d/one", true).unwrap().number();
    let lr = LrSetattr {
        foid: one,
        mask: 1 | 2 | 32,
        mode: 0o100_600,
        uid: 77,
        mtime: [3, 4],
        ..Default::default()
    };
    let set = |name, value: &'static [u8]| {
        let lr = LrSetsaxattr { foid: one, size: value.len() as u64 };
        (TxType::SETSAXATTR, LogRecord::Setsaxattr(Setsaxattr { lr, name, value }))
    };
    let setattr = LogRecord::Setattr(ondisk::zil::Setattr { lr, attr: None, rest: b"" });
    replay(&fs, vec![(TxType::SETATTR, setattr), set(b"user.new", b"v"), set(b"user.short", b"")]);
    let file = fs.resolve(b"d/one", true).unwrap();
    let a = file.attr();
    assert_eq!((a.perm, a.uid, a.mtime.sec, a.mtime.nsec, a.kind), (0o600, 77, 3, 4, FileKind::Regular));
    assert_eq!(file.xattr(b"user.new").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn records_that_make_no_sense_are_errors_or_nothing() {
    let Some(fs) = filesystem() else { return };
    let mut state = OverlayState::new(&fs);
    // A file that is gone: late records are ignored.
    let (txtype, record) = write(1 << 41, 0, b"x");
    apply::record(&mut state, txtype, record).unwrap();
    let file = fs.resolve(b"d/one", true).unwrap().number();
    for (txtype, record) in [
        create(file, 1 << 41, 0o100_644, b"in-a-file"),
        create(fs.root, 1 << 41, 0o100_644, b"a/b"),
        create(fs.root, 1 << 41, 0, b"no-type"),
        (TxType::REMOVE, LogRecord::Remove(Remove { lr: LrRemove { doid: fs.root }, name: b"nobody" })),
        write(file, u64::MAX, b"xx"),
        (99, LogRecord::Unknown(b"")),
    ] {
        assert!(apply::record(&mut state, txtype, record).is_err());
    }
}

#[test]
fn a_file_has_no_more_extended_attributes_than_fit() {
    let Some(fs) = filesystem() else { return };
    let one = fs.resolve(b"d/one", true).unwrap().number();
    let mut state = OverlayState::new(&fs);
    let value = vec![7; 30_000];
    let mut set = |name: &[u8]| {
        let lr = LrSetsaxattr { foid: one, size: value.len() as u64 };
        let record = Setsaxattr { lr, name, value: &value };
        apply::record(&mut state, TxType::SETSAXATTR, LogRecord::Setsaxattr(record)).is_ok()
    };
    assert_eq!([set(b"user.a"), set(b"user.b"), set(b"user.c"), set(b"user.b")], [true, true, false, true]);
}
