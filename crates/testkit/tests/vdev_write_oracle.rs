//! Pools that we make over every kind of vdev, some with devices that die, judged by real zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkdev::{Device, Fault, FaultyDevice, FileDevice, OpenMode, OpenOptions};
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::history_log::{HistoryEvent, HistoryOrigin};
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::{NewPool, Spa, create};
use engine::taskq::Promise;
use engine::types::Bookmark;
use engine::vdev::config::AllocBias;
use engine::vdev::plan::Depth;
use engine::zio::ReadOptions;
use engine::zio::alloc::MetaslabClass;
use engine::zio::dedup::Dedup;
use engine::zio::write::{WriteProps, WriteRequest};
use ondisk::{Blkptr, ChecksumType, CompressType, ObjectType};
use zcommon::features::of_openzfs_2_3;

const MIB: u64 = 1 << 20;

struct Bench {
    dir: tempfile::TempDir,
    env: Env,
    disks: Vec<Arc<FaultyDevice>>,
}

impl Bench {
    fn new() -> Self {
        let env = Env::system(64 * MIB).unwrap();
        Self { dir: tempfile::tempdir().unwrap(), env, disks: Vec::new() }
    }

    fn leaf(&mut self) -> LeafSpec {
        let path = self.dir.path().join(format!("disk{}", self.disks.len() + 1));
        std::fs::File::create(&path).unwrap().set_len(80 * MIB).unwrap();
        let options = OpenOptions { mode: OpenMode::ReadWrite, ..OpenOptions::default() };
        let file: Device = Arc::new(FileDevice::open(&path, options).unwrap());
        let faulty = Arc::new(FaultyDevice::new(file, 1));
        self.disks.push(Arc::clone(&faulty));
        let path = path.to_str().unwrap().to_owned();
        LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device: faulty }
    }

    fn leaves(&mut self, count: usize) -> Vec<LeafSpec> {
        (0..count).map(|_| self.leaf()).collect()
    }

    fn pool(&self, spec: &PoolSpec) -> Arc<Spa> {
        let layout = spec.lay_out(0, 4, &mut || self.env.guid()).unwrap();
        let new = NewPool {
            name: "oracle".into(),
            label_name: None,
            version: 5000,
            features: of_openzfs_2_3(),
            layout,
            hostid: 1,
            hostname: "host".into(),
            command: "zpool create oracle".into(),
        };
        create(&self.env, new, &|_, _| Ok(())).unwrap()
    }

    /// Output of zdb; `None` when it is not installed.
    fn zdb(&self, args: &[&str]) -> Option<String> {
        zdb(self.dir.path(), args)
    }
}

fn zdb(dir: &Path, args: &[&str]) -> Option<String> {
    let run = testkit::zdb::command("zdb").args(["-e", "-p"]).arg(dir).args(args).arg("oracle").output();
    let Ok(out) = run else {
        eprintln!("SKIPPED: there is no zdb here");
        return None;
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "zdb {args:?}: {}\n{text}", out.status);
    Some(text)
}

fn normal(vdev: VdevSpec) -> TopSpec {
    TopSpec { vdev, class: AllocBias::Normal, ashift: None }
}

fn classed(vdev: VdevSpec, class: AllocBias) -> TopSpec {
    TopSpec { vdev, class, ashift: None }
}

/// Creates the pool, writes some txgs, applies `harm`, writes some more, and has zdb check every block.
fn check(bench: &Bench, spec: &PoolSpec, harm: impl FnOnce()) -> Option<String> {
    let spa = bench.pool(spec);
    (0..3).for_each(|_| spa.sync().unwrap());
    harm();
    for round in 0..6u64 {
        let note = format!("group {round}: {}", "x".repeat(700 * usize::try_from(round).unwrap()));
        let event = HistoryEvent::Command(note);
        spa.sync_task(move |spa, tx| spa.reports().log_history(&event, &HistoryOrigin::default(), tx))
            .unwrap();
    }
    drop(spa);
    let text = bench.zdb(&["-bcc"])?;
    assert!(text.contains("No leaks"), "{text}");
    Some(text)
}

