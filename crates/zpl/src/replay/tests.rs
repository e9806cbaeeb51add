//! Records of each kind over a real file system, and the resulting view.

use ondisk::Blkptr;
use ondisk::zil::{
    Create, Link, LrCreate, LrLink, LrRemove, LrRename, LrSetattr, LrSetsaxattr, LrTruncate, LrWrite, Remove,
    Rename, Setsaxattr, Write,
};

use engine::Kind;

use super::*;
use crate::{FileKind, Inode};

/// A file system without a log of its own.
struct Bench {
    dataset: Dataset,
    fs: Arc<Filesystem>,
}

impl std::ops::Deref for Bench {
    type Target = Arc<Filesystem>;

    fn deref(&self) -> &Arc<Filesystem> {
        &self.fs
    }
}

fn filesystem() -> Option<Bench> {
    let pool = testkit::golden::get("mirror3")?.open().unwrap();
    let dataset = pool.dsl.dataset("tank").unwrap();
    let fs = Filesystem::open(&dataset).unwrap();
    assert!(fs.replayed().is_none());
    Some(Bench { dataset, fs })
}

fn begin(bench: &Bench, max_bytes: u64) -> LogReplay {
    LogReplay::over(&bench.fs.objset, 1 << 40, options(&bench.dataset, &bench.fs.objset), max_bytes).unwrap()
}

fn apply(log: &LogReplay, (txtype, record): (u64, LogRecord<'_>)) -> Result<()> {
    log.apply(TxType(txtype), Endian::Little, &record)
}

/// The file system as readers see it after that.
fn end(bench: &Bench, log: &LogReplay) -> Arc<Filesystem> {
    let objset = Arc::clone(log.scratch.objset());
    let view = objset.view();
    let log = WithLog { objset, replayed: MemoryReplay::default() };
    Arc::new(Filesystem::load(&bench.dataset, view, Some(log)).unwrap())
}

/// Applies records of the given types; all must apply.
fn replay(bench: &Bench, records: Vec<(u64, LogRecord<'_>)>) -> Arc<Filesystem> {
    let log = begin(bench, MAX_BYTES);
    for record in records {
        apply(&log, record).unwrap();
    }
    end(bench, &log)
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
    let fs = replay(&fs, records);
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
    let fs = replay(&fs, records);
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
    let fs =
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
    let fs = replay(&fs, records);
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
    let fs = replay(&fs, vec![(TxType::SETATTR, setattr), set(b"user.new", b"v"), set(b"user.short", b"")]);
    let file = fs.resolve(b"d/one", true).unwrap();
    let a = file.attr();
    assert_eq!((a.perm, a.uid, a.mtime.sec, a.mtime.nsec, a.kind), (0o600, 77, 3, 4, FileKind::Regular));
    assert_eq!(file.xattr(b"user.new").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn records_that_make_no_sense_are_errors_or_nothing() {
    let Some(fs) = filesystem() else { return };
    let log = begin(&fs, MAX_BYTES);
    // A file that is gone: late records are ignored.
    apply(&log, write(1 << 41, 0, b"x")).unwrap();
    let file = fs.resolve(b"d/one", true).unwrap().number();
    for record in [
        create(file, 1 << 41, 0o100_644, b"in-a-file"),
        create(fs.root, 1 << 41, 0o100_644, b"a/b"),
        create(fs.root, 1 << 41, 0, b"no-type"),
        (TxType::REMOVE, LogRecord::Remove(Remove { lr: LrRemove { doid: fs.root }, name: b"nobody" })),
        write(file, u64::MAX, b"xx"),
        (99, LogRecord::Unknown(b"")),
    ] {
        assert!(apply(&log, record).is_err());
    }
}

#[test]
fn a_file_has_no_more_extended_attributes_than_fit() {
    let Some(fs) = filesystem() else { return };
    let one = fs.resolve(b"d/one", true).unwrap().number();
    let log = begin(&fs, MAX_BYTES);
    let value = vec![7; 30_000];
    let set = |name: &[u8]| {
        let lr = LrSetsaxattr { foid: one, size: value.len() as u64 };
        let record = Setsaxattr { lr, name, value: &value };
        apply(&log, (TxType::SETSAXATTR, LogRecord::Setsaxattr(record))).is_ok()
    };
    assert_eq!([set(b"user.a"), set(b"user.b"), set(b"user.c"), set(b"user.b")], [true, true, false, true]);
}

/// Removed files keep their numbers until their txg is on disk, and none ever is here.
#[test]
fn numbers_of_removed_files_are_free_for_others() {
    let Some(fs) = filesystem() else { return };
    let d = fs.resolve(b"d", true).unwrap().number();
    let fifo = fs.resolve(b"d/fifo", false).unwrap().number();
    let remove = |dir, name| (TxType::REMOVE, LogRecord::Remove(Remove { lr: LrRemove { doid: dir }, name }));
    let records = vec![
        create(fs.root, NEW_FILE, 0o100_640, b"one"),
        write(NEW_FILE, 0, b"of the first"),
        remove(fs.root, b"one"),
        create(fs.root, NEW_FILE, 0o100_640, b"two"),
        write(NEW_FILE, 3, b"x"),
        remove(d, b"fifo"),
        create(fs.root, fifo, 0o040_755, b"dir"),
        create(fifo, NEW_FILE + 1, 0o100_640, b"in it"),
    ];
    let fs = replay(&fs, records);
    assert_eq!(content(&fs.resolve(b"two", true).unwrap()), b"\0\0\0x");
    let below = fs.resolve(b"dir/in it", true).unwrap();
    assert_eq!((below.parent().unwrap().number(), below.number()), (fifo, NEW_FILE + 1));
    assert!(fs.resolve(b"one", true).is_err() && fs.resolve(b"d/fifo", false).is_err());
}

/// Few bytes are kept without their block, many with it.
#[test]
fn many_small_writes_to_a_block() {
    let Some(fs) = filesystem() else { return };
    let file = fs.resolve(b"d/random-mid", true).unwrap();
    let (number, mut want) = (file.number(), content(&file));
    for count in [3, 100] {
        let log = begin(&fs, MAX_BYTES);
        for n in 0..count {
            let (at, byte) = (n * 37 % 500, [n as u8; 50]);
            apply(&log, write(number, at as u64, &byte)).unwrap();
            want[at..at + 50].copy_from_slice(&byte);
        }
        assert!(content(&end(&fs, &log).inode(number).unwrap()) == want);
    }
}

#[test]
fn a_log_beyond_the_bound_of_memory_is_an_error() {
    let Some(fs) = filesystem() else { return };
    let log = begin(&fs, 1 << 20);
    apply(&log, create(fs.root, NEW_FILE, 0o100_640, b"file")).unwrap();
    let mut ends = (0..64).map(|n| apply(&log, write(NEW_FILE, n << 16, &[7; 1 << 16])));
    let e = ends.find_map(Result::err).unwrap();
    assert_eq!(e.kind(), Kind::Limit);
    assert!(log.scratch.memory() < 2 << 20);
}
