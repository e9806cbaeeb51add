//! Intent logs that we write, judged by real zdb; and those that OpenZFS left.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use engine::dmu::NewObject;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::spa::Spa;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::vdev::config::AllocBias;
use engine::zil::replay::replay;
use engine::zil::{Itx, Zil};
use ondisk::ObjectType;
use stdx::rng::Rng;
use testkit::{golden, pools, zdb};

const OBJECT: u64 = 40;

fn leaf(dir: &Path, name: &str) -> LeafSpec {
    pools::leaf(&dir.join(name), 80 << 20)
}

struct Writer(Arc<Spa>);

impl engine::zil::replay::Replayer for Writer {
    fn replay(&mut self, log: &Zil, record: &engine::zil::replay::Record<'_>) -> engine::Result<()> {
        let (offset, data) = record.data.as_ref().unwrap();
        let head = self.0.pool.dsl.dataset("logged")?.number;
        let objset = Arc::clone(&self.0.datasets.open(&*self.0, head)?.objset);
        let tx = self.0.begin()?;
        objset.handle(OBJECT)?.write(&tx, *offset, data)?;
        log.replayed_in(&tx);
        Ok(())
    }
}

/// Commits go to the log; at a crash zdb finds the chain, and import and replay give everything back.
/// With `torn`, the crash has interrupted the last commit before that disk had it.
fn logged(torn: Option<&str>, tops: impl FnOnce(&Path) -> Vec<TopSpec>) {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let spa = pools::create_pool(&env, "logged", tops(dir.path()), &|_, _| Ok(())).unwrap();
    let head = spa.pool.dsl.dataset("logged").unwrap().number;
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let tx = spa.begin().unwrap();
    let object = objset
        .create_object_at(&tx, OBJECT, NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 8192))
        .unwrap();
    drop(tx);
    spa.sync().unwrap();
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
    let (mut random, mut model) = (Rng::new(3), vec![0u8; 2 << 20]);
    for step in 0..60 {
        let len = 1 + random.below(if step % 7 == 0 { 300_000 } else { 9000 }) as usize;
        let at = random.below((model.len() - len) as u64) as usize;
        random.fill(&mut model[at..at + len]);
        let data = &model[at..at + len];
        let tx = spa.begin().unwrap();
        object.write(&tx, at as u64, data).unwrap();
        match step % 2 {
            // A record must fit into a block of the log.
            0 if len > 60_000 => log.assign(Itx::write_later(OBJECT, at as u64, len as u64), &tx),
            0 => log.assign(Itx::write(OBJECT, at as u64, data), &tx),
            _ => log.assign(Itx::write_later(OBJECT, at as u64, len as u64), &tx),
        }
        drop(tx);
        log.commit(if step % 3 == 0 { 0 } else { OBJECT }).unwrap();
        if step == 30 {
            spa.sync().unwrap();
        }
    }
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    if let Some(disk) = torn {
        let last = engine::zil::chain(&objset.view()).last().unwrap().bp;
        let dva = last.dvas().next().unwrap();
        let file = std::fs::File::options().write(true).open(crashed.path().join(disk)).unwrap();
        let labels = 4 << 20;
        file.write_all_at(&vec![0; last.psize() as usize], labels + dva.offset).unwrap();
    }
    log.close().unwrap();
    spa.export().unwrap();
    drop((log, objset, object, spa));
    if zdb::installed() {
        zdb::verify(dir.path(), "logged").unwrap();
        let text = zdb::run(crashed.path(), "logged", &["-ivv"]).unwrap();
        let writes = text.matches("TX_WRITE").count();
        assert!(writes >= 29, "{writes} writes\n{text}");
    }
    let spa = pools::import_dir(crashed.path(), "logged").unwrap();
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
    assert!(log.needs_replay());
    let done = replay(&log, &mut Writer(Arc::clone(&spa))).unwrap();
    assert!(done.error.is_none() && done.done >= 29, "{done:?}");
    let have = objset.view().object(OBJECT).unwrap().read_vec(0, model.len()).unwrap();
    assert!(have == model);
    // The chain's last block was allocated ahead and never written, which is no disk's fault: neither while it was
    // claimed nor while it was replayed and freed.
    assert!(spa.reports().events().after(0).iter().all(|event| !event.class.starts_with("ereport")));
    log.close().unwrap();
    spa.export().unwrap();
    drop((log, objset, spa));
    if zdb::installed() {
        zdb::verify(crashed.path(), "logged").unwrap();
    }
}

