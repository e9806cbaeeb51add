//! raidz vdevs that get another disk: real zdb's verdict at each stop, and after the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use blkdev::{Device, Fault, FaultyDevice};
use engine::dmu::NewObject;
use engine::dsl::Dataset;
use engine::dsl::write::{MosView, scan_state};
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::errlog::LoggedError;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::{OpenOptions, Reach, Spa, WaitActivity};
use engine::vdev::config::AllocBias;
use ondisk::pool::DslScan;
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::golden;
use testkit::{pools, tree, zdb};

const POOL: &str = "wide";
const SIZE: u64 = 96 << 20;
const BLOCK: usize = 128 << 10;

struct Bench {
    dir: tempfile::TempDir,
    spa: Option<Arc<Spa>>,
    /// Data written: dataset, object, seed, number of blocks.
    written: Vec<((u64, u64), u64, usize)>,
}

impl Bench {
    fn new(nparity: u32, disks: usize, ashift: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let children = (1..=disks).map(|n| pools::leaf(&dir.path().join(format!("disk{n}")), SIZE)).collect();
        let vdev = VdevSpec::Raidz { parity: nparity, children };
        let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: Some(ashift) }];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        Self { dir, spa: Some(spa), written: Vec::new() }
    }

    fn spa(&self) -> &Arc<Spa> {
        self.spa.as_ref().unwrap()
    }

    /// Writes blocks of several sizes into a new dataset.
    fn fill(&mut self, seed: u64, blocks: usize) {
        let spa = Arc::clone(self.spa());
        let name = format!("{POOL}/data{seed}");
        let number =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let data = spa.datasets.open(&*spa, number).unwrap();
        let tx = spa.begin().unwrap();
        let size = if seed.is_multiple_of(2) { BLOCK } else { 8 << 10 };
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, size as u64);
        let object = data.objset.create_object(&tx, new).unwrap();
        drop(tx);
        let mut random = Rng::new(seed);
        for at in 0..blocks {
            let tx = spa.begin().unwrap();
            object.write(&tx, (at * BLOCK) as u64, &bytes(&mut random)).unwrap();
        }
        self.written.push(((number, object.number), seed, blocks));
    }

    fn compare(&self) {
        let spa = self.spa();
        for ((dataset, object), seed, blocks) in &self.written {
            let data = spa.datasets.open(&**spa, *dataset).unwrap();
            let stored = data.objset.view().object(*object).unwrap();
            let mut random = Rng::new(*seed);
            for at in 0..*blocks {
                let read = stored.read_vec((at * BLOCK) as u64, BLOCK).unwrap();
                assert!(read == bytes(&mut random), "other bytes in block {at} of data{seed}");
            }
        }
    }

    fn attach(&self, name: &str, size: u64) -> engine::Result<()> {
        self.attach_leaf(pools::leaf(&self.dir.path().join(name), size))
    }

    fn attach_leaf(&self, leaf: LeafSpec) -> engine::Result<()> {
        let spa = self.spa();
        let target = spa.pool.tree().config.children[0].guid;
        let device = NewDevice::Fresh { leaf, ashift: None };
        spa.disks().attach(Attach { target, device, replacing: false, sequential: false })
    }

    /// Scrubs the pool to the end.
    fn scrub(&self) -> DslScan {
        let spa = self.spa();
        spa.scans().start(ScanCommand::Scrub).unwrap();
        self.scrubbed()
    }

    fn scrubbed(&self) -> DslScan {
        let spa = self.spa();
        while spa.scans().is_scanning() {
            spa.sync().unwrap();
        }
        scan_state::load(&MosView { mos: &spa.mos }).unwrap().unwrap()
    }

    /// Writes garbage over a disk, but for its labels and boot area.
    fn spoil(&self, disk: &str) {
        let device = pools::open(&self.dir.path().join(disk));
        (4..(SIZE >> 20) - 1)
            .for_each(|at| blkdev::write_at(&*device, at << 20, &vec![0x5a; 1 << 20]).unwrap());
    }

    /// Exports, asks zdb, imports.
    fn cycle(&mut self) {
        self.close();
        self.open();
    }

    fn close(&mut self) {
        self.spa.take().unwrap().export().unwrap();
        for judge in [zdb::Judge::USUAL, zdb::Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
            judge.verify(self.dir.path(), POOL).unwrap();
        }
    }

    fn open(&mut self) {
        self.spa = Some(pools::import_dir(self.dir.path(), POOL).unwrap());
    }

    fn finish(&self) {
        for _ in 0..3000 {
            if !self.spa().expansion().is_active() {
                self.spa().sync().unwrap();
                return;
            }
            self.spa().sync().unwrap();
        }
        panic!(
            "the expansion does not end: {:?} left",
            self.spa().background().left(WaitActivity::RaidzExpand).unwrap()
        );
    }
}

