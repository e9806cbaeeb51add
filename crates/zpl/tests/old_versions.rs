//! File systems of versions 1 to 4: written, read back, replayed, upgraded.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::{names, props};
use engine::env::Env;
use engine::spa::Spa;
use ondisk::acl::{Ace, ace_mask, ace_type};
use ondisk::{ChecksumType, CompressType, ObjectType};
use testkit::{pools, zdb};
use zpl::write::{FsWriter, NewNode, Overrides, RenameKind, Settings, XattrMode, mount};
use zpl::{FileKind, Filesystem};

fn old_pool(dir: &Path, pool: u64, version: u64) -> Arc<Spa> {
    common::old_pool(dir, pool, |fs| fs.version = version)
}

fn node(kind: FileKind) -> NewNode<'static> {
    NewNode::new(kind, 0o750, 7, 8)
}

fn list(fs: &FsWriter, file: u64, users: u64) -> Vec<Ace> {
    let user = |who| Ace {
        ace_type: ace_type::ALLOW,
        flags: 0,
        access_mask: ace_mask::READ_DATA,
        who,
        object: None,
    };
    (0..users).map(|n| user(500 + n)).chain(fs.acls().get(file).unwrap()).collect()
}

/// Files of all kinds.
fn fill(fs: &FsWriter) {
    let root = fs.root;
    let dir = fs.dirs().create(root, b"dir", &node(FileKind::Directory)).unwrap();
    let file = fs.dirs().create(dir, b"first", &node(FileKind::Regular)).unwrap();
    fs.data().write(file, 0, &[3; 300_000], true).unwrap();
    fs.dirs().rename((dir, b"first"), (root, b"file"), RenameKind::Plain, (0, 0)).unwrap();
    fs.dirs().link(file, dir, b"second").unwrap();
    let set = Settings { mode: Some(0o4711), uid: Some(9), ..Settings::default() };
    fs.attrs().set(file, &set).unwrap();
    fs.dirs().create(dir, b"short", &NewNode::symlink(b"../file", 7, 8)).unwrap();
    fs.dirs().create(dir, b"long", &NewNode::symlink(&[b'x'; 700], 7, 8)).unwrap();
    fs.dirs().create(dir, b"dev", &node(FileKind::BlockDevice).device(7 << 20 | 3)).unwrap();
    for (name, users) in [(b"few", 1), (b"lot", 40)] {
        let made = fs.dirs().create(root, name, &node(FileKind::Regular)).unwrap();
        fs.acls().set(made, &list(fs, made, users)).unwrap();
    }
    fs.xattrs().set(file, b"user.a", Some(b"value"), XattrMode::Set).unwrap();
    for name in [&b"gone"[..], b"gone with list"] {
        let gone = fs.dirs().create(root, name, &node(FileKind::Regular)).unwrap();
        fs.acls().set(gone, &list(fs, gone, 30)).unwrap();
        fs.dirs().unlink(root, name).unwrap();
    }
}

/// Checks the files of [`fill`] as a reader of the disk sees them.
fn check(dir: &Path, version: u64) {
    let env = Env::system(32 << 20).unwrap();
    let dirs: Vec<PathBuf> = vec![dir.to_owned()];
    let pool = zutil::import::open_pool(&env, &dirs, "old", engine::spa::OpenOptions::default()).unwrap();
    let fs = Filesystem::open(&pool.dsl.dataset("old").unwrap()).unwrap();
    assert_eq!(fs.version, version);
    let at = |path: &str| {
        path.split('/').fold(fs.root().unwrap(), |dir, name| {
            fs.inode(dir.lookup(name.as_bytes()).unwrap().unwrap().object).unwrap()
        })
    };
    let file = at("file");
    let attr = file.attr();
    assert_eq!((attr.perm, attr.uid, attr.gid, attr.links, attr.size), (0o4711, 9, 8, 2, 300_000));
    let mut data = vec![0; 300_000];
    assert_eq!(file.read_at(0, &mut data).unwrap(), data.len());
    assert!(data.iter().all(|b| *b == 3));
    assert_eq!(at("dir/second").number(), file.number());
    assert_eq!(file.xattr(b"user.a").unwrap().unwrap(), b"value");
    assert_eq!(at("dir/short").readlink().unwrap(), b"../file");
    assert_eq!(at("dir/long").readlink().unwrap(), [b'x'; 700]);
    assert_eq!(at("dir/dev").attr().raw_rdev, 7 << 20 | 3);
    assert_eq!(at("dir").attr().size, 6, "its names, . and ..");
    for (name, users) in [("few", 1), ("lot", 40)] {
        let acl = at(name).acl().unwrap().unwrap();
        let who: Vec<u64> = acl.aces.iter().map(|ace| ace.who).take(users).collect();
        assert_eq!(who, (500..500 + users as u64).collect::<Vec<_>>());
        assert!(acl.aces.len() > users && !acl.trivial);
    }
}

