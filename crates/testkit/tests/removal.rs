//! Removal of top-level vdevs: copied, cut anywhere, stopped, condensed; judged by zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use engine::dmu::NewObject;
use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::scrub::ScanCommand;
use engine::spa::split::Split;
use engine::spa::{ActivityCommand, Spa, WaitActivity};
use engine::vdev::config::{AllocBias, Kind};
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::tree::Tree;
use testkit::zdb::Judge;
use testkit::{golden, pools};
use zutil::import::open_pool;

const POOL: &str = "shrunk";
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 400;

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    dataset: u64,
}

fn body(seed: u64, number: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(seed * 100_000 + number as u64).fill(&mut bytes);
    bytes
}

fn top(vdev: VdevSpec, class: AllocBias) -> TopSpec {
    TopSpec { vdev, class, ashift: None }
}

impl Bench {
    fn new(make: impl Fn(&dyn Fn(usize) -> LeafSpec) -> Vec<TopSpec>) -> Self {
        Self::sized(128 << 20, make)
    }

    fn sized(size: u64, make: impl Fn(&dyn Fn(usize) -> LeafSpec) -> Vec<TopSpec>) -> Self {
        Self::of(|dir| make(&|number| pools::leaf(&dir.join(format!("disk{number}")), size)))
    }

    fn of(make: impl Fn(&Path) -> Vec<TopSpec>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system(0).unwrap();
        let spa = pools::create_pool(&env, POOL, make(dir.path()), &|_, _| Ok(())).unwrap();
        let name = format!("{POOL}/data");
        let dataset =
            spa.dsl_task(move |t| t.create(&name, ObjsetType::Other, 0, &mut |_, _| Ok(()))).unwrap();
        Self { dir, spa, dataset }
    }

    /// Three disks.
    fn disks() -> Self {
        Self::new(|leaf| (1..=3).map(|n| top(VdevSpec::Leaf(leaf(n)), AllocBias::Normal)).collect())
    }

    fn write(&self, seed: u64, count: usize) -> u64 {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let tx = self.spa.begin().unwrap();
        let new = NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let object = data.objset.create_object(&tx, new).unwrap();
        for number in 0..count {
            object.write(&tx, (number * BLOCK) as u64, &body(seed, number)).unwrap();
        }
        drop(tx);
        self.spa.sync().unwrap();
        object.number
    }

    fn free(&self, object: u64) {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let tx = self.spa.begin().unwrap();
        data.objset.free_object(&tx, object).unwrap();
        drop(tx);
        self.spa.sync().unwrap();
    }

    fn read(&self, object: u64, seed: u64, count: usize) {
        let data = self.spa.datasets.open(&*self.spa, self.dataset).unwrap();
        let stored = data.objset.view().object(object).unwrap();
        for number in 0..count {
            assert!(
                stored.read_vec((number * BLOCK) as u64, BLOCK).unwrap() == body(seed, number),
                "{number}"
            );
        }
    }

    fn guid(&self, id: u64) -> u64 {
        self.spa.pool.tree().config.children.iter().find(|top| top.id == id).unwrap().guid
    }

    fn kind(&self, id: u64) -> Option<Kind> {
        self.spa.pool.tree().config.children.iter().find(|top| top.id == id).map(|top| top.kind)
    }

    fn finish(&self) {
        for _ in 0..2000 {
            if self.spa.background().left(WaitActivity::Remove).unwrap().is_none() {
                return;
            }
            self.spa.sync().unwrap();
        }
        panic!("the removal does not end: {:?}", self.spa.background().left(WaitActivity::Remove));
    }

    /// Exports, lets zdb judge, and imports again.
    fn judged(&mut self) {
        self.spa.export().unwrap();
        check(self.dir.path());
        self.spa = pools::import_dir(self.dir.path(), POOL).unwrap();
    }
}

