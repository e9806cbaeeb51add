//! Dedup tables of old pools with ditto copies: a further copy of a block with many references, which no pointer names.
//!
//! `data/ditto.tar.zst` is pool `ditto`, version 23, made by zfs-fuse (`data/ditto.sh`): `first`, `second` and `third` have 170
//! blocks `A`, 110 blocks `B`, both with such a copy, and one `C`; a snapshot has them, too. zdb takes the two copies for leaks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::ddt::{self, DdtClass, Totals};
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::scan::verify::{VerifyOptions, verify};
use engine::spa::{OpenOptions, Pool, Spa};
use testkit::zdb::Judge;
use testkit::{golden, pools};
use zcommon::features::of_openzfs_2_3;
use zpl::write::{FsWriter, NewNode, Overrides, mount};
use zpl::{FileKind, Filesystem};

const POOL: &str = "ditto";
const BLOCK: usize = 4096;
/// Bytes of both copies.
const COPIES: u64 = 8192;

fn images() -> tempfile::TempDir {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ditto.tar.zst");
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden::fixture(&archive).unwrap(), dir.path());
    dir
}

fn open(dir: &Path) -> Arc<Pool> {
    let env = Env::system(16 << 20).unwrap();
    zutil::import::open_pool(&env, &[dir.to_owned()], POOL, OpenOptions::default()).unwrap()
}

fn blocks(letters: &str) -> Vec<u8> {
    letters.bytes().flat_map(|letter| [letter; BLOCK]).collect()
}

fn contents() -> [(&'static str, Vec<u8>); 3] {
    let (first, second) = ("A".repeat(60), "AB".repeat(60));
    let third = "AB".repeat(50) + "C";
    [("first", blocks(&first)), ("second", blocks(&second)), ("third", blocks(&third))]
}

fn look(fs: &Arc<Filesystem>) {
    for (name, wanted) in contents() {
        let mut have = vec![0; wanted.len()];
        fs.resolve(name.as_bytes(), true).unwrap().read_at(0, &mut have).unwrap();
        assert!(have == wanted, "{name}");
    }
}

/// Classes of the entries, blocks with such copies, and references.
fn table(spa: &Spa) -> (Vec<(DdtClass, u64)>, u64, u64) {
    let tables = ddt::tables(&spa.mos.view(), &mut Vec::new());
    let classes =
        tables.iter().flat_map(|table| &table.stores).map(|store| (store.class, store.count)).collect();
    let all = Totals::of(&tables, &|_| 0).all();
    (classes, all.blocks, all.ref_blocks)
}

/// Nothing is found but so many leaked bytes, by our check and by zdb.
fn judge(dir: &Path, leaked: u64) {
    let copy = tempfile::tempdir().unwrap();
    pools::copy(dir, copy.path());
    let pool = open(copy.path());
    let stop = AtomicBool::new(false);
    let report = verify(&pool, &VerifyOptions::new(&stop), &mut |_| (), &mut |_| ());
    let space = report.account.space.as_ref().unwrap();
    assert!(space.doubled_bytes + space.unallocated_bytes == 0 && report.failed.is_empty(), "{space:?}");
    assert_eq!(space.leaked_bytes, leaked, "{space:?}");
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        match judge.verify(copy.path(), POOL) {
            Ok(()) => assert_eq!(leaked, 0, "{judge:?}"),
            Err(said) => assert!(said.contains(&format!("(leaked {leaked})")), "{judge:?}: {said}"),
        }
    }
}

fn write(fs: &FsWriter, name: &str, letters: &str) {
    let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let number = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
    fs.data().write(number, 0, &blocks(letters), true).unwrap();
}

/// Works on the pool; it is upgraded at first, in the middle, or never.
fn work(upgraded: Option<bool>) {
    let dir = images();
    judge(dir.path(), COPIES);
    let pool = open(dir.path());
    for name in ["ditto", "ditto@kept"] {
        look(&Filesystem::open(&pool.dsl.dataset(name).unwrap()).unwrap());
    }
    drop(pool);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let upgrade = |now: bool| {
        if upgraded == Some(now) {
            spa.props().enable_features(of_openzfs_2_3()).unwrap();
        }
    };
    upgrade(true);
    assert_eq!(table(&spa), (vec![(DdtClass::Ditto, 2), (DdtClass::Unique, 1)], 5, 281));
    // zfs-fuse's default; ours is another.
    let all = [("compression", Some(PropValue::Number(2)))];
    spa.dsl_task(move |tasks| tasks.set(POOL, &all, SettingSource::Local)).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    // An entry that changes loses its copy.
    write(&fs, "fourth", "AAD");
    spa.sync().unwrap();
    assert_eq!(table(&spa).1, 5, "A, B and its copy, C, D");
    judge(dir.path(), COPIES / 2);
    upgrade(false);
    fs.dirs().unlink(fs.root, b"second").unwrap();
    spa.sync().unwrap();
    // The snapshot has them.
    judge(dir.path(), COPIES / 2);
    spa.dsl_task(|tasks| tasks.destroy("ditto@kept", false)).unwrap();
    (0..8).for_each(|_| spa.sync().unwrap());
    assert_eq!(table(&spa).2, 281 + 3 - 120);
    judge(dir.path(), 0);
    for name in ["first", "third", "fourth"] {
        fs.dirs().unlink(fs.root, name.as_bytes()).unwrap();
    }
    (0..30).for_each(|_| spa.sync().unwrap());
    assert_eq!(table(&spa), (Vec::new(), 0, 0));
    judge(dir.path(), 0);
    fs.unmount().unwrap();
    drop(fs);
    spa.export().unwrap();
}

#[test]
fn ditto_copies_end_with_the_first_change() {
    work(None);
    work(Some(true));
    work(Some(false));
}

/// A copy is freed with the last reference.
#[test]
fn ditto_copies_are_freed() {
    let dir = images();
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.dsl_task(|tasks| tasks.destroy("ditto@kept", false)).unwrap();
    let fs = mount(&spa, POOL, Overrides::default()).unwrap();
    for (name, _) in contents() {
        fs.dirs().unlink(fs.root, name.as_bytes()).unwrap();
    }
    (0..8).for_each(|_| spa.sync().unwrap());
    assert_eq!(table(&spa), (Vec::new(), 0, 0));
    judge(dir.path(), 0);
    fs.unmount().unwrap();
}
