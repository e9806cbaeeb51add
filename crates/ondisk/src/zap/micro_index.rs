//! An index of the names of a micro ZAP, in memory: finding, adding and removing a name takes the same time however many
//! there are.
//!
//! A hash table with linear probing. A bucket has the hash of a name and the name's slot in the block; the names
//! themselves are compared in the block. The owner keeps index and block in step.

use super::micro::{MicroEntry, MicroZap};

/// Buckets of the smallest index.
const LEAST: usize = 32;

/// A bucket: the high half of the hash, which has all of its bits, and the slot plus 1; 0 for an empty bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    hash: u32,
    place: u32,
}

/// The names of a micro ZAP by their hashes, and its free slots.
#[derive(Clone, Debug)]
pub struct MicroIndex {
    /// A power of two of them, at most three quarters used.
    buckets: Vec<Bucket>,
    names: usize,
    /// One bit for each slot in use.
    taken: Vec<u64>,
    slots: usize,
    /// No slot below this one is free.
    searched: usize,
}

fn high(hash: u64) -> u32 {
    (hash >> 32) as u32
}

impl MicroIndex {
    /// Indexes all names of `zap`; `hash` is their hash in this ZAP.
    pub fn of(zap: &MicroZap<'_>, hash: impl Fn(&[u8]) -> u64) -> Self {
        let (taken, slots) = (Vec::new(), 0);
        let mut index = Self { buckets: vec![Bucket::default(); LEAST], names: 0, taken, slots, searched: 0 };
        index.grow_to(zap.slots());
        for entry in zap.entries() {
            index.add(hash(entry.name), entry.index);
        }
        index
    }

    /// Bytes of memory that it takes.
    pub fn footprint(&self) -> usize {
        size_of::<Self>() + self.buckets.capacity() * size_of::<Bucket>() + self.taken.capacity() * 8
    }

    /// The bucket where the search for a hash begins: its first bits.
    fn start(&self, hash: u32) -> usize {
        let bits = self.buckets.len().trailing_zeros();
        hash.checked_shr(32 - bits).unwrap_or(0) as usize
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.buckets.len() - 1)
    }

    fn bucket(&self, at: usize) -> Bucket {
        self.buckets.get(at).copied().unwrap_or_default()
    }

    fn set(&mut self, at: usize, bucket: Bucket) {
        if let Some(place) = self.buckets.get_mut(at) {
            *place = bucket;
        }
    }

    /// The buckets that a search for a hash visits, with their positions: up to the first empty one.
    fn run(&self, hash: u32) -> impl Iterator<Item = (usize, Bucket)> + '_ {
        let mut at = self.start(hash);
        std::iter::from_fn(move || {
            let here = (at, self.bucket(at));
            at = self.next(at);
            (here.1.place != 0).then_some(here)
        })
    }

    /// The slots of all names with this hash, in no order.
    pub fn of_hash(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        let wanted = high(hash);
        self.run(wanted).filter(move |(_, b)| b.hash == wanted).map(|(_, b)| b.place as usize - 1)
    }

    /// The entry with exactly this name, whose hash is `hash`; the one of the lowest slot if a damaged ZAP has several.
    pub fn find<'a>(&self, zap: &MicroZap<'a>, name: &[u8], hash: u64) -> Option<MicroEntry<'a>> {
        let named = self.of_hash(hash).filter_map(|slot| zap.entry(slot)).filter(|e| e.name == name);
        named.min_by_key(|entry| entry.index)
    }

    /// The lowest free slot.
    pub fn free_slot(&self) -> Option<usize> {
        (self.searched < self.slots).then_some(self.searched)
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The block has so many slots now; the new ones are free.
    pub fn grow_to(&mut self, slots: usize) {
        self.slots = self.slots.max(slots);
        self.taken.resize(self.slots.div_ceil(64), 0);
    }

    /// A name with this hash is now in `slot`.
    pub fn add(&mut self, hash: u64, slot: usize) {
        let Ok(place) = u32::try_from(slot + 1) else { return };
        if (self.names + 1) * 4 > self.buckets.len() * 3 {
            self.widen();
        }
        self.put(Bucket { hash: high(hash), place });
        self.names += 1;
        self.grow_to(slot + 1);
        if let Some(bits) = self.taken.get_mut(slot / 64) {
            *bits |= 1 << (slot % 64);
        }
        if slot == self.searched {
            self.search();
        }
    }

    /// Moves on to the lowest free slot.
    fn search(&mut self) {
        let mut word = self.searched / 64;
        while self.taken.get(word).is_some_and(|bits| *bits == u64::MAX) {
            word += 1;
        }
        let ones = self.taken.get(word).map_or(0, |bits| bits.trailing_ones() as usize);
        self.searched = (word * 64 + ones).min(self.slots);
    }

    fn put(&mut self, bucket: Bucket) {
        let mut at = self.start(bucket.hash);
        while self.bucket(at).place != 0 {
            at = self.next(at);
        }
        self.set(at, bucket);
    }

    fn widen(&mut self) {
        let wider = vec![Bucket::default(); self.buckets.len() * 2];
        for bucket in std::mem::replace(&mut self.buckets, wider) {
            if bucket.place != 0 {
                self.put(bucket);
            }
        }
    }

    /// The name with this hash in `slot` is gone.
    pub fn remove(&mut self, hash: u64, slot: usize) {
        let is_it = |(_, b): &(usize, Bucket)| b.hash == high(hash) && b.place as usize == slot + 1;
        let Some((at, _)) = self.run(high(hash)).find(is_it) else { return };
        self.close_gap(at);
        self.names -= 1;
        if let Some(bits) = self.taken.get_mut(slot / 64) {
            *bits &= !(1 << (slot % 64));
        }
        self.searched = self.searched.min(slot);
    }

    /// Empties a bucket; later ones of the run move there if a search would not find them any more.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.buckets.len() - 1;
        let mut at = self.next(gap);
        loop {
            let bucket = self.bucket(at);
            if bucket.place == 0 {
                break;
            }
            let (from_start, from_gap) =
                (at.wrapping_sub(self.start(bucket.hash)) & mask, at.wrapping_sub(gap) & mask);
            if from_start >= from_gap {
                self.set(gap, bucket);
                gap = at;
            }
            at = self.next(at);
        }
        self.set(gap, Bucket::default());
    }
}

