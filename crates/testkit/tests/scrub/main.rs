//! Scrub and resilver: repairs, reports, continuation after an export, and scans while datasets change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

mod changes;
mod error_log;
mod pacing;
mod sorted;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::Kind;
use engine::dmu::NewObject;
use engine::dmu::dirty::SameBytes;
use engine::dsl::write::{MosView, scan_state};
use engine::env::Env;
use engine::memory::Limit;
use engine::spa::errlog;
use engine::spa::layout::{TopSpec, VdevSpec};
use engine::spa::scrub::{self, ScanCommand};
use engine::spa::{ActivityCommand, Spa, WaitActivity};
use engine::vdev::config::AllocBias;
use ondisk::pool::{DslErrorscrub, DslScan};
use ondisk::time_log::TimeLog;
use ondisk::{ObjectType, ObjsetType};
use stdx::rng::Rng;
use testkit::pattern::Pattern;
use testkit::zdb::Judge;
use testkit::{pools, zdb};
use zcommon::features::Feature;

const POOL: &str = "scanned";
/// More blocks than a slice reads where no thread measures time.
const BLOCKS: usize = 700;
const BLOCK: usize = 8 << 10;
const FILE: Pattern = Pattern { blocks: BLOCKS, block: BLOCK };

struct Bench {
    dir: tempfile::TempDir,
    spa: Arc<Spa>,
    file: (u64, u64),
}

impl Bench {
    fn new(count: usize, make: impl Fn(Vec<engine::spa::layout::LeafSpec>) -> VdevSpec) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leaf = |number: usize| pools::leaf(&dir.path().join(format!("disk{number}")), 96 << 20);
        let leaves = (1..=count).map(leaf).collect();
        let env = Env::system(0).unwrap();
        let tops = vec![TopSpec { vdev: make(leaves), class: AllocBias::Normal, ashift: None }];
        let spa = pools::create_pool(&env, POOL, tops, &|_, _| Ok(())).unwrap();
        let file = FILE.create(&spa, &format!("{POOL}/data"));
        Self { dir, spa, file }
    }

    /// A new object of many blocks.
    fn fill(&self) -> u64 {
        FILE.add(&self.spa, self.file.0)
    }

    /// Writes the blocks of the file again, as `zfs rewrite -P` does.
    fn move_blocks(&self) {
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let handle = data.objset.handle(self.file.1).unwrap();
        let tx = self.spa.begin().unwrap();
        let how = SameBytes { keeps_birth: true, ..SameBytes::default() };
        (0..BLOCKS).for_each(|number| {
            handle.move_block(&tx, number as u64, FILE.bytes(number).as_slice().into(), how).unwrap();
        });
        drop(tx);
        self.spa.sync().unwrap();
        let moved = handle.synced().blkptr(0, 5).unwrap().unwrap();
        assert!(moved.is_rewritten() && moved.logical_birth() < moved.physical_birth(), "{moved}");
    }

    /// Writes the blocks of the file again, all of them new.
    fn rewrite(&self) {
        FILE.write(&self.spa, self.file, |_| true);
    }

    /// The scan as it is in memory while it is under way, else as it ended.
    fn scan(&self) -> DslScan {
        self.spa.scans().progress().unwrap().map_or_else(|| self.saved(), |now| now.scan)
    }

    /// The scan on disk.
    fn saved(&self) -> DslScan {
        scan_state::load(&MosView { mos: &self.spa.mos }).unwrap().unwrap()
    }

    fn finish(&self) -> DslScan {
        for _ in 0..1000 {
            if !self.spa.scans().is_scanning() {
                return self.scan();
            }
            self.spa.sync().unwrap();
        }
        panic!("the scan does not end: {:?}", self.scan());
    }

    fn scrub(&self) -> DslScan {
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        self.finish()
    }

    /// Writes garbage over these mebibytes of a disk; labels stand before and after.
    fn spoil(&self, disk: usize, range: std::ops::Range<u64>) {
        let device = pools::open(&self.dir.path().join(format!("disk{disk}")));
        let bad = vec![0x5a; 1 << 20];
        range.for_each(|at| blkdev::write_at(&*device, at << 20, &bad).unwrap());
        self.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    }

    fn read(&self) -> bool {
        FILE.is_in(&self.spa, self.file)
    }

    fn guid(&self, disk: usize) -> u64 {
        let path = self.dir.path().join(format!("disk{disk}"));
        let path = path.to_str().unwrap();
        let tree = self.spa.pool.tree();
        tree.config.walk().into_iter().find(|v| v.path.as_deref() == Some(path)).unwrap().guid
    }

    /// A disk that was taken offline is online again.
    fn bring_back(&self, disk: usize) {
        let device = pools::open(&self.dir.path().join(format!("disk{disk}")));
        self.spa.disks().online(self.guid(disk), Some(Ok(device)), false).unwrap();
    }

    /// Bytes that the last scan has written to a disk, and those written over what should have been good.
    fn repairs(&self, disk: usize) -> [u64; 2] {
        let tree = self.spa.pool.tree();
        let leaf = tree.leaf(self.guid(disk)).unwrap();
        [&leaf.scan_processed, &leaf.self_healed].map(|count| count.load(Ordering::Relaxed))
    }

    fn reimport(&mut self) {
        self.spa.export().unwrap();
        self.spa = pools::import_dir(self.dir.path(), POOL).unwrap();
    }

    fn export(self) {
        self.spa.export().unwrap();
        let Self { dir, spa, .. } = self;
        drop(spa);
        check(dir.path());
    }
}

