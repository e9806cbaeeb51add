//! A pool's checkpoint: taken, gone back to, discarded; both versions of zdb are the judges.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::Kind;
use engine::dmu::NewObject;
use engine::dsl::write::Encryption;
use engine::env::Env;
use engine::memory::Limit;
use engine::metaslab::policy::MetaslabLimits;
use engine::spa::checkpoint::CheckpointState;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::{OpenOptions, Spa, WaitActivity};
use engine::vdev::config::AllocBias;
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::zdb::Judge;
use testkit::{golden, pools};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, mount};

const POOL: &str = "kept";
const FILE: u64 = 2 << 20;
const FILES: u64 = 12;

fn body(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE as usize];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn with_mount(spa: &Arc<Spa>, change: impl FnOnce(&FsWriter)) {
    let fs = mount(spa, POOL, Overrides::default()).unwrap();
    change(&fs);
    fs.unmount().unwrap();
}

fn write(fs: &FsWriter, name: &str, seed: u64) {
    let node = NewNode::new(FileKind::Regular, 0o644, 0, 0);
    let file = fs.dirs().create(fs.root, name.as_bytes(), &node).unwrap();
    fs.data().write(file, 0, &body(seed), true).unwrap();
}

/// Seeds of the files that are there and whole.
fn found(spa: &Spa) -> Vec<u64> {
    let fs = zpl::Filesystem::open(&spa.pool.dsl.dataset(POOL).unwrap()).unwrap();
    let is_there = |seed: &u64| {
        let Ok(file) = fs.resolve(format!("file-{seed}").as_bytes(), true) else { return false };
        let mut got = vec![0; FILE as usize];
        assert_eq!(file.read_at(0, &mut got).unwrap(), got.len());
        assert!(got == body(*seed), "file-{seed}");
        true
    };
    (0..2 * FILES).filter(is_there).collect()
}

fn judge(dir: &Path, kept: bool) {
    for zdb in [Judge::USUAL, Judge::NEWEST] {
        if zdb.installed() {
            zdb.verify(dir, POOL).unwrap();
            if kept {
                zdb.run(dir, POOL, &["-k", "-bcc"]).unwrap();
            }
        }
    }
}

/// A txg discards a block of a checkpoint space map.
fn slow_down(spa: &Spa) {
    spa.pool.env.memory.set(Limit::DiscardMemory, 1).unwrap();
}

/// A pool with a checkpoint: the files before it are replaced by others after it.
fn with_checkpoint(dir: &Path) -> Arc<Spa> {
    let spa = pools::create_fs_dir(dir, POOL, 256 << 20, Encryption::default()).unwrap();
    with_mount(&spa, |fs| (0..FILES).for_each(|seed| write(fs, &format!("file-{seed}"), seed)));
    // Space maps of many blocks.
    spa.space.set_limits(MetaslabLimits { logged_block: 512, ..MetaslabLimits::default() });
    spa.checkpoint().take().unwrap();
    with_mount(&spa, |fs| {
        for seed in 0..FILES {
            fs.dirs().unlink(fs.root, format!("file-{seed}").as_bytes()).unwrap();
            write(fs, &format!("file-{}", FILES + seed), FILES + seed);
            spa.sync().unwrap();
        }
    });
    spa.sync().unwrap();
    spa
}

#[test]
fn a_checkpoint_brings_back_what_was_freed_since() {
    let dir = tempfile::tempdir().unwrap();
    let spa = with_checkpoint(dir.path());
    assert_eq!(spa.checkpoint().state().unwrap(), CheckpointState::Exists);
    assert!(spa.space.checkpoint_space() >= FILES * FILE);
    assert_eq!(spa.checkpoint().take().unwrap_err().kind(), Kind::Exists);
    assert_eq!(spa.reguid(None).unwrap_err().kind(), Kind::Exists);
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), true);
    let open = OpenOptions { checkpoint: true, ..OpenOptions::default() };
    let spa = pools::import_at(dir.path(), POOL, open).unwrap();
    assert_eq!(found(&spa), (0..FILES).collect::<Vec<u64>>());
    assert_eq!(spa.checkpoint().state().unwrap(), CheckpointState::None);
    with_mount(&spa, |fs| write(fs, "file-20", 20));
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), false);
}

