//! Tables of the golden pools, held against the sums that the pools keep of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::HashMap;
use std::sync::Arc;

use engine::ddt::{Totals, tables};
use engine::metaslab::log::{Unflushed, logs};
use engine::metaslab::table::Metaslabs;
use engine::metaslab::{SpaceAllocator, SpaceMapFeatures};
use engine::spa::Pool;
use engine::spa::errlog;
use engine::spa::space::vdevs;
use engine::zio::alloc::{AllocRequest, Allocator, MetaslabClass};
use stdx::RangeSet;
use testkit::golden;

/// The size less the free space of all metaslabs, the logs included, equals the pool's allocated count.
#[test]
fn maps_and_logs_agree_with_the_sums() {
    for golden in golden::all() {
        let pool = golden.open().unwrap();
        let logs = logs(&pool.mos).unwrap();
        let tree = pool.tree();
        let tops: Vec<_> =
            tree.config.children.iter().map(|c| (c, Metaslabs::load(&pool.mos, c).unwrap())).collect();
        let by_id: HashMap<_, _> = tops.iter().map(|(c, t)| (c.id, (c.metaslab_shift, t))).collect();
        let unflushed = Unflushed::load(&logs, &by_id).unwrap();
        let sums = vdevs(&pool, engine::spa::space::Detail::Allocation, &mut Vec::new());
        for (config, table) in &tops {
            let allocated: u64 = table
                .all
                .iter()
                .map(|m| m.as_ref().unwrap())
                .map(|m| {
                    let free = table.free(m, unflushed.change(config.id, m.id)).unwrap();
                    m.size - free.covered()
                })
                .sum();
            let expected = sums.iter().find(|s| s.id == config.id).map_or(0, |s| s.allocated());
            assert_eq!(allocated, expected, "{} vdev {}", golden.name, config.id);
        }
    }
}

/// An allocator opened on a pool knows the free space, allocates only from it, and counts as the pool counts.
#[test]
fn an_allocator_gives_out_what_is_free() {
    for golden in golden::all() {
        let pool = golden.open().unwrap();
        let tree = pool.tree();
        let all = SpaceAllocator::open(&pool.mos, &tree, SpaceMapFeatures::NEW, Arc::new(pool.mos.clone()))
            .unwrap();
        let logs = logs(&pool.mos).unwrap();
        let tops: Vec<_> =
            tree.config.children.iter().map(|c| (c, Metaslabs::load(&pool.mos, c).unwrap())).collect();
        let by_id: HashMap<_, _> = tops.iter().map(|(c, t)| (c.id, (c.metaslab_shift, t))).collect();
        let unflushed = Unflushed::load(&logs, &by_id).unwrap();
        let mut free: HashMap<u64, RangeSet> = HashMap::new();
        for (config, table) in &tops {
            let set = free.entry(config.id).or_default();
            for m in table.all.iter().map(|m| m.as_ref().unwrap()) {
                let ranges = table.free(m, unflushed.change(config.id, m.id)).unwrap();
                ranges.iter().for_each(|(s, e)| {
                    set.insert(s, e);
                });
            }
            assert_eq!(&all.allocatable(config.id), set, "{} vdev {}", golden.name, config.id);
            let stats = all.vdev_stats(config.id).unwrap_or_default();
            assert_eq!(stats.space - stats.allocated, set.covered(), "{} vdev {}", golden.name, config.id);
        }
        let txg = pool.uberblock.txg + 1;
        for i in 0..3000_u64 {
            let request = AllocRequest {
                psize: 512 << (i % 9),
                copies: 1 + (i % 3) as u8,
                class: [
                    MetaslabClass::Normal,
                    MetaslabClass::Special,
                    MetaslabClass::Log,
                    MetaslabClass::Dedup,
                ][(i % 4) as usize],
                txg,
                gang: false,
                evens_out: false,
                fewer_will_do: false,
            };
            for dva in all.allocate(&request).unwrap_or_default() {
                let set = free.get_mut(&u64::from(dva.vdev)).unwrap();
                assert_eq!(set.remove(dva.offset, dva.offset + dva.asize), dva.asize, "{}", golden.name);
            }
        }
        assert!(all.take_problems().is_empty());
    }
}

fn dsize(pool: &Pool) -> impl Fn(&ondisk::Blkptr) -> u64 {
    let tree = pool.tree();
    move |bp| engine::zio::deflated(&tree, bp)
}

/// The statistics that the pool keeps equal a recount of every entry of every dedup table.
#[test]
fn dedup_entries_agree_with_their_statistics() {
    for golden in golden::all() {
        let pool = golden.open().unwrap();
        let mut notes = Vec::new();
        for table in tables(&pool.mos, &mut notes) {
            for store in &table.stores {
                let mut counted = Totals::default();
                let mut entries = 0;
                for entry in store.entries() {
                    let entry = entry.unwrap();
                    entries += 1;
                    for phys in &entry.phys {
                        let bp = phys.blkptr(&entry.key, table.checksum);
                        let stat = engine::ddt::of_block(&bp, dsize(&pool)(&bp), phys.refcnt);
                        counted.count(&stat, phys.refcnt);
                    }
                }
                assert_eq!(entries, store.count, "{} {}", golden.name, store.name);
                assert_eq!(
                    Some(&counted.histogram),
                    store.histogram.as_ref(),
                    "{} {}",
                    golden.name,
                    store.name
                );
            }
        }
        assert!(notes.is_empty(), "{}: {notes:?}", golden.name);
    }
}

/// The additional references of all clones equal the pool's counts.
#[test]
fn clone_entries_agree_with_their_totals() {
    for golden in golden::all() {
        let pool = golden.open().unwrap();
        for config in &pool.tree().config.children {
            let Some(table) = engine::brt::table(&pool.mos, config.id).unwrap() else { continue };
            let entries: Vec<_> = table.entries().map(Result::unwrap).collect();
            let count = u64::try_from(entries.len()).unwrap();
            assert_eq!(count, table.head.totalcount, "{}", golden.name);
            assert!(entries.iter().all(|e| e.refcnt > 0));
        }
    }
}

/// One golden pool was scrubbed after its damage; the error logs of all others are empty, and readable.
#[test]
fn error_logs_are_readable() {
    for golden in golden::all() {
        let mut notes = Vec::new();
        let errors = errlog::errors(&golden.open().unwrap(), &mut notes);
        let expected = if golden.name == "known-errors" { 2 } else { 0 };
        assert!(notes.is_empty() && errors.len() == expected, "{}: {notes:?} {errors:?}", golden.name);
    }
}
