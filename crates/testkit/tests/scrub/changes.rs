//! Scans while datasets change, disks come back, and after imports.

use super::*;

/// A snapshot, its destruction, a rollback and the destruction of the dataset at hand take the scan along.
#[test]
fn datasets_change_beside_a_scan() {
    let data = format!("{POOL}/data");
    let snap = format!("{data}@a");
    type Step = fn(&engine::dsl::write::Tasks<'_>, &str, &str) -> engine::Result<()>;
    let steps: [&[Step]; 4] = [
        &[|t, _, snap| t.snapshot(&[snap], &[])],
        &[|t, _, snap| t.snapshot(&[snap], &[]), |t, _, snap| t.destroy_snapshots(&[snap], false)],
        &[|t, _, snap| t.snapshot(&[snap], &[]), |t, data, _| t.rollback(data, None)],
        &[|t, data, _| t.destroy(data, false)],
    ];
    for steps in steps {
        let bench = Bench::new(2, VdevSpec::Mirror);
        bench.fill();
        bench.spa.scans().start(ScanCommand::Scrub).unwrap();
        while bench.scan().bookmark.objset != bench.file.0 && bench.spa.scans().is_scanning() {
            bench.spa.sync().unwrap();
        }
        assert!(bench.spa.scans().is_scanning(), "the dataset takes several slices");
        for step in steps {
            let (step, data, snap) = (*step, data.clone(), snap.clone());
            bench.spa.dsl_task(move |tasks| step(tasks, &data, &snap)).unwrap();
        }
        let end = bench.finish();
        assert_eq!((end.state, end.errors), (2, 0));
        bench.export();
    }
}

/// A snapshot is destroyed while the scan is in it: what only the next one has is scanned all the same, also in front of the
/// place where the scan was.
#[test]
fn a_snapshot_goes_while_the_scan_is_in_it() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    let snapshot = |bench: &Bench, name: &'static str| {
        bench.spa.dsl_task(move |tasks| tasks.snapshot(&[name], &[])).unwrap();
    };
    snapshot(&bench, "scanned/data@a");
    bench.rewrite();
    snapshot(&bench, "scanned/data@b");
    bench.spoil(2, 4..80);
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    while bench.scan().bookmark.object != bench.file.1 || bench.scan().bookmark.blkid < 100 {
        assert!(bench.spa.scans().is_scanning(), "the first snapshot takes several slices");
        bench.spa.sync().unwrap();
    }
    let in_first = bench.scan().bookmark.objset;
    assert!(in_first != bench.file.0);
    bench.spa.dsl_task(|tasks| tasks.destroy_snapshots(&["scanned/data@a"], false)).unwrap();
    assert!(bench.scan().bookmark.objset != in_first, "the scan goes on in the next one");
    bench.reimport();
    assert_eq!(bench.finish().errors, 0);
    bench.spoil(1, 4..80);
    assert!(bench.read(), "the other disk has all blocks again");
    bench.scrub();
    bench.export();
}

/// A disk that returns while a scrub is paused is resilvered: the scrub may never be resumed.
#[test]
fn a_paused_scrub_gives_way_to_a_resilver() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    bench.spa.scans().start(ScanCommand::Scrub).unwrap();
    bench.spa.sync().unwrap();
    bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap();
    let guid = bench.guid(1);
    bench.spa.disks().offline(guid, false).unwrap();
    bench.file.1 = bench.fill();
    bench.bring_back(1);
    bench.spa.sync().unwrap();
    let end = bench.finish();
    assert_eq!((end.func, end.state, end.errors), (2, 2, 0));
    assert!(bench.spa.pool.tree().leaf(guid).unwrap().dtl.read().is_empty());
    bench.export();
}

/// Blocks that a resilver could not restore before an export are still known as missing after it.
#[test]
fn a_resilver_with_errors_begins_anew_after_an_import() {
    let mut bench = Bench::new(2, VdevSpec::Mirror);
    let guid = bench.guid(2);
    bench.spa.disks().offline(guid, false).unwrap();
    bench.file.1 = bench.fill();
    let data = bench.spa.datasets.open(&*bench.spa, bench.file.0).unwrap();
    let stored = data.objset.view().object(bench.file.1).unwrap();
    let lost = stored.blkptr(0, 3).unwrap().unwrap().dvas().next().unwrap().offset + (4 << 20);
    let device = pools::open(&bench.dir.path().join("disk1"));
    blkdev::write_at(&*device, lost, &[0x5a; 4096]).unwrap();
    bench.spa.pool.tree().leaves().for_each(|leaf| leaf.changed(0, u64::MAX));
    drop((stored, data));
    bench.bring_back(2);
    while bench.scan().errors == 0 {
        bench.spa.sync().unwrap();
    }
    assert!(bench.spa.scans().is_scanning(), "there is more to do");
    bench.reimport();
    let end = bench.finish();
    assert_eq!((end.func, end.state), (2, 2));
    assert!(end.errors > 0 && !bench.spa.pool.tree().leaf(guid).unwrap().dtl.read().is_empty());
    bench.spa.export().unwrap();
}

/// A disk that comes back gets the writes that it missed, and can replace the others from then on.
#[test]
fn a_disk_that_comes_back_is_resilvered() {
    for mut bench in [Bench::new(2, VdevSpec::Mirror), Bench::new(3, raidz(1))] {
        let guid = bench.guid(1);
        bench.spa.disks().offline(guid, false).unwrap();
        bench.file.1 = bench.fill();
        bench.bring_back(1);
        bench.spa.sync().unwrap();
        let end = bench.finish();
        assert_eq!((end.func, end.state, end.errors), (2, 2, 0));
        assert!(end.processed > 0 && end.examined < end.to_examine * 2 / 3, "only what it missed: {end:?}");
        let leaf = Arc::clone(bench.spa.pool.tree().leaf(guid).unwrap());
        assert!(leaf.dtl.read().is_empty());
        bench.spoil(2, 4..80);
        assert!(bench.read(), "the disk that was away has what it missed");
        bench.scrub();
        bench.reimport();
        assert!(!bench.spa.scans().is_scanning() && bench.read());
        bench.export();
    }
}
