//! Files, attributes and log records as other implementations of ZFS write them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::Arc;

use common::Bench;
use engine::Kind;
use ondisk::Endian;
use ondisk::zil::{LogRecord, LrRemove, LrTruncate, LrWrite, Remove, TxType, Write};
use zpl::write::{FsWriter, NewNode, Options, RenameKind, Settings, XattrMode};
use zpl::{CaseSensitivity, FileKind, pflags};

fn make(fs: &FsWriter, kind: FileKind, name: &str) -> u64 {
    fs.dirs().create(fs.root, name.as_bytes(), &NewNode::new(kind, 0o700, 0, 0)).unwrap()
}

fn content(fs: &FsWriter, file: u64) -> Vec<u8> {
    let mut out = vec![0xee; usize::try_from(fs.attrs().get(file).unwrap().size).unwrap()];
    let len = fs.data().read(file, 0, &mut out).unwrap();
    out.truncate(len);
    out
}

fn replay(fs: &Arc<FsWriter>, txtype: u64, record: &LogRecord<'_>, data: Option<(u64, &[u8])>) {
    fs.replay().record(TxType(txtype), record, Endian::Little, data).unwrap();
}

/// A kernel logs several writes to a block as one record with the whole block and others without bytes.
#[test]
fn writes_without_bytes_keep_those_of_the_block_before_them() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let file = make(&fs, FileKind::Regular, "db");
    let block: Vec<u8> = (0..128 << 10).map(|at: u32| (at / 4096 + 1) as u8).collect();
    let lr = |offset| LrWrite { foid: file, offset, length: 4096, ..LrWrite::default() };
    replay(&fs, TxType::WRITE, &LogRecord::Write(Write { lr: lr(0), data: None }), Some((0, &block)));
    assert_eq!(content(&fs, file), block[..4096]);
    for at in 1..3 {
        let record = LogRecord::Write2(Write { lr: lr(4096 * at), data: None });
        replay(&fs, TxType::WRITE2, &record, None);
    }
    assert_eq!(content(&fs, file), block[..3 * 4096]);
    // A file that is longer already keeps its size.
    replay(&fs, TxType::WRITE2, &LogRecord::Write2(Write { lr: lr(0), data: None }), None);
    assert_eq!(content(&fs, file), block[..3 * 4096]);
    fs.fsync(0).unwrap();
    bench.spa.export().unwrap();
    bench.zdb(&["-bcc", "wpool"]);
}

#[test]
fn a_freed_range_beyond_the_end_extends_the_file() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    for (offset, length, size) in
        [(2048, 8192, 10240), (4096, 8192, 12288), (8192, 8192, 16384), (1024, 1024, 4096), (3000, 0, 3000)]
    {
        let file = make(&fs, FileKind::Regular, &format!("{offset}"));
        fs.data().write(file, 0, &[7; 4096], true).unwrap();
        let record = LogRecord::Truncate(LrTruncate { foid: file, offset, length });
        replay(&fs, TxType::TRUNCATE, &record, None);
        let mut expected = vec![7; 4096];
        expected.resize(size.max(4096), 0);
        let end = (offset + length) as usize;
        expected[offset as usize..end.min(size)].fill(0);
        expected.truncate(size);
        assert!(content(&fs, file) == expected, "{offset} {length}");
    }
}

/// Other systems store user attributes without a prefix.
#[test]
fn attributes_without_a_prefix_are_user_attributes() {
    for xattr_sa in [true, false] {
        let bench = Bench::new(256 << 20, |_| {});
        let fs = bench.writer(Options { xattr_sa, ..Options::default() });
        let file = make(&fs, FileKind::Regular, "file");
        let set = |name: &[u8], value: Option<&[u8]>, mode| fs.xattrs().set(file, name, value, mode);
        set(b"foo", Some(b"1"), XattrMode::Set).unwrap();
        set(b"freebsd:x", Some(b"2"), XattrMode::Set).unwrap();
        assert!(fs.xattrs().names(file).unwrap().contains(&b"user.foo".to_vec()));
        assert_eq!(fs.xattrs().get(file, b"user.foo").unwrap().unwrap(), b"1");
        assert_eq!(fs.xattrs().get(file, b"user.freebsd:x").unwrap(), None);
        let twice = set(b"user.foo", Some(b"3"), XattrMode::Create).unwrap_err();
        assert_eq!(twice.kind(), Kind::Exists);
        set(b"user.foo", Some(b"4"), XattrMode::Replace).unwrap();
        assert_eq!(fs.xattrs().get(file, b"foo").unwrap(), None, "only one form stays");
        assert_eq!(fs.xattrs().get(file, b"user.foo").unwrap().unwrap(), b"4");
        set(b"bar", Some(b"5"), XattrMode::Set).unwrap();
        set(b"user.bar", None, XattrMode::Set).unwrap();
        assert_eq!(
            (fs.xattrs().get(file, b"bar").unwrap(), fs.xattrs().get(file, b"user.bar").unwrap()),
            (None, None)
        );
        assert_eq!(set(b"user.bar", None, XattrMode::Set).unwrap_err().kind(), Kind::NotFound);
    }
}

