//! Damaged blocks fail where they are used, and nothing else does: neither the pool nor other files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::spa::Spa;
use engine::spa::history::history;
use engine::spa::history_log::{HistoryEvent, HistoryOrigin};
use engine::zap::Zap;
use engine::{Error, Kind, Result};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, ObjsetType};
use testkit::pools;
use zpl::FileKind;
use zpl::write::{FsWriter, NewNode, Overrides, create_fs, mount};

const POOL: &str = "hurt";
/// Bytes before the first of a vdev.
const LABELS: u64 = 4 << 20;

fn new_pool(dir: &Path) -> Arc<Spa> {
    pool_of(dir, 128 << 20)
}

fn pool_of(dir: &Path, size: u64) -> Arc<Spa> {
    let spa = pools::create_fs_dir(dir, POOL, size, Default::default()).unwrap();
    let number = |name, value| (name, Some(PropValue::Number(value)));
    spa.dsl_task(move |tasks| {
        tasks.set(POOL, &[number("recordsize", 4096), number("compression", 2)], SettingSource::Local)
    })
    .unwrap();
    spa
}

fn mounted(spa: &Arc<Spa>) -> Arc<FsWriter> {
    mount(spa, POOL, Overrides::default()).unwrap()
}

fn create(fs: &FsWriter, name: &[u8], len: usize) -> u64 {
    let number = fs.dirs().create(fs.root, name, &NewNode::new(FileKind::Regular, 0o644, 0, 0)).unwrap();
    fs.data().write(number, 0, &vec![7; len], true).unwrap();
    number
}

/// Overwrites all copies of a block.
fn hurt(dir: &Path, bp: &Blkptr) {
    let disk = std::fs::OpenOptions::new().write(true).open(dir.join("disk1")).unwrap();
    bp.dvas().for_each(|dva| disk.write_all_at(&[0xa5; 512], dva.offset + LABELS).unwrap());
}

fn leave(spa: Arc<Spa>, fs: Arc<FsWriter>) {
    fs.unmount().unwrap();
    spa.export().unwrap();
}

#[test]
fn a_file_that_lost_an_indirect_block_does_not_stop_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path());
    let fs = mounted(&spa);
    let file = create(&fs, b"file", 8 << 20);
    fs.fsync(0).unwrap();
    spa.sync().unwrap();
    let objset = spa.pool.dsl.dataset(POOL).unwrap().objset().unwrap();
    let bp = objset.object(file).unwrap().blkptr(1, 1).unwrap().expect("several indirect blocks");
    leave(spa, fs);
    hurt(dir.path(), &bp);

    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let fs = mounted(&spa);
    let refused = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), Kind::Checksum);
    let beyond = u64::from(1024 * 4096_u32);
    refused(fs.data().write(file, beyond, &[1; 4096], true));
    refused(fs.data().write(file, beyond + 5, &[1; 10], true));
    refused(fs.data().punch(file, beyond, 8192));
    refused(fs.data().truncate(file, 0));
    fs.data().write(file, 0, &[1; 4096], true).unwrap();
    let other = create(&fs, b"other", 100);
    // It has no name any more, but blocks that can't be found can't be freed.
    fs.dirs().unlink(fs.root, b"file").unwrap();
    fs.fsync(0).unwrap();
    spa.sync().unwrap();
    leave(spa, fs);

    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let fs = mounted(&spa);
    assert!(fs.dirs().lookup(fs.root, b"file").unwrap().is_none());
    assert_eq!(fs.attrs().get(other).unwrap().size, 100);
    spa.sync().unwrap();
    leave(spa, fs);
}

#[test]
fn a_dataset_that_lost_its_root_block_does_not_keep_the_pool_out() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path());
    let new = pools::new_fs(&spa.pool.env);
    spa.dsl_task(move |tasks| {
        tasks.create("hurt/lost", ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &new))
    })
    .unwrap();
    let bp = spa.pool.dsl.dataset("hurt/lost").unwrap().phys.bp;
    spa.export().unwrap();
    drop(spa);
    hurt(dir.path(), &bp);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let fs = mounted(&spa);
    create(&fs, b"file", 100);
    spa.sync().unwrap();
    leave(spa, fs);
}

/// Half of a change never reaches the disk, even if what stops it is damage that no check of the task has met.
#[test]
fn a_task_that_damage_stops_halfway_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spa = new_pool(dir.path());
    let failed: Result<()> = spa.dsl_task(|t| {
        t.create("hurt/half", ObjsetType::Zfs, 0, &mut |_, _| Ok(()))?;
        Err(Error::new(Kind::Checksum, "no copy of the block matches its checksum"))
    });
    assert_eq!(failed.unwrap_err().kind(), Kind::Suspended);
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let refused: Result<()> = spa.dsl_task(|_| Err(Error::new(Kind::Checksum, "nothing has changed yet")));
    assert_eq!(refused.unwrap_err().kind(), Kind::Checksum);
    assert_eq!(spa.pool.dsl.dataset("hurt/half").unwrap_err().kind(), Kind::NotFound);
    spa.export().unwrap();
}

/// The history takes part in every command, and is needed by none.
#[test]
fn a_damaged_history_stops_no_command() {
    let dir = tempfile::tempdir().unwrap();
    // The history is a thousandth of the pool: several blocks.
    let spa = pool_of(dir.path(), 1 << 30);
    let log = |spa: &Spa, command: &str| {
        let event = HistoryEvent::Command(command.to_owned());
        spa.sync_task(move |spa, tx| spa.reports().log_history(&event, &HistoryOrigin::default(), tx))
            .unwrap();
    };
    log(&spa, "zpool create hurt disk1");
    let block = {
        let view = spa.mos.view();
        let directory = Zap::open(&view.object(MOS_DIRECTORY_OBJECT).unwrap()).unwrap();
        let number = directory.u64(mos::HISTORY).unwrap().unwrap();
        view.object(number).unwrap().blkptr(0, 0).unwrap().expect("a record")
    };
    spa.export().unwrap();
    drop(spa);
    hurt(dir.path(), &block);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    spa.dsl_task(|t| t.create("hurt/new", ObjsetType::Zfs, 0, &mut |_, _| Ok(()))).unwrap();
    log(&spa, "a command");
    spa.export().unwrap();
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let known = history(&spa.view().unwrap()).unwrap().records;
    let commands: Vec<_> = known.iter().filter_map(|record| record.str("history command")).collect();
    assert_eq!(commands, ["a command"]);
    spa.export().unwrap();
}