fn check(dir: &Path) {
    if zdb::installed() {
        zdb::verify(dir, POOL).unwrap();
    }
}

fn raidz(parity: u32) -> impl Fn(Vec<engine::spa::layout::LeafSpec>) -> VdevSpec {
    move |children| VdevSpec::Raidz { parity, children }
}

#[test]
fn a_scrub_repairs_what_redundancy_covers() {
    for bench in [Bench::new(2, VdevSpec::Mirror), Bench::new(3, raidz(1)), Bench::new(4, raidz(2))] {
        let clean = bench.scrub();
        assert_eq!((clean.state, clean.processed, clean.errors), (2, 0, 0));
        assert!(clean.examined > (BLOCKS * BLOCK) as u64, "{clean:?}");
        bench.spoil(2, 4..80);
        let repaired = bench.scrub();
        assert!(repaired.processed > 0 && repaired.errors == 0, "{repaired:?}");
        let [scanned, healed] = bench.repairs(2);
        // Some blocks were repaired by other reads meanwhile.
        assert!(0 < scanned && scanned <= repaired.processed && scanned <= healed, "{repaired:?}");
        assert_eq!(bench.repairs(1), [0, 0]);
        let again = bench.scrub();
        assert_eq!((again.processed, again.errors), (0, 0), "the parity is repaired, too");
        assert_eq!(bench.repairs(2), [0, healed], "of the last scan, and of all");
        bench.spoil(1, 4..80);
        assert!(bench.read());
        bench.scrub();
        bench.export();
    }
}

/// Lost blocks are in the log of errors, by object, until a scrub no longer finds them.
#[test]
fn lost_blocks_are_logged_until_they_are_gone() {
    let bench = Bench::new(1, |mut leaves| VdevSpec::Leaf(leaves.remove(0)));
    let object = bench.fill();
    // Metadata has copies elsewhere.
    bench.spoil(1, 11..12);
    let scan = bench.scrub();
    assert!(scan.errors > 0, "{scan:?}");
    bench.spa.sync().unwrap();
    let logged = errlog::errors(&bench.spa.view().unwrap(), &mut Vec::new());
    assert!(logged.iter().any(|error| (error.objset, error.object) == (bench.file.0, object)), "{logged:?}");
    bench.spa.dsl_task(|t| t.destroy(&format!("{POOL}/data"), false)).unwrap();
    (0..4).for_each(|_| bench.spa.sync().unwrap());
    assert_eq!(bench.scrub().errors, 0);
    assert_eq!(errlog::errors(&bench.spa.view().unwrap(), &mut Vec::new()), []);
    bench.export();
}

