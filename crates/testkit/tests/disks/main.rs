//! Disks that come and go: attach, detach, replace and hot spares, judged by real zdb, with power cuts between.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

mod deferral;
mod flushes;
mod golden_jobs;

use std::path::Path;
use std::sync::Arc;

use blkdev::Device;
use engine::Kind;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::sparing::SpareSource;
use engine::spa::{Spa, WaitActivity};
use engine::vdev::config::AllocBias;
use ondisk::names::vdev_top;
use ondisk::pool::{DslScan, VdevRebuild};
use testkit::pattern::Pattern;
use testkit::{pools, zdb};
use zcommon::features::Feature;
use zcommon::health::Health;
use zcommon::vdev::VdevState;

const POOL: &str = "disks";
const BLOCKS: usize = 300;
const BLOCK: usize = 8 << 10;
const SIZE: u64 = 96 << 20;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    file: (u64, u64),
}

impl Bench {
    fn new(count: usize, make: impl Fn(Vec<LeafSpec>) -> VdevSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leaves = (1..=count).map(|number| pools::leaf(&dir.path().join(format!("disk{number}")), SIZE));
        let tops = vec![TopSpec { vdev: make(leaves.collect()), class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        let file = FILE.create(&spa, &format!("{POOL}/data"));
        Self { dir, spa, file }
    }

    /// A new object beside the file.
    fn fill(&self) -> u64 {
        FILE.add(&self.spa, self.file.0)
    }

    fn is_right(&self) -> bool {
        FILE.is_in(&self.spa, self.file)
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn guid(&self, name: &str) -> u64 {
        // A copy of the pool has the paths of the original.
        let end = format!("/{name}");
        let tree = self.spa.pool.tree();
        let is_it = |path: &String| path.ends_with(&end);
        tree.config.walk().into_iter().find(|v| v.path.as_ref().is_some_and(is_it)).unwrap().guid
    }

    fn new_leaf(&self, name: &str, size: u64) -> LeafSpec {
        pools::leaf(&self.dir.path().join(name), size)
    }

    fn join(&self, target: u64, leaf: LeafSpec, replacing: bool) -> engine::Result<()> {
        let device = NewDevice::Fresh { leaf, ashift: None };
        self.spa.disks().attach(Attach { target, device, replacing, sequential: false })
    }

    /// Attaches a disk to another, or replaces it, by a sequential reconstruction.
    fn rebuild(&self, target: &str, name: &str, replacing: bool) -> engine::Result<()> {
        let device = NewDevice::Fresh { leaf: self.new_leaf(name, SIZE), ashift: None };
        self.spa.disks().attach(Attach { target: self.guid(target), device, replacing, sequential: true })
    }

    /// The record of the top-level vdev of a disk; empty when there is none.
    fn record(&self, disk: &str) -> VdevRebuild {
        let guid = self.guid(disk);
        let tree = self.spa.pool.tree();
        let top = tree.config.children.iter().find(|top| top.walk().iter().any(|v| v.guid == guid)).unwrap();
        let view = engine::dsl::write::MosView { mos: &self.spa.mos };
        let value = view.zap_get(top.top_zap, vdev_top::VDEV_REBUILD_PHYS).unwrap();
        value.map(|value| VdevRebuild::from_words(&value.ints).unwrap()).unwrap_or_default()
    }

    fn settle(&self) {
        for _ in 0..1000 {
            let is_busy =
                self.spa.scans().is_scanning() || self.spa.rebuilds().is_rebuilding() || self.is_moving();
            if !is_busy && !self.spa.disks().is_replacing() {
                self.spa.sync().unwrap();
                return;
            }
            self.spa.sync().unwrap();
        }
        panic!("the resilver does not end: {}", self.shape());
    }

    fn is_moving(&self) -> bool {
        let sweeps = self.spa.background().run_steps();
        sweeps
            || self.spa.expansion().is_active()
            || self.spa.background().left(WaitActivity::Remove).unwrap().is_some()
    }

    fn shape(&self) -> String {
        fn of(vdev: &engine::vdev::config::VdevConfig) -> String {
            let name = |path: &String| path.rsplit('/').next().unwrap().to_owned();
            match vdev.children.is_empty() {
                true => vdev.path.as_ref().map(name).unwrap_or_default(),
                false => {
                    let children: Vec<String> = vdev.children.iter().map(of).collect();
                    format!("{}({})", vdev.kind.name(), children.join(" "))
                }
            }
        }
        self.spa.pool.tree().config.children.iter().map(of).collect::<Vec<_>>().join(" ")
    }

    fn scrub_is_clean(&self) {
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        self.settle();
        let scan = self.scanned();
        assert_eq!((scan.processed, scan.errors), (0, 0), "{}", self.shape());
    }

    fn scanned(&self) -> DslScan {
        let view = engine::dsl::write::MosView { mos: &self.spa.mos };
        engine::dsl::write::scan_state::load(&view).unwrap().unwrap()
    }

    fn reimport(&mut self) {
        self.spa.export().unwrap();
        check(self.dir.path(), POOL);
        self.spa = pools::import_dir(self.dir.path(), POOL).unwrap();
    }

    fn end(self) {
        assert!(self.is_right());
        self.scrub_is_clean();
        self.spa.export().unwrap();
        let Self { dir, spa, .. } = self;
        drop(spa);
        check(dir.path(), POOL);
    }
}

fn check(dir: &Path, pool: &str) {
    if zdb::installed() {
        zdb::verify(dir, pool).unwrap();
    }
}

fn raidz(children: Vec<LeafSpec>) -> VdevSpec {
    VdevSpec::Raidz { parity: 1, children }
}

fn one(mut leaves: Vec<LeafSpec>) -> VdevSpec {
    VdevSpec::Leaf(leaves.pop().unwrap())
}

#[test]
fn a_disk_becomes_a_mirror_and_the_mirror_a_disk() {
    let mut bench = Bench::new(1, one);
    bench.join(bench.guid("disk1"), bench.new_leaf("disk2", SIZE), false).unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "mirror(disk1 disk2)");
    bench.reimport();
    bench.join(bench.guid("disk2"), bench.new_leaf("disk3", SIZE), false).unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "mirror(disk1 disk2 disk3)");
    bench.scrub_is_clean();
    let top = bench.spa.pool.tree().config.children[0].guid;
    bench.spa.disks().detach(bench.guid("disk1")).unwrap();
    bench.spa.disks().detach(bench.guid("disk2")).unwrap();
    assert_eq!((bench.shape(), bench.guid("disk3")), ("disk3".to_owned(), top), "it has the mirror's guid");
    assert_eq!(
        bench.spa.disks().detach(top).unwrap_err().what(),
        "only applicable to mirror and replacing vdevs"
    );
    // Detached disks are no pool by themselves.
    for name in ["disk1", "disk2"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(bench.path(name), dir.path().join(name)).unwrap();
        assert!(pools::import_dir(dir.path(), POOL).is_err(), "{name}");
    }
    bench.reimport();
    assert!(bench.is_right());
    bench.fill();
    bench.end();
}

#[test]
fn a_disk_is_reconstructed_sequentially_and_scrubbed_and_is_right_alone() {
    let mut bench = Bench::new(1, one);
    for _ in 0..3 {
        bench.fill();
    }
    bench.rebuild("disk1", "disk2", false).unwrap();
    assert_eq!(bench.record("disk2").rebuild_state, 1, "attach returns when it has begun");
    let busy = bench.join(bench.guid("disk1"), bench.new_leaf("disk3", SIZE), false).unwrap_err();
    assert_eq!(busy.what(), "currently sequentially resilvering");
    let mut offsets = Vec::new();
    while bench.spa.rebuilds().is_rebuilding() {
        bench.spa.sync().unwrap();
        let record = bench.record("disk2");
        assert_eq!(bench.spa.features.count(Feature::DeviceRebuild), u64::from(record.rebuild_state == 1));
        if record.rebuild_state == 1 {
            let busy = bench.spa.scans().start(ScanCommand::Scrub).unwrap_err();
            assert_eq!(busy.what(), "currently sequentially resilvering");
            offsets.push(bench.record("disk2").last_offset);
        }
    }
    assert!(offsets.len() > 2 && offsets.is_sorted(), "{offsets:?}");
    let record = bench.record("disk2");
    assert_eq!((record.rebuild_state, record.errors), (3, 0), "{record:?}");
    assert!(record.bytes_scanned >= (BLOCKS * BLOCK) as u64, "{record:?}");
    assert_eq!((record.bytes_rebuilt, record.bytes_issued), (record.bytes_scanned, record.bytes_scanned));
    // The scrub that must follow.
    bench.settle();
    let scan = bench.scanned();
    assert_eq!((scan.func, scan.state, scan.processed, scan.errors), (1, 2, 0, 0));
    assert!(scan.start_time >= record.end_time);
    let steps: Vec<String> =
        bench.spa.reports().events().after(0).into_iter().map(|event| event.class).collect();
    let steps: Vec<&str> = steps.iter().filter_map(|class| class.strip_prefix("sysevent.fs.zfs.")).collect();
    let steps: Vec<&&str> =
        steps.iter().filter(|s| s.starts_with("resilver_") || s.starts_with("scrub_")).collect();
    assert_eq!(steps, [&"resilver_start", &"resilver_finish", &"scrub_start", &"scrub_finish"]);
    bench.spa.disks().detach(bench.guid("disk1")).unwrap();
    bench.reimport();
    assert_eq!(bench.shape(), "disk2");
    bench.end();
    let bench = Bench::new(3, raidz);
    let refused = bench.rebuild("disk1", "fresh", true).unwrap_err();
    assert_eq!(refused.what(), "only mirror and dRAID vdevs support sequential reconstruction");
    bench.end();
}

/// Whichever txg power is lost after, the reconstruction ends, and the new disk alone has the right data.
#[test]
fn a_reconstruction_goes_on_after_a_power_cut_between_all_its_txgs() {
    let bench = Bench::new(2, VdevSpec::Mirror);
    bench.fill();
    bench.rebuild("disk2", "disk3", true).unwrap();
    let mut active = 0;
    loop {
        let over = !bench.spa.rebuilds().is_rebuilding();
        let cut = tempfile::tempdir().unwrap();
        pools::copy(bench.dir.path(), cut.path());
        let spa = pools::import_dir(cut.path(), POOL).unwrap();
        let mut again = Bench { dir: cut, spa, file: bench.file };
        active += usize::from(again.record("disk3").rebuild_state == 1);
        again.fill();
        again.settle();
        assert_eq!(again.shape(), "mirror(disk1 disk3)");
        again.scrub_is_clean();
        again.spa.disks().detach(again.guid("disk1")).unwrap();
        again.reimport();
        assert!(again.spa.features.count(Feature::DeviceRebuild) == 0 && again.is_right());
        if over {
            break;
        }
        // Blocks are written ahead of the copy and behind it.
        if active == 2 {
            bench.fill();
        }
        bench.spa.sync().unwrap();
    }
    assert!(active > 2, "{active}");
    bench.settle();
    bench.end();
}

#[test]
fn another_disk_begins_a_reconstruction_anew_and_a_detach_cancels_it() {
    let mut bench = Bench::new(1, one);
    bench.rebuild("disk1", "disk2", false).unwrap();
    while bench.record("disk2").last_offset == 0 {
        bench.spa.sync().unwrap();
    }
    let first = bench.record("disk2");
    bench.rebuild("disk1", "disk3", false).unwrap();
    // Its txgs are not all on disk: a power cut now, and the next import resets it, too.
    bench.spa.export().unwrap();
    bench.spa = pools::import_dir(bench.dir.path(), POOL).unwrap();
    while bench.record("disk2").max_txg == first.max_txg {
        bench.spa.sync().unwrap();
    }
    assert_eq!(bench.spa.features.count(Feature::DeviceRebuild), 1);
    bench.spa.disks().detach(bench.guid("disk2")).unwrap();
    bench.settle();
    assert_eq!(bench.record("disk3").rebuild_state, 3);
    bench.rebuild("disk1", "disk4", false).unwrap();
    while bench.record("disk4").rebuild_state != 1 {
        bench.spa.sync().unwrap();
    }
    bench.spa.disks().detach(bench.guid("disk4")).unwrap();
    bench.settle();
    let record = bench.record("disk1");
    assert_eq!((record.rebuild_state, bench.spa.features.count(Feature::DeviceRebuild)), (2, 0));
    bench.spa.disks().detach(bench.guid("disk1")).unwrap();
    bench.reimport();
    assert_eq!(bench.shape(), "disk3");
    bench.end();
}

/// A source whose reads fail is replaced by another; silent corruption of a source is repaired by the scrub.
#[test]
fn sources_with_latent_errors_are_mended_from_the_others() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    bench.spa.export().unwrap();
    let disk = std::fs::OpenOptions::new().write(true).open(bench.path("disk1")).unwrap();
    for at in (8 << 20..SIZE - (2 << 20)).step_by(300 << 10) {
        std::os::unix::fs::FileExt::write_all_at(&disk, &[0xA5; 4096], at).unwrap();
    }
    bench.spa = pools::import_dir(bench.dir.path(), POOL).unwrap();
    bench.rebuild("disk1", "disk3", false).unwrap();
    bench.settle();
    assert_eq!(bench.record("disk3").errors, 0);
    bench.scrub_is_clean();
    for old in ["disk1", "disk2"] {
        bench.spa.disks().detach(bench.guid(old)).unwrap();
    }
    bench.reimport();
    assert_eq!(bench.shape(), "disk3");
    bench.end();
}