fn bytes(random: &mut Rng) -> Vec<u8> {
    (0..BLOCK / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

#[test]
fn a_raidz_is_whole_at_each_stop_of_its_expansion() {
    let mut bench = Bench::new(1, 3, 12);
    bench.fill(1, 20);
    bench.fill(2, 30);
    for round in 0..2_u64 {
        let space = bench.spa().space.vdev_stats(0).unwrap().space;
        bench.attach(&format!("new{round}"), SIZE).unwrap();
        assert!(bench.attach(&format!("other{round}"), SIZE).is_err());
        let mut stops = 0;
        while bench.spa().expansion().is_active() {
            bench.fill(10 + round * 100 + stops, 2);
            // The first two stops are the scratch state and the one after it.
            if stops < 2 || stops % 4 == 0 {
                bench.cycle()
            } else {
                bench.spa().sync().unwrap()
            }
            stops += 1;
            assert!(stops < 60);
        }
        assert!(stops > 1, "the pool was never seen amid its expansion");
        bench.spa().sync().unwrap();
        assert!(bench.spa().space.vdev_stats(0).unwrap().space > space);
        bench.fill(50 + round, 20);
        bench.cycle();
        bench.compare();
    }
}

#[test]
fn all_parities_grow_under_writers() {
    for (nparity, disks, ashift) in [(1, 2, 9), (2, 4, 9), (3, 5, 12)] {
        let mut bench = Bench::new(nparity, disks, ashift);
        bench.fill(1, 150);
        bench.attach("new", SIZE).unwrap();
        for seed in 3..9 {
            bench.fill(seed, 30);
        }
        bench.finish();
        bench.fill(20, 30);
        bench.cycle();
        bench.compare();
    }
}

#[test]
fn any_one_disk_may_be_lost_after_an_expansion() {
    let mut bench = Bench::new(1, 3, 9);
    bench.fill(1, 100);
    bench.attach("new", SIZE).unwrap();
    bench.fill(2, 100);
    bench.finish();
    bench.close();
    // A lost disk must not be found under the path that its label names.
    let saved = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), saved.path());
    for disk in ["disk1", "disk2", "disk3", "new"] {
        std::fs::remove_file(bench.dir.path().join(disk)).unwrap();
    }
    for lost in ["disk1", "disk3", "new"] {
        let aside = tempfile::tempdir().unwrap();
        pools::copy(saved.path(), aside.path());
        std::fs::remove_file(aside.path().join(lost)).unwrap();
        bench.spa = Some(pools::import_dir(aside.path(), POOL).unwrap());
        bench.compare();
        bench.spa.take().unwrap().export().unwrap();
    }
}

/// The pool has no sync thread: between two calls its images are those that a power cut would leave.
#[test]
fn power_may_be_lost_after_each_txg() {
    let mut bench = Bench::new(1, 3, 12);
    bench.fill(1, 60);
    bench.attach("new", SIZE).unwrap();
    let mut scratch = 0;
    for txg in 0..8 {
        scratch += u32::from(bench.spa().uberblock().raidz_reflow_info >> 55 == 1);
        let aside = tempfile::tempdir().unwrap();
        pools::copy(bench.dir.path(), aside.path());
        let live = bench.spa.replace(pools::import_dir(aside.path(), POOL).unwrap());
        bench.compare();
        bench.finish();
        bench.spa.take().unwrap().export().unwrap();
        if zdb::installed() {
            zdb::verify(aside.path(), POOL).unwrap();
        }
        bench.spa = live;
        if txg % 2 == 0 {
            bench.fill(10 + txg, 2);
        }
        bench.spa().sync().unwrap();
    }
    assert!(scratch > 0, "no image was of the scratch state");
}