/// No leak, and the counts of features agree with the pool's content.
fn check(dir: &Path) {
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(dir, POOL).unwrap();
        let counts = judge.run(dir, POOL, &["-d"]).unwrap();
        assert!(!counts.contains("mismatch"), "{counts}");
    }
}

#[test]
fn a_disk_is_removed_and_everything_is_there() {
    let mut bench = Bench::disks();
    let (first, second) = (bench.write(1, BLOCKS), bench.write(2, BLOCKS));
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    assert!(bench.spa.background().left(WaitActivity::Remove).unwrap().unwrap() > 0);
    bench.finish();
    assert_eq!(bench.kind(1), Some(Kind::Indirect));
    bench.read(first, 1, BLOCKS);
    bench.judged();
    bench.read(first, 1, BLOCKS);
    bench.read(second, 2, BLOCKS);
    // Blocks are freed at their new places.
    bench.free(first);
    let third = bench.write(3, BLOCKS);
    bench.judged();
    bench.read(second, 2, BLOCKS);
    bench.read(third, 3, BLOCKS);
}

#[test]
fn a_removal_is_cut_at_every_txg_and_goes_on() {
    let mut bench = Bench::disks();
    let objects: Vec<u64> = (0..6).map(|seed| bench.write(seed, 80)).collect();
    bench.spa.removal().remove(bench.guid(0)).unwrap();
    let mut cuts = 0;
    while bench.spa.background().left(WaitActivity::Remove).unwrap().is_some() {
        bench.spa.sync().unwrap();
        if cuts < objects.len() / 2 {
            bench.free(objects[cuts]);
        }
        bench.judged();
        cuts += 1;
    }
    assert!(cuts > 1, "{cuts}");
    for (seed, object) in objects.iter().enumerate().skip(3) {
        bench.read(*object, seed as u64, 80);
    }
    bench.judged();
}

#[test]
fn a_removal_is_stopped_and_leaves_the_vdev_as_it_was() {
    let mut bench = Bench::disks();
    let (first, second) = (bench.write(1, BLOCKS), bench.write(2, BLOCKS));
    bench.spa.removal().remove(bench.guid(2)).unwrap();
    bench.spa.sync().unwrap();
    bench.spa.sync().unwrap();
    bench.free(first);
    assert!(bench.spa.background().left(WaitActivity::Remove).unwrap().is_some());
    bench.judged();
    bench.spa.background().command(WaitActivity::Remove, ActivityCommand::Cancel).unwrap();
    assert_eq!(bench.spa.background().left(WaitActivity::Remove).unwrap(), None);
    assert!(bench.spa.background().command(WaitActivity::Remove, ActivityCommand::Cancel).is_err());
    bench.judged();
    assert_eq!(bench.kind(2), Some(Kind::File));
    bench.read(second, 2, BLOCKS);
    let before = bench.spa.space.vdev_stats(2).unwrap().allocated;
    bench.write(3, BLOCKS);
    assert!(bench.spa.space.vdev_stats(2).unwrap().allocated > before, "it is allocated from again");
    bench.spa.removal().remove(bench.guid(2)).unwrap();
    bench.finish();
    bench.judged();
    bench.read(second, 2, BLOCKS);
}

#[test]
fn vdevs_are_removed_one_after_another() {
    let mut bench = Bench::new(|leaf| {
        let mirror = |a, b| VdevSpec::Mirror(vec![leaf(a), leaf(b)]);
        let tops = [mirror(1, 2), mirror(3, 4), VdevSpec::Leaf(leaf(5)), VdevSpec::Leaf(leaf(6))];
        tops.into_iter().map(|vdev| top(vdev, AllocBias::Normal)).collect()
    });
    let objects: Vec<u64> = (0..4).map(|seed| bench.write(seed, 150)).collect();
    for (round, id) in [0, 2].into_iter().enumerate() {
        bench.spa.removal().remove(bench.guid(id)).unwrap();
        bench.finish();
        bench.judged();
        bench.free(objects[round]);
        bench.judged();
        bench.read(objects[3], 3, 150);
    }
    // The remaining vdevs, less the slop space, would not hold the data.
    let refused = bench.spa.removal().remove(bench.guid(3)).unwrap_err();
    assert_eq!(refused.what(), "out of space");
}