#[test]
fn a_disk_of_a_raidz_is_replaced_and_the_old_one_leaves() {
    let mut bench = Bench::new(3, raidz);
    let old = bench.guid("disk2");
    assert_eq!(
        bench.join(old, bench.new_leaf("small", 64 << 20), true).unwrap_err().what(),
        "device is too small"
    );
    assert_eq!(
        bench.join(old, bench.new_leaf("disk4", SIZE), false).unwrap_err().what(),
        "can only attach to mirrors and top-level disks"
    );
    assert_eq!(
        bench.spa.disks().detach(old).unwrap_err().what(),
        "only applicable to mirror and replacing vdevs"
    );
    bench.join(old, bench.new_leaf("disk4", SIZE), true).unwrap();
    assert_eq!(bench.shape(), "raidz(disk1 replacing(disk2 disk4) disk3)");
    bench.reimport();
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 disk4 disk3)");
    // In place: the disk was exchanged, the path is the same.
    bench.spa.disks().offline(bench.guid("disk3"), false).unwrap();
    bench.fill();
    let fresh = bench.new_leaf("disk3", SIZE);
    bench.join(bench.guid("disk3"), fresh, true).unwrap();
    assert!(bench.shape().contains("replacing(old disk3)"), "{}", bench.shape());
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 disk4 disk3)");
    bench.end();
}