#[test]
fn bad_copies_found_amid_an_expansion_are_mended() {
    let mut bench = Bench::new(1, 3, 12);
    bench.fill(1, 200);
    bench.attach("new", SIZE).unwrap();
    let memory = Arc::clone(&bench.spa().pool.env.memory);
    // It stops when more than the first rows, which leave the scratch area, stand at their new places.
    memory.limits.set(Limit::ExpandMaxReflow, 20 << 20).unwrap();
    (0..30).for_each(|_| bench.spa().sync().unwrap());
    assert!(bench.spa().expansion().is_active());
    bench.spoil("disk2");
    let (first, second) = (bench.scrub(), bench.scrub());
    assert!(first.processed > 0, "{first:?}");
    assert_eq!((first.errors, second.processed, second.errors), (0, 0, 0));
    // Nothing bad was left that a copy could have taken along, but in one row: of the row at which the copy stands one sector has
    // been copied to the disk and another is copied from it.
    bench.spoil("disk3");
    let stands = (bench.spa().uberblock().raidz_reflow_info & ((1 << 55) - 1)) << 9;
    memory.limits.set(Limit::ExpandMaxReflow, 0).unwrap();
    bench.finish();
    let scan = bench.scrubbed();
    let logged = engine::spa::errlog::errors(&bench.spa().view().unwrap(), &mut Vec::new());
    let dvas = |error: &LoggedError| {
        let dataset = Dataset::open(&bench.spa().pool.dsl, error.objset, String::new()).unwrap();
        let object = dataset.objset().unwrap().object(error.object).unwrap();
        let dva = object
            .blkptr(u8::try_from(error.level).unwrap(), error.blkid)
            .unwrap()
            .unwrap()
            .dvas()
            .next()
            .unwrap();
        dva.offset..dva.offset + dva.asize
    };
    println!("{stands} {:?}", logged.iter().map(&dvas).collect::<Vec<_>>());
    assert!(scan.errors <= 1 && logged.iter().all(|error| dvas(error).contains(&stands)), "{logged:?}");
    if scan.errors == 0 {
        bench.cycle();
        bench.compare();
    }
}

/// The blocks that stand in two places are whole there: an absent disk is no damage.
#[test]
fn a_scrub_amid_an_expansion_without_a_disk_repairs_nothing() {
    let mut bench = Bench::new(2, 4, 12);
    bench.fill(1, 200);
    let memory = Arc::clone(&bench.spa().pool.env.memory);
    memory.limits.set(Limit::ExpandMaxReflow, 20 << 20).unwrap();
    bench.attach("new", SIZE).unwrap();
    (0..30).for_each(|_| bench.spa().sync().unwrap());
    assert!(bench.spa().expansion().is_active());
    let disk = bench.spa().pool.tree().leaves().find(|leaf| leaf.path.ends_with("/disk3")).unwrap().guid;
    bench.spa().disks().offline(disk, false).unwrap();
    let scan = bench.scrub();
    assert_eq!((scan.processed, scan.errors), (0, 0));
    assert!(bench.spa().expansion().is_active());
    bench.compare();
}

