//! The allocator's guarantees, case by case.
#![expect(clippy::disallowed_methods, reason = "tests of threads")]

mod maps;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvpair::NvList;
use ondisk::Dva;
use stdx::RangeSet;
use stdx::rng::Rng;

use super::policy::{self, MetaslabLimits};
use super::testing::{Shape, SharedObjects, create, reload};
use super::{SpaceAllocator, SpaceMapFeatures, SpaceMapSource, SpaceMapStore, SpaceObject};
use crate::dmu::edit::Edit;
use crate::error::Kind;
use crate::vdev::config::{AllocBias, VdevConfig};
use crate::zio::alloc::{AllocRequest, Allocator, MetaslabClass};

fn want(psize: u64, txg: u64) -> AllocRequest {
    AllocRequest {
        psize,
        copies: 1,
        class: MetaslabClass::Normal,
        txg,
        gang: false,
        evens_out: false,
        fewer_will_do: false,
    }
}

fn one(all: &SpaceAllocator, request: AllocRequest) -> Dva {
    all.allocate(&request).unwrap()[0]
}

/// Syncs a txg in one pass.
fn sync(all: &SpaceAllocator, store: &SharedObjects, txg: u64) {
    all.sync(txg, 1, &mut *store.0.lock()).unwrap();
    all.sync_done(txg);
}

/// Allocates and frees so that free space is cut up and the map grows.
fn churn(all: &SpaceAllocator, store: &SharedObjects, txgs: std::ops::Range<u64>, seed: u64) -> Vec<Dva> {
    let (mut rng, mut live) = (Rng::new(seed), Vec::new());
    for txg in txgs {
        for _ in 0..200 {
            live.extend(all.allocate(&want(4096 << rng.below(2), txg)).unwrap_or_default());
        }
        for _ in 0..190.min(live.len()) {
            let dva = live.swap_remove(rng.below(live.len() as u64) as usize);
            all.free(&dva, txg);
        }
        sync(all, store, txg);
    }
    live
}

#[test]
fn one_stream_of_blocks_is_one_run_on_disk() {
    let all = create(&[Shape::disk(12, 24, 16)], SpaceMapFeatures::NEW, &SharedObjects::default());
    let blocks: Vec<Dva> = (0..32).map(|_| one(&all, want(128 << 10, 4))).collect();
    assert!(blocks.windows(2).all(|w| w[0].offset + w[0].asize == w[1].offset), "{blocks:?}");
    // Small blocks fill the space between the big ones' metaslab start and end without cutting it up.
    let small: Vec<Dva> = (0..32).map(|_| one(&all, want(4096, 4))).collect();
    assert!(small.windows(2).all(|w| w[0].offset + w[0].asize == w[1].offset), "{small:?}");
}

/// A source that counts reads.
#[derive(Debug)]
struct Counting(SharedObjects, AtomicU64);

impl SpaceMapSource for Counting {
    fn read(
        &self,
        object: u64,
        length: u64,
        each: &mut dyn FnMut(&[u8]) -> crate::error::Result<()>,
    ) -> crate::error::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read(object, length, each)
    }
}

/// Maps that were read in vain are not read again for the next block, although they were unloaded.
#[test]
fn unloaded_metaslabs_without_long_pieces_are_not_loaded_for_long_blocks() {
    let store = SharedObjects::default();
    let mut all = create(&[Shape::disk(12, 20, 8)], SpaceMapFeatures::NEW, &store);
    let counting = Arc::new(Counting(store.clone(), AtomicU64::new(0)));
    all.source = Some(Arc::clone(&counting) as Arc<dyn SpaceMapSource>);
    while all.allocate(&want(4096, 4)).is_ok() {}
    sync(&all, &store, 4);
    let metaslabs = || (0..8).map(|id| all.metaslab(0, id).unwrap());
    // One block of 4 KiB in each metaslab becomes free.
    for metaslab in metaslabs() {
        let offset = metaslab.start;
        all.free(&Dva { vdev: 0, offset, asize: 4096, ..Dva::default() }, 5);
    }
    (5..9).for_each(|txg| sync(&all, &store, txg));
    let unload = || metaslabs().for_each(|metaslab| assert!(metaslab.unload() || !metaslab.is_loaded()));
    unload();
    let reads = || counting.1.load(Ordering::Relaxed);
    let before = reads();
    for _ in 0..10 {
        assert_eq!(all.allocate(&want(8192, 9)).unwrap_err().kind(), Kind::Fragmented);
        unload();
    }
    assert_eq!(reads(), before);
    // Frees there count again.
    let offset = metaslabs().next().unwrap().start + 4096;
    all.free(&Dva { vdev: 0, offset, asize: 4096, ..Dva::default() }, 9);
    (9..12).for_each(|txg| sync(&all, &store, txg));
    assert_eq!(one(&all, want(8192, 12)).offset, offset - 4096);
}

