//! The allocator against a plain ledger, over many txgs, with crashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::Dva;
use stdx::RangeSet;
use stdx::rng::Rng;

use super::policy::MetaslabLimits;
use super::testing::{Shape, SharedObjects, TestObjects, create, reload};
use super::unit::{LoadStart, Metaslab};
use super::{SpaceAllocator, SpaceMapFeatures, table};
use crate::error::{Error, Kind};
use crate::vdev::config::AllocBias;
use crate::zio::alloc::{AllocRequest, Allocator, MetaslabClass};

/// Allocated blocks, and freed ones that may not be reused yet.
#[derive(Debug, Clone, Default)]
struct Ledger {
    live: BTreeMap<(u32, u64), (Dva, u64)>,
    freed: Vec<(u64, Dva)>,
}

impl Ledger {
    fn add(&mut self, dva: Dva, txg: u64) {
        let end = dva.offset + dva.asize;
        let below = self.live.range(..(dva.vdev, end)).next_back();
        if let Some((&(vdev, offset), (other, _))) = below {
            assert!(vdev < dva.vdev || offset + other.asize <= dva.offset, "{dva:?} overlaps {other:?}");
        }
        for (then, old) in &self.freed {
            let apart = old.vdev != dva.vdev || old.offset >= end || old.offset + old.asize <= dva.offset;
            assert!(apart, "{dva:?} of txg {txg} reuses what was freed in {then}");
        }
        self.live.insert((dva.vdev, dva.offset), (dva, txg));
    }

    fn any(&self, rng: &mut Rng, txg: u64) -> Option<Dva> {
        let from = (rng.below(4) as u32, rng.below(1 << 24));
        let old = |(_, (dva, born)): (&(u32, u64), &(Dva, u64))| (*born <= txg).then_some(*dva);
        self.live.range(from..).chain(self.live.iter()).find_map(old)
    }

    fn free(&mut self, dva: Dva, txg: u64) {
        self.live.remove(&(dva.vdev, dva.offset)).unwrap();
        self.freed.push((txg, dva));
    }

    /// The unallocated space of a vdev.
    fn free_space(&self, vdev: u32, shape: &Shape) -> RangeSet {
        let mut free = RangeSet::new();
        for id in 0..shape.metaslabs {
            let (start, size) = table::place(shape.metaslab_shift, shape.row(), id);
            free.insert(start, start + size);
        }
        for (dva, _) in self.live.values().filter(|(dva, _)| dva.vdev == vdev) {
            assert_eq!(free.remove(dva.offset, dva.offset + dva.asize), dva.asize);
        }
        free
    }
}

struct Pool {
    shapes: Vec<Shape>,
    forms: SpaceMapFeatures,
    limits: MetaslabLimits,
    /// Loads that have begun: the metaslab, where it started, and the content of the map, once read.
    loads: Vec<(Arc<Metaslab>, LoadStart, Option<RangeSet>)>,
    store: SharedObjects,
    all: SpaceAllocator,
    ledger: Ledger,
    rng: Rng,
    /// State at the last uberblock: the store and the live blocks.
    synced: (TestObjects, Ledger),
    txg: u64,
}

impl Pool {
    fn new(shapes: Vec<Shape>, forms: SpaceMapFeatures, seed: u64) -> Self {
        let store = SharedObjects::default();
        let all = create(&shapes, forms, &store);
        let (ledger, rng) = (Ledger::default(), Rng::new(seed));
        let limits = match seed % 3 {
            0 => MetaslabLimits::default(),
            1 => MetaslabLimits {
                classic_block: 512,
                logged_block: 1024,
                log_blocks: 8,
                ..MetaslabLimits::default()
            },
            _ => MetaslabLimits {
                logged_block: 512,
                logs: 5,
                unflushed_ranges: 50,
                ..MetaslabLimits::default()
            },
        };
        all.set_limits(limits);
        let (loads, synced) = (Vec::new(), Default::default());
        Self { shapes, forms, limits, loads, store, all, ledger, rng, synced, txg: 4 }
    }

    fn any_metaslab(&mut self) -> Arc<Metaslab> {
        let vdev = self.all.vdev(self.rng.below(self.shapes.len() as u64)).unwrap();
        Arc::clone(&vdev.metaslabs[self.rng.below(vdev.metaslabs.len() as u64) as usize])
    }

