//! File systems that we write, as real zdb and our own reader find them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::Bench;
use zpl::FileKind;
use zpl::write::{NewNode, Options, QuotaKind, RenameKind, Settings, XattrMode};

fn file(perm: u64) -> NewNode<'static> {
    NewNode::new(FileKind::Regular, perm, 1000, 100)
}

#[test]
fn a_new_file_system_is_as_openzfs_leaves_it() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.reader();
    assert_eq!((fs.root, fs.unlinked_set), (34, 33));
    let root = fs.root().unwrap();
    assert_eq!((root.attr().mode(), root.attr().links, root.attr().size), (0o40755, 2, 2));
    assert_eq!(root.attr().flags, 0x8408_0000_0144);
    let text = bench.zdb(&["-dddd", "wpool/"]);
    if !text.is_empty() {
        for want in
            ["ZFS master node", "SA attr registration", "LAYOUTS = 36", "pflags	840800000144", "obj-0 = 1"]
        {
            assert!(text.contains(want), "{want}\n{text}");
        }
        let text = bench.zdb(&["-bcc", "wpool"]);
        assert!(text.contains("No leaks"), "{text}");
    }
}

#[test]
fn files_of_all_kinds() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let root = fs.root;
    let dir = fs.dirs().create(root, b"dir", &NewNode::new(FileKind::Directory, 0o755, 0, 0)).unwrap();
    let plain = fs.dirs().create(dir, b"plain", &file(0o644)).unwrap();
    let body: Vec<u8> = (0..700_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    fs.data().write(plain, 0, &body, true).unwrap();
    fs.dirs().create(dir, b"link", &NewNode::symlink(b"plain", 0, 0)).unwrap();
    fs.dirs().create(dir, b"long", &NewNode::symlink(&[b'x'; 3000], 0, 0)).unwrap();
    fs.dirs().create(dir, b"fifo", &NewNode::new(FileKind::Fifo, 0o600, 0, 0)).unwrap();
    fs.dirs()
        .create(dir, b"dev", &NewNode::new(FileKind::BlockDevice, 0o600, 0, 0).device(7 << 20 | 3))
        .unwrap();
    fs.dirs().link(plain, root, b"hard").unwrap();
    fs.xattrs().set(plain, b"user.small", Some(b"value"), XattrMode::Set).unwrap();
    fs.xattrs().set(plain, b"user.big", Some(&[5; 20_000]), XattrMode::Set).unwrap();
    let mut options = fs.options();
    options.xattr_sa = false;
    fs.set_options(options);
    fs.xattrs().set(dir, b"user.dir", Some(b"in a file"), XattrMode::Create).unwrap();
    bench.spa.sync().unwrap();
    let gone = fs.dirs().create(root, b"gone", &file(0o600)).unwrap();
    fs.data().write(gone, 5, b"abc", true).unwrap();
    fs.open_file(gone).unwrap();
    bench.spa.sync().unwrap();
    fs.dirs().unlink(root, b"gone").unwrap();
    let mut out = [0; 3];
    assert_eq!((fs.data().read(gone, 5, &mut out).unwrap(), &out), (3, b"abc"));
    fs.close_file(gone).unwrap();
    assert!(fs.attrs().get(gone).is_err());
    let set = Settings { mode: Some(0o4711), uid: Some(5), projid: Some(9), ..Settings::default() };
    fs.attrs().set(plain, &set).unwrap();
    fs.dirs().rename((dir, b"fifo"), (root, b"dev"), RenameKind::Plain, (0, 0)).unwrap();
    fs.dirs().rename((dir, b"dev"), (root, b"dev"), RenameKind::Exchange, (0, 0)).unwrap();
    fs.dirs().rename((root, b"dev"), (root, b"dev2"), RenameKind::Whiteout, (0, 0)).unwrap();
    for _ in 0..3 {
        bench.spa.sync().unwrap();
    }
    let read = bench.reader();
    let found = read.resolve(b"hard", true).unwrap();
    assert_eq!((found.attr().links, found.attr().mode(), found.attr().uid), (2, 0o104711, 5));
    let mut all = vec![0; body.len()];
    assert_eq!(found.read_at(0, &mut all).unwrap(), body.len());
    assert!(all == body);
    assert_eq!(found.xattr(b"user.big").unwrap().unwrap(), vec![5; 20_000]);
    let dir = read.resolve(b"dir", true).unwrap();
    assert_eq!(dir.xattr(b"user.dir").unwrap().unwrap(), b"in a file");
    assert_eq!(read.resolve(b"dir/long", false).unwrap().readlink().unwrap().len(), 3000);
    assert_eq!(read.resolve(b"dev2", false).unwrap().attr().kind, FileKind::BlockDevice);
    assert_eq!(read.resolve(b"dev", false).unwrap().attr().kind, FileKind::CharDevice);
    assert_eq!(read.resolve(b"dir/dev", false).unwrap().attr().kind, FileKind::Fifo);
    let text = bench.zdb(&["-bcc", "wpool"]);
    if !text.is_empty() {
        assert!(text.contains("No leaks"), "{text}");
        let text = bench.zdb(&["-dddd", "wpool/"]);
        assert!(
            text.contains("user.small = value") && text.contains("/dir/plain") | text.contains("plain ="),
            "{text}"
        );
        let out = bench.dir.path().join("out");
        bench.zdb(&["-r", "wpool", "hard", out.to_str().unwrap()]);
        assert!(std::fs::read(&out).unwrap() == body);
    }
}