/// A mirror and a disk, with blocks on both.
fn mirror_and_disk() -> (Bench, u64) {
    let bench = Bench::sized(256 << 20, |leaf| {
        let mirror = VdevSpec::Mirror(vec![leaf(1), leaf(2)]);
        vec![top(mirror, AllocBias::Normal), top(VdevSpec::Leaf(leaf(3)), AllocBias::Normal)]
    });
    let object = bench.write(1, BLOCKS);
    (bench, object)
}

/// The disk is removed into the mirror.
fn removed_into_a_mirror() -> (Bench, u64) {
    let (bench, object) = mirror_and_disk();
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    bench.finish();
    (bench, object)
}

impl Bench {
    fn scanned(&self) -> ondisk::pool::DslScan {
        for _ in 0..1000 {
            self.spa.sync().unwrap();
            if !self.spa.scans().is_scanning() && !self.spa.disks().is_replacing() {
                break;
            }
        }
        let view = engine::dsl::write::MosView { mos: &self.spa.mos };
        engine::dsl::write::scan_state::load(&view).unwrap().unwrap()
    }

    /// The leaf of a disk.
    fn leaf(&self, disk: usize) -> Arc<engine::vdev::leaf::Leaf> {
        let path = self.dir.path().join(format!("disk{disk}"));
        let tree = self.spa.pool.tree();
        tree.leaves().find(|leaf| Path::new(&leaf.path) == path).cloned().unwrap()
    }

    /// Only this disk of the mirror is left, and everything can be read from it.
    fn reads_from(mut self, disk: usize, object: u64) {
        let guid = self.leaf(disk).guid;
        let mirror = self.spa.pool.tree().config.children[0].clone();
        for other in mirror.children.iter().filter(|other| other.guid != guid) {
            self.spa.disks().detach(other.guid).unwrap();
        }
        self.judged();
        self.read(object, 1, BLOCKS);
    }
}

#[test]
fn a_new_disk_gets_what_was_moved_from_a_removed_one() {
    let (bench, object) = removed_into_a_mirror();
    let leaf = pools::leaf(&bench.dir.path().join("disk4"), 256 << 20);
    let target = bench.leaf(1).guid;
    let device = NewDevice::Fresh { leaf, ashift: None };
    bench.spa.disks().attach(Attach { target, device, replacing: true, sequential: false }).unwrap();
    let scan = bench.scanned();
    assert_eq!((scan.errors, bench.leaf(4).dtl.read().is_empty()), (0, true));
    assert!(bench.spa.pool.tree().leaves().count() == 2, "the replacement is over");
    bench.reads_from(4, object);
}

#[test]
fn a_disk_that_was_away_during_a_removal_gets_the_copies() {
    let (bench, object) = mirror_and_disk();
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    bench.spa.sync().unwrap();
    bench.spa.disks().offline(bench.leaf(2).guid, true).unwrap();
    bench.finish();
    assert!(!bench.leaf(2).dtl.read().is_empty());
    let device = pools::open(&bench.dir.path().join("disk2"));
    bench.spa.disks().online(bench.leaf(2).guid, Some(Ok(device)), false).unwrap();
    assert_eq!(bench.scanned().errors, 0);
    assert!(bench.leaf(2).dtl.read().is_empty(), "{:?}", bench.leaf(2).dtl.read());
    bench.reads_from(2, object);
}