    /// Metaslabs are forgotten, and loaded in steps between which other things happen.
    fn loading(&mut self) {
        match self.rng.below(4) {
            0 => {
                self.any_metaslab().unload();
            }
            1 => {
                let metaslab = self.any_metaslab();
                if let Some(start) = metaslab.start_load() {
                    self.loads.push((metaslab, start, None));
                }
            }
            2 if !self.loads.is_empty() => {
                let at = self.rng.below(self.loads.len() as u64) as usize;
                let (metaslab, start, read) = &mut self.loads[at];
                if !metaslab.is_loaded() && read.is_none() {
                    *read = self.all.read_map(metaslab, start.object, start.length).ok();
                }
            }
            _ if !self.loads.is_empty() => {
                let at = self.rng.below(self.loads.len() as u64) as usize;
                let (metaslab, start, read) = self.loads.swap_remove(at);
                let read = read.ok_or_else(|| Error::not_found("the device is gone"));
                metaslab.end_load(&start, read.as_ref().map_err(Clone::clone));
            }
            _ => {}
        }
    }

    fn allocate(&mut self, txg: u64) {
        let class = [
            MetaslabClass::Normal,
            MetaslabClass::Normal,
            MetaslabClass::Special,
            MetaslabClass::Log,
            MetaslabClass::Dedup,
        ];
        let request = AllocRequest {
            psize: 512 << self.rng.below(9),
            copies: 1 + self.rng.below(8).saturating_sub(5) as u8,
            class: class[self.rng.below(5) as usize],
            txg,
            gang: self.rng.below(50) == 0,
            evens_out: self.rng.below(10) == 0,
            fewer_will_do: self.rng.below(10) == 0,
        };
        match self.all.allocate(&request) {
            Ok(dvas) => {
                assert!(dvas.len() == usize::from(request.copies) || request.fewer_will_do);
                for dva in dvas {
                    let top = self.shapes[dva.vdev as usize].top(u64::from(dva.vdev));
                    assert_eq!(dva.asize, top.asize_of(request.psize, txg));
                    assert_eq!(dva.offset % self.shapes[dva.vdev as usize].row(), 0);
                    // A gang header that is freed has the size of one.
                    let gang = dva.gang && request.psize == 512;
                    self.ledger.add(Dva { gang, ..dva }, txg);
                    if self.rng.below(20) == 0 {
                        self.ledger.live.remove(&(dva.vdev, dva.offset));
                        self.all.unallocate(&Dva { gang, ..dva }, txg);
                    }
                }
            }
            Err(e) => assert!(matches!(e.kind(), Kind::NoSpace | Kind::Fragmented), "{e}"),
        }
    }

    /// One txg from open to synced.
    fn turn(&mut self, busy: u64) {
        let txg = self.txg;
        for _ in 0..self.rng.below(busy) {
            self.allocate(txg);
        }
        for pass in 1..=self.rng.below(4) + 1 {
            for _ in 0..self.rng.below(busy) / pass {
                self.loading();
                if let Some(dva) = self.ledger.any(&mut self.rng, txg) {
                    self.ledger.free(dva, txg);
                    self.all.free(&dva, txg);
                }
                if self.rng.below(4) == 0 {
                    self.allocate(txg);
                }
                if self.rng.below(2) == 0 {
                    self.allocate(txg + 1);
                }
            }
            self.all.sync(txg, pass, &mut *self.store.0.lock()).unwrap();
            self.loading();
            assert!(!self.all.is_dirty(txg));
            if pass == 2 {
                self.all.preload(txg);
            }
        }
        let before = self.store.0.lock().writes;
        assert!(!self.all.sync(txg, 9, &mut *self.store.0.lock()).unwrap(), "nothing is left to write");
        assert_eq!(self.store.0.lock().writes, before);
        let mut live = self.ledger.clone();
        live.live.retain(|_, (_, born)| *born <= txg);
        live.freed.clear();
        self.synced = (self.store.0.lock().clone(), live);
        self.check_logs();
        self.all.sync_done(txg);
        self.ledger.freed.retain(|(then, _)| then + 2 > txg);
        self.txg += 1;
        self.check_totals();
    }

    /// Every metaslab counts from a txg that has a log, and there are no logs from before that.
    fn check_logs(&self) {
        let objects = &self.synced.0;
        let mut since = Vec::new();
        for (id, shape) in (0..).zip(&self.shapes) {
            let array = objects.unflushed.get(&id).copied().unwrap_or(0);
            since.extend((0..shape.metaslabs).map(|ms| objects.word(array, ms)).filter(|&txg| txg != 0));
        }
        assert!(since.iter().all(|txg| objects.logs.contains_key(txg)), "{since:?}");
        let oldest = objects.logs.keys().next().copied().unwrap_or(0);
        assert!(since.iter().all(|&txg| txg >= oldest));
        assert!(objects.logs.len() as u64 <= self.limits.logs.max(self.txg));
    }