/// A nearly full pool in pieces of 4 KiB: blocks that fit nowhere, and those that fit, look into few metaslabs each, also
/// when space is freed all the time and maps leave memory.
#[test]
fn few_metaslabs_are_looked_into_for_a_block() {
    const METASLABS: u64 = 100;
    let store = SharedObjects::default();
    let mut all = create(&[Shape::disk(12, 20, METASLABS)], SpaceMapFeatures::NEW, &store);
    let counting = Arc::new(Counting(store.clone(), AtomicU64::new(0)));
    all.source = Some(Arc::clone(&counting) as Arc<dyn SpaceMapSource>);
    let mut blocks = Vec::new();
    while let Ok(found) = all.allocate(&want(4096, 4)) {
        blocks.push(found[0]);
    }
    sync(&all, &store, 4);
    blocks.sort_by_key(|dva| dva.offset);
    blocks.iter().step_by(16).for_each(|dva| all.free(dva, 5));
    (5..8).for_each(|txg| sync(&all, &store, txg));
    let metaslabs: Vec<_> = (0..METASLABS).map(|id| all.metaslab(0, id).unwrap()).collect();
    let visits = || metaslabs.iter().map(|metaslab| metaslab.visits.load(Ordering::Relaxed)).sum::<u64>();
    let (visited, read) = (visits(), counting.1.load(Ordering::Relaxed));
    let mut freed = blocks.iter().skip(8).step_by(16);
    for txg in 8..28 {
        for _ in 0..10 {
            assert_eq!(all.allocate(&want(8192, txg)).unwrap_err().kind(), Kind::Fragmented);
            one(&all, want(4096, txg));
        }
        freed.by_ref().take(5).for_each(|dva| all.free(dva, txg));
        sync(&all, &store, txg);
        for metaslab in &metaslabs {
            metaslab.unload();
        }
    }
    // 400 blocks.
    let (visited, read) = (visits() - visited, counting.1.load(Ordering::Relaxed) - read);
    assert!(visited <= 800, "{visited} metaslabs were looked into");
    assert!(read <= 400, "{read} maps were read");
}

#[test]
fn equal_vdevs_take_turns_and_the_emptier_gets_more() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 24, 16), Shape::disk(12, 24, 48)], SpaceMapFeatures::NEW, &store);
    for txg in 4..20 {
        for _ in 0..100 {
            one(&all, want(128 << 10, txg));
        }
        sync(&all, &store, txg);
    }
    let share = |id| {
        let stats = all.vdev_stats(id).unwrap();
        stats.allocated * 100 / stats.space
    };
    assert!(share(0).abs_diff(share(1)) <= 2, "{} and {} percent", share(0), share(1));
}

#[test]
fn copies_go_to_different_vdevs_or_far_apart() {
    let all = create(&[Shape::disk(9, 20, 16); 3], SpaceMapFeatures::NEW, &SharedObjects::default());
    for _ in 0..100 {
        let dvas = all.allocate(&AllocRequest { copies: 3, ..want(8192, 4) }).unwrap();
        let vdevs: BTreeSet<u32> = dvas.iter().map(|dva| dva.vdev).collect();
        assert_eq!(vdevs.len(), 3);
    }
    let all = create(&[Shape::disk(9, 20, 16)], SpaceMapFeatures::NEW, &SharedObjects::default());
    for _ in 0..100 {
        let dvas = all.allocate(&AllocRequest { copies: 3, ..want(8192, 4) }).unwrap();
        let metaslabs: BTreeSet<u64> = dvas.iter().map(|dva| dva.offset >> 20).collect();
        assert_eq!(metaslabs.len(), 3, "{dvas:?}");
    }
    let all = create(&[Shape::disk(9, 24, 1)], SpaceMapFeatures::NEW, &SharedObjects::default());
    let dvas = all.allocate(&AllocRequest { copies: 2, ..want(8192, 4) }).unwrap();
    assert!(dvas[0].offset.abs_diff(dvas[1].offset) >= 1 << 22, "{dvas:?}");
}

fn biased(bias: AllocBias) -> Shape {
    Shape { bias, ..Shape::disk(12, 20, 16) }
}

