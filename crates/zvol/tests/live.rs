//! Volumes in use, against a model of their bytes; power cuts; real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;
use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::Tasks;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::spa::Spa;
use engine::zil::{Itx, Zil};
use ondisk::names::ZVOL_OBJECT;
use ondisk::zil::{CloneRange, LogRecord, LrCloneRange, TxType};
use ondisk::{Blkptr, ObjsetType};
use stdx::rng::Rng;
use testkit::{pools, zdb};
use zvol::{LiveVolume, Volume};

const SIZE: u64 = 8 << 20;

fn tasks(spa: &Arc<Spa>, work: impl FnOnce(&Tasks<'_>) -> engine::Result<()> + Send + 'static) {
    let task = move |spa: &Spa, tx: &engine::dmu::Tx| {
        work(&Tasks { at: spa.datasets.at(tx, spa), datasets: &spa.datasets, pool: &spa.pool.name })
    };
    spa.sync_task(task).unwrap();
}

fn new_volume(spa: &Arc<Spa>, block: u64) {
    tasks(spa, move |tasks| {
        let mut fill = |live: &Arc<engine::dsl::write::LiveDataset>, tx: &engine::dmu::Tx| {
            zvol::create(&live.objset, tx, SIZE, block, 5)
        };
        tasks.create("tank/vol", ObjsetType::Zvol, 0, &mut fill).map(drop)
    });
}

fn bytes(volume: &LiveVolume) -> Vec<u8> {
    let mut out = vec![0; volume.size() as usize];
    assert_eq!(volume.read_at(0, &mut out).unwrap(), out.len());
    out
}

/// One random change of the volume and its model.
fn step(volume: &LiveVolume, model: &mut [u8], rng: &mut Rng) {
    let at = rng.below(model.len() as u64);
    let most = if rng.below(4) == 0 { 600_000 } else { 9000 };
    let len = (1 + rng.below(most)).min(model.len() as u64 - at);
    let range = at as usize..(at + len) as usize;
    match rng.below(5) {
        0..3 => {
            rng.fill(&mut model[range.clone()]);
            volume.write_at(at, &model[range], rng.below(8) == 0).unwrap();
        }
        3 => {
            model[range].fill(0);
            volume.zero(at, len).unwrap();
        }
        _ => {
            let block = volume.block_size();
            let (start, end) = (at.next_multiple_of(block), (at + len) / block * block);
            if start < end {
                model[start as usize..end as usize].fill(0);
            }
            volume.discard(at, len).unwrap();
        }
    }
}

fn reopened(dir: &Path, model: &[u8], least: u64) {
    let spa = pools::import_dir(dir, "tank").unwrap();
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    assert!(volume.replayed.error.is_none() && volume.replayed.done >= least, "{:?}", volume.replayed);
    assert!(bytes(&volume) == model);
    volume.close().unwrap();
    drop(volume);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir, "tank").unwrap();
    }
}

/// The volume of a pool that is only read: its log is replayed in memory.
fn read_only(dir: &Path, model: &[u8], least: u64) {
    let env = Env::system(64 << 20).unwrap();
    let pool = zutil::import::open_pool(&env, &[dir.to_path_buf()], "tank", Default::default()).unwrap();
    let dataset = pool.dsl.dataset("tank/vol").unwrap();
    let volume = Volume::open(&dataset).unwrap();
    let replayed = volume.replayed().unwrap();
    assert!(replayed.applied >= least && replayed.notes.is_empty(), "{replayed:?}");
    let bytes = |volume: &Volume| {
        let mut out = vec![0; volume.size as usize];
        assert_eq!(volume.read_at(0, &mut out).unwrap(), out.len());
        out
    };
    assert!(bytes(&volume) == model);
    let committed = Volume::open_committed(&dataset).unwrap();
    assert!(committed.replayed().is_none() && bytes(&committed) != model);
}

fn model(block: u64, settings: &'static [(&'static str, u64)], seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), "tank", 256 << 20).unwrap();
    new_volume(&spa, block);
    tasks(&spa, move |tasks| {
        for (name, value) in settings {
            tasks.set("tank/vol", &[(name, Some(PropValue::Number(*value)))], SettingSource::Local)?;
        }
        Ok(())
    });
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    assert!(zvol::open(&spa, "tank/vol").is_err());
    let (mut rng, mut model) = (Rng::new(seed), vec![0; SIZE as usize]);
    for n in 0..120 {
        step(&volume, &mut model, &mut rng);
        if rng.below(20) == 0 {
            spa.sync().unwrap();
        }
        if n == 60 {
            tasks(&spa, |tasks| tasks.snapshot(&["tank/vol@half"], &[]));
        }
        if n % 10 == 0 {
            assert!(bytes(&volume) == model);
        }
    }
    // The last steps are in the log only.
    spa.sync().unwrap();
    for _ in 0..12 {
        step(&volume, &mut model, &mut rng);
    }
    volume.flush().unwrap();
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    read_only(crashed.path(), &model, 8);
    reopened(crashed.path(), &model, 8);
    volume.resize(SIZE * 2).unwrap();
    model.resize(SIZE as usize * 2, 0);
    volume.write_at(SIZE * 2 - 700, &[7; 700], true).unwrap();
    model[SIZE as usize * 2 - 700..].fill(7);
    assert!(volume.write_at(SIZE * 2 - 1, &[0; 2], false).is_err());
    volume.resize(SIZE / 2).unwrap();
    model.truncate(SIZE as usize / 2);
    assert!(bytes(&volume) == model);
    volume.resize(SIZE).unwrap();
    model.resize(SIZE as usize, 0);
    volume.close().unwrap();
    drop(volume);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), "tank").unwrap();
    }
    reopened(dir.path(), &model, 0);
}

