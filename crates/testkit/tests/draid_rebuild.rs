//! Sequential reconstruction of draids: of disks and of distributed spares, cut anywhere; judged by both zdbs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use blkdev::Device;
use engine::dmu::NewObject;
use engine::env::Env;
use engine::spa::Spa;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::vdev::config::AllocBias;
use engine::vdev::draid_rows::RowColumn;
use engine::vdev::leaf::Leaf;
use ondisk::names::vdev_top;
use ondisk::pool::VdevRebuild;
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::flushes::FailsOnce;
use testkit::zdb::Judge;
use testkit::{golden, pools};
use zcommon::draid::DraidConfig;
use zcommon::features::Feature;

const POOL: &str = "spread";
const BLOCKS: usize = 200;
const SIZE: u64 = 128 << 20;

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    dataset: u64,
    objects: Vec<u64>,
}

/// Blocks of all lengths, so that rows with padding are among them.
fn body(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 10];
    Rng::new(number as u64).fill(&mut bytes);
    bytes
}

impl Bench {
    fn new(parity: u64, children: u64, spares: u64) -> Self {
        Self::with(parity, children, spares, &mut |_, device| device)
    }

    /// `wrap` returns what stands for the device of each disk.
    fn with(parity: u64, children: u64, spares: u64, wrap: &mut dyn FnMut(String, Device) -> Device) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leaves = (0..children).map(|n| {
            let name = format!("disk{n}");
            let leaf = pools::leaf(&dir.path().join(&name), SIZE);
            LeafSpec { device: wrap(name, leaf.device), ..leaf }
        });
        let config = DraidConfig { parity, data: 2, children, spares };
        let vdev = VdevSpec::Draid { config, children: leaves.collect() };
        let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        let name = format!("{POOL}/data");
        let dataset =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        let mut bench = Self { dir, spa, dataset, objects: Vec::new() };
        bench.fill();
        bench
    }

    fn fill(&mut self) {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let tx = self.spa.begin().unwrap();
        for size in [512, 4 << 10, 16 << 10] {
            let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, size);
            let object = data.objset.create_object(&tx, new).unwrap();
            let size = size as usize;
            (0..BLOCKS).for_each(|n| object.write(&tx, (n * size) as u64, &body(n)[..size]).unwrap());
            self.objects.push(object.number);
        }
        drop(tx);
        self.spa.sync().unwrap();
    }

    fn is_right(&self) {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        for (object, size) in self.objects.iter().zip([512, 4 << 10, 16 << 10].into_iter().cycle()) {
            let stored = data.objset.view().object(*object).unwrap();
            for n in 0..BLOCKS {
                assert!(stored.read_vec((n * size) as u64, size).unwrap() == body(n)[..size], "{object} {n}");
            }
        }
    }

    fn leaf(&self, disk: &str) -> Arc<Leaf> {
        let tree = self.spa.pool.tree();
        tree.leaves().find(|leaf| leaf.path.rsplit('/').next() == Some(disk)).cloned().unwrap()
    }

    /// The columns of the first of the longest rows in use, parity first.
    fn rows(&self) -> Vec<RowColumn> {
        let top = self.spa.pool.tree().top(0).unwrap();
        let draid = top.draid().unwrap();
        let end = self.spa.space.end_of_metaslabs(0);
        let (ranges, _) = self.spa.space.not_allocatable(0, 0..end, u64::MAX);
        let (start, end) = ranges.iter().max_by_key(|(start, end)| end - start).unwrap();
        let (start, len) = draid.stretches(start, end, 1 << 20)[0];
        draid.columns_of(start, len).unwrap()
    }

    /// The disk that has a column of these rows.
    fn used(&self, column: usize) -> String {
        format!("disk{}", self.rows()[column].child)
    }

    /// The disk on which a distributed spare has a column of these rows.
    fn spared(&self, column: usize) -> String {
        let column = self.rows()[column];
        let places = self.spa.pool.tree().top(0).unwrap().places(column.child, column.offset);
        let path = places.into_iter().find(|path| path.len() == 2).unwrap();
        path[1].path.rsplit('/').next().unwrap().to_owned()
    }

    fn record(&self) -> VdevRebuild {
        let view = engine::dsl::write::MosView { mos: &self.spa.mos };
        let zap = self.spa.pool.tree().config.children[0].top_zap;
        let value = view.zap_get(zap, vdev_top::VDEV_REBUILD_PHYS).unwrap();
        value.map(|value| VdevRebuild::from_words(&value.ints).unwrap()).unwrap_or_default()
    }

    fn attach(&self, disk: &str, device: NewDevice, sequential: bool) {
        let target = self.leaf(disk).guid;
        self.spa.disks().attach(Attach { target, device, replacing: true, sequential }).unwrap();
        assert_eq!(self.record().rebuild_state == 1, sequential);
    }

    /// A distributed spare takes over for a disk that is gone.
    fn spare(&self, disk: &str, number: usize) {
        self.spare_by(disk, number, true);
    }

    fn spare_by(&self, disk: &str, number: usize, sequential: bool) {
        self.spa.disks().offline(self.leaf(disk).guid, false).unwrap();
        let spare = self.spa.spares().entries().unwrap()[number].u64("guid").unwrap();
        self.attach(disk, NewDevice::Spare { guid: spare, device: None }, sequential);
    }

    fn replace(&self, disk: &str, new: &str) {
        let leaf = pools::leaf(&self.dir.path().join(new), SIZE);
        self.attach(disk, NewDevice::Fresh { leaf, ashift: None }, true);
    }

    /// To the end of the reconstruction and of the scrub, which finds nothing.
    fn settle(&self) {
        self.calm();
        let record = self.record();
        assert_eq!((record.rebuild_state, record.errors), (3, 0), "{record:?}");
        assert!(record.bytes_rebuilt > 0 && record.bytes_rebuilt < record.bytes_scanned, "{record:?}");
    }

    /// To the end of all that is to be done; a scrub finds nothing then.
    fn calm(&self) {
        let (mut steps, mut quiet) = (0, 0);
        while quiet < 6 {
            let is_busy = self.spa.rebuilds().is_rebuilding()
                || self.spa.scans().is_scanning()
                || self.spa.disks().is_replacing();
            quiet = if is_busy { 0 } else { quiet + 1 };
            self.spa.sync().unwrap();
            steps += 1;
            assert!(steps < 2000, "it does not end");
        }
        assert_eq!(self.spa.features.count(Feature::DeviceRebuild), 0);
        self.scanned();
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        while self.spa.scans().is_scanning() {
            self.spa.sync().unwrap();
        }
        self.scanned();
    }

    /// Until nothing is going on any more.
    fn quiet(&self) {
        let is_busy = || {
            self.spa.rebuilds().is_rebuilding()
                || self.spa.scans().is_scanning()
                || self.spa.disks().is_replacing()
        };
        let mut calm = 0;
        for _ in 0..2000 {
            self.spa.sync().unwrap();
            calm = if is_busy() { 0 } else { calm + 1 };
            if calm == 6 {
                return;
            }
        }
        panic!("it does not end");
    }

    /// A scrub finds nothing.
    fn scrub(&self) {
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        self.quiet();
        self.scanned();
    }

    fn scanned(&self) {
        let view = engine::dsl::write::MosView { mos: &self.spa.mos };
        let scan = engine::dsl::write::scan_state::load(&view).unwrap().unwrap();
        assert_eq!((scan.func, scan.state, scan.processed, scan.errors), (1, 2, 0, 0));
    }

    fn reimport(&mut self) {
        self.spa.export().unwrap();
        check(self.dir.path(), POOL);
        self.spa = pools::import_dir(self.dir.path(), POOL).unwrap();
    }
}