#[test]
fn classes_have_their_vdevs_and_fall_back() {
    let shapes = [
        biased(AllocBias::Normal),
        biased(AllocBias::Log),
        biased(AllocBias::Special),
        biased(AllocBias::Dedup),
    ];
    let all = create(&shapes, SpaceMapFeatures::NEW, &SharedObjects::default());
    let of = |class| one(&all, AllocRequest { class, ..want(4096, 4) }).vdev;
    assert_eq!(
        [MetaslabClass::Normal, MetaslabClass::Log, MetaslabClass::Special, MetaslabClass::Dedup].map(of),
        [0, 1, 2, 3]
    );
    let all = create(&shapes[..3], SpaceMapFeatures::NEW, &SharedObjects::default());
    let of = |class| one(&all, AllocRequest { class, ..want(128 << 10, 4) }).vdev;
    assert_eq!(of(MetaslabClass::Dedup), 2);
    while of(MetaslabClass::Special) == 2 {}
    assert_eq!((of(MetaslabClass::Special), of(MetaslabClass::Dedup)), (0, 0));
    // Nothing but the special class's own blocks goes there.
    while let Ok(dvas) = all.allocate(&want(128 << 10, 4)) {
        assert_eq!(dvas[0].vdev, 0);
    }
    assert_eq!(all.allocate(&want(128 << 10, 4)).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(of(MetaslabClass::Log), 1);
}

#[test]
fn a_big_vdev_keeps_a_metaslab_for_the_intent_log() {
    let all = create(&[Shape::disk(12, 20, 65)], SpaceMapFeatures::NEW, &SharedObjects::default());
    let log = one(&all, AllocRequest { class: MetaslabClass::Log, ..want(4096, 4) });
    assert_eq!(log.offset >> 20, 0);
    for _ in 0..64 * 8 {
        assert_ne!(one(&all, want(128 << 10, 4)).offset >> 20, 0);
    }
    assert!(all.allocate(&want(4096, 4)).is_err());
    assert_eq!(all.class_stats(MetaslabClass::EmbeddedLog).space, 1 << 20);
    assert_eq!(all.class_stats(MetaslabClass::Normal).space, 64 << 20);
}

/// Existing metaslabs stay in use, new ones are free, and a vdev that has become big reserves a metaslab for
/// the intent log.
#[test]
fn a_vdev_grows_by_whole_metaslabs() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 20, 60)], SpaceMapFeatures::NEW, &store);
    let first: Vec<Dva> = (0..40).map(|_| one(&all, want(128 << 10, 4))).collect();
    sync(&all, &store, 4);
    let mut list = NvList::new();
    list.add("type", "disk").add("guid", 1_u64).add("ashift", 12_u64).add("metaslab_shift", 20_u64);
    list.add("asize", (70_u64 << 20) + (1 << 19));
    all.grow_top(&VdevConfig::parse(&list).unwrap()).unwrap();
    let stats = all.vdev_stats(0).unwrap();
    assert_eq!((stats.space, stats.allocated), (70 << 20, 40 * (128 << 10)));
    let classes =
        [MetaslabClass::Normal, MetaslabClass::EmbeddedLog].map(|class| all.class_stats(class).space >> 20);
    assert_eq!(classes, [69, 1]);
    let rest: Vec<Dva> = (40..69 * 8).map(|_| one(&all, want(128 << 10, 5))).collect();
    let places: BTreeSet<u64> = first.iter().chain(&rest).map(|dva| dva.offset).collect();
    assert!(places.len() == 69 * 8 && places.iter().any(|place| place >> 20 == 68), "{places:?}");
    assert!(all.allocate(&want(4096, 5)).is_err());
    first.iter().for_each(|dva| all.free(dva, 5));
    sync(&all, &store, 5);
    (6..10).for_each(|txg| sync(&all, &store, txg));
    let again = reload(&[Shape::disk(12, 20, 70)], SpaceMapFeatures::NEW, &store);
    assert_eq!(again.allocatable(0).covered(), (1 << 20) + 40 * (128 << 10));
    assert_eq!(all.vdev_stats(0).unwrap().allocated, (69 << 20) - 40 * (128 << 10));
}