#[test]
fn the_only_copy_does_not_leave() {
    let bench = Bench::new(1, one);
    let old = bench.guid("disk1");
    bench.join(old, bench.new_leaf("disk2", SIZE), true).unwrap();
    let refused = bench.spa.disks().detach(old).unwrap_err();
    assert_eq!((refused.what(), refused.kind()), ("no valid replicas", Kind::Busy));
    assert_eq!(bench.spa.disks().detach(17).unwrap_err().what(), "no such device in pool");
    bench.settle();
    assert_eq!(bench.shape(), "disk2");
    bench.end();
}

#[test]
fn a_replacement_can_be_called_off() {
    let bench = Bench::new(3, raidz);
    bench.join(bench.guid("disk1"), bench.new_leaf("disk4", SIZE), true).unwrap();
    bench.spa.disks().detach(bench.guid("disk4")).unwrap();
    assert_eq!(bench.shape(), "raidz(disk1 disk2 disk3)");
    bench.spa.sync().unwrap();
    bench.end();
}

#[derive(Debug)]
struct Shelf;

impl SpareSource for Shelf {
    fn device(&self, _: u64, path: &str) -> Option<Device> {
        Some(pools::open(Path::new(path)))
    }
}

fn add_spare(bench: &Bench, name: &str) {
    let spec = engine::spa::layout::PoolSpec {
        spares: vec![bench.new_leaf(name, SIZE)],
        ..engine::spa::layout::PoolSpec::default()
    };
    bench.spa.vdevs().add(spec, true).unwrap();
}

