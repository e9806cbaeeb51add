//! Blocks that a scan has gathered and not yet read: freed, paused, exported, and bounded in memory.

use ondisk::Dva;

use super::*;

/// `DSF_SCRUB_PAUSED`.
const PAUSED: u64 = 2;

impl Bench {
    /// Has the scrub gather everything, and read a little of it.
    fn gather(&self) {
        self.spa.scans().start(ScanCommand::Scrub).unwrap();
        let issued = || self.spa.scans().progress().unwrap().unwrap();
        let mut before = 0;
        while self.spa.pool.env.memory.gathered() == 0 || issued().scan.examined > before {
            before = issued().scan.examined;
            self.spa.sync().unwrap();
        }
        let now = issued();
        assert!(now.issued < now.scan.examined / 2, "most blocks wait: {now:?}");
        assert!(self.saved().examined < now.scan.examined / 2, "the position is saved when they are read");
    }

    /// Sectors of the file's blocks.
    fn places(&self) -> BTreeSet<u64> {
        let data = self.spa.datasets.open(&*self.spa, self.file.0).unwrap();
        let stored = data.objset.view().object(self.file.1).unwrap();
        let blocks = (0..BLOCKS as u64).map(|block| stored.blkptr(0, block).unwrap().unwrap());
        let sectors = |dva: Dva| (0..dva.asize / 512).map(move |i| dva.offset / 512 + i);
        blocks.flat_map(|bp| bp.dvas().flat_map(sectors).collect::<Vec<_>>()).collect()
    }
}

/// Blocks that are freed after they were gathered are not read: their places have other bytes then.
#[test]
fn places_that_are_used_again_are_not_taken_for_damage() {
    let bench = Bench::new(1, |mut leaves| VdevSpec::Leaf(leaves.remove(0)));
    (0..9).for_each(|_| assert!(bench.fill() > 0));
    bench.gather();
    let limits = &bench.spa.pool.env.memory.limits;
    limits.set(Limit::ScanSuspend, 1).unwrap();
    let old = bench.places();
    let mut again = 0;
    for round in 0..20 {
        bench.rewrite();
        bench.spa.sync().unwrap();
        again += bench.places().intersection(&old).count();
        assert!(round < 19 || again > 0, "no place is used again");
    }
    limits.set(Limit::ScanSuspend, 0).unwrap();
    let end = bench.finish();
    assert_eq!((end.state, end.errors), (2, 0));
    assert!(end.skipped >= (BLOCKS * BLOCK / 3) as u64, "{end:?}");
    assert_eq!((bench.logged(), bench.spa.pool.env.memory.gathered()), (vec![], 0));
    bench.export();
}

/// A scrub that pauses while gathered blocks are read goes on with them, and after an export gathers them again.
#[test]
fn a_scrub_pauses_while_gathered_blocks_are_read() {
    for exported in [false, true] {
        let mut bench = Bench::new(2, VdevSpec::Mirror);
        (0..3).for_each(|_| assert!(bench.fill() > 0));
        bench.spoil(2, 4..80);
        bench.gather();
        let before = bench.spa.scans().progress().unwrap().unwrap();
        bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap();
        let snap = format!("{POOL}/data@a");
        let theirs = snap.clone();
        bench.spa.dsl_task(move |t| t.snapshot(&[&theirs], &[])).unwrap();
        bench.rewrite();
        bench.spa.dsl_task(move |t| t.destroy_snapshots(&[&snap], false)).unwrap();
        (0..4).for_each(|_| bench.spa.sync().unwrap());
        let paused = bench.spa.scans().progress().unwrap().unwrap();
        assert_eq!(paused.scan.flags & PAUSED, PAUSED);
        assert!(paused.issued >= before.issued && paused.issued < paused.scan.examined);
        if exported {
            bench.reimport();
            assert!(!bench.spa.scans().is_scanning() && bench.saved().flags & PAUSED != 0);
        }
        bench.spa.scans().start(ScanCommand::Scrub).unwrap();
        let end = bench.finish();
        assert_eq!((end.state, end.errors), (2, 0));
        let again = bench.scrub();
        assert_eq!((again.processed, again.errors), (0, 0), "nothing was missed");
        bench.spoil(1, 4..80);
        assert!(bench.read());
        bench.scrub();
        bench.export();
    }
}

/// A scrub that is stopped, or begins again after an export, leaves nothing in memory.
#[test]
fn gathered_blocks_leave_memory_with_their_scan() {
    let bench = Bench::new(2, VdevSpec::Mirror);
    let memory = Arc::clone(&bench.spa.pool.env.memory);
    bench.fill();
    bench.gather();
    assert!(memory.gathered() > 0);
    bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Cancel).unwrap();
    assert_eq!((memory.gathered(), bench.scan().state), (0, 3));
    bench.gather();
    bench.export();
    assert_eq!(memory.gathered(), 0);
}

/// Blocks that do not fit into memory are gathered and read by turns, and the position is saved after each.
#[test]
fn gathered_blocks_take_bounded_memory() {
    const SMALL: u64 = 512;
    let bench = Bench::new(1, |mut leaves| VdevSpec::Leaf(leaves.remove(0)));
    let data = bench.spa.datasets.open(&*bench.spa, bench.file.0).unwrap();
    let tx = bench.spa.begin().unwrap();
    let object =
        data.objset.create_object(&tx, NewObject::plain(ObjectType::PLAIN_FILE_CONTENTS, SMALL)).unwrap();
    for number in 0..14_000 {
        let bytes = FILE.bytes(number as usize);
        object.write(&tx, number * SMALL, &bytes[..512]).unwrap();
    }
    drop((tx, object, data));
    bench.spa.sync().unwrap();
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    let memory = Arc::clone(&bench.spa.pool.env.memory);
    let (mut most, mut positions) = (0, BTreeSet::new());
    while bench.spa.scans().is_scanning() {
        most = most.max(memory.gathered());
        let saved = bench.saved();
        positions.insert((saved.bookmark.objset, saved.bookmark.object, saved.bookmark.blkid));
        bench.spa.sync().unwrap();
    }
    assert!((900 << 10..=1100 << 10).contains(&most), "{most} bytes of a mebibyte");
    assert!((3..=6).contains(&positions.len()), "{positions:?}");
    let end = bench.scan();
    assert_eq!((end.state, end.errors, memory.gathered()), (2, 0, 0));
    bench.export();
}