#[test]
fn cut_up_space_is_told_from_none() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 20, 2)], SpaceMapFeatures::NEW, &store);
    let mut blocks: Vec<Dva> = (0..512).map(|_| one(&all, want(4096, 4))).collect();
    blocks.sort_by_key(|dva| dva.offset);
    assert_eq!(all.allocate(&want(4096, 4)).unwrap_err().kind(), Kind::NoSpace);
    sync(&all, &store, 4);
    blocks.iter().step_by(2).for_each(|dva| all.free(dva, 5));
    sync(&all, &store, 5);
    for txg in 6..8 {
        assert_eq!(
            all.allocate(&want(4096, txg)).unwrap_err().kind(),
            Kind::NoSpace,
            "freed in 5, txg {txg}"
        );
        sync(&all, &store, txg);
    }
    assert_eq!(all.allocate(&want(8192, 8)).unwrap_err().kind(), Kind::Fragmented);
    let header = one(&all, AllocRequest { gang: true, ..want(512, 8) });
    assert!(header.gang && header.asize == 4096);
    all.force_ganging(4096);
    assert_eq!(all.allocate(&want(8192, 8)).unwrap_err().kind(), Kind::Fragmented);
    // Its pieces would be as large as itself.
    one(&all, want(4096, 8));
}

#[test]
fn blocks_of_a_checkpoint_are_kept() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 20, 4)], SpaceMapFeatures::NEW, &store);
    let old = one(&all, want(4096, 4));
    sync(&all, &store, 4);
    all.set_checkpoint(4);
    let new = one(&all, want(4096, 5));
    sync(&all, &store, 5);
    all.free_born(&old, 4, 6);
    all.free_born(&new, 5, 6);
    for txg in 6..10 {
        sync(&all, &store, txg);
    }
    assert!(all.take_problems().is_empty());
    let free = all.allocatable(0);
    assert!(free.contains(new.offset, new.offset + 4096) && !free.contains(old.offset, old.offset + 4096));
    assert_eq!((all.checkpoint_space(), all.vdev_stats(0).unwrap().allocated), (4096, 4096));
    let map = store.0.lock().checkpoints[&0];
    assert_eq!(store.0.lock().head(map).alloc, -4096);
    let again = reload(&[Shape::disk(12, 20, 4)], SpaceMapFeatures::NEW, &store);
    assert_eq!((again.allocatable(0), again.checkpoint_space()), (free, 4096));
}

#[test]
fn freeing_twice_stops_the_pool() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 20, 4)], SpaceMapFeatures::NEW, &store);
    let dva = one(&all, want(4096, 4));
    sync(&all, &store, 4);
    all.free(&dva, 5);
    sync(&all, &store, 5);
    all.free(&dva, 6);
    assert_eq!(all.sync(6, 1, &mut *store.0.lock()).unwrap_err().kind(), Kind::Corrupt);
    for wrong in [
        Dva { vdev: 7, ..dva },
        Dva { offset: 1 << 40, ..dva },
        Dva { offset: 512, ..dva },
        Dva { asize: 0, ..dva },
    ] {
        all.free(&wrong, 6);
        assert_eq!(all.take_problems().len(), 1, "{wrong:?}");
    }
}

#[test]
fn an_intent_log_is_claimed_once() {
    let store = SharedObjects::default();
    let shapes = [Shape::disk(12, 20, 4)];
    let all = create(&shapes, SpaceMapFeatures::NEW, &store);
    let (kept, log) = (one(&all, want(4096, 4)), one(&all, want(4096, 5)));
    sync(&all, &store, 4);
    // The log block of txg 5 was written, the txg was not.
    let all = reload(&shapes, SpaceMapFeatures::NEW, &store);
    all.claim(&kept, 5).unwrap();
    all.claim(&log, 5).unwrap();
    all.claim(&log, 5).unwrap();
    assert!(all.claim(&Dva { asize: 8192, ..log }, 5).is_err(), "partly free");
    sync(&all, &store, 5);
    assert_eq!(all.vdev_stats(0).unwrap().allocated, 8192);
    let taken: Vec<Dva> = (0..1022).map(|_| one(&all, want(4096, 6))).collect();
    assert!(taken.iter().all(|dva| dva.offset != log.offset && dva.offset != kept.offset));
}

#[test]
fn equal_calls_give_equal_places() {
    let run = |seed| {
        let store = SharedObjects::default();
        let all = create(&[Shape::disk(12, 22, 20), Shape::disk(9, 21, 30)], SpaceMapFeatures::NEW, &store);
        let live = churn(&all, &store, 4..30, seed);
        let objects = store.0.lock().clone();
        (live, format!("{objects:?}"))
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).0, run(6).0);
}