#[test]
fn a_scrub_mends_what_was_moved_from_a_removed_disk() {
    let (mut bench, object) = removed_into_a_mirror();
    bench.spa.export().unwrap();
    let disk = std::fs::OpenOptions::new().write(true).open(bench.dir.path().join("disk2")).unwrap();
    // All but the labels.
    let zeros = vec![0_u8; 1 << 20];
    (4..248).for_each(|at| disk.write_all_at(&zeros, at << 20).unwrap());
    drop(disk);
    bench.spa = pools::import_dir(bench.dir.path(), POOL).unwrap();
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    let scan = bench.scanned();
    assert!(scan.errors == 0 && scan.processed > (BLOCKS * BLOCK * 9 / 10) as u64, "{scan:?}");
    bench.reads_from(2, object);
}

/// The vdev whose removal is under way is replaced in the tree by its last leaf, which takes the mapping over.
#[test]
fn a_mirror_that_is_being_removed_loses_a_disk() {
    let mut bench = Bench::sized(256 << 20, |leaf| {
        let mirror = |a, b| VdevSpec::Mirror(vec![leaf(a), leaf(b)]);
        [mirror(1, 2), mirror(3, 4)].into_iter().map(|vdev| top(vdev, AllocBias::Normal)).collect()
    });
    let object = bench.write(1, BLOCKS);
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    bench.spa.sync().unwrap();
    let leaves = vec![bench.leaf(1).guid, bench.leaf(3).guid];
    let split = Split { name: "half".to_owned(), leaves, props: Vec::new() };
    assert_eq!(bench.spa.vdevs().split(split).unwrap_err().what(), "pool is busy");
    bench.spa.disks().detach(bench.leaf(4).guid).unwrap();
    assert!(bench.spa.background().left(WaitActivity::Remove).unwrap().unwrap() > 0);
    bench.spa.sync().unwrap();
    bench.judged();
    bench.finish();
    bench.judged();
    assert_eq!(bench.kind(1), Some(Kind::Indirect));
    bench.read(object, 1, BLOCKS);
}

#[test]
fn a_disk_is_removed_while_it_is_being_replaced() {
    let mut bench = Bench::disks();
    let object = bench.write(1, BLOCKS);
    let leaf = pools::leaf(&bench.dir.path().join("disk4"), 128 << 20);
    let (target, device) = (bench.leaf(2).guid, NewDevice::Fresh { leaf, ashift: None });
    let limits = &Arc::clone(&bench.spa.pool.env.memory).limits;
    limits.set(Limit::ScanSuspend, 1).unwrap();
    bench.spa.disks().attach(Attach { target, device, replacing: true, sequential: false }).unwrap();
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    assert!(
        bench.spa.disks().is_replacing()
            && bench.spa.background().left(WaitActivity::Remove).unwrap().unwrap() > 0
    );
    limits.set(Limit::RemovalSuspend, 1).unwrap();
    limits.set(Limit::ScanSuspend, 0).unwrap();
    bench.scanned();
    assert!(
        !bench.spa.disks().is_replacing()
            && bench.spa.background().left(WaitActivity::Remove).unwrap().unwrap() > 0
    );
    limits.set(Limit::RemovalSuspend, 0).unwrap();
    bench.finish();
    bench.judged();
    assert_eq!(bench.kind(1), Some(Kind::Indirect));
    bench.read(object, 1, BLOCKS);
}

/// A vdev that a removal closed before it was interrupted is used again: no property says that it is to be closed.
#[test]
fn a_removal_that_never_began_leaves_the_vdev_open() {
    let mut bench = Bench::disks();
    bench.judged();
    let (guid, zap) = {
        let tree = bench.spa.pool.tree();
        let config = tree.config.children.iter().find(|top| top.id == 1).unwrap();
        (config.guid, config.nvlist.u64("com.delphix:vdev_zap_top").unwrap())
    };
    let set = [("allocating".to_owned(), PropValue::Number(0))];
    bench.spa.sync_task(move |spa, tx| spa.disks().set_props(guid, &set, tx)).unwrap();
    bench.judged();
    let before = bench.allocated(1);
    bench.write(1, BLOCKS);
    assert!(bench.allocated(1) <= before, "the property closes it");
    bench.spa.sync_task(move |spa, tx| spa.datasets.at(tx, spa).zap_remove(zap, "allocating")).unwrap();
    bench.judged();
    bench.write(2, BLOCKS);
    assert!(bench.allocated(1) > before);
    bench.judged();
}