#[test]
fn a_hot_spare_takes_over_and_returns() {
    let mut bench = Bench::new(3, raidz);
    add_spare(&bench, "spare1");
    bench.spa.spares().set(Arc::new(Shelf));
    let old = bench.guid("disk2");
    bench.spa.disks().fault(old, false).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 spare(disk2 spare1) disk3)");
    bench.fill();
    bench.reimport();
    // A new disk in the place of the bad one: the spare is free again.
    bench.join(old, bench.new_leaf("disk4", SIZE), true).unwrap();
    assert_eq!(bench.shape(), "raidz(disk1 spare(replacing(disk2 disk4) spare1) disk3)");
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 disk4 disk3)");
    assert_eq!(bench.spa.spares().entries().unwrap().len(), 1);
    // The original is detached: the spare is the disk now.
    bench.spa.spares().set(Arc::new(Shelf));
    bench.spa.disks().fault(bench.guid("disk1"), false).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    bench.spa.disks().detach(bench.guid("disk1")).unwrap();
    assert_eq!(bench.shape(), "raidz(spare1 disk4 disk3)");
    assert!(bench.spa.spares().entries().unwrap().is_empty());
    bench.end();
}

/// As in OpenZFS 2.4: the disk that replaces a spared one gets no spare of its own.
#[test]
fn a_second_spare_for_one_place_is_refused() {
    let bench = Bench::new(3, raidz);
    add_spare(&bench, "spare1");
    bench.spa.spares().set(Arc::new(Shelf));
    let old = bench.guid("disk2");
    bench.spa.disks().fault(old, false).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    add_spare(&bench, "spare2");
    bench.join(old, bench.new_leaf("disk4", SIZE), true).unwrap();
    let shape = "raidz(disk1 spare(replacing(disk2 disk4) spare1) disk3)";
    assert_eq!(bench.shape(), shape);
    for disk in [old, bench.guid("disk4")] {
        let spares = bench.spa.spares().entries().unwrap();
        let guid =
            spares.iter().find(|spare| spare.str("path").unwrap().ends_with("spare2")).unwrap().u64("guid");
        let path = bench.dir.path().join("spare2");
        let device = NewDevice::Spare { guid: guid.unwrap(), device: Some(pools::open(&path)) };
        let second = Attach { target: disk, device, replacing: true, sequential: false };
        let refusal = bench.spa.disks().attach(second).unwrap_err().to_string();
        assert!(refusal.contains("a spare already stands in"), "{refusal}");
    }
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 disk4 disk3)");
    bench.end();
}