#[test]
fn old_file_systems_are_written_replayed_and_upgraded() {
    for (pool, version) in [(1, 1), (8, 2), (14, 3), (28, 4)] {
        let dir = tempfile::tempdir().unwrap();
        let spa = old_pool(dir.path(), pool, version);
        let fs = mount(&spa, "old", Overrides::default()).unwrap();
        fill(&fs);
        // A log's worth of it, and the power goes.
        fs.fsync(0).unwrap();
        let late = fs.dirs().create(fs.root, b"late", &node(FileKind::Regular)).unwrap();
        fs.data().write(late, 0, b"late bytes", true).unwrap();
        fs.fsync(late).unwrap();
        let cut = tempfile::tempdir().unwrap();
        pools::copy(dir.path(), cut.path());
        drop((fs, spa));

        let spa = pools::import_dir(cut.path(), "old").unwrap();
        let fs = mount(&spa, "old", Overrides::default()).unwrap();
        let mut bytes = [0; 10];
        let late = fs.dirs().lookup(fs.root, b"late").unwrap().unwrap().object;
        assert_eq!((fs.data().read(late, 0, &mut bytes).unwrap(), &bytes), (10, b"late bytes"));
        fs.unmount().unwrap();
        drop(fs);
        spa.export().unwrap();
        drop(spa);
        check(cut.path(), version);
        match version {
            4 => upgrade(cut.path()),
            1 => judge(cut.path()),
            _ => {}
        }
    }
}

/// Earlier versions of this program stored such values. Implementations of that pool version do not know the functions,
/// and OpenZFS panics when it imports a pool whose datasets have them and that has no features.
#[test]
fn stored_values_that_came_later_reach_no_block() {
    let dir = tempfile::tempdir().unwrap();
    let spa = old_pool(dir.path(), 28, 5);
    let set = |name: &'static str, value: u8| {
        let value = u64::from(value);
        spa.dsl_task(move |tasks| {
            let head = names::find_head(&tasks.at, tasks.pool, "old")?.head;
            props::set(&tasks.at, head, name, Some(&PropValue::Number(value)), props::SettingSource::Local)?;
            tasks.datasets.refresh_policies(tasks.at.hooks)
        })
        .unwrap();
    };
    let fs = mount(&spa, "old", Overrides::default()).unwrap();
    let mut made = Vec::new();
    for (name, value) in [
        ("checksum", ChecksumType::Skein.raw()),
        ("compression", CompressType::Lz4.raw()),
        ("dedup", ChecksumType::Sha512.raw()),
    ] {
        set(name, value);
        let file = fs.dirs().create(fs.root, name.as_bytes(), &node(FileKind::Regular)).unwrap();
        fs.data().write(file, 0, &[3; 100_000], true).unwrap();
        made.push(file);
    }
    spa.sync().unwrap();
    for file in made {
        let handle = fs.objset.handle(file).unwrap().dnode();
        let bp = handle.blkptrs()[0];
        assert_eq!((bp.checksum(), bp.compress()), (Some(ChecksumType::Fletcher4), Some(CompressType::Lzjb)));
        assert!(!bp.dedup());
    }
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    judge(dir.path());
}

fn judge(dir: &Path) {
    if zdb::installed() {
        zdb::verify(dir, "old").unwrap();
    }
}

/// Znodes stay as they are until they need values that only system attributes hold.
fn upgrade(dir: &Path) {
    let spa = pools::import_dir(dir, "old").unwrap();
    let fs = mount(&spa, "old", Overrides::default()).unwrap();
    assert!(fs.set_version(3).is_err() && fs.set_version(6).is_err());
    fs.set_version(5).unwrap();
    let kind = |number: u64| fs.objset.handle(number).unwrap().dnode().bonustype;
    let new = fs.dirs().create(fs.root, b"new", &node(FileKind::Regular)).unwrap();
    let lot = fs.dirs().lookup(fs.root, b"lot").unwrap().unwrap().object;
    assert_eq!((kind(new), kind(lot)), (ObjectType::SA, ObjectType::ZNODE));
    let (before, acl) = (fs.attrs().get(lot).unwrap(), fs.acls().get(lot).unwrap());
    fs.set_options(zpl::write::Options { xattr_sa: true, ..fs.options() });
    fs.xattrs().set(lot, b"user.b", Some(b"packed"), XattrMode::Set).unwrap();
    assert_eq!(kind(lot), ObjectType::SA);
    let after = fs.attrs().get(lot).unwrap();
    assert_eq!((after.mode(), after.crtime, after.flags), (before.mode(), before.crtime, before.flags));
    assert_eq!(fs.acls().get(lot).unwrap(), acl);
    // A long link keeps its target in a block, which OpenZFS reads only from a znode.
    let folder = fs.dirs().lookup(fs.root, b"dir").unwrap().unwrap().object;
    let long = fs.dirs().lookup(folder, b"long").unwrap().unwrap().object;
    fs.xattrs().set(long, b"trusted.x", Some(b"1"), XattrMode::Set).unwrap();
    assert_eq!((kind(long), fs.data().readlink(long).unwrap()), (ObjectType::ZNODE, vec![b'x'; 700]));
    assert_eq!(fs.xattrs().get(long, b"trusted.x").unwrap().unwrap(), b"1");
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
    drop(spa);
    check(dir, 5);
    judge(dir);
}
