//! Accounts that begin when a file system has files already.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::dsl::props::userspace::{AccountKind, usage};
use engine::dsl::write::LiveDataset;
use engine::spa::Spa;
use ondisk::objset::ObjsetFlags;
use testkit::{pools, zdb};
use zcommon::features::Feature;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options, Settings};

/// A pool of a version without features; `count` files of user 7 in its root file system.
fn old_pool(dir: &Path, version: u64, count: usize) -> (Arc<Spa>, Vec<u64>) {
    let spa = common::old_pool(dir, version, |_| {});
    let fs = writer(&spa, false);
    let make = |i: usize| {
        let new = NewNode::new(FileKind::Regular, 0o600, 7, 8);
        let file = fs.dirs().create(fs.root, format!("f{i}").as_bytes(), &new).unwrap();
        fs.data().write(file, 0, &vec![1; 3000 * (i % 5)], true).unwrap();
        file
    };
    let files = (0..count).map(make).collect();
    spa.sync().unwrap();
    (spa, files)
}

fn root(spa: &Spa) -> Arc<LiveDataset> {
    let number = spa.pool.dsl.dataset("old").unwrap().number;
    spa.datasets.open(spa, number).unwrap()
}

fn writer(spa: &Arc<Spa>, projects: bool) -> Arc<FsWriter> {
    let txs = Arc::clone(spa);
    let options = Options { projects, ..Options::default() };
    FsWriter::open(&root(spa).objset, txs, Arc::clone(&spa.pool.env.clock), options, 3).unwrap()
}

/// Bytes and objects of an id.
fn used(spa: &Spa, account: AccountKind, id: u64) -> (Option<u64>, Option<u64>) {
    let all = usage(&root(spa).objset.view(), account).unwrap();
    all.get(&id).map_or((None, None), |found| (found.used, found.objused))
}

fn begin(spa: &Spa) -> bool {
    spa.dsl().begin_accounts(&root(spa), &AtomicBool::new(false)).unwrap()
}

#[test]
fn accounts_that_begin_late_are_right_after_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (spa, files) = old_pool(dir.path(), 28, 150);
    let (bytes, none) = used(&spa, AccountKind::User, 7);
    assert!(bytes.is_some() && none.is_none());
    spa.props().enable_features(vec![Feature::UserobjAccounting, Feature::ProjectQuota]).unwrap();
    assert_eq!(used(&spa, AccountKind::User, 7), (bytes, None), "nothing is counted yet");
    assert!(!spa.dsl().begin_accounts(&root(&spa), &AtomicBool::new(true)).unwrap(), "it was stopped");
    // The first half, and then the power goes.
    let tx = spa.begin().unwrap();
    for &file in files.get(..70).unwrap() {
        root(&spa).objset.handle(file).unwrap().touch(&tx).unwrap();
    }
    drop(tx);
    spa.sync().unwrap();
    assert_eq!(used(&spa, AccountKind::User, 7), (bytes, None), "a part is not reported");
    let cut = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), cut.path());
    for spa in [spa, pools::import_dir(cut.path(), "old").unwrap()] {
        assert!(begin(&spa));
        let all = ObjsetFlags(7);
        assert!(root(&spa).objset.flags().has(all) && spa.dsl().uncounted(&root(&spa)) == ObjsetFlags(0));
        assert_eq!(used(&spa, AccountKind::User, 7), (bytes, Some(150)));
        // Files of before weigh nothing for projects; the root directory counts, too.
        assert_eq!(used(&spa, AccountKind::Project, 0), (None, Some(151)));
        let fs = writer(&spa, true);
        fs.attrs().set(files[3], &Settings { projid: Some(5), ..Settings::default() }).unwrap();
        spa.sync().unwrap();
        let (moved, one) = used(&spa, AccountKind::Project, 5);
        assert_eq!(used(&spa, AccountKind::Project, 0), (Some(0u64.wrapping_sub(moved.unwrap())), Some(150)));
        assert_eq!(one, Some(1));
        drop(fs);
        spa.export().unwrap();
        drop(spa);
    }
    if zdb::installed() {
        zdb::verify(cut.path(), "old").unwrap();
        let text = zdb::run(cut.path(), "old", &["-dddd"]).unwrap();
        assert!(text.contains("obj-7 = 150") && text.contains("obj-5 = 1"), "{text}");
    }
}

#[test]
fn users_are_counted_when_the_pool_gets_the_version() {
    let dir = tempfile::tempdir().unwrap();
    let (spa, _) = old_pool(dir.path(), 14, 20);
    assert_eq!(used(&spa, AccountKind::User, 7), (None, None));
    spa.props().upgrade(15).unwrap();
    assert!(begin(&spa));
    let (bytes, none) = used(&spa, AccountKind::User, 7);
    let space: u64 = (0..20u64).map(|i| 512 + (3000 * (i % 5)).next_multiple_of(512)).sum();
    assert!(bytes >= Some(20 * 512) && bytes <= Some(space) && none.is_none(), "{bytes:?}");
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), "old").unwrap();
    }
}