#[test]
fn every_layout_passes_zdb() {
    let kinds: [(usize, fn(Vec<LeafSpec>) -> VdevSpec); 8] = [
        (1, |mut leaves| VdevSpec::Leaf(leaves.remove(0))),
        (2, VdevSpec::Mirror),
        (3, |children| VdevSpec::Raidz { parity: 1, children }),
        (5, |children| VdevSpec::Raidz { parity: 2, children }),
        (8, |children| VdevSpec::Raidz { parity: 3, children }),
        (5, |children| VdevSpec::Draid { config: "draid1:2d:5c:1s".parse().unwrap(), children }),
        (6, |children| VdevSpec::Draid { config: "draid2:3d:6c:1s".parse().unwrap(), children }),
        (4, |children| VdevSpec::Draid { config: "draid1:3d:4c:0s".parse().unwrap(), children }),
    ];
    for (number, (count, make)) in kinds.into_iter().enumerate() {
        let mut bench = Bench::new();
        let tops = vec![normal(make(bench.leaves(count)))];
        let ashift = Some(if number % 2 == 0 { 9 } else { 12 });
        check(&bench, &PoolSpec { tops, ashift, ..PoolSpec::default() }, || {});
    }
}

#[test]
fn a_pool_of_all_classes_passes_zdb() {
    let mut bench = Bench::new();
    let tops = vec![
        normal(VdevSpec::Leaf(bench.leaf())),
        classed(VdevSpec::Mirror(bench.leaves(2)), AllocBias::Special),
        classed(VdevSpec::Leaf(bench.leaf()), AllocBias::Dedup),
        classed(VdevSpec::Leaf(bench.leaf()), AllocBias::Log),
        normal(VdevSpec::Raidz { parity: 1, children: bench.leaves(3) }),
    ];
    let (spares, cache) = (bench.leaves(1), bench.leaves(1));
    check(&bench, &PoolSpec { tops, spares, cache, ..PoolSpec::default() }, || {});
    let Some(listed) = bench.zdb(&["-dddd"]) else { return };
    assert!(listed.contains("spares[0]:") && listed.contains("l2cache[0]:"));
    for number in 1..=bench.disks.len() {
        let disk = bench.dir.path().join(format!("disk{number}"));
        let out = Command::new("zdb").arg("-l").arg(disk).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("labels = 0 1 2 3"), "{number}: {text}");
        assert!(number + 1 != bench.disks.len() || text.contains("state: 3"));
        assert!(number != bench.disks.len() || text.contains("L2ARC device header"));
    }
}