    fn check_totals(&self) {
        for (id, _) in (0..).zip(&self.shapes) {
            let stats = self.all.vdev_stats(id).unwrap();
            let live: u64 = self
                .ledger
                .live
                .values()
                .filter(|(d, born)| u64::from(d.vdev) == id && *born < self.txg)
                .map(|(d, _)| d.asize)
                .sum();
            let freed: u64 =
                self.ledger.freed.iter().filter(|(_, d)| u64::from(d.vdev) == id).map(|(_, d)| d.asize).sum();
            assert_eq!((stats.allocated, stats.deferred), (live + freed, freed), "vdev {id}");
        }
    }

    /// The machine stops: the state of the last uberblock remains.
    fn crash(&mut self) {
        let (objects, ledger) = self.synced.clone();
        self.store = SharedObjects(std::sync::Arc::new(parking_lot::Mutex::new(objects)));
        self.loads.clear();
        self.all = reload(&self.shapes, self.forms, &self.store);
        self.ledger = ledger;
        self.compare();
        if self.rng.below(2) == 0 {
            // Only some of it is loaded.
            self.all = reload(&self.shapes, self.forms, &self.store);
        }
        self.all.set_limits(self.limits);
    }

    fn compare(&self) {
        for (id, shape) in (0_u32..).zip(&self.shapes) {
            let vdev = self.all.vdev(u64::from(id)).unwrap();
            let mut found = RangeSet::new();
            for metaslab in &vdev.metaslabs {
                self.all.load(metaslab);
                let state = metaslab.lock();
                let free = state.free.as_ref().unwrap();
                assert_eq!(free.covered(), metaslab.size - state.allocated, "metaslab {}", metaslab.id);
                free.iter().for_each(|(s, e)| {
                    found.insert(s, e);
                });
            }
            assert_eq!(found, self.ledger.free_space(id, shape), "vdev {id}");
        }
    }
}

fn shapes(rng: &mut Rng) -> Vec<Shape> {
    let ashift = 9 + rng.below(8) as u32;
    let mut shapes = vec![Shape::disk(ashift, ashift + 6 + rng.below(3) as u32, 8 + rng.below(80))];
    if rng.below(3) == 0 {
        let mut shape = Shape::disk(ashift, ashift + 7, 12);
        shape.draid = 2 + rng.below(4);
        shapes.push(shape);
    }
    for _ in 0..rng.below(3) {
        let mut shape = Shape::disk(ashift, ashift + 6 + rng.below(3) as u32, 8 + rng.below(16));
        let parity = rng.below(4) as u32;
        shape.raidz = (parity, parity + 1 + rng.below(4) as u32);
        shape.bias =
            [AllocBias::Normal, AllocBias::Log, AllocBias::Special, AllocBias::Dedup][rng.below(4) as usize];
        shapes.push(shape);
    }
    shapes
}

fn run(seed: u64, forms: SpaceMapFeatures, later: SpaceMapFeatures) {
    let mut rng = Rng::new(seed);
    let shapes = shapes(&mut rng);
    let mut pool = Pool::new(shapes, forms, seed);
    let busy = 4 + rng.below(60);
    for i in 0..40 {
        if i == 20 {
            pool.forms = later;
            pool.all.set_forms(later);
        }
        pool.turn(busy);
        if rng.below(8) == 0 {
            pool.crash();
        }
    }
    pool.all.request_flush_all();
    pool.turn(4);
    pool.crash();
}

#[test]
fn equals_a_ledger_in_classic_form() {
    for seed in 0..12 {
        let forms = SpaceMapFeatures {
            log: false,
            two_words: seed % 2 == 0,
            histogram: seed % 3 != 0,
            ..SpaceMapFeatures::NEW
        };
        run(seed, forms, forms);
    }
}

#[test]
fn equals_a_ledger_with_logs() {
    for seed in 100..112 {
        run(seed, SpaceMapFeatures::NEW, SpaceMapFeatures::NEW);
    }
}

#[test]
fn equals_a_ledger_when_features_are_enabled() {
    for seed in 200..209 {
        run(
            seed,
            SpaceMapFeatures {
                log: false,
                two_words: false,
                histogram: seed % 2 == 0,
                ..SpaceMapFeatures::NEW
            },
            SpaceMapFeatures::NEW,
        );
    }
}