/// A scan continues after an export where it stopped, and visits the same blocks as an uninterrupted one.
#[test]
fn a_scrub_goes_on_after_an_export() {
    let mut bench = Bench::new(3, raidz(1));
    bench.fill();
    let whole = bench.scrub();
    // The position is saved as soon as blocks are gathered.
    bench.spa.pool.env.memory.limits.set(Limit::ScanCheckpoint, 0).unwrap();
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    while bench.saved().bookmark.objset == 0 {
        bench.spa.sync().unwrap();
    }
    let started = bench.scan();
    assert_eq!(started.state, scan_state::SCANNING, "{started:?}");
    bench.reimport();
    let cut = bench.scan();
    assert!(cut.state == scan_state::SCANNING && cut.bookmark.objset != 0, "{cut:?}");
    assert!(bench.spa.scans().is_scanning() && cut.examined < whole.examined);
    let end = bench.finish();
    let difference = end.examined.abs_diff(whole.examined);
    assert!(end.state == 2 && difference < whole.examined / 10, "{end:?} instead of {whole:?}");
    bench.export();
}

#[test]
fn a_scrub_is_paused_resumed_and_stopped() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    bench.fill();
    bench.fill();
    let missing = bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap_err();
    assert_eq!((missing.kind(), missing.what()), (Kind::NotFound, "there is no active scrub"));
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    assert_eq!(bench.spa.scans().start(ScanCommand::Scrub).unwrap_err().kind(), Kind::Busy);
    // No leaf lacks anything: there is nothing for which the scrub would end.
    bench.spa.scans().start(ScanCommand::Resilver).unwrap();
    bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap();
    assert_eq!(
        bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap_err().kind(),
        Kind::Busy
    );
    bench.reimport();
    let paused = bench.scan();
    bench.spa.sync().unwrap();
    assert_eq!((bench.scan(), bench.spa.scans().is_scanning()), (paused, false), "nothing goes on");
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    assert!(bench.scan().examined > paused.examined);
    bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Cancel).unwrap();
    assert_eq!((bench.scan().state, bench.scan().queue_obj), (3, 0));
    assert_eq!(
        bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Cancel).unwrap_err().kind(),
        Kind::NotFound
    );
    bench.export();
}

#[test]
fn a_setting_stops_the_progress_of_scans() {
    let bench = Bench::new(2, VdevSpec::Mirror);
    let limits = &bench.spa.pool.env.memory.limits;
    limits.set(Limit::ScanSuspend, 1).unwrap();
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    for _ in 0..3 {
        bench.spa.sync().unwrap();
    }
    assert_eq!((bench.scan().examined, bench.spa.scans().is_scanning()), (0, true));
    limits.set(Limit::ScanSuspend, 0).unwrap();
    assert_eq!(bench.finish().state, 2);
    bench.export();
}

/// Blocks that moved while the disk was away are as old as a snapshot for sends, and young for the resilver.
#[test]
fn a_resilver_brings_what_moved_meanwhile() {
    for bench in [Bench::new(2, VdevSpec::Mirror), Bench::new(3, raidz(1))] {
        bench.spa.props().enable_features(vec![Feature::PhysicalRewrite]).unwrap();
        bench.spa.dsl_task(|tasks| tasks.snapshot(&["scanned/data@before"], &[])).unwrap();
        (0..3).for_each(|_| bench.spa.sync().unwrap());
        let guid = bench.guid(1);
        bench.spa.disks().offline(guid, false).unwrap();
        bench.move_blocks();
        bench.spa.dsl_task(|tasks| tasks.snapshot(&["scanned/data@after"], &[])).unwrap();
        bench.bring_back(1);
        bench.spa.sync().unwrap();
        let end = bench.finish();
        assert_eq!((end.func, end.state, end.errors), (2, 2, 0));
        assert!(end.processed > 0, "{end:?}");
        bench.spoil(2, 4..80);
        assert!(bench.read(), "the disk that was away has what it missed");
        let end = bench.scrub();
        assert_eq!((end.state, end.errors), (2, 0));
        // Only the disk's own copies are left to read.
        bench.spoil(1, 4..80);
        assert!(bench.read(), "the scrub repaired both snapshots' blocks");
        bench.scrub();
        let Bench { dir, spa, .. } = bench;
        spa.export().unwrap();
        drop(spa);
        if Judge::NEWEST.installed() {
            Judge::NEWEST.verify(dir.path(), POOL).unwrap();
        }
    }
}

