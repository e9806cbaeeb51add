//! Scrubs of the blocks in the log of errors.

use super::*;

/// A pool with a mebibyte of damage that its log of errors names, and the bytes that were there.
fn damaged() -> (Bench, Vec<u8>) {
    let bench = Bench::new(1, |mut leaves| VdevSpec::Leaf(leaves.remove(0)));
    bench.fill();
    let good = bench.disk_bytes(1, 11);
    bench.spoil(1, 11..12);
    assert!(bench.scrub().errors > 0);
    bench.spa.sync().unwrap();
    assert!(bench.logged().len() > 20, "{:?}", bench.logged().len());
    (bench, good)
}

#[test]
fn a_scrub_of_the_error_log_reads_only_its_blocks_and_forgets_the_intact_ones() {
    let (bench, good) = damaged();
    let logged = bench.logged();
    let all = u64::try_from(logged.len()).unwrap();
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    let still = bench.finish_error_scrub();
    assert_eq!((still.state, still.examined, still.errors, still.to_examine), (2, all, all, 0));
    bench.spa.sync().unwrap();
    assert_eq!(bench.logged(), logged, "they are damaged still");
    bench.restore(1, 11, &good);
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    let over = bench.finish_error_scrub();
    assert_eq!((over.state, over.examined, over.errors), (2, all, 0));
    assert_eq!(bench.logged(), []);
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    assert_eq!(bench.error_scrub().start_time, over.start_time, "an empty log needs no scrub");
    bench.scrub();
    let none = scrub::errors::load(&MosView { mos: &bench.spa.mos }).unwrap();
    assert_eq!(none, None, "a scrub forgets the scrub of the error log");
    bench.export();
}

#[test]
fn a_scrub_of_the_error_log_pauses_and_goes_on_after_an_export() {
    let (mut bench, good) = damaged();
    let logged = bench.logged();
    bench.spa.pool.env.memory.limits.set(Limit::ScrubErrorBlocks, 10).unwrap();
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    assert_eq!(bench.spa.scans().start(ScanCommand::Scrub).unwrap_err().kind(), Kind::Busy);
    assert_eq!(bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap_err().kind(), Kind::Busy);
    bench.spa.sync().unwrap();
    bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap();
    let cut = bench.error_scrub();
    assert!(cut.examined >= 10 && cut.to_examine > 0, "{cut:?}");
    assert_eq!(
        bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Pause).unwrap_err().kind(),
        Kind::Busy
    );
    bench.reimport();
    assert!(!bench.spa.error_log().is_scrubbing() && bench.spa.error_log().scrub_paused() != 0);
    assert_eq!(bench.logged(), logged);
    bench.restore(1, 11, &good);
    bench.spa.pool.env.memory.limits.set(Limit::ScrubErrorBlocks, 10).unwrap();
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    bench.reimport();
    assert!(bench.spa.error_log().is_scrubbing(), "it goes on by itself");
    let over = bench.finish_error_scrub();
    assert_eq!((over.state, over.to_examine), (2, 0));
    bench.spa.sync().unwrap();
    // Blocks that were found damaged before the pause stay until they are looked at again.
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    bench.finish_error_scrub();
    assert_eq!(bench.logged(), []);
    bench.export();
}

#[test]
fn stopping_a_scrub_of_the_error_log_keeps_what_was_not_looked_at() {
    let (bench, _) = damaged();
    let logged = bench.logged();
    bench.spa.pool.env.memory.limits.set(Limit::ScrubErrorBlocks, 10).unwrap();
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    bench.spa.sync().unwrap();
    bench.spa.background().command(WaitActivity::Scrub, ActivityCommand::Cancel).unwrap();
    bench.spa.sync().unwrap();
    assert_eq!((bench.error_scrub().state, bench.logged()), (3, logged));
}

/// Blocks that only a snapshot has are found there; those that no dataset has any more leave the log.
#[test]
fn a_scrub_of_the_error_log_looks_into_snapshots() {
    let (bench, _) = damaged();
    bench.spa.dsl_task(|t| t.snapshot(&[&format!("{POOL}/data@old")], &[])).unwrap();
    let of_file: Vec<_> =
        bench.logged().into_iter().filter(|e| e.objset == bench.file.0 && e.level == 0).collect();
    let data = bench.spa.datasets.open(&*bench.spa, bench.file.0).unwrap();
    let tx = bench.spa.begin().unwrap();
    for error in &of_file {
        let handle = data.objset.handle(error.object).unwrap();
        handle.write(&tx, error.blkid * BLOCK as u64, &FILE.bytes(7)).unwrap();
    }
    drop((tx, data));
    bench.spa.sync().unwrap();
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    bench.finish_error_scrub();
    let still = bench.logged();
    assert!(
        !of_file.is_empty() && of_file.iter().all(|error| still.contains(error)),
        "the snapshot has them"
    );
    bench.spa.dsl_task(|t| t.destroy(&format!("{POOL}/data@old"), false)).unwrap();
    (0..4).for_each(|_| bench.spa.sync().unwrap());
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    bench.finish_error_scrub();
    let still = bench.logged();
    assert!(of_file.iter().all(|error| !still.contains(error)), "no dataset has them");
    bench.export();
}

/// A damaged log ends the scrub without harm to the pool.
#[test]
fn a_log_that_names_anything_does_no_harm() {
    let (bench, _) = damaged();
    bench
        .spa
        .sync_task(|spa, tx| {
            let at = spa.datasets.at(tx, spa);
            let log = at.zap_word(1, "errlog_last")?.unwrap();
            at.zap_set(log, "ffffffffffffffff", 1u64)?;
            at.zap_set(log, "no number", 2u64)?;
            at.zap_set(log, "12", 0xffff_ffff_ffffu64)?;
            let list = at.zap_first(log)?.unwrap().value.first().unwrap();
            // The order of entries is random.
            if (3..1 << 40).contains(&list) {
                at.zap_set(list, "1:2", 0u64)?;
                at.zap_set(
                    list,
                    "ffffffffffffffff:ffffffffffffffff:ffffffffffffffff:ffffffffffffffff",
                    0u64,
                )?;
            }
            Ok(())
        })
        .unwrap();
    bench.spa.scans().start(ScanCommand::ScrubErrors).unwrap();
    let over = bench.finish_error_scrub();
    assert_eq!(over.state, 2);
    assert!(bench.spa.suspending().state().is_none());
    bench.scrub();
    // The directory of the MOS, which the log named, has all its entries.
    bench.spa.export().unwrap();
    let spa = pools::import_dir(bench.dir.path(), POOL).unwrap();
    assert!(spa.pool.dsl.dataset(&format!("{POOL}/data")).is_ok());
    spa.export().unwrap();
}
