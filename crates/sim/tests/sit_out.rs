//! A disk of a raidz or draid that is much slower than the others sits out reads, for a time, by the pool's clock.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use engine::dsl::props::PropValue;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::{ImportOptions, NewPool, Spa, create, import};
use engine::vdev::config::AllocBias;
use engine::{Kind, Result};
use sim::disk::Disk;
use sim::image::Pages;
use sim::world::{self, POOL, found};
use stdx::clock::Clock;
use testkit::pattern::Pattern;
use zcommon::draid::DraidConfig;
use zcommon::features::of_openzfs_2_3;

const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 40;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };
/// The slow disk.
const SLOW: usize = 4;

/// A clock that the disks advance.
#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall(&self) -> (i64, u32) {
        (1_700_000_000, 0)
    }
}

/// A disk whose reads take time.
#[derive(Debug)]
struct Paced {
    disk: Arc<Disk>,
    hands: Arc<Hands>,
    micros: AtomicU64,
    reads: AtomicU64,
}

impl BlockDevice for Paced {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, io: Io) {
        if io.kind == IoKind::Read {
            self.hands.0.fetch_add(self.micros.load(Ordering::Relaxed), Ordering::Relaxed);
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        self.disk.submit(io);
    }
}

struct Bench {
    spa: Arc<Spa>,
    disks: Vec<Arc<Paced>>,
    hands: Arc<Hands>,
    file: (u64, u64),
}

fn env(hands: &Arc<Hands>) -> Env {
    Env { clock: Arc::clone(hands) as Arc<dyn Clock>, ..world::env(1) }
}

impl Bench {
    fn new(vdev: impl FnOnce(Vec<LeafSpec>) -> VdevSpec) -> Self {
        let hands = Arc::<Hands>::default();
        let disk = |number| {
            let disk = Disk::over(number, Pages::empty(96 << 20), None);
            let (micros, reads) = (AtomicU64::new(1000), AtomicU64::new(0));
            Arc::new(Paced { disk, hands: Arc::clone(&hands), micros, reads })
        };
        let disks: Vec<Arc<Paced>> = (0..7).map(disk).collect();
        let leaf = |disk: &Arc<Paced>| LeafSpec {
            path: disk.name().to_owned(),
            is_disk: false,
            whole_disk: None,
            devid: None,
            device: Arc::clone(disk) as Device,
        };
        let top =
            TopSpec { vdev: vdev(disks.iter().map(leaf).collect()), class: AllocBias::Normal, ashift: None };
        let env = env(&hands);
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        let new = NewPool {
            name: POOL.into(),
            label_name: None,
            version: 5000,
            features: of_openzfs_2_3(),
            layout: spec.lay_out(0, engine::txg::INITIAL, &mut || env.guid()).unwrap(),
            hostid: 1,
            hostname: "sim".into(),
            command: String::new(),
        };
        let spa = create(&env, new, &|_, _| Ok(())).unwrap();
        let file = FILE.create(&spa, "sim/data");
        Self { spa, disks, hands, file }
    }

    /// Reads the file from the disks.
    fn read(&self) {
        self.spa.pool.arc.forget_all();
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let object = data.objset.view().object(self.file.1).unwrap();
        for n in (0..BLOCKS).map(|n| n * 17 % BLOCKS) {
            assert_eq!(object.read_vec((n * BLOCK) as u64, BLOCK).unwrap(), FILE.bytes(n), "block {n}");
        }
    }

    /// Time passes, and the pool looks at its disks.
    fn pass(&self, time: Duration) {
        self.hands.0.fetch_add(u64::try_from(time.as_micros()).unwrap(), Ordering::Relaxed);
        self.spa.sync().unwrap();
    }

    fn guid(&self, disk: usize) -> u64 {
        self.spa.pool.tree().leaves().find(|leaf| leaf.path == self.disks[disk].name()).unwrap().guid
    }

    fn sitting(&self) -> Vec<usize> {
        let tree = self.spa.pool.tree();
        (0..self.disks.len()).filter(|disk| tree.leaf(self.guid(*disk)).unwrap().sits_out()).collect()
    }

    fn set(&self, vdev: u64, name: &str, on: bool) -> Result<()> {
        let set = [(name.to_owned(), PropValue::Number(on.into()))];
        self.spa.sync_task(move |spa, tx| spa.disks().set_props(vdev, &set, tx))
    }

    fn top(&self) -> u64 {
        self.spa.pool.tree().config.children[0].guid
    }

    /// Reads of a disk while `work` runs.
    fn reads_of(&self, disk: usize, work: impl FnOnce()) -> u64 {
        let before = self.disks[disk].reads.load(Ordering::Relaxed);
        work();
        self.disks[disk].reads.load(Ordering::Relaxed) - before
    }