/// A disk that goes away again while it is resilvered, and comes back before the end, gets another resilver.
#[test]
fn a_disk_that_goes_away_while_it_is_resilvered_lacks_nothing_in_the_end() {
    let bench = Bench::new(2, VdevSpec::Mirror);
    let guid = bench.guid(1);
    let device = || Some(Ok(pools::open(&bench.dir.path().join("disk1"))));
    bench.spa.disks().offline(guid, false).unwrap();
    (0..3).for_each(|_| assert!(bench.fill() > 0));
    bench.spa.disks().online(guid, device(), false).unwrap();
    assert!(bench.spa.scans().is_scanning());
    bench.spa.disks().offline(guid, false).unwrap();
    bench.spa.disks().online(guid, device(), false).unwrap();
    assert!(bench.spa.scans().is_scanning(), "the first resilver goes on");
    (0..40).for_each(|_| bench.spa.sync().unwrap());
    let leaf = Arc::clone(bench.spa.pool.tree().leaf(guid).unwrap());
    assert!(!bench.spa.scans().is_scanning() && leaf.dtl.read().is_empty(), "{:?}", leaf.dtl.read());
    bench.export();
}

/// `zpool online` and `zpool reopen` begin the resilver anew that was canceled; time alone does not.
#[test]
fn a_canceled_resilver_begins_anew_when_the_devices_are_opened_again() {
    let bench = Bench::new(2, VdevSpec::Mirror);
    let guid = bench.guid(1);
    bench.spa.disks().offline(guid, false).unwrap();
    bench.fill();
    bench.bring_back(1);
    let cancel = || {
        assert!(bench.spa.scans().is_scanning(), "{:?}", bench.scan());
        bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Cancel).unwrap();
        (0..5).for_each(|_| bench.spa.sync().unwrap());
        assert!(!bench.spa.scans().is_scanning());
    };
    cancel();
    bench.spa.disks().online(guid, None, false).unwrap();
    bench.spa.sync().unwrap();
    cancel();
    bench.spa.disks().reopen(Vec::new()).unwrap();
    bench.spa.sync().unwrap();
    let end = bench.finish();
    assert_eq!((end.func, end.state, end.errors), (2, 2, 0));
    assert!(bench.spa.pool.tree().leaf(guid).unwrap().dtl.read().is_empty());
    assert_eq!(bench.repairs(1), [end.processed, 0], "a resilver heals nothing that should have been there");
    bench.export();
}

/// A disk that comes back in the middle of a scan is not whole at its end, however long ago it missed something.
#[test]
fn a_disk_that_comes_back_during_a_scrub_gets_a_resilver() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    let guid = bench.guid(1);
    bench.spa.disks().offline(guid, false).unwrap();
    bench.file.1 = bench.fill();
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    let leaf = Arc::clone(bench.spa.pool.tree().leaf(guid).unwrap());
    while bench.scan().examined * 2 < bench.scan().to_examine {
        bench.spa.sync().unwrap();
    }
    let scan = bench.scan();
    assert_eq!((scan.func, scan.state), (1, 1));
    // As if no write had met the disk since.
    leaf.has_again(scan.max_txg, u64::MAX, &BTreeSet::new());
    assert!(!leaf.dtl.read().is_empty());
    bench.bring_back(1);
    while bench.scan().func == 1 {
        assert!(!leaf.dtl.read().is_empty(), "{:?}", bench.scan());
        bench.spa.sync().unwrap();
    }
    assert_eq!(bench.finish().func, 2);
    // The blocks of the file alone: the DTL was told that the disk lacks nothing of the pool's metadata since the scan began.
    bench.spoil_file(2);
    assert!(bench.read(), "the disk that was away has what it missed");
    bench.scrub();
    bench.export();
}

impl Bench {
    /// Writes garbage over the file's blocks on a disk of a mirror.
    fn spoil_file(&self, disk: usize) {
        const LABELS: u64 = 4 << 20;
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let view = data.objset.view();
        let device = pools::open(&self.dir.path().join(format!("disk{disk}")));
        for number in 0..BLOCKS as u64 {
            let bp = errlog::block_at(&view, self.file.1, 0, number).unwrap().unwrap();
            let at = bp.dvas().next().unwrap().offset + LABELS;
            blkdev::write_at(&*device, at, &[0x5a; BLOCK]).unwrap();
        }
        self.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    }