/// As in OpenZFS 2.4: a disk that is being replaced may well fail, so others are declared faulted as if it had.
#[test]
fn a_disk_that_is_being_replaced_is_not_relied_on() {
    let bench = Bench::new(5, |children| VdevSpec::Raidz { parity: 2, children });
    let limits = &bench.spa.pool.env.memory.limits;
    limits.set(Limit::ScanSuspend, 1).unwrap();
    bench.join(bench.guid("disk5"), bench.new_leaf("disk6", SIZE), true).unwrap();
    let states = ["disk1", "disk2"].map(|disk| {
        let guid = bench.guid(disk);
        bench.spa.disks().fault(guid, true).unwrap();
        bench.spa.pool.tree().leaf(guid).unwrap().health().state
    });
    assert_eq!(bench.shape(), "raidz(disk1 disk2 disk3 disk4 replacing(disk5 disk6))");
    assert_eq!(states, [VdevState::Faulted, VdevState::Degraded]);
    limits.set(Limit::ScanSuspend, 0).unwrap();
    bench.settle();
    assert!(bench.is_right());
    bench.end();
}

/// The administrator does without it, until the disk's state changes.
#[test]
fn a_spare_that_is_detached_stays_away() {
    let bench = Bench::new(3, raidz);
    add_spare(&bench, "spare1");
    bench.spa.spares().set(Arc::new(Shelf));
    let old = bench.guid("disk2");
    bench.spa.disks().fault(old, false).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 spare(disk2 spare1) disk3)");
    bench.spa.disks().detach(bench.guid("spare1")).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 disk2 disk3)");
    let device = pools::open(&bench.dir.path().join("disk2"));
    bench.spa.disks().clear(vec![(old, Some(Ok(device)))]).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    bench.spa.disks().fault(old, false).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 spare(disk2 spare1) disk3)");
    bench.end();
}

#[test]
fn a_spare_returns_when_the_errors_of_a_disk_in_use_are_cleared() {
    let mut bench = Bench::new(3, raidz);
    add_spare(&bench, "spare1");
    bench.spa.spares().set(Arc::new(Shelf));
    let old = bench.guid("disk2");
    bench.spa.disks().fault(old, true).unwrap();
    bench.spa.sync().unwrap();
    bench.settle();
    let spared = "raidz(disk1 spare(disk2 spare1) disk3)";
    assert_eq!(bench.shape(), spared);
    // The fault was for this import only: the disk is back, and the spare stays until its errors are cleared.
    bench.reimport();
    bench.settle();
    assert_eq!(
        (bench.spa.pool.tree().leaf(old).unwrap().health(), bench.shape()),
        (Health::ONLINE, spared.into())
    );
    bench.spa.disks().clear(vec![(old, None)]).unwrap();
    bench.settle();
    assert_eq!(bench.shape(), "raidz(disk1 disk2 disk3)");
    bench.end();
}