fn check(dir: &Path, pool: &str) {
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(dir, pool).unwrap();
    }
}

#[test]
fn a_disk_is_replaced_and_the_draid_can_do_without_another() {
    let mut bench = Bench::new(1, 6, 1);
    let (old, other) = (bench.used(1), bench.used(2));
    bench.replace(&old, "new");
    let mut offsets = Vec::new();
    while bench.spa.rebuilds().is_rebuilding() {
        offsets.push(bench.record().last_offset);
        bench.spa.sync().unwrap();
    }
    assert!(offsets.len() > 2 && offsets.is_sorted(), "{offsets:?}");
    bench.settle();
    bench.reimport();
    bench.spa.disks().offline(bench.leaf(&other).guid, true).unwrap();
    bench.is_right();
}

#[test]
fn distributed_spares_take_over_one_on_another() {
    let mut bench = Bench::new(2, 9, 2);
    let disks: Vec<String> = (0..4).map(|column| bench.used(column)).collect();
    bench.spare(&disks[0], 0);
    bench.settle();
    bench.fill();
    // The disk on which the first spare stands for the first disk.
    bench.spare(&bench.spared(0), 1);
    // Writes that the first spare has missed since that disk is gone are resilvered after the reconstruction.
    bench.calm();
    bench.reimport();
    // Two more may fail: all that stood on the first two is on the spares.
    for disk in [&disks[1], &disks[3]] {
        bench.spa.disks().offline(bench.leaf(disk).guid, true).unwrap();
    }
    bench.is_right();
}