    fn disk_bytes(&self, disk: usize, mib: u64) -> Vec<u8> {
        let device = pools::open(&self.dir.path().join(format!("disk{disk}")));
        blkdev::read_at(&*device, mib << 20, 1 << 20).unwrap().to_vec()
    }

    fn restore(&self, disk: usize, mib: u64, bytes: &[u8]) {
        let device = pools::open(&self.dir.path().join(format!("disk{disk}")));
        blkdev::write_at(&*device, mib << 20, bytes).unwrap();
        self.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    }

    fn error_scrub(&self) -> DslErrorscrub {
        scrub::errors::load(&MosView { mos: &self.spa.mos }).unwrap().unwrap()
    }

    fn finish_error_scrub(&self) -> DslErrorscrub {
        for _ in 0..1000 {
            if !self.spa.error_log().is_scrubbing() {
                return self.error_scrub();
            }
            self.spa.sync().unwrap();
        }
        panic!("the scrub of the error log does not end: {:?}", self.error_scrub());
    }

    fn logged(&self) -> Vec<errlog::LoggedError> {
        errlog::errors(&self.spa.view().unwrap(), &mut Vec::new())
    }
}

/// Which txg was written when: noted, written, and used for a scrub of the blocks between two times.
#[test]
fn a_scrub_between_two_times_reads_the_blocks_written_then() {
    let mut bench = Bench::new(1, |mut leaves| VdevSpec::Leaf(leaves.remove(0)));
    let everything = bench.scrub().examined;
    let now = bench.spa.pool.env.now();
    bench.reimport();
    for name in ["minutes", "days", "months"] {
        let value = MosView { mos: &bench.spa.mos };
        let words =
            value.zap_get(1, format!("com.klarasystems:txg_log_time:{name}").as_str()).unwrap().unwrap().ints;
        assert_eq!(words.len(), 515);
    }
    bench.spa.scans().start(ScanCommand::ScrubBetween(now + 1000, 0)).unwrap();
    let late = bench.finish();
    assert!(late.min_txg > 0 && late.examined < everything / 2, "{late:?}, {everything}");
    bench.spa.scans().start(ScanCommand::ScrubBetween(1, now + 1000)).unwrap();
    let all = bench.finish();
    assert!(all.min_txg == 0 && all.examined >= everything, "{all:?}, {everything}");
    bench.export();
}

/// A scrub up to a date may leave out blocks that were written later: a disk that lacks some is not whole at its end.
#[test]
fn a_scrub_up_to_a_date_does_not_make_a_disk_whole() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    bench.reimport();
    let newest = bench.spa.uberblock().txg;
    bench
        .spa
        .sync_task(move |spa, tx| {
            let (mut log, at) = (TimeLog::default(), spa.datasets.at(tx, spa));
            [(1_000_000_000, 4), (1_000_000_010, newest)]
                .into_iter()
                .for_each(|(time, txg)| log.add(time, txg));
            let rings = [("minutes", &log.minutes), ("days", &log.days), ("months", &log.months)];
            rings.into_iter().try_for_each(|(name, ring)| {
                let name = format!("com.klarasystems:txg_log_time:{name}");
                at.zap_set(1, name.as_str(), engine::zap::Value::from(ring.to_words()))
            })
        })
        .unwrap();
    bench.reimport();
    let leaf = Arc::clone(bench.spa.pool.tree().leaf(bench.guid(1)).unwrap());
    bench.spa.scans().start(ScanCommand::ScrubBetween(1, 1_000_000_005)).unwrap();
    leaf.miss(5);
    let scan = bench.finish();
    assert_eq!((scan.func, scan.state, scan.max_txg), (1, 2, newest));
    assert!(leaf.dtl.read().contains(5));
    bench.spa.sync().unwrap();
    assert_eq!(bench.finish().func, 2);
    assert!(leaf.dtl.read().is_empty());
    bench.export();
}
