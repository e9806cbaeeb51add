//! `zpool initialize` and `zpool trim`: all free space is covered, nothing else is touched, and interrupted
//! work continues.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use blkdev::{Device, Event, MemDevice, RecordingDevice};
use engine::dsl::props::PropValue;
use engine::dsl::write::space_throttle::SpaceSource;
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::Spa;
use engine::spa::layout::{LeafSpec, TopSpec, VdevSpec};
use engine::spa::sweep::{SweepCommand, SweepKind, SweepRefusal, TrimOptions};
use engine::vdev::config::AllocBias;
use engine::vdev::plan::DATA_START;

use testkit::pattern::{File, Pattern};
use testkit::zdb::Judge;
use testkit::{golden, pools};

const POOL: &str = "swept";
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 600;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };
const WORD: [u8; 8] = 0xdead_beef_dead_beee_u64.to_le_bytes();

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    file: (u64, u64),
    disks: usize,
}

impl Bench {
    fn new(disks: usize, make: impl Fn(Vec<LeafSpec>) -> VdevSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leaf = |number: usize| pools::leaf(&dir.path().join(format!("disk{number}")), 96 << 20);
        let leaves = (0..disks).map(leaf).collect();
        let tops = vec![TopSpec { vdev: make(leaves), class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
        let file = FILE.create(&spa, &format!("{POOL}/data"));
        let bench = Self { dir, spa, file, disks };
        bench.leave_holes(file);
        bench
    }

    /// A new object beside the file.
    fn fill(&self) -> u64 {
        let object = FILE.add(&self.spa, self.file.0);
        self.leave_holes((self.file.0, object));
        object
    }

    /// Writes every other block again, so that space is free between them.
    fn leave_holes(&self, file: File) {
        FILE.write(&self.spa, file, |number| number % 2 == 0);
        (0..3).for_each(|_| self.spa.sync().unwrap());
    }

    fn leaves(&self) -> Vec<u64> {
        let tree = self.spa.pool.tree();
        tree.leaves().filter(|leaf| leaf.device().is_some()).map(|leaf| leaf.guid).collect()
    }

    fn order(&self, kind: SweepKind, command: SweepCommand) {
        let refused =
            self.spa.free_space().sweep(kind, command, TrimOptions::default(), &self.leaves()).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
    }

    fn finish(&self, kind: SweepKind) {
        while self.spa.background().run_steps() {}
        assert_eq!(self.spa.free_space().left(kind, &[]), None);
    }

    fn disk(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("disk{number}"))
    }

    /// Free space on all leaves: total bytes, and bytes with the pattern.
    fn initialized(&self) -> (u64, u64) {
        let tree = self.spa.pool.tree();
        let (mut all, mut filled) = (0, 0);
        for top in tree.tops() {
            for leaf in top.leaves() {
                let Some(child) = top.child_of(leaf.guid) else { continue };
                let device = std::fs::File::open(&leaf.path).unwrap();
                for (start, end) in self.spa.space.allocatable(top.id).iter() {
                    for (from, to) in top.physical(child, start, end) {
                        let mut bytes = vec![0; (to - from) as usize];
                        device.read_exact_at(&mut bytes, from + DATA_START).unwrap();
                        all += to - from;
                        filled += 8 * bytes.chunks(8).filter(|word| **word == WORD).count() as u64;
                    }
                }
            }
        }
        (all, filled)
    }

    fn read(&self) -> bool {
        FILE.is_in(&self.spa, self.file)
    }

    fn again(self) -> Self {
        self.spa.export().unwrap();
        let Self { dir, spa, file, disks } = self;
        drop(spa);
        for zdb in [Judge::USUAL, Judge::NEWEST] {
            if zdb.installed() {
                zdb.verify(dir.path(), POOL).unwrap();
            }
        }
        let spa = pools::import_dir(dir.path(), POOL).unwrap();
        Self { dir, spa, file, disks }
    }
}

fn mirror(leaves: Vec<LeafSpec>) -> VdevSpec {
    VdevSpec::Mirror(leaves)
}

fn raidz(leaves: Vec<LeafSpec>) -> VdevSpec {
    VdevSpec::Raidz { parity: 1, children: leaves }
}

fn initialized_whole(disks: usize, make: impl Fn(Vec<LeafSpec>) -> VdevSpec) {
    let bench = Bench::new(disks, make);
    bench.order(SweepKind::Initialize, SweepCommand::Start);
    bench.finish(SweepKind::Initialize);
    let (all, filled) = bench.initialized();
    // Space freed meanwhile is not covered.
    assert!(all > 32 << 20 && filled >= all / 100 * 98, "{filled} of {all}");
    assert!(bench.read());
    let bench = bench.again();
    assert!(bench.read());
    bench.order(SweepKind::Initialize, SweepCommand::Start);
    bench.order(SweepKind::Initialize, SweepCommand::Cancel);
    bench.order(SweepKind::Initialize, SweepCommand::Uninit);
    bench.spa.export().unwrap();
}

#[test]
fn the_free_space_of_a_mirror_is_filled() {
    initialized_whole(2, mirror);
}

#[test]
fn the_free_space_of_a_raidz_is_filled() {
    initialized_whole(4, raidz);
}

#[test]
fn the_free_space_of_a_draid_is_filled() {
    initialized_whole(6, |children| VdevSpec::Draid { config: "draid1:2d:6c:1s".parse().unwrap(), children });
}

#[test]
fn a_suspended_sweep_goes_on_after_an_import() {
    let bench = Bench::new(2, mirror);
    let kind = SweepKind::Initialize;
    bench.order(kind, SweepCommand::Start);
    let busy = bench
        .spa
        .free_space()
        .sweep(kind, SweepCommand::Start, TrimOptions::default(), &bench.leaves())
        .unwrap();
    assert!(busy.values().all(|why| *why == SweepRefusal::Busy) && busy.len() == 2);
    assert!(bench.spa.background().run_steps());
    let whole = bench.spa.free_space().left(kind, &[]).unwrap();
    bench.order(kind, SweepCommand::Suspend);
    assert_eq!(bench.spa.free_space().left(kind, &[]), None);
    let bench = bench.again();
    assert!(!bench.spa.background().run_steps(), "it waits for a command");
    let (all, filled) = bench.initialized();
    assert!(filled > 1 << 20 && filled < all / 2, "{filled} of {all}");
    bench.order(kind, SweepCommand::Start);
    assert!(bench.spa.free_space().left(kind, &[]).unwrap() <= whole, "it goes on where it was");
    // This one is interrupted by a crash, and continues by itself.
    bench.spa.background().run_steps();
    bench.spa.sync().unwrap();
    let Bench { dir, spa, file, disks } = bench;
    drop(spa);
    let spa = pools::import_dir(dir.path(), POOL).unwrap();
    let bench = Bench { dir, spa, file, disks };
    bench.finish(kind);
    let (all, filled) = bench.initialized();
    assert!(filled >= all / 100 * 98 && bench.read(), "{filled} of {all}");
    drop(bench.again());
}

#[test]
fn a_sweep_ends_with_its_leaf_and_is_no_reason_to_wait_for_space() {
    let bench = Bench::new(2, mirror);
    bench.order(SweepKind::Initialize, SweepCommand::Start);
    assert!(bench.spa.background().run_steps());
    assert!(!SpaceSource::is_freeing(&*bench.spa), "what has no room fails at once");
    let guid = bench.leaves()[1];
    bench.spa.disks().detach(guid).unwrap();
    bench.finish(SweepKind::Initialize);
    assert!(bench.read());
    bench.spa.export().unwrap();
}

/// The leaf that is left takes the guid of its mirror: its sweep follows it. That of the other leaf is forgotten.
#[test]
fn a_sweep_goes_on_when_its_leaf_becomes_a_vdev_of_its_own() {
    let bench = Bench::new(2, mirror);
    let kind = SweepKind::Initialize;
    bench.spa.pool.env.memory.set(Limit::InitializeChunk, 64 << 10).unwrap();
    bench.order(kind, SweepCommand::Start);
    bench.spa.background().run_steps();
    let (leaves, left) = (bench.leaves(), bench.spa.free_space().left(kind, &[]).unwrap());
    bench.spa.disks().detach(leaves[1]).unwrap();
    let guid = bench.leaves()[0];
    assert!(guid != leaves[0] && bench.spa.free_space().left(kind, &[guid]).is_some_and(|rest| rest <= left));
    assert!(leaves.iter().all(|old| bench.spa.free_space().progress(kind, *old).is_none()));
    bench.finish(kind);
    let (all, filled) = bench.initialized();
    // Space that the detach freed behind the sweep is not met.
    assert!(filled + (1 << 20) > all, "{filled} of {all}");
    let bench = bench.again();
    let again =
        bench.spa.free_space().sweep(kind, SweepCommand::Suspend, TrimOptions::default(), &[guid]).unwrap();
    assert_eq!(again.get(&guid), Some(&SweepRefusal::NotActive), "its end is on disk");
    assert!(bench.read());
}

#[test]
fn trimmed_space_takes_none_of_the_file_below() {
    for (disks, make) in [(2, mirror as fn(Vec<LeafSpec>) -> VdevSpec), (4, raidz)] {
        let bench = Bench::new(disks, make);
        bench.order(SweepKind::Initialize, SweepCommand::Start);
        bench.finish(SweepKind::Initialize);
        let blocks =
            |bench: &Bench| (0..bench.disks).map(|n| bench.disk(n).metadata().unwrap().blocks()).sum::<u64>();
        let before = blocks(&bench);
        bench.order(SweepKind::Trim, SweepCommand::Start);
        bench.finish(SweepKind::Trim);
        let after = blocks(&bench);
        assert!(after < before / 2, "{after} of {before} sectors of 512 bytes");
        assert!(bench.read());
        let bench = bench.again();
        assert!(bench.read());
    }
}

#[test]
fn a_secure_trim_is_refused_where_the_device_cannot_erase() {
    let dir = tempfile::tempdir().unwrap();
    let size: u32 = 96 << 20;
    let file = pools::leaf(&dir.path().join("file"), u64::from(size));
    let memory = Arc::new(RecordingDevice::new(Arc::new(MemDevice::new("memory", vec![0; size as usize]))));
    let able = LeafSpec { path: "/memory".into(), device: Arc::clone(&memory) as Device, ..file.clone() };
    let vdev = VdevSpec::Mirror(vec![file, able]);
    let tops = vec![TopSpec { vdev, class: AllocBias::Normal, ashift: None }];
    let spa = pools::create_pool(&Env::system(0).unwrap(), POOL, tops, &|_, _| Ok(())).unwrap();
    let tree = spa.pool.tree();
    let leaves: Vec<u64> = tree.leaves().map(|leaf| leaf.guid).collect();
    let unable = tree.leaves().find(|leaf| leaf.device().is_some_and(|device| !device.trim_support().erase));
    let unable = unable.unwrap().guid;
    memory.take();
    for secure in [true, false] {
        let options = TrimOptions { secure, ..TrimOptions::default() };
        let refused = spa.free_space().sweep(SweepKind::Trim, SweepCommand::Start, options, &leaves).unwrap();
        let expected = secure.then_some((unable, SweepRefusal::Unsupported));
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), Vec::from_iter(expected));
        while spa.background().run_steps() {}
        let events = memory.take();
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        let (trims, erases) =
            (count(|event| matches!(event, Event::Trim(_))), count(|event| matches!(event, Event::Erase(_))));
        assert_eq!((trims > 0, erases > 0), (!secure, secure));
    }
    spa.export().unwrap();
}

