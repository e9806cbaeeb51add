//! Flushes that fail while a disk is filled: what the disk has lost with them is filled in again before it counts as whole.

use testkit::flushes::FailsOnce;

use super::*;

/// The only disk of a pool is replaced, and one flush of the new one fails. When the old one is gone the new one has everything.
fn replaced(sequential: bool, good: u32) {
    let bench = Bench::new(1, one);
    let mut leaf = bench.new_leaf("disk2", SIZE);
    let disk = Arc::new(FailsOnce::new(leaf.device));
    disk.fail_after(good);
    leaf.device = disk;
    let device = NewDevice::Fresh { leaf, ashift: None };
    let target = bench.guid("disk1");
    let joined = bench.spa.disks().attach(Attach { target, device, replacing: true, sequential });
    // A disk that cannot be labelled is refused.
    if let Err(why) = joined {
        assert!(good < 2, "{why}");
        return;
    }
    while bench.spa.disks().is_replacing() || bench.spa.scans().is_scanning() {
        // Without another disk a failed flush suspends the pool.
        if let Err(why) = bench.spa.sync() {
            assert_eq!((why.kind(), bench.shape().as_str()), (Kind::Suspended, "disk2"), "{good}: {why}");
            break;
        }
    }
    assert_eq!(bench.shape(), "disk2", "{good}");
    // The content of the disk itself, as after a power cut.
    let cut = tempfile::tempdir().unwrap();
    pools::copy(bench.dir.path(), cut.path());
    std::fs::remove_file(cut.path().join("disk1")).unwrap();
    let when = format!("sequential: {sequential}, after {good} good flushes");
    let spa = pools::import_dir(cut.path(), POOL).unwrap_or_else(|why| panic!("{when}: {why}"));
    let again = Bench { dir: cut, spa, file: bench.file };
    assert!(again.is_right(), "{when}");
    // The scrub that follows a reconstruction may be under way.
    again.settle();
    again.scrub_is_clean();
    if good % 8 == 7 {
        again.end();
    }
}

#[test]
fn a_replaced_disk_is_not_let_go_before_the_new_one_has_all_for_good() {
    // The disk gets four flushes in most txgs.
    for sequential in [false, true] {
        (0..24).for_each(|good| replaced(sequential, good));
    }
}