#[test]
fn log_devices_leave_a_hole_or_nothing() {
    let mut bench = Bench::new(|leaf| {
        vec![
            top(VdevSpec::Leaf(leaf(1)), AllocBias::Normal),
            top(VdevSpec::Mirror(vec![leaf(2), leaf(3)]), AllocBias::Log),
            top(VdevSpec::Leaf(leaf(4)), AllocBias::Normal),
            top(VdevSpec::Leaf(leaf(5)), AllocBias::Log),
        ]
    });
    let object = bench.write(1, 50);
    for (id, left) in [(1, Some(Kind::Hole)), (3, None)] {
        bench.spa.removal().remove(bench.guid(id)).unwrap();
        assert_eq!(bench.kind(id), left);
        bench.judged();
    }
    bench.read(object, 1, 50);
}

/// A small disk of the normal class, and larger special ones, which have blocks.
fn with_special() -> (Bench, u64) {
    let sizes = [192, 512, 384];
    let bench = Bench::of(|dir| {
        let leaf = |n: usize| VdevSpec::Leaf(pools::leaf(&dir.join(format!("disk{n}")), sizes[n] << 20));
        let special = AllocBias::Special;
        vec![top(leaf(0), AllocBias::Normal), top(leaf(1), special), top(leaf(2), special)]
    });
    let name = format!("{POOL}/data");
    let small = ("special_small_blocks", Some(PropValue::Number(64 << 10)));
    bench.spa.dsl_task(move |t| t.set(&name, std::slice::from_ref(&small), SettingSource::Local)).unwrap();
    let object = bench.write(1, BLOCKS);
    (bench, object)
}

impl Bench {
    fn allocated(&self, vdev: u64) -> u64 {
        self.spa.space.vdev_stats(vdev).unwrap().allocated
    }
}

#[test]
fn a_large_special_vdev_is_removed_into_its_class() {
    let (mut bench, object) = with_special();
    bench.judged();
    let (normal, moved) = (bench.allocated(0), bench.allocated(1));
    assert!(moved > 0);
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    bench.finish();
    assert_eq!(bench.kind(1), Some(Kind::Indirect));
    // The normal class gets some metadata of the removal's own at most.
    assert!(bench.allocated(0) < normal + (1 << 20), "{} {normal} {moved}", bench.allocated(0));
    bench.judged();
    // The last one of the class is removed to the normal class.
    bench.spa.removal().remove(bench.guid(2)).unwrap();
    bench.finish();
    bench.judged();
    bench.read(object, 1, BLOCKS);
    bench.free(object);
    bench.judged();
}

#[test]
fn a_raidz_is_refused_and_nothing_changes() {
    let mut bench = Bench::new(|leaf| {
        let raidz = VdevSpec::Raidz { parity: 1, children: (1..=3).map(leaf).collect() };
        vec![top(raidz, AllocBias::Normal), top(VdevSpec::Leaf(leaf(4)), AllocBias::Normal)]
    });
    let refused = bench.spa.removal().remove(bench.guid(1)).unwrap_err();
    let words = "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
    assert_eq!(refused.what(), words);
    bench.judged();
}

