//! Resilvers that wait for another one to end.

use engine::env::Env;
use engine::memory::Limit;
use engine::spa::OpenOptions;
use zcommon::features::Feature;

use super::{Bench, POOL, SIZE, raidz};

/// The leaves of the pool as its devices have it now that wait for a resilver of their own.
fn deferred(bench: &Bench) -> Vec<String> {
    let env = Env::system(0).unwrap();
    let dir = bench.dir.path().to_owned();
    let pool = zutil::import::open_pool(&env, &[dir], POOL, OpenOptions::default()).unwrap();
    let tops = pool.config.nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap();
    let below = tops[0].nvlist_array("children").unwrap().iter();
    let leaves = below.flat_map(|c| c.nvlist_array("children").unwrap_or(std::slice::from_ref(c)));
    let late = leaves.filter(|leaf| leaf.contains("com.datto:resilver_defer"));
    late.map(|leaf| leaf.str("path").unwrap().rsplit('/').next().unwrap().to_owned()).collect()
}

#[test]
fn disks_that_join_late_wait_for_a_resilver_of_their_own() {
    let mut bench = Bench::new(4, raidz);
    for _ in 0..20 {
        bench.fill();
    }
    bench.join(bench.guid("disk1"), bench.new_leaf("new1", SIZE), true).unwrap();
    while bench.scanned().examined * 5 < bench.scanned().to_examine {
        bench.spa.sync().unwrap();
    }
    let first = bench.scanned().max_txg;
    for (old, new) in [("disk2", "new2"), ("disk3", "new3")] {
        bench.join(bench.guid(old), bench.new_leaf(new, SIZE), true).unwrap();
    }
    assert!(bench.spa.scans().is_scanning() && bench.scanned().max_txg == first, "it began anew");
    assert_eq!(bench.spa.features.count(Feature::ResilverDefer), 1);
    assert_eq!(deferred(&bench), ["new2", "new3"]);
    // A resilver goes on after an import, and the others wait on.
    bench.reimport();
    while bench.scanned().max_txg == first {
        assert_eq!(
            bench.spa.features.count(Feature::ResilverDefer),
            u64::from(bench.spa.scans().is_scanning())
        );
        bench.spa.sync().unwrap();
    }
    assert!(deferred(&bench).is_empty());
    bench.settle();
    assert_eq!(bench.shape(), "raidz(new1 new2 new3 disk4)");
    assert_eq!(bench.spa.features.count(Feature::ResilverDefer), 0);
    bench.end();
}

/// Scans that make no progress still take note of disks that join meanwhile.
#[test]
fn a_disk_that_joins_while_progress_is_suspended_is_marked() {
    let bench = Bench::new(4, raidz);
    bench.fill();
    let limits = &bench.spa.pool.env.memory.limits;
    limits.set(Limit::ScanSuspend, 1).unwrap();
    limits.set(Limit::ResilverDefer, 0).unwrap();
    for (old, new) in [("disk1", "new1"), ("disk2", "new2")] {
        bench.join(bench.guid(old), bench.new_leaf(new, SIZE), true).unwrap();
        (0..3).for_each(|_| bench.spa.sync().unwrap());
    }
    assert_eq!(deferred(&bench), ["new2"]);
}