#[test]
fn a_disk_on_which_a_spare_stands_is_replaced() {
    let mut bench = Bench::new(1, 6, 1);
    let old = bench.used(0);
    bench.spare(&old, 0);
    bench.settle();
    let (disk, other) = (bench.spared(0), bench.used(1));
    bench.replace(&disk, "new");
    // Writes during the reconstruction are kept, too.
    bench.fill();
    bench.settle();
    bench.reimport();
    assert_eq!(bench.spared(0), "new");
    bench.spa.disks().offline(bench.leaf(&other).guid, true).unwrap();
    bench.is_right();
}

/// A spare that has rows on a disk out of use gets the others, waits without work, and is whole when the disk is back.
#[test]
fn a_spare_with_rows_on_a_disk_out_of_use_waits_for_it() {
    let mut bench = Bench::new(2, 8, 2);
    let row = bench.rows()[1];
    let holder = bench.spa.pool.tree().top(0).unwrap().draid().unwrap().spare_child(0, row.offset).unwrap();
    let (holder, disks) = (format!("disk{holder}"), [1, 2, 3].map(|column| bench.used(column)));
    let leaf = bench.leaf(&holder);
    bench.spa.disks().offline(leaf.guid, false).unwrap();
    bench.spare(&disks[0], 0);
    bench.quiet();
    let spare = bench.spa.spares().entries().unwrap()[0].u64("guid").unwrap();
    let lacks = |bench: &Bench| !bench.spa.pool.tree().leaf(spare).unwrap().dtl.read().is_empty();
    assert!(lacks(&bench));
    bench.fill();
    bench.quiet();
    bench.is_right();
    let device = pools::open(&bench.dir.path().join(&holder));
    bench.spa.disks().online(leaf.guid, Some(Ok(device)), false).unwrap();
    bench.quiet();
    assert!(!lacks(&bench));
    bench.scrub();
    bench.reimport();
    for disk in &disks[1..] {
        bench.spa.disks().offline(bench.leaf(disk).guid, true).unwrap();
    }
    bench.is_right();
}

/// The rows that a spare got while a disk below it was out of use, and that another spare has for that disk, are resilvered when
/// the disk is back.
#[test]
fn a_disk_that_comes_back_gets_what_spares_have_on_it() {
    for sequential in [false, true] {
        let mut bench = Bench::new(2, 9, 2);
        let row = bench.rows()[1];
        let holder =
            bench.spa.pool.tree().top(0).unwrap().draid().unwrap().spare_child(1, row.offset).unwrap();
        let (holder, other) = (format!("disk{holder}"), bench.used(1));
        let leaf = bench.leaf(&holder);
        bench.spare_by(&holder, 0, sequential);
        bench.quiet();
        bench.spare_by(&other, 1, sequential);
        bench.quiet();
        bench.scrub();
        let device = pools::open(&bench.dir.path().join(&holder));
        bench.spa.disks().online(leaf.guid, Some(Ok(device)), false).unwrap();
        bench.quiet();
        bench.scrub();
        bench.reimport();
        bench.is_right();
    }
}

/// Spares of disks that are back are free again, also where they stand on one another's disks.
#[test]
fn spares_are_returned_when_all_disks_are_back() {
    let mut bench = Bench::new(1, 10, 3);
    let disks = [7, 8, 9].map(|n| format!("disk{n}"));
    let leaves = disks.clone().map(|disk| bench.leaf(&disk));
    for (number, disk) in disks.iter().enumerate() {
        bench.spare_by(disk, number, false);
        bench.quiet();
    }
    bench.fill();
    bench.scrub();
    for (disk, leaf) in disks.iter().zip(&leaves) {
        let device = pools::open(&bench.dir.path().join(disk));
        bench.spa.disks().online(leaf.guid, Some(Ok(device)), false).unwrap();
    }
    bench.quiet();
    let tree = bench.spa.pool.tree();
    for spare in bench.spa.spares().entries().unwrap() {
        let guid = spare.u64("guid").unwrap();
        let left = tree.leaf(guid).map(|leaf| leaf.dtl.read().ranges().to_vec());
        assert!(left.is_none(), "spare in use: {left:?}");
    }
    for leaf in tree.leaves() {
        assert!(leaf.dtl.read().is_empty(), "{} {:?}", leaf.path, leaf.dtl.read().ranges());
    }
    bench.scrub();
    bench.reimport();
    bench.is_right();
}

