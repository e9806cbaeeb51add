//! Holds of snapshots, and the space that they must leave to others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use engine::Kind;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::dsl::write::space::available;
use engine::dsl::write::{Encryption, Tasks};
use engine::spa::Spa;
use ondisk::ObjsetType;
use testkit::{pools, zdb};
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Options, create_fs};

const POOL: &str = "held";
const SNAPSHOT: &str = "held@work-1";

#[test]
fn a_temporary_snapshot_goes_with_its_hold_or_with_the_next_import() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 128 << 20, Encryption::default()).unwrap();
    let take = || spa.dsl_task(|tasks| tasks.snapshot_tmp(SNAPSHOT, "work"));
    take().unwrap();
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_ok());
    spa.dsl_task(|tasks| tasks.release(SNAPSHOT, "work")).unwrap();
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_err());
    take().unwrap();
    spa.dsl_task(|tasks| tasks.hold(SNAPSHOT, "mine")).unwrap();
    spa.dsl_task(|tasks| tasks.snapshot_tmp("held@work-2", "work")).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    drop(spa);

    let spa = pools::import_dir(crashed.path(), POOL).unwrap();
    assert!(spa.pool.dsl.dataset("held@work-2").is_err());
    // Another hold keeps it.
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_ok());
    spa.dsl_task(|tasks| tasks.release(SNAPSHOT, "mine")).unwrap();
    assert!(spa.pool.dsl.dataset(SNAPSHOT).is_err());
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(crashed.path(), POOL).unwrap();
    }
}

/// Does something in a task; none if it worked.
fn refused(spa: &Spa, work: impl FnOnce(&Tasks<'_>) -> engine::Result<()> + Send + 'static) -> Option<Kind> {
    spa.dsl_task(work).err().map(|e| e.kind())
}

fn create(spa: &Arc<Spa>, name: &'static str) {
    let fs = pools::new_fs(&spa.pool.env);
    let made = spa.dsl_task(move |t| {
        t.create(name, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs))
    });
    made.unwrap();
}

#[test]
fn a_snapshot_that_is_read_stays_whatever_would_destroy_it() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 128 << 20, Encryption::default()).unwrap();
    create(&spa, "held/a");
    spa.dsl_task(|t| {
        t.snapshot(&["held/a@s"], &[])?;
        t.hold("held/a@s", "k")?;
        t.destroy("held/a@s", true)?;
        t.clone_snapshot("held/a@s", "held/c").map(drop)
    })
    .unwrap();
    let number = spa.pool.dsl.dataset("held/a@s").unwrap().number;
    let hold = spa.datasets.hold_long(number).unwrap();
    assert_eq!(refused(&spa, |t| t.promote("held/c")), Some(Kind::Busy));
    // The hold by a tag is not the last: the clone is.
    spa.dsl_task(|t| t.release("held/a@s", "k")).unwrap();
    assert_eq!(refused(&spa, |t| t.destroy("held/c", false)), Some(Kind::Busy));
    spa.dsl_task(|t| t.hold("held/a@s", "k")).unwrap();
    spa.dsl_task(|t| t.destroy("held/c", false)).unwrap();
    assert_eq!(refused(&spa, |t| t.release("held/a@s", "k")), Some(Kind::Busy));
    assert_eq!(refused(&spa, |t| t.destroy("held/a@s", true)), Some(Kind::Busy));
    drop(hold);
    spa.dsl_task(|t| t.release("held/a@s", "k")).unwrap();
    assert!(spa.pool.dsl.dataset("held/a@s").is_err());
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
    }
}

/// Bytes that cannot be compressed.
fn noise(len: usize) -> Vec<u8> {
    let step =
        |x: &u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(1), step).map(|x| x.to_be_bytes()[0]).take(len).collect()
}

/// Bytes that the pool has left.
fn left(spa: &Spa) -> u64 {
    spa.dsl_task(|t| {
        let root = t.at.dataset(engine::dsl::write::names::find(&t.at, POOL, POOL)?.head)?.dir_obj;
        available(&t.at, root)
    })
    .unwrap()
}

#[test]
fn snapshots_leave_what_is_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 128 << 20, Encryption::default()).unwrap();
    let set = |name: &'static str, prop: &'static str, bytes: u64| {
        spa.dsl_task(move |t| t.set(name, &[(prop, Some(PropValue::Number(bytes)))], SettingSource::Local))
            .unwrap();
    };
    for name in ["held/a", "held/b"] {
        create(&spa, name);
        set(name, "refreservation", 5 << 20);
        let number = spa.pool.dsl.dataset(name).unwrap().number;
        let live = spa.datasets.open(&*spa, number).unwrap();
        let clock = Arc::clone(&spa.pool.env.clock);
        let fs = FsWriter::open(&live.objset, Arc::clone(&spa) as _, clock, Options::default(), 3).unwrap();
        let file = fs.dirs().create(fs.root, b"f", &NewNode::new(FileKind::Regular, 0o600, 0, 0)).unwrap();
        fs.data().write(file, 0, &noise(4 << 20), true).unwrap();
    }
    spa.sync().unwrap();
    create(&spa, "held/rest");
    // Room for the blocks of one of them outside of its reservation.
    set("held/rest", "reservation", left(&spa) - (6 << 20));
    let both = refused(&spa, |t| t.snapshot(&["held/a@s", "held/b@s"], &[]));
    assert_eq!(both, Some(Kind::NoSpace));
    spa.dsl_task(|t| t.snapshot(&["held/a@s"], &[])).unwrap();
    assert_eq!(refused(&spa, |t| t.snapshot(&["held/b@s"], &[])), Some(Kind::NoSpace));
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
    }
}

/// The setting of a refreservation was lost, its charge was not: the charge goes with the dataset.
#[test]
fn a_charge_without_a_refreservation_goes_with_its_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_fs_dir(dir.path(), POOL, 128 << 20, Encryption::default()).unwrap();
    let before = left(&spa);
    create(&spa, "held/a");
    spa.dsl_task(|t| {
        t.set("held/a", &[("refreservation", Some(PropValue::Number(30 << 20)))], SettingSource::Local)?;
        let dir = t.at.dataset(engine::dsl::write::names::find(&t.at, POOL, "held/a")?.head)?.dir_obj;
        t.at.zap_remove(t.at.dir(dir)?.props_zapobj, "refreservation")
    })
    .unwrap();
    assert!(left(&spa) + (29 << 20) < before);
    spa.dsl_task(|t| t.destroy("held/a", false)).unwrap();
    (0..4).for_each(|_| spa.sync().unwrap());
    assert!(left(&spa) + (1 << 20) > before);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), POOL).unwrap();
    }
}