#[test]
fn a_checkpoint_is_discarded_bit_by_bit() {
    let dir = tempfile::tempdir().unwrap();
    let spa = with_checkpoint(dir.path());
    let kept = spa.space.checkpoint_space();
    slow_down(&spa);
    spa.checkpoint().discard().unwrap();
    assert_eq!(spa.checkpoint().check_none().unwrap_err().kind(), Kind::Busy);
    assert_eq!(spa.checkpoint().state().unwrap(), CheckpointState::Discarding);
    let left = spa.background().left(WaitActivity::Discard).unwrap().unwrap();
    assert!(0 < left && left < kept, "{left} of {kept}");
    while spa.background().left(WaitActivity::Discard).unwrap().is_some() {
        spa.sync().unwrap();
    }
    assert_eq!(
        (spa.checkpoint().state().unwrap(), spa.background().left(WaitActivity::Discard).unwrap()),
        (CheckpointState::None, None)
    );
    assert_eq!(spa.space.checkpoint_space(), 0);
    assert_eq!(spa.checkpoint().discard().unwrap_err().kind(), Kind::NotFound);
    assert_eq!(found(&spa), (FILES..2 * FILES).collect::<Vec<u64>>());
    spa.checkpoint().take().unwrap();
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), true);
}

#[test]
fn discarding_goes_on_after_an_import() {
    let dir = tempfile::tempdir().unwrap();
    let spa = with_checkpoint(dir.path());
    slow_down(&spa);
    // Without a thread the task's txg is the only one that is written: the pool is left as a crash would leave it.
    spa.checkpoint().discard().unwrap();
    drop(spa);
    judge(dir.path(), false);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    while spa.background().left(WaitActivity::Discard).unwrap().is_some() {
        spa.sync().unwrap();
    }
    assert_eq!(spa.checkpoint().state().unwrap(), CheckpointState::None);
    spa.export().unwrap();
    drop(spa);
    judge(dir.path(), false);
}

#[test]
fn the_kernels_checkpoint_is_discarded() {
    let Some(golden) = golden::get("checkpoint") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), golden.pool_name()).unwrap();
    assert_eq!(spa.checkpoint().state().unwrap(), CheckpointState::Exists);
    spa.checkpoint().discard().unwrap();
    (0..5).for_each(|_| spa.sync().unwrap());
    assert_eq!(spa.checkpoint().state().unwrap(), CheckpointState::None);
    spa.export().unwrap();
    drop(spa);
    for zdb in [Judge::USUAL, Judge::NEWEST] {
        if zdb.installed() {
            zdb.verify(dir.path(), golden.pool_name()).unwrap();
        }
    }
}

/// A disk that missed a block of the checkpoint is needed no less after a resilver, which does not meet that block once it was
/// freed.
#[test]
fn a_resilver_restores_no_blocks_of_the_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let leaves = ["disk1", "disk2"].map(|name| pools::leaf(&dir.path().join(name), 128 << 20));
    let mirror = VdevSpec::Mirror(leaves.to_vec());
    let tops = vec![TopSpec { vdev: mirror, class: AllocBias::Normal, ashift: None }];
    let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
    let guids: Vec<u64> = spa.pool.tree().leaves().map(|leaf| leaf.guid).collect();
    spa.disks().offline(guids[1], false).unwrap();
    let name = format!("{POOL}/data");
    let number = spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
    let data = spa.datasets.open(&*spa, number).unwrap();
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 128 << 10);
    let object = data.objset.create_object(&tx, new).unwrap();
    object.write(&tx, 0, &body(1)).unwrap();
    drop(tx);
    spa.checkpoint().take().unwrap();
    let tx = spa.begin().unwrap();
    data.objset.free_object(&tx, object.number).unwrap();
    drop((tx, data, object));
    spa.sync().unwrap();
    let device = pools::open(&dir.path().join("disk2"));
    spa.disks().online(guids[1], Some(Ok(device)), false).unwrap();
    let resilvered = || {
        (0..4).for_each(|_| spa.sync().unwrap());
        (0..100).take_while(|_| spa.scans().is_scanning()).for_each(|_| spa.sync().unwrap());
        assert!(!spa.scans().is_scanning());
    };
    resilvered();
    let (synced, scan) = (spa.txgs.synced(), scan(&spa));
    assert_eq!((scan.state, scan.errors), (2, 0));
    assert_eq!(spa.disks().offline(guids[0], true).unwrap_err().what(), "no valid replicas");
    (0..4).for_each(|_| spa.sync().unwrap());
    assert_eq!(scan, self::scan(&spa), "no resilver follows by itself: {synced}");
    spa.checkpoint().discard().unwrap();
    resilvered();
    spa.disks().offline(guids[0], true).unwrap();
}

fn scan(spa: &Spa) -> ondisk::pool::DslScan {
    let view = engine::dsl::write::MosView { mos: &spa.mos };
    engine::dsl::write::scan_state::load(&view).unwrap().unwrap()
}