#[test]
fn small_blocks() {
    model(8 << 10, &[], 1);
}

#[test]
fn large_blocks_that_the_log_points_to() {
    model(64 << 10, &[], 2);
}

#[test]
fn blocks_of_more_than_128_kib() {
    model(1 << 20, &[], 4);
}

#[test]
fn everything_is_placed_at_once() {
    model(16 << 10, &[("logbias", 1), ("sync", 1)], 3);
}

#[test]
fn a_thick_volume_keeps_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), "tank", 256 << 20).unwrap();
    new_volume(&spa, 8 << 10);
    let reserved = zvol::reservation(&spa, SIZE, 8 << 10, 1);
    assert!(reserved > SIZE && reserved < SIZE + (4 << 20), "{reserved}");
    let free = || {
        let tree = spa.pool.dsl.dataset("tank").unwrap();
        engine::dsl::write::space_throttle::SpaceThrottles::default()
            .of(&*spa, &spa.datasets.open(&*spa, tree.number).unwrap(), false)
            .unwrap()
            .pool
    };
    let before = free();
    tasks(&spa, move |tasks| {
        tasks.set("tank/vol", &[("refreservation", Some(PropValue::Number(reserved)))], SettingSource::Local)
    });
    spa.sync().unwrap();
    assert!(before - free() > reserved - (1 << 20), "{before} {}", free());
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    let all: Vec<u8> = (0..SIZE).map(|n| ((n * 31) >> 7) as u8).collect();
    volume.write_at(0, &all, false).unwrap();
    volume.close().unwrap();
    // Written blocks use the reservation.
    assert!(before - free() < reserved + (1 << 20));
    drop(volume);
    spa.export().unwrap();
    if zdb::installed() {
        zdb::verify(dir.path(), "tank").unwrap();
    }
}

#[test]
fn a_close_that_failed_can_be_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), "tank", 128 << 20).unwrap();
    new_volume(&spa, 8192);
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    volume.write_at(0, &[5; 100], false).unwrap();
    spa.txgs.suspend(engine::Error::new(engine::Kind::Io, "the disks are away"));
    volume.close().unwrap_err();
    volume.close().unwrap_err();
    spa.txgs.resume();
    volume.close().unwrap();
    drop(volume);
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    assert_eq!(bytes(&volume)[..100], [5; 100]);
    volume.close().unwrap();
}

/// After the import, every reader sees the writes that were flushed before a crash, and clones that a kernel logged.
#[test]
fn the_logs_of_a_crash_are_replayed_for_all_readers() {
    let dir = tempfile::tempdir().unwrap();
    let spa = pools::create_dir(dir.path(), "tank", 256 << 20).unwrap();
    new_volume(&spa, 8192);
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    volume.write_at(0, &[1; 8192], true).unwrap();
    volume.write_at(40960, &[9; 8192], true).unwrap();
    volume.close().unwrap();
    drop(volume);
    spa.sync().unwrap();
    let number = spa.pool.dsl.dataset("tank/vol").unwrap().number;
    let live = spa.datasets.open(&*spa, number).unwrap();
    let bp = live.objset.view().object(ZVOL_OBJECT).unwrap().blkptr(0, 0).unwrap().unwrap();
    let zil = Zil::open(&live.objset, spa.logs().host()).unwrap();
    for round in 0..2 {
        let tx = spa.begin().unwrap();
        zil.assign(Itx::write(ZVOL_OBJECT, 16384, &[2; 512]), &tx);
        if round == 1 {
            let lr = LrCloneRange { foid: ZVOL_OBJECT, offset: 32768, length: 16384, blksz: 8192, nbps: 2 };
            let clone = LogRecord::CloneRange(CloneRange { lr, bps: vec![bp, Blkptr::default()] });
            zil.assign(Itx::new(ZVOL_OBJECT, TxType(TxType::CLONE_RANGE), &clone), &tx);
        }
        drop(tx);
        zil.commit(0).unwrap();
    }
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    let spa = pools::import_dir(crashed.path(), "tank").unwrap();
    assert_eq!(spa.logs().volumes_to_replay().unwrap(), ["tank/vol"]);
    assert!(zvol::replay_all(&spa).unwrap().is_empty());
    assert!(spa.logs().volumes_to_replay().unwrap().is_empty());
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(crashed.path(), "tank").unwrap();
    }
    let spa = pools::import_dir(crashed.path(), "tank").unwrap();
    let volume = zvol::open(&spa, "tank/vol").unwrap();
    let found = bytes(&volume);
    assert!(found[..8192] == [1; 8192] && found[16384..16896] == [2; 512]);
    assert!(found[32768..40960] == [1; 8192] && found[40960..49152] == [0; 8192]);
    volume.close().unwrap();
}