#[test]
fn with_autotrim_freed_space_is_trimmed_soon() {
    let bench = Bench::new(4, raidz);
    let set = |on| {
        let settings = [("autotrim".to_owned(), PropValue::Number(on))];
        bench.spa.sync_task(move |spa, tx| spa.props().set(&settings, tx)).unwrap();
    };
    bench.spa.pool.env.memory.set(Limit::TrimTxgBatch, 1).unwrap();
    bench.spa.pool.env.memory.set(Limit::TrimExtentMin, 4096).unwrap();
    set(1);
    let blocks =
        |bench: &Bench| (0..bench.disks).map(|n| bench.disk(n).metadata().unwrap().blocks()).sum::<u64>();
    let file = bench.fill();
    let full = blocks(&bench);
    let data = bench.spa.datasets.open(&*bench.spa, bench.file.0).unwrap();
    let tx = bench.spa.begin().unwrap();
    data.objset.handle(file).unwrap().free_blocks(&tx, 0, BLOCKS as u64).unwrap();
    drop(tx);
    (0..4).for_each(|_| bench.spa.sync().unwrap());
    assert!(bench.spa.background().run_steps(), "it goes on for as long as the property is on");
    let after = blocks(&bench);
    let freed = (BLOCKS * BLOCK / 512) as u64;
    assert!(after + freed / 10 * 8 < full, "{after} of {full} sectors of 512 bytes");
    set(0);
    assert!(!bench.spa.background().run_steps());
    assert!(bench.read());
    let bench = bench.again();
    assert!(bench.read());
}

