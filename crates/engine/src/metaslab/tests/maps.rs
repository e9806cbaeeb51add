//! Space maps: written anew, flushed, damaged.

use super::*;

/// A store during whose changes others try to unload a metaslab.
struct Unloading<'a>(&'a mut super::super::testing::TestObjects, &'a SpaceAllocator, u64);

impl SpaceMapStore for Unloading<'_> {
    fn create(&mut self, what: &SpaceObject) -> crate::error::Result<u64> {
        self.0.create(what)
    }
    fn open(&mut self, object: u64) -> crate::error::Result<Box<dyn Edit + '_>> {
        let metaslab = self.1.metaslab(0, 0).unwrap();
        let (map, was_loaded) = (metaslab.lock().map, metaslab.is_loaded());
        // A shorter map is one written anew, and the words on disk are the old ones still.
        if map.object == object && was_loaded && map.head.length < self.0.head(object).length {
            self.2 += 1;
            assert!(!metaslab.unload(), "a load would read old words");
        }
        self.0.open(object)
    }
    fn free(&mut self, what: &SpaceObject, object: u64) -> crate::error::Result<()> {
        self.0.free(what, object)
    }
}

/// Trimming unloads metaslabs at any time: not between the decision to write a map anew and its words.
#[test]
fn a_metaslab_stays_loaded_while_its_map_is_written_anew() {
    let store = SharedObjects::default();
    let forms = SpaceMapFeatures { log: false, ..SpaceMapFeatures::NEW };
    let all = create(&[Shape::disk(12, 24, 1)], forms, &store);
    all.set_limits(MetaslabLimits { classic_block: 1024, ..MetaslabLimits::default() });
    let (mut rng, mut live, mut seen) = (Rng::new(1), Vec::new(), 0);
    for txg in 4..204 {
        // Allocations of a txg keep the metaslab loaded, too: the others only free.
        if txg % 2 == 0 {
            live.extend((0..200).map(|_| one(&all, want(4096 << rng.below(2), txg))));
        }
        for _ in 0..99.min(live.len()) {
            let dva = live.swap_remove(rng.below(live.len() as u64) as usize);
            all.free(&dva, txg);
        }
        let mut objects = store.0.lock();
        let mut unloading = Unloading(&mut objects, &all, 0);
        all.sync(txg, 1, &mut unloading).unwrap();
        seen += if txg % 2 == 1 { unloading.2 } else { 0 };
        drop(objects);
        all.sync_done(txg);
    }
    assert!(seen > 0);
}

#[test]
fn maps_are_condensed() {
    let store = SharedObjects::default();
    let shapes = [Shape::disk(12, 24, 1)];
    let forms = SpaceMapFeatures { log: false, ..SpaceMapFeatures::NEW };
    let all = create(&shapes, forms, &store);
    all.set_limits(MetaslabLimits { classic_block: 1024, ..MetaslabLimits::default() });
    let mut longest = 0;
    for round in 0..20 {
        churn(&all, &store, 4 + round * 10..14 + round * 10, round)
            .iter()
            .for_each(|dva| all.free(dva, 14 + round * 10));
        sync(&all, &store, 14 + round * 10);
        let metaslab = all.metaslab(0, 0).unwrap();
        let (length, written) = (metaslab.lock().map.head.length, 20 * 10 * 390 * 8);
        longest = longest.max(length);
        assert!(length < written / 10, "{length} bytes");
    }
    assert!(longest > 4096);
    assert_eq!(reload(&shapes, forms, &store).allocatable(0), {
        (300..303).for_each(|txg| sync(&all, &store, txg));
        all.allocatable(0)
    });
}

#[test]
fn logs_are_flushed_and_freed() {
    let store = SharedObjects::default();
    let shapes = [Shape::disk(12, 22, 40)];
    let all = create(&shapes, SpaceMapFeatures::NEW, &store);
    all.set_limits(MetaslabLimits {
        logged_block: 4096,
        log_blocks: 30,
        logs: 20,
        ..MetaslabLimits::default()
    });
    let mut most = 0;
    let mut rng = Rng::new(1);
    let mut live = Vec::new();
    for txg in 4..300 {
        for _ in 0..60 {
            live.push(one(&all, want(4096, txg)));
        }
        for _ in 0..55 {
            all.free(&live.swap_remove(rng.below(live.len() as u64) as usize), txg);
        }
        sync(&all, &store, txg);
        most = most.max(store.0.lock().logs.len());
    }
    assert!((3..=25).contains(&most), "{most} logs");
    all.request_flush_all();
    one(&all, want(4096, 300));
    sync(&all, &store, 300);
    assert_eq!(store.0.lock().logs.keys().copied().collect::<Vec<_>>(), [300]);
    let waiting: u64 = all.vdev_stats(0).unwrap().deferred;
    assert_eq!(
        reload(&shapes, SpaceMapFeatures::NEW, &store).allocatable(0).covered(),
        all.allocatable(0).covered() + waiting
    );
}