#[test]
fn without_case_attributes_in_a_directory_have_none() {
    let bench = Bench::new(256 << 20, |new| new.case = CaseSensitivity::Insensitive);
    let fs = bench.writer(Options { xattr_sa: false, ..Options::default() });
    let file = make(&fs, FileKind::Regular, "file");
    fs.xattrs().set(file, b"user.Foo", Some(b"1"), XattrMode::Set).unwrap();
    fs.xattrs().set(file, b"user.foo", Some(b"2"), XattrMode::Set).unwrap();
    assert_eq!(fs.xattrs().names(file).unwrap(), [b"user.Foo"]);
    assert_eq!(fs.xattrs().get(file, b"user.FOO").unwrap().unwrap(), b"2");
    fs.xattrs().set(file, b"user.FOO", None, XattrMode::Set).unwrap();
    assert!(fs.xattrs().names(file).unwrap().is_empty());
}

/// As a copy of a read-only file from Windows: the attribute comes first, then the bytes.
#[test]
fn a_read_only_file_takes_writes_but_is_not_cut() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let file = make(&fs, FileKind::Regular, "file");
    let flags = Some((pflags::READONLY, pflags::READONLY));
    fs.attrs().set(file, &Settings { flags, ..Settings::default() }).unwrap();
    fs.data().write(file, 0, b"bytes", true).unwrap();
    fs.data().append(file, b"more", true).unwrap();
    assert_eq!(content(&fs, file), b"bytesmore");
    assert_eq!(fs.data().truncate(file, 2).unwrap_err().kind(), Kind::NotPermitted);
    assert_eq!(fs.data().punch(file, 0, 2).unwrap_err().kind(), Kind::NotPermitted);
    let cut = Settings { size: Some(2), ..Settings::default() };
    assert_eq!(fs.attrs().set(file, &cut).unwrap_err().kind(), Kind::NotPermitted);
}

#[test]
fn a_directory_that_moves_to_a_project_hands_it_on() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let (to, dir) = (make(&fs, FileKind::Directory, "to"), make(&fs, FileKind::Directory, "dir"));
    for (object, flags) in [(to, Some((pflags::PROJINHERIT, pflags::PROJINHERIT))), (dir, None)] {
        fs.attrs().set(object, &Settings { flags, projid: Some(5), ..Settings::default() }).unwrap();
    }
    fs.dirs().rename((fs.root, b"dir"), (to, b"dir"), RenameKind::Plain, (0, 0)).unwrap();
    assert_ne!(fs.attrs().get(dir).unwrap().flags & pflags::PROJINHERIT, 0);
}

/// Names in a fat directory are found by their hashes, so both sides must fold them alike.
#[test]
fn openzfs_finds_names_without_case_in_any_script() {
    let bench = Bench::new(256 << 20, |new| new.case = CaseSensitivity::Insensitive);
    let fs = bench.writer(Options::default());
    let greek = "\u{1fb3}".repeat(20);
    let names = [
        "საქართველოს დოკუმენტი ვრცელი სახელით",
        &greek,
        "a name in ASCII that is longer than a micro ZAP takes it",
    ];
    for name in names {
        let file = make(&fs, FileKind::Regular, name);
        fs.data().write(file, 0, name.as_bytes(), true).unwrap();
    }
    bench.spa.export().unwrap();
    for name in names {
        // It fails for a name that it does not find.
        bench.zdb(&["-O", "wpool", name]);
    }
}

/// An SMB server in a kernel may have removed a name in another case.
#[test]
fn records_without_regard_to_case_find_their_names() {
    let bench = Bench::new(256 << 20, |new| new.case = CaseSensitivity::Mixed);
    let fs = bench.writer(Options::default());
    make(&fs, FileKind::Regular, "Name");
    let remove = LogRecord::Remove(Remove { lr: LrRemove { doid: fs.root }, name: b"NAME" });
    assert!(fs.replay().record(TxType(TxType::REMOVE), &remove, Endian::Little, None).is_err());
    fs.replay().record(TxType(TxType::REMOVE | 1 << 63), &remove, Endian::Little, None).unwrap();
    assert!(fs.dirs().lookup(fs.root, b"Name").unwrap().is_none());
}