#[test]
fn a_reconstruction_goes_on_after_a_power_cut_between_all_its_txgs() {
    let mut bench = Bench::new(1, 6, 1);
    let (old, other) = (bench.used(0), bench.used(1));
    bench.spare(&old, 0);
    let mut active = 0;
    loop {
        let over = !bench.spa.rebuilds().is_rebuilding();
        let cut = tempfile::tempdir().unwrap();
        pools::copy(bench.dir.path(), cut.path());
        let spa = pools::import_dir(cut.path(), POOL).unwrap();
        let mut again = Bench { dir: cut, spa, dataset: bench.dataset, objects: bench.objects.clone() };
        active += usize::from(again.record().rebuild_state == 1);
        if active % 3 == 1 {
            again.fill();
        }
        again.settle();
        again.spa.disks().offline(again.leaf(&other).guid, true).unwrap();
        again.is_right();
        again.spa.export().unwrap();
        if active % 6 == 1 || over {
            check(again.dir.path(), POOL);
        }
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
}

#[test]
fn disks_of_the_kernels_draids_are_reconstructed() {
    for (name, old) in [("draid1", "disk2"), ("draid-spare-in-use", "disk4")] {
        let Some(golden) = golden::get(name) else { return };
        let dir = tempfile::tempdir().unwrap();
        pools::copy(&golden.dir, dir.path());
        let spa = pools::import_dir(dir.path(), golden.pool_name()).unwrap();
        let bench = Bench { dir, spa, dataset: 0, objects: Vec::new() };
        let size = bench.spa.pool.tree().leaves().filter_map(|l| Some(l.device()?.geometry().size)).max();
        let leaf = pools::leaf(&bench.dir.path().join("new"), size.unwrap());
        while bench.spa.scans().is_scanning() {
            bench.spa.sync().unwrap();
        }
        bench.attach(old, NewDevice::Fresh { leaf, ashift: None }, true);
        bench.settle();
        bench.spa.export().unwrap();
        check(bench.dir.path(), golden.pool_name());
    }
}

#[test]
fn a_disk_with_too_many_errors_is_not_the_source_of_its_spare() {
    const START: u64 = 5 << 20;
    let bench = Bench::new(2, 9, 2);
    let [bad, other, third] = [2, 3, 0].map(|column| bench.used(column));
    // Nothing of what was written stands on the disk any more.
    let path = bench.dir.path().join(&bad);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut noise = vec![0; usize::try_from(SIZE - 2 * START).unwrap()];
    Rng::new(7).fill(&mut noise);
    std::os::unix::fs::FileExt::write_all_at(&file, &noise, START).unwrap();
    bench.spa.disks().declare_degraded(bench.leaf(&bad).guid).unwrap();
    let spare = bench.spa.spares().entries().unwrap()[0].u64("guid").unwrap();
    bench.attach(&bad, NewDevice::Spare { guid: spare, device: None }, true);
    while bench.spa.rebuilds().is_rebuilding() {
        bench.spa.sync().unwrap();
    }
    // The spare alone gives what the disk had, before any scrub: parity does for two others that are out.
    for disk in [&bad, &other, &third] {
        bench.spa.disks().offline(bench.leaf(disk).guid, true).unwrap();
    }
    bench.is_right();
}

/// A distributed spare takes over for a disk while one flush of a disk below it fails. When the spare counts as whole, it has
/// everything: two further disks can go.
fn spared_with_a_failed_flush(sequential: bool, good: u32) {
    let mut disks = HashMap::new();
    let bench = Bench::with(2, 8, 1, &mut |name, device| {
        let disk = Arc::new(FailsOnce::new(device));
        disks.insert(name, Arc::clone(&disk));
        disk
    });
    let [gone, second, third] = [0, 1, 3].map(|column| bench.used(column));
    let row = bench.rows()[0];
    let below = bench.spa.pool.tree().top(0).unwrap().draid().unwrap().spare_child(0, row.offset).unwrap();
    let target = bench.leaf(&gone).guid;
    bench.spa.disks().offline(target, false).unwrap();
    disks[&format!("disk{below}")].fail_after(good);
    let spare = bench.spa.spares().entries().unwrap()[0].u64("guid").unwrap();
    let device = NewDevice::Spare { guid: spare, device: None };
    bench.spa.disks().attach(Attach { target, device, replacing: true, sequential }).unwrap();
    bench.quiet();
    assert!(bench.spa.pool.tree().leaf(spare).unwrap().dtl.read().is_empty());
    // The content of the disks themselves, as after a power cut, without two further ones.
    let cut = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), cut.path());
    for disk in [&second, &third] {
        std::fs::remove_file(cut.path().join(disk)).unwrap();
    }
    let when = format!("sequential: {sequential}, after {good} good flushes");
    let spa = pools::import_dir(cut.path(), POOL).unwrap_or_else(|why| panic!("{when}: {why}"));
    let again = Bench { dir: cut, spa, dataset: bench.dataset, objects: bench.objects.clone() };
    again.is_right();
    again.quiet();
    again.scrub();
    again.spa.export().unwrap();
    if good % 8 == 7 {
        check(again.dir.path(), POOL);
    }
}

#[test]
fn a_spare_is_not_whole_before_it_has_all_for_good() {
    // The disk gets four flushes in most txgs.
    for sequential in [false, true] {
        (0..24).for_each(|good| spared_with_a_failed_flush(sequential, good));
    }
}