#[test]
fn the_kernels_suspended_initialization_is_carried_to_its_end() {
    let Some(golden) = golden::get("init-suspended") else { return };
    let dir = tempfile::tempdir().unwrap();
    pools::copy(&golden.dir, dir.path());
    let spa = pools::import_dir(dir.path(), golden.pool_name()).unwrap();
    assert!(!spa.background().run_steps(), "it waits for a command");
    let leaves: Vec<u64> = spa.pool.tree().leaves().map(|leaf| leaf.guid).collect();
    let kind = SweepKind::Initialize;
    let suspended = |leaf: &u64| {
        let refused =
            spa.free_space().sweep(kind, SweepCommand::Cancel, TrimOptions::default(), &[*leaf]).unwrap();
        refused.is_empty()
    };
    // Only one has something to cancel; canceled, it can be started where it was.
    let found: Vec<u64> = leaves.iter().copied().filter(suspended).collect();
    assert_eq!(found.len(), 1);
    assert!(
        spa.free_space().sweep(kind, SweepCommand::Start, TrimOptions::default(), &found).unwrap().is_empty()
    );
    while spa.background().run_steps() {}
    spa.export().unwrap();
    drop(spa);
    for zdb in [Judge::USUAL, Judge::NEWEST] {
        if zdb.installed() {
            zdb.verify(dir.path(), golden.pool_name()).unwrap();
        }
    }
}