/// A disk dies: the pool stays in use, and the disk's DTL is stored where OpenZFS looks for it.
#[test]
fn missing_writes_of_a_dead_disk_are_recorded() {
    for raidz in [false, true] {
        let mut bench = Bench::new();
        let leaves = bench.leaves(3);
        let vdev =
            if raidz { VdevSpec::Raidz { parity: 1, children: leaves } } else { VdevSpec::Mirror(leaves) };
        let dying = Arc::clone(&bench.disks[1]);
        let spec = PoolSpec { tops: vec![normal(vdev)], ..PoolSpec::default() };
        check(&bench, &spec, || dying.inject(Fault::Dead));
        let Some(config) = bench.zdb(&["-C"]) else { return };
        assert_eq!(config.matches("DTL: ").count(), 1, "{config}");
        let lines = bench.zdb(&["-ddd"]).unwrap();
        let lines: Vec<&str> = lines.lines().filter(|line| line.contains("missing [")).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
}

/// Everything of one side is overwritten with noise: blocks that are then read are repaired, and found right
/// the second time.
#[test]
fn reads_mend_what_is_bad() {
    let mut bench = Bench::new();
    // Nothing stays in memory.
    bench.env.memory = std::sync::Arc::new(engine::memory::Memory::of_size(0));
    let vdev = VdevSpec::Mirror(bench.leaves(2));
    let spa = bench.pool(&PoolSpec { tops: vec![normal(vdev)], ..PoolSpec::default() });
    for round in 0..4 {
        let event = HistoryEvent::Command(format!("{round}").repeat(900));
        spa.sync_task(move |spa, tx| spa.reports().log_history(&event, &HistoryOrigin::default(), tx))
            .unwrap();
    }
    let noise: Vec<u8> = (0..70 * MIB).map(|n| (n % 253) as u8).collect();
    blkdev::write_at(&*bench.disks[0], 4 * MIB, &noise).unwrap();
    spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX / 2));
    let read_all = || {
        let before = spa.pool.zio.stats.repaired.load(Ordering::Relaxed);
        for object in spa.mos.view().objects() {
            let object = object.unwrap();
            (0..=object.dnode.maxblkid).for_each(|blkid| drop(object.block(blkid).unwrap()));
        }
        // Readers do not wait for repairs.
        std::thread::sleep(std::time::Duration::from_millis(300));
        spa.pool.zio.stats.repaired.load(Ordering::Relaxed) - before
    };
    let object = spa.mos.view().object(1).unwrap();
    let (bp, at) = (object.blkptr(0, 0).unwrap().unwrap(), object.bookmark());
    let zio = &spa.pool.zio;
    let read = |before: u64| {
        let as_of = Some(spa.txgs.synced() - before);
        let options = ReadOptions { depth: Depth::All, heal: true, as_of, ..ReadOptions::default() };
        let outcome = zio.read_wait(&bp, at, options);
        zio.wait_mended();
        assert!(outcome.data.is_ok());
        (!outcome.damage.is_empty(), zio.stats.mended.load(Ordering::Relaxed))
    };
    // The pointer is so old that the space may be another block's.
    assert_eq!(read(2), (true, 0));
    assert_eq!(zio.stats.repaired.load(Ordering::Relaxed), 0, "nor is damage reported");
    let (bad, mended) = read(0);
    assert!(bad && mended > 0);
    assert!(read_all() > 0);
    // Which side is asked depends on the place alone, so that all that was bad has been asked once.
    assert_eq!(read_all(), 0);
    assert!(spa.pool.zio.stats.mended.load(Ordering::Relaxed) > 0);
    spa.sync().unwrap();
}

/// Blocks that are small after their compression go to the special class, which keeps a part for metadata.
#[test]
fn small_blocks_go_by_the_size_that_they_are_stored_with() {
    let mut bench = Bench::new();
    let tops =
        vec![normal(VdevSpec::Leaf(bench.leaf())), classed(VdevSpec::Leaf(bench.leaf()), AllocBias::Special)];
    let spa = bench.pool(&PoolSpec { tops, ..PoolSpec::default() });
    let props = WriteProps {
        object_type: ObjectType::PLAIN_FILE_CONTENTS,
        level: 0,
        checksum: ChecksumType::Fletcher4,
        compress: CompressType::Lz4,
        complevel: 0,
        copies: 1,
        gang_copies: 0,
        narrow_gang: false,
        small: 32 << 10,
        uncached: false,
        paged: false,
        class: MetaslabClass::Normal,
        embed: false,
        hole_birth: true,
        nopwrite: false,
        dedup: Dedup::Off,
        encrypt: false,
        evens_out: false,
    };
    let hold = spa.begin().unwrap();
    let vdev_of = |noise: usize| {
        let mut data = vec![0; 128 << 10];
        stdx::rng::Rng::new(5).fill(&mut data[..noise]);
        let promise = Promise::default();
        let theirs = promise.clone();
        let request = WriteRequest {
            stored: None,
            data: data.as_slice().into(),
            props,
            old: Blkptr::default(),
            placed: None,
            keeps_birth: false,
            txg: hold.txg(),
            at: Bookmark::default(),
            may_wait: true,
        };
        spa.pool.zio.write(request, Box::new(move |end| theirs.set(end)));
        let bp: engine::Result<Blkptr> = promise.wait(&**spa.pool.zio.executor());
        bp.unwrap().dvas().next().unwrap().vdev
    };
    assert_eq!((vdev_of(16 << 10), vdev_of(64 << 10)), (1, 0));
    bench.env.memory.limits.set(Limit::SpecialReserve, 100).unwrap();
    assert_eq!(vdev_of(16 << 10), 0, "all of it is for metadata");
}