/// An attribute has one value, wherever the list of packed attributes has no room for it.
#[test]
fn a_value_without_room_in_the_packed_list_replaces_the_older_one() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let one = fs.dirs().create(fs.root, b"one", &file(0o644)).unwrap();
    let set = |name: &[u8], value: &[u8]| fs.xattrs().set(one, name, Some(value), XattrMode::Set).unwrap();
    let is = |name: &[u8], value: &[u8]| fs.xattrs().get(one, name).unwrap().unwrap() == value;
    set(b"user.a", b"old");
    set(b"user.b", &[1; 30_000]);
    set(b"user.c", &[2; 30_000]);
    set(b"user.a", &[3; 20_000]);
    assert!(
        is(b"user.a", &[3; 20_000]),
        "{:?}",
        fs.xattrs().get(one, b"user.a").unwrap().map(|value| value.len())
    );
    set(b"user.a", b"new");
    assert!(is(b"user.a", b"new"));
    // A list of 64 KiB is too long by one byte.
    let two = fs.dirs().create(fs.root, b"two", &file(0o644)).unwrap();
    fs.xattrs().set(two, b"user.b", Some(&[1; 32_700]), XattrMode::Set).unwrap();
    for len in (32_500..32_768).step_by(4) {
        fs.xattrs().set(two, b"user.c", Some(&vec![2; len]), XattrMode::Set).unwrap();
        assert_eq!(fs.xattrs().get(two, b"user.c").unwrap().unwrap().len(), len);
    }
    set(b"user.a", &[4; 20_000]);
    bench.spa.sync().unwrap();
    let read = bench.reader().resolve(b"one", true).unwrap();
    assert!(read.xattr(b"user.a").unwrap().unwrap() == [4; 20_000]);
    assert!(read.xattr(b"user.c").unwrap().unwrap() == [2; 30_000]);
    let text = bench.zdb(&["-bcc", "wpool"]);
    assert!(text.is_empty() || text.contains("No leaks"), "{text}");
}

#[test]
fn quotas_are_kept_and_accounts_follow() {
    let bench = Bench::new(256 << 20, |_| {});
    let fs = bench.writer(Options::default());
    let one = fs.dirs().create(fs.root, b"one", &file(0o644)).unwrap();
    let mut body = vec![0; 300_000];
    stdx::rng::Rng::new(3).fill(&mut body);
    fs.data().write(one, 0, &body, true).unwrap();
    bench.spa.sync().unwrap();
    let used = fs.quotas().used_by(QuotaKind::User, 1000).unwrap();
    assert!(used > 300_000 && used < 500_000, "{used}");
    assert_eq!(fs.quotas().used_by(QuotaKind::GroupObjects, 100).unwrap(), 1);
    fs.quotas().set(QuotaKind::User, 1000, 100_000).unwrap();
    assert_eq!(fs.data().write(one, 0, b"x", true).unwrap_err().kind(), zpl::Kind::Quota);
    assert_eq!(fs.dirs().create(fs.root, b"two", &file(0o644)).unwrap_err().kind(), zpl::Kind::Quota);
    fs.quotas().set(QuotaKind::User, 1000, 0).unwrap();
    fs.attrs().set(one, &Settings { uid: Some(7), projid: Some(12), ..Settings::default() }).unwrap();
    bench.spa.sync().unwrap();
    assert_eq!(fs.quotas().used_by(QuotaKind::User, 1000).unwrap(), 0);
    assert_eq!(
        (
            fs.quotas().used_by(QuotaKind::User, 7).unwrap(),
            fs.quotas().used_by(QuotaKind::Project, 12).unwrap()
        ),
        (used, used)
    );
    fs.dirs().unlink(fs.root, b"one").unwrap();
    bench.spa.sync().unwrap();
    assert_eq!(
        (
            fs.quotas().used_by(QuotaKind::User, 7).unwrap(),
            fs.quotas().used_by(QuotaKind::UserObjects, 7).unwrap()
        ),
        (0, 0)
    );
}

#[test]
fn names_without_case() {
    let bench = Bench::new(256 << 20, |fs| {
        fs.case = zpl::CaseSensitivity::Insensitive;
        fs.normalization = 0x10;
        fs.utf8only = true;
    });
    let fs = bench.writer(Options::default());
    fs.dirs().create(fs.root, "Größe".as_bytes(), &file(0o644)).unwrap();
    for i in 0..3000 {
        fs.dirs().create(fs.root, format!("File-{i}").as_bytes(), &file(0o644)).unwrap();
    }
    assert!(fs.dirs().create(fs.root, b"FILE-77", &file(0o644)).is_err());
    assert!(fs.dirs().create(fs.root, b"\xff", &file(0o644)).is_err());
    fs.dirs().unlink(fs.root, b"fILE-5").unwrap();
    fs.dirs().rename((fs.root, b"file-6"), (fs.root, b"FILE-6"), RenameKind::Plain, (0, 0)).unwrap();
    bench.spa.sync().unwrap();
    let read = bench.reader();
    let root = read.root().unwrap();
    assert_eq!(root.lookup(b"file-6").unwrap().unwrap().name, b"FILE-6");
    assert!(root.lookup(b"File-5").unwrap().is_none());
    assert!(root.lookup("GRÖSSE".as_bytes()).unwrap().is_none());
    assert!(root.lookup("gröSSe".replace("SS", "ß").as_bytes()).unwrap().is_some());
    assert_eq!(root.entries().unwrap().count(), 3000);
}