#[test]
fn an_expansion_waits_for_a_disk_that_loses_copies() {
    let mut bench = Bench::new(1, 3, 12);
    bench.fill(1, 200);
    let mut leaf = pools::leaf(&bench.dir.path().join("new"), SIZE);
    let lossy = Arc::new(FaultyDevice::new(leaf.device, 3));
    lossy.inject(Fault::LostWrites(8 << 20..SIZE - (1 << 20)));
    leaf.device = Arc::clone(&lossy) as Device;
    bench.attach_leaf(leaf).unwrap();
    (0..200).for_each(|_| bench.spa().sync().unwrap());
    assert!(bench.spa().expansion().is_active() && bench.spa().expansion().waits());
    let tree = bench.spa().pool.tree();
    let checksum_errors = |name: &str| {
        let leaf = tree.leaves().find(|leaf| leaf.path.ends_with(name)).unwrap();
        leaf.errors.counts()[2]
    };
    assert!(checksum_errors("/new") > 0 && checksum_errors("/disk1") == 0);
    lossy.clear();
    bench.finish();
    bench.cycle();
    bench.compare();
}

/// A state from before blocks were moved can be looked at, and not be gone back to.
#[test]
fn states_before_the_end_of_an_expansion_are_not_gone_back_to() {
    let mut bench = Bench::new(1, 3, 9);
    bench.fill(2, 60);
    bench.spa().sync().unwrap();
    bench.attach("new", SIZE).unwrap();
    let txg = |bench: &Bench| bench.spa().uberblock().txg;
    let before = txg(&bench);
    (0..5).for_each(|_| bench.spa().sync().unwrap());
    let amid = txg(&bench);
    assert!(bench.spa().expansion().is_active() && amid > before);
    bench.finish();
    bench.scrubbed();
    bench.spa().sync().unwrap();
    let after = txg(&bench);
    bench.fill(4, 1);
    bench.close();
    let at = |txg: u64| OpenOptions { txg: Some(txg), reach: Reach::Extreme, ..OpenOptions::default() };
    for old in [before, amid] {
        let why = pools::import_at(bench.dir.path(), POOL, at(old)).unwrap_err();
        assert!(why.to_string().contains("the expansion of raidz1-0 has moved blocks since"), "{why}");
    }
    let (env, dirs) = (Env::system(0).unwrap(), [bench.dir.path().to_owned()]);
    let open = OpenOptions { txg: Some(amid), ..OpenOptions::default() };
    zutil::import::open_pool(&env, &dirs, POOL, open).unwrap();
    // The newest state is as it was, and the ones since the end can be gone back to.
    bench.open();
    bench.compare();
    bench.close();
    bench.written.pop();
    bench.spa = Some(pools::import_at(bench.dir.path(), POOL, at(after)).unwrap());
    bench.compare();
    bench.cycle();
}

#[test]
fn disks_that_do_not_fit_are_refused() {
    let bench = Bench::new(1, 3, 9);
    let why = bench.attach("small", SIZE / 2).unwrap_err().to_string();
    assert!(why.contains("device is too small"), "{why}");
    assert!(!bench.spa().expansion().is_active());
}

#[test]
fn an_expansion_that_the_kernel_began_comes_to_its_end() {
    let Some(golden) = golden::get("expand-cut") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_at(dir.path(), golden.pool_name(), OpenOptions::default()).unwrap();
    let space = spa.space.vdev_stats(0).unwrap().space;
    for _ in 0..3000 {
        if !spa.expansion().is_active() {
            break;
        }
        spa.sync().unwrap();
    }
    spa.sync().unwrap();
    assert!(!spa.expansion().is_active() && spa.space.vdev_stats(0).unwrap().space > space);
    spa.export().unwrap();
    drop(spa);
    if zdb::installed() {
        zdb::verify(dir.path(), golden.pool_name()).unwrap();
    }
    let (name, covers) = golden.manifests().into_iter().find(|(name, _)| name == "live").unwrap();
    let env = Env::system(64 << 20).unwrap();
    let dirs = [dir.path().to_owned()];
    let pool = zutil::import::open_pool(&env, &dirs, golden.pool_name(), OpenOptions::default()).unwrap();
    let found = tree::Tree::read(&pool, &covers).unwrap();
    let label = format!("expand-cut/{name}");
    let excuse = |path: &[u8], have: &mut _, want: &_| tree::excuse_golden(&label, path, have, want);
    let wrong = found.differences(&label, &golden.manifest(&name).unwrap(), &excuse);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