    fn scrub(&self) {
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        while self.spa.scans().is_scanning() {
            self.spa.sync().unwrap();
        }
    }

    /// Reads until a disk sits out, at most so often; the number of rounds. A vdev is judged when all of its disks have been
    /// read: only scrubs read those that have nothing but parity.
    fn read_until_one_sits(&self) -> Option<usize> {
        (1..20).find(|_| {
            self.read();
            self.scrub();
            self.pass(Duration::from_secs(2));
            !self.sitting().is_empty()
        })
    }

    fn events(&self) -> usize {
        let all = self.spa.reports().events().after(0);
        all.iter().filter(|event| event.class == "ereport.fs.zfs.sitout").count()
    }
}

fn raidz1(children: Vec<LeafSpec>) -> VdevSpec {
    VdevSpec::Raidz { parity: 1, children }
}

fn draid2(children: Vec<LeafSpec>) -> VdevSpec {
    // Each block is on all children.
    let config = DraidConfig { parity: 2, data: 5, children: 7, spares: 0 };
    VdevSpec::Draid { config, children }
}

fn slow_disk_sits_out(bench: &mut Bench) {
    bench.disks[SLOW].micros.store(400_000, Ordering::Relaxed);
    assert_eq!(bench.read_until_one_sits(), None, "autosit is off");
    bench.set(bench.top(), "autosit", true).unwrap();
    assert!(bench.read_until_one_sits().is_some());
    assert_eq!((bench.sitting(), bench.events()), (vec![SLOW], 1));
    let leaf = bench.spa.pool.tree().leaf(bench.guid(SLOW)).cloned().unwrap();
    assert_eq!(leaf.stats.slow.load(Ordering::Relaxed), 1);
    // Reads do without it, scrubs do not.
    assert_eq!(bench.reads_of(SLOW, || bench.read()), 0);
    assert!(bench.reads_of(SLOW, || bench.scrub()) > 0);
    // It returns after ten minutes, and begins anew while it is slow.
    bench.pass(Duration::from_secs(601));
    assert!(bench.sitting().is_empty());
    assert!(bench.reads_of(SLOW, || bench.read()) > 0);
    assert!(bench.read_until_one_sits().is_some());
    bench.spa.disks().clear(vec![(bench.guid(SLOW), None)]).unwrap();
    assert!(bench.sitting().is_empty());
    // The property is on disk.
    bench.spa.export().unwrap();
    let devices: Vec<Device> = bench.disks.iter().map(|disk| Arc::clone(disk) as Device).collect();
    bench.spa = import(&env(&bench.hands), found(&devices).unwrap(), &ImportOptions::default()).unwrap();
    assert!(bench.sitting().is_empty());
    assert!(bench.read_until_one_sits().is_some());
    bench.spa.pool.env.memory.limits.set(Limit::SitOutSecs, 0).unwrap();
    bench.spa.sync().unwrap();
    assert!(bench.sitting().is_empty(), "a setting forbids it");
}

#[test]
fn a_slow_disk_of_a_raidz_sits_out() {
    slow_disk_sits_out(&mut Bench::new(raidz1));
}

#[test]
fn a_slow_disk_of_a_draid_sits_out() {
    slow_disk_sits_out(&mut Bench::new(draid2));
}

#[test]
fn as_many_disks_as_there_is_parity_sit_out_by_hand() {
    let bench = Bench::new(draid2);
    bench.set(bench.guid(0), "sit_out", true).unwrap();
    bench.set(bench.guid(3), "sit_out", true).unwrap();
    let refused = bench.set(bench.guid(1), "sit_out", true).unwrap_err();
    assert_eq!((refused.kind(), refused.what()), (Kind::Busy, "too many disks already sitting out"));
    bench.pass(Duration::from_secs(1 << 30));
    assert_eq!(bench.sitting(), [0, 3], "it has no end");
    assert_eq!([0, 3].map(|disk| bench.reads_of(disk, || bench.read())), [0, 0]);
    // Without another disk they are needed.
    bench.spa.disks().offline(bench.guid(1), true).unwrap();
    bench.read();
    bench.set(bench.guid(0), "sit_out", false).unwrap();
    assert_eq!(bench.sitting(), [3]);
    let kind = |done: Result<()>| done.unwrap_err().kind();
    assert_eq!(kind(bench.set(bench.top(), "sit_out", true)), Kind::Unsupported);
    assert_eq!(kind(bench.set(bench.guid(2), "autosit", true)), Kind::Unsupported);
}