fn top(vdev: VdevSpec, class: AllocBias) -> TopSpec {
    TopSpec { vdev, class, ashift: None }
}

#[test]
fn logs_on_a_disk() {
    logged(None, |dir| vec![top(VdevSpec::Leaf(leaf(dir, "disk1")), AllocBias::Normal)]);
}

#[test]
fn logs_on_a_device_of_their_own() {
    logged(None, |dir| {
        let mirror = VdevSpec::Mirror(vec![leaf(dir, "disk1"), leaf(dir, "disk2")]);
        let log = VdevSpec::Leaf(leaf(dir, "disk3"));
        vec![top(mirror, AllocBias::Normal), top(log, AllocBias::Log)]
    });
}

#[test]
fn logs_on_raidz() {
    logged(None, |dir| {
        let children = (1..=4).map(|n| leaf(dir, &format!("disk{n}"))).collect();
        vec![top(VdevSpec::Raidz { parity: 1, children }, AllocBias::Normal)]
    });
}

#[test]
fn a_commit_that_reached_one_side_of_a_mirror_blames_no_disk() {
    for disk in ["disk1", "disk2"] {
        logged(Some(disk), |dir| {
            let sides = vec![leaf(dir, "disk1"), leaf(dir, "disk2")];
            vec![top(VdevSpec::Mirror(sides), AllocBias::Normal)]
        });
    }
}

/// No dataset refers to the blocks of a log that was claimed and not replayed, as that of a file system without its key: a
/// disk that lacks them would be made whole without them.
#[test]
fn a_scrub_repairs_logs_that_wait_for_their_replay() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let sides = vec![leaf(dir.path(), "disk1"), leaf(dir.path(), "disk2")];
    let tops = vec![top(VdevSpec::Mirror(sides), AllocBias::Normal)];
    let spa = pools::create_pool(&env, "logged", tops, &|_, _| Ok(())).unwrap();
    let head = spa.pool.dsl.dataset("logged").unwrap().number;
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 8192);
    let object = objset.create_object_at(&tx, OBJECT, new).unwrap();
    drop(tx);
    spa.sync().unwrap();
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
    for step in 0..6 {
        let tx = spa.begin().unwrap();
        object.write(&tx, step * 8192, &[7; 8192]).unwrap();
        let itx = match step % 2 {
            0 => Itx::write(OBJECT, step * 8192, &[7; 8192]),
            _ => Itx::write_later(OBJECT, step * 8192, 8192),
        };
        log.assign(itx, &tx);
        drop(tx);
        log.commit(OBJECT).unwrap();
    }
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    log.close().unwrap();
    spa.export().unwrap();
    drop((log, objset, object, spa));
    let spa = pools::import_dir(crashed.path(), "logged").unwrap();
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let block = engine::zil::chain(&objset.view()).nth(2).unwrap().bp;
    let place = (4 << 20) + block.dvas().next().unwrap().offset;
    let file = std::fs::File::options().read(true).write(true).open(crashed.path().join("disk2")).unwrap();
    let (mut good, mut now) = (vec![0; block.psize() as usize], vec![0; block.psize() as usize]);
    file.read_exact_at(&mut good, place).unwrap();
    file.write_all_at(&vec![0x5a; good.len()], place).unwrap();
    spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    spa.scans().start(engine::spa::scrub::ScanCommand::Scrub).unwrap();
    while spa.scans().is_scanning() {
        spa.sync().unwrap();
    }
    file.read_exact_at(&mut now, place).unwrap();
    assert!(now == good);
    drop(objset);
    spa.export().unwrap();
}