#[test]
fn a_mapping_is_condensed_when_much_of_it_is_obsolete() {
    let mut bench = Bench::disks();
    let objects: Vec<u64> = (0..40).map(|seed| bench.write(seed, 10)).collect();
    // Holes between the remaining blocks, so that the mapping has many entries.
    objects.iter().skip(1).step_by(4).for_each(|object| bench.free(*object));
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    bench.finish();
    let entries = |bench: &Bench| bench.spa.pool.tree().top(1).unwrap().mapping().unwrap().entries().len();
    let before = entries(&bench);
    let limits = &Arc::clone(&bench.spa.pool.env.memory).limits;
    limits.set(Limit::CondenseMinMapping, 1).unwrap();
    limits.set(Limit::CondenseDelay, 3_600_000).unwrap();
    for object in objects.iter().step_by(2) {
        bench.free(*object);
    }
    for _ in 0..10 {
        bench.spa.sync().unwrap();
    }
    assert_eq!(entries(&bench), before, "the setting delays it");
    // Half condensed, it is exported, and goes on after the import.
    bench.judged();
    assert_eq!(entries(&bench), before);
    limits.set(Limit::CondenseDelay, 0).unwrap();
    bench.spa.pool.env.memory.limits.set(Limit::CondenseDelay, 0).unwrap();
    for _ in 0..10 {
        bench.spa.sync().unwrap();
    }
    bench.judged();
    assert!(entries(&bench) < before, "{before} entries, {} now", entries(&bench));
    for (seed, object) in objects.iter().enumerate().skip(3).step_by(4) {
        bench.read(*object, seed as u64, 10);
    }
    bench.judged();
}

/// A block on a removed vdev is written anew when its content is written again, although `nopwrite` could keep it.
#[test]
fn equal_content_leaves_a_removed_vdev() {
    let mut bench = Bench::disks();
    let name = format!("{POOL}/data");
    let props = [
        ("checksum", Some(PropValue::Number(u64::from(ondisk::ChecksumType::Sha256.raw())))),
        ("compression", Some(PropValue::Number(u64::from(ondisk::CompressType::Lz4.raw())))),
    ];
    bench.spa.dsl_task(move |t| t.set(&name, &props, SettingSource::Local)).unwrap();
    bench.judged();
    let object = bench.write(1, BLOCKS);
    bench.spa.removal().remove(bench.guid(1)).unwrap();
    bench.finish();
    let on_removed = |bench: &Bench| {
        let view = bench.spa.datasets.open(&*bench.spa, bench.dataset).unwrap().objset.view();
        let vdev = |block| {
            engine::spa::errlog::block_at(&view, object, 0, block)
                .unwrap()
                .unwrap()
                .dvas()
                .next()
                .unwrap()
                .vdev
        };
        (0..BLOCKS as u64).filter(|block| vdev(*block) == 1).count()
    };
    assert!(on_removed(&bench) > 0);
    let data = bench.spa.datasets.open(&*bench.spa, bench.dataset).unwrap();
    let tx = bench.spa.begin().unwrap();
    let handle = data.objset.handle(object).unwrap();
    (0..BLOCKS).for_each(|number| handle.write(&tx, (number * BLOCK) as u64, &body(1, number)).unwrap());
    drop((tx, handle, data));
    bench.spa.sync().unwrap();
    assert_eq!(on_removed(&bench), 0);
    bench.read(object, 1, BLOCKS);
    bench.judged();
}

#[test]
fn the_kernels_removal_is_carried_to_its_end() {
    let Some(golden) = golden::get("removal-cut") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_at(dir.path(), golden.pool_name(), Default::default()).unwrap();
    for _ in 0..100 {
        spa.sync().unwrap();
    }
    assert_eq!(spa.background().left(WaitActivity::Remove).unwrap(), None);
    spa.export().unwrap();
    drop(spa);
    for judge in [Judge::USUAL, Judge::NEWEST].into_iter().filter(|judge| judge.installed()) {
        judge.verify(dir.path(), golden.pool_name()).unwrap();
    }
    let (name, covers) = golden.manifests().into_iter().find(|(name, _)| name == "live").unwrap();
    let env = Env::system(64 << 20).unwrap();
    let pool = open_pool(&env, &[dir.path().to_owned()], golden.pool_name(), Default::default()).unwrap();
    let tree = Tree::read(&pool, &covers).unwrap();
    let wrong = tree.differences(&name, &golden.manifest(&name).unwrap(), &|_, _, _| ());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