#[test]
fn threads_never_get_the_same_space() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 22, 20); 2], SpaceMapFeatures::NEW, &store);
    let work = |seed: u64| {
        let (mut rng, mut mine) = (Rng::new(seed), Vec::<Dva>::new());
        for _ in 0..3000 {
            mine.extend(all.allocate(&want(512 << rng.below(8), 5)).unwrap_or_default());
            if rng.below(4) == 0 && !mine.is_empty() {
                all.unallocate(&mine.swap_remove(rng.below(mine.len() as u64) as usize), 5);
            }
        }
        mine
    };
    let live: Vec<Dva> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
        sync(&all, &store, 4);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    sync(&all, &store, 5);
    let mut taken = [RangeSet::new(), RangeSet::new()];
    for dva in &live {
        assert_eq!(taken[dva.vdev as usize].insert(dva.offset, dva.offset + dva.asize), dva.asize, "{dva:?}");
    }
    let again = reload(&[Shape::disk(12, 22, 20); 2], SpaceMapFeatures::NEW, &store);
    for (id, taken) in (0..).zip(&taken) {
        let free = again.allocatable(id);
        assert_eq!(free.covered() + taken.covered(), 20 << 22);
        assert!(taken.iter().all(|(start, end)| !free.overlaps(start, end)));
    }
}

#[test]
fn a_closed_vdev_gets_nothing() {
    let all = create(&[Shape::disk(12, 20, 16); 2], SpaceMapFeatures::NEW, &SharedObjects::default());
    all.set_closed(0, true);
    while let Ok(dvas) = all.allocate(&want(128 << 10, 4)) {
        assert_eq!(dvas[0].vdev, 1);
    }
    assert_eq!(all.class_stats(MetaslabClass::Normal).space, 32 << 20);
    all.set_closed(0, false);
    assert_eq!(one(&all, want(128 << 10, 4)).vdev, 0);
}

/// Prints figures: `cargo test --release -p engine --lib metaslab::tests::speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    for threads in [1, 2, 4] {
        let store = SharedObjects::default();
        let all = create(&[Shape::disk(12, 29, 64); 4], SpaceMapFeatures::NEW, &store);
        let mut live = Vec::new();
        let mut spent = [std::time::Duration::ZERO; 3];
        let mut count = [0_u64; 2];
        let mut rng = Rng::new(1);
        for txg in 4..24 {
            let start = std::time::Instant::now();
            let work = |seed| {
                let mut rng = Rng::new(seed);
                (0..40_000 / threads).map(|_| one(&all, want(4096 << rng.below(6), txg))).collect::<Vec<_>>()
            };
            let work = &work;
            live.extend(std::thread::scope(|scope| {
                let handles: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed))).collect();
                handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect::<Vec<_>>()
            }));
            spent[0] += start.elapsed();
            count[0] += 40_000;
            let start = std::time::Instant::now();
            for _ in 0..30_000 {
                all.free(&live.swap_remove(rng.below(live.len() as u64) as usize), txg);
            }
            spent[1] += start.elapsed();
            count[1] += 30_000;
            let start = std::time::Instant::now();
            sync(&all, &store, txg);
            spent[2] += start.elapsed();
        }
        let each = |i: usize| spent[i].as_nanos() as u64 / count[i];
        println!(
            "{threads} threads: {} ns an allocation, {} ns a free, {:?} a sync",
            each(0),
            each(1),
            spent[2] / 20
        );
    }
}

#[test]
fn metaslabs_have_the_sizes_that_openzfs_gives_them() {
    for (asize, shift) in
        [(64 << 20, 24), (1 << 30, 27), (8 << 30, 29), (100 << 30, 29), (1 << 40, 33), (1 << 50, 34)]
    {
        assert_eq!(policy::metaslab_shift(asize), shift, "{asize}");
    }
}

#[test]
fn flushing_keeps_pace_with_the_logs() {
    let limits = MetaslabLimits { log_blocks: 100, logs: 50, ..MetaslabLimits::default() };
    assert_eq!(policy::metaslabs_to_flush(&[], &limits), 1);
    // Far from the limits.
    assert_eq!(policy::metaslabs_to_flush(&[(1, 10), (1, 10)], &limits), 1);
    // Over the limit by ten blocks: the oldest log's metaslabs have to go now.
    assert_eq!(policy::metaslabs_to_flush(&[(55, 20), (55, 20)], &limits), 20);
    // As many logs as there may be.
    assert!(policy::metaslabs_to_flush(&[(0, 2); 51], &limits) >= 2);
}