#[test]
fn histograms_count_what_is_free() {
    let store = SharedObjects::default();
    let all =
        create(&[Shape::disk(12, 20, 1)], SpaceMapFeatures { log: false, ..SpaceMapFeatures::NEW }, &store);
    let dvas: Vec<Dva> = (0..4).map(|_| one(&all, want(4096, 4))).collect();
    sync(&all, &store, 4);
    all.free(&dvas[1], 5);
    sync(&all, &store, 5);
    let objects = store.0.lock().clone();
    let map = objects.word(objects.arrays[&0], 0);
    let head = objects.head(map);
    let mut wanted = [0; 32];
    (wanted[0], wanted[7]) = (1, 1);
    assert_eq!((head.histogram, head.alloc, head.object), (wanted, 3 * 4096, map));
}

#[test]
fn space_taken_back_can_be_used_at_once() {
    let store = SharedObjects::default();
    let all = create(&[Shape::disk(12, 20, 1)], SpaceMapFeatures::NEW, &store);
    let dvas: Vec<Dva> = (0..256).map(|_| one(&all, want(4096, 4))).collect();
    all.unallocate(&dvas[7], 4);
    assert_eq!(one(&all, want(4096, 4)).offset, dvas[7].offset);
    // Once it is in the map, it becomes an ordinary free.
    all.sync(4, 1, &mut *store.0.lock()).unwrap();
    all.unallocate(&dvas[9], 4);
    assert!(all.allocate(&want(4096, 4)).is_err());
    all.sync(4, 2, &mut *store.0.lock()).unwrap();
    all.sync_done(4);
    (5..7).for_each(|txg| sync(&all, &store, txg));
    assert_eq!(one(&all, want(4096, 7)).offset, dvas[9].offset);
    assert!(all.take_problems().is_empty());
}

#[derive(Debug)]
struct Broken;

impl SpaceMapSource for Broken {
    fn read(&self, _: u64, _: u64, _: &mut dyn FnMut(&[u8]) -> crate::Result<()>) -> crate::Result<()> {
        Err(crate::Error::new(Kind::Checksum, "no copy is good"))
    }
}

#[test]
fn a_map_that_cant_be_read_is_left_alone() {
    let store = SharedObjects::default();
    let shapes = [Shape::disk(12, 20, 3)];
    let all = create(&shapes, SpaceMapFeatures { log: false, ..SpaceMapFeatures::NEW }, &store);
    let dva = one(&all, want(4096, 4));
    sync(&all, &store, 4);
    let mut again = reload(&shapes, SpaceMapFeatures { log: false, ..SpaceMapFeatures::NEW }, &store);
    again.source = Some(Arc::new(Broken));
    for _ in 0..512 {
        assert_ne!(one(&again, want(4096, 5)).offset >> 20, dva.offset >> 20);
    }
    assert!(again.allocate(&want(4096, 5)).is_err());
    again.free(&dva, 5);
    again.sync(5, 1, &mut *store.0.lock()).unwrap();
    assert_eq!(again.take_notes().len(), 1);
}

/// A source with one map in which a piece was allocated twice.
#[derive(Debug)]
struct Twice;

impl SpaceMapSource for Twice {
    fn read(&self, _: u64, _: u64, each: &mut dyn FnMut(&[u8]) -> crate::Result<()>) -> crate::Result<()> {
        each(&[0; 16])
    }
}

#[test]
fn nothing_is_allocated_by_a_map_that_contradicts_itself() {
    let store = SharedObjects::default();
    let shapes = [Shape::disk(12, 20, 1)];
    let forms = SpaceMapFeatures { log: false, ..SpaceMapFeatures::NEW };
    let all = create(&shapes, forms, &store);
    one(&all, want(4096, 4));
    sync(&all, &store, 4);
    let mut again = reload(&shapes, forms, &store);
    again.source = Some(Arc::new(Twice));
    assert!(again.allocate(&want(4096, 5)).is_err());
    assert_eq!(again.take_notes()[0].kind(), Kind::Corrupt);
}