#[cfg(test)]
mod tests {
    use super::super::micro::MicroZapMut;
    use super::super::{ZapFlags, hash_name};
    use super::*;

    const SALT: u64 = 0x1234_5679;

    /// Few different hashes, so that runs are long and reach over the end of the table.
    fn crowded(name: &[u8]) -> u64 {
        let hash = hash_name(SALT, name, ZapFlags::default());
        (0xffff_fff0 | hash >> 62) << 32
    }

    fn check(hash: fn(&[u8]) -> u64, rounds: usize) {
        let mut block = vec![0; 512];
        MicroZapMut::init(&mut block, SALT, 0).unwrap();
        let mut index = MicroIndex::of(&MicroZap::from_bytes(&block).unwrap(), hash);
        let mut seed = 7_u64;
        for round in 0..rounds {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let name = format!("n{}", (seed >> 33) % 400).into_bytes();
            let zap = MicroZap::from_bytes(&block).unwrap();
            let found = index.find(&zap, &name, hash(&name));
            assert_eq!(found, zap.find(&name), "round {round}");
            assert_eq!(index.free_slot().is_none(), zap.is_full());
            if let Some(slot) = found.map(|entry| entry.index) {
                MicroZapMut::from_bytes(&mut block).unwrap().remove(slot);
                index.remove(hash(&name), slot);
                continue;
            }
            let slot = index.free_slot().unwrap_or_else(|| {
                block.resize(block.len() + 512, 0);
                index.grow_to(block.len() / 64 - 1);
                index.free_slot().unwrap()
            });
            let mut zap = MicroZapMut::from_bytes(&mut block).unwrap();
            assert_eq!(zap.insert(&name, 1, 0), Some(slot), "the lowest free slot");
            index.add(hash(&name), slot);
        }
        let zap = MicroZap::from_bytes(&block).unwrap();
        assert_eq!(index.names, zap.entries().count());
        for entry in zap.entries() {
            assert!(index.of_hash(hash(entry.name)).any(|slot| slot == entry.index));
        }
    }

    #[test]
    fn an_index_that_follows_the_changes_finds_what_a_search_finds() {
        check(|name| hash_name(SALT, name, ZapFlags::default()), 5000);
        check(crowded, 3000);
    }

    #[test]
    fn a_damaged_block_is_indexed_as_it_is_searched() {
        let mut block = vec![0; 1024];
        MicroZapMut::init(&mut block, SALT, 0).unwrap();
        for slot in [2, 5, 9] {
            block[64 * (slot + 1) + 14..][..4].copy_from_slice(b"same");
        }
        block[64 + 14..128].fill(b'x');
        let zap = MicroZap::from_bytes(&block).unwrap();
        let index = MicroIndex::of(&zap, crowded);
        for name in [&b"same"[..], &[b'x'; 50], b"none", b"", b"same\0"] {
            assert_eq!(index.find(&zap, name, crowded(name)), zap.find(name));
        }
        assert_eq!((index.free_slot(), index.slots()), (Some(1), 15));
    }
}