/// The block, where a rewrite with the same bytes left it.
#[test]
fn a_rewrite_that_changes_nothing_leaves_the_block_to_the_object() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system(64 << 20).unwrap();
    let tops = vec![top(VdevSpec::Leaf(leaf(dir.path(), "disk1")), AllocBias::Normal)];
    let spa = pools::create_pool(&env, "logged", tops, &|_, _| Ok(())).unwrap();
    let number = |n| Some(PropValue::Number(n));
    let strong = [("checksum", number(8)), ("compression", number(15))];
    spa.dsl_task(move |tasks| tasks.set("logged", &strong, SettingSource::Local)).unwrap();
    let head = spa.pool.dsl.dataset("logged").unwrap().number;
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let mut bytes = vec![0u8; 4 * 8192];
    Rng::new(5).fill(&mut bytes);
    let tx = spa.begin().unwrap();
    let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, 8192);
    let object = objset.create_object_at(&tx, OBJECT, new).unwrap();
    object.write(&tx, 0, &bytes).unwrap();
    drop(tx);
    spa.sync().unwrap();
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
    let before: Vec<_> = (0..4).map(|n| object.synced().blkptr(0, n).unwrap()).collect();
    let rewrite = |block: usize, data: &[u8]| {
        let tx = spa.begin().unwrap();
        object.write(&tx, (block * 8192) as u64, data).unwrap();
        log.assign(Itx::write_later(OBJECT, (block * 8192) as u64, data.len() as u64), &tx);
        drop(tx);
        log.commit(OBJECT).unwrap();
    };
    for block in 0..4 {
        rewrite(block, &bytes[block * 8192..][..8192]);
    }
    // One gets other bytes afterwards, and its own again, and is freed in the end.
    let other = vec![7u8; 8192];
    rewrite(2, &other);
    rewrite(3, &other);
    rewrite(3, &bytes[3 * 8192..]);
    bytes[2 * 8192..3 * 8192].copy_from_slice(&other);
    let crashed = tempfile::tempdir().unwrap();
    pools::copy(dir.path(), crashed.path());
    spa.sync().unwrap();
    let after: Vec<_> = (0..4).map(|n| object.synced().blkptr(0, n).unwrap()).collect();
    assert!(before[..2] == after[..2], "{before:?}\n{after:?}");
    assert!(before[2] != after[2]);
    log.close().unwrap();
    spa.export().unwrap();
    drop((log, objset, object, spa));
    if zdb::installed() {
        zdb::verify(dir.path(), "logged").unwrap();
    }
    let spa = pools::import_dir(crashed.path(), "logged").unwrap();
    let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
    let log = Zil::open(&objset, spa.logs().host()).unwrap();
    let done = replay(&log, &mut Writer(Arc::clone(&spa))).unwrap();
    assert!(done.error.is_none(), "{done:?}");
    log.close().unwrap();
    spa.sync().unwrap();
    let object = objset.view().object(OBJECT).unwrap();
    assert!(object.read_vec(0, bytes.len()).unwrap() == bytes);
    spa.export().unwrap();
    drop((log, objset, object, spa));
    if zdb::installed() {
        zdb::verify(crashed.path(), "logged").unwrap();
    }
}

/// Volumes of OpenZFS with a log: claimed, replayed, and with their content.
#[test]
fn volumes_of_openzfs_are_replayed() {
    let Some(golden) = golden::get("zvol") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), "tank").unwrap();
    for name in ["tank/vol", "tank/sparse"] {
        let head = spa.pool.dsl.dataset(name).unwrap().number;
        let objset = Arc::clone(&spa.datasets.open(&*spa, head).unwrap().objset);
        let log = Zil::open(&objset, spa.logs().host()).unwrap();
        let mut volume = zvol::replay::VolumeReplay::new(&spa, &objset);
        let done = replay(&log, &mut volume).unwrap();
        assert!(done.error.is_none(), "{done:?}");
        println!("{name}: {done:?}");
        log.close().unwrap();
    }
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), "tank").unwrap();
    }
    let bytes = |dir: &Path| {
        let env = Env::system(64 << 20).unwrap();
        let pool = zutil::import::open_pool(&env, &[dir.to_path_buf()], "tank", Default::default()).unwrap();
        let volume = zvol::Volume::open(&pool.dsl.dataset("tank/vol").unwrap()).unwrap();
        let mut out = vec![0; volume.size as usize];
        volume.read_at(0, &mut out).unwrap();
        out
    };
    assert!(bytes(dir.path()) == bytes(&golden.dir));
}
