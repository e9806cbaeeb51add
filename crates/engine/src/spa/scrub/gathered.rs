//! Blocks that a scan has met and has still to read, sorted by their places on the top-level vdevs.
//!
//! The walk of a scan meets blocks in the order of files. They are gathered here until memory is full or the walk is over, and
//! then read in ascending order of each vdev. A block with several copies stands here once for each copy. A block that is met
//! again (by a clone, or as a duplicate) stands here once.
//!
//! A block that is freed leaves at once ([`GatheredBlocks::forget`]): its space is another block's two txgs later.
//!
//! An entry has the words of the pointer that a read and a report of damage need, which is all but its fill count.
//!
//! Lock order: the lock here is a leaf lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::Blkptr;
use parking_lot::Mutex;

use crate::memory::Memory;
use crate::types::Bookmark;

/// Bytes that an entry takes: nodes of a map that grows in order are little more than half full.
const ENTRY: u64 = 208;
/// Additional bytes of an entry with [`Entry::more`].
const MORE: u64 = 64;
/// Object sets have smaller numbers: the level stands beside them.
const OBJSETS: u64 = 1 << 56;
/// Words of a block pointer: the second address, padding, births, checksum.
const SECOND: usize = 2;
const PADDING: usize = 7;
const BIRTHS: usize = 9;
const CHECKSUM: usize = 12;

/// A copy of a block.
#[derive(Debug)]
struct Entry {
    prop: u64,
    births: [u64; 2],
    checksum: [u64; 4],
    /// First word of the copy's address; the second one is the key.
    address: u64,
    object: u64,
    blkid: u64,
    objset_level: u64,
    /// Words of the other addresses, and padding, if they are in use.
    more: Option<Box<[u64; 6]>>,
}

fn part<const N: usize>(words: &[u64; 16], at: usize) -> [u64; N] {
    std::array::from_fn(|i| words.get(at + i).copied().unwrap_or(0))
}

impl Entry {
    /// The entry of a pointer whose first address is the copy's, with its key; `None` if it does not fit.
    fn of(words: &[u64; 16], at: Bookmark) -> Option<(u64, Self)> {
        let level = i8::try_from(at.level).ok()?.cast_unsigned();
        if at.objset >= OBJSETS {
            return None;
        }
        let ([address, place], [a, b, c, d]) = (part(words, 0), part(words, SECOND));
        let [e, f] = part(words, PADDING);
        let more = [a, b, c, d, e, f];
        let entry = Self {
            prop: part::<1>(words, PADDING - 1)[0],
            births: part(words, BIRTHS),
            checksum: part(words, CHECKSUM),
            address,
            object: at.object,
            blkid: at.blkid,
            objset_level: at.objset << 8 | u64::from(level),
            more: (more != [0; 6]).then(|| Box::new(more)),
        };
        Some((place, entry))
    }

    fn block(&self, place: u64) -> (Blkptr, Bookmark) {
        let [a, b, c, d, e, f] = self.more.as_deref().copied().unwrap_or_default();
        let ([physical, logical], [w, x, y, z]) = (self.births, self.checksum);
        let words = [self.address, place, a, b, c, d, self.prop, e, f, physical, logical, 0, w, x, y, z];
        let level = u8::try_from(self.objset_level & 0xff).unwrap_or(0).cast_signed();
        let at = Bookmark::new(self.objset_level >> 8, self.object, i64::from(level), self.blkid);
        (Blkptr::from_words(words), at)
    }

    fn cost(&self) -> u64 {
        ENTRY + if self.more.is_some() { MORE } else { 0 }
    }
}

/// The words of a pointer with the addresses of its `count` copies turned so that copy `first` comes first.
fn turned(bp: &Blkptr, first: usize, count: usize) -> [u64; 16] {
    let mut words = *bp.words();
    for i in 0..count {
        let from = 2 * ((first + i) % count);
        for j in 0..2 {
            if let (Some(to), Some(word)) = (words.get_mut(2 * i + j), bp.words().get(from + j)) {
                *to = *word;
            }
        }
    }
    words
}

#[derive(Debug, Default)]
struct Blocks {
    /// By top-level vdev and place on it.
    tops: BTreeMap<u32, BTreeMap<u64, Entry>>,
    bytes: u64,
    /// Bytes of blocks that were freed since [`GatheredBlocks::take_freed`], as allocated.
    freed: u64,
}

/// Result of [`GatheredBlocks::add`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatherResult {
    /// It will be read.
    New,
    /// All its copies stand here already.
    Known,
    /// Its parts are not at the places that it names: it has to be read at once.
    Unsorted,
}

/// Blocks that wait to be read.
#[derive(Debug, Default)]
pub(super) struct GatheredBlocks {
    blocks: Mutex<Blocks>,
    count: AtomicU64,
    /// Bytes of [`Memory`] that are held for them.
    held: AtomicU64,
}

impl GatheredBlocks {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes a block, with the bookmark under which damage is reported.
    pub(super) fn add(&self, bp: &Blkptr, at: Bookmark) -> GatherResult {
        let count = bp.ndvas();
        // A copy behind an address that is not in use, or a gang, which only its header knows.
        let is_odd = |i: usize| bp.dva(i).is_none_or(|dva| dva.gang || !dva.is_valid());
        if count == 0 || (0..count).any(is_odd) {
            return GatherResult::Unsorted;
        }
        let mut copies = Vec::with_capacity(count);
        for i in 0..count {
            let (Some(dva), Some(entry)) = (bp.dva(i), Entry::of(&turned(bp, i, count), at)) else {
                return GatherResult::Unsorted;
            };
            copies.push((dva.vdev, entry));
        }
        let mut blocks = self.blocks.lock();
        let mut added = GatherResult::Known;
        for (vdev, (place, entry)) in copies {
            blocks.bytes += entry.cost();
            match blocks.tops.entry(vdev).or_default().insert(place, entry) {
                Some(old) => blocks.bytes -= old.cost(),
                None => {
                    added = GatherResult::New;
                    self.count.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        added
    }

    /// A block was freed.
    #[doc(alias = "dsl_scan_freed")]
    pub(super) fn forget(&self, bp: &Blkptr) {
        if self.is_empty() {
            return;
        }
        let mut blocks = self.blocks.lock();
        for (i, dva) in bp.dvas().enumerate() {
            let place = bp.words().get(2 * i + 1).copied().unwrap_or(0);
            let gone = blocks.tops.get_mut(&dva.vdev).and_then(|top| top.remove(&place));
            if let Some(entry) = gone {
                blocks.bytes -= entry.cost();
                blocks.freed += dva.asize;
                self.count.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Bytes of blocks that were freed since the last call, as allocated.
    pub(super) fn take_freed(&self) -> u64 {
        std::mem::take(&mut self.blocks.lock().freed)
    }

    /// The next block of the vdev that has least to do, by `load`; its first copy is the one to be read.
    pub(super) fn next(&self, load: impl Fn(u32) -> u64) -> Option<(Blkptr, Bookmark)> {
        let mut blocks = self.blocks.lock();
        let blocks = &mut *blocks;
        let vdev = match blocks.tops.len() {
            1 => blocks.tops.keys().next().copied(),
            _ => blocks.tops.keys().copied().min_by_key(|vdev| load(*vdev)),
        }?;
        let top = blocks.tops.get_mut(&vdev)?;
        let first = top.pop_first();
        if top.is_empty() {
            blocks.tops.remove(&vdev);
        }
        let (place, entry) = first?;
        blocks.bytes -= entry.cost();
        self.count.fetch_sub(1, Ordering::AcqRel);
        Some(entry.block(place))
    }

    /// Counts the bytes taken as the process's. Returns whether they are more than allowed.
    pub(super) fn charge(&self, memory: &Memory, most: u64) -> bool {
        let now = self.blocks.lock().bytes;
        let before = self.held.swap(now, Ordering::AcqRel);
        now > memory.hold_gathered(before, now).min(most)
    }

    /// Forgets all blocks.
    pub(super) fn clear(&self, memory: &Memory) {
        {
            let mut blocks = self.blocks.lock();
            *blocks = Blocks::default();
            self.count.store(0, Ordering::Release);
        }
        self.charge(memory, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pointer with a copy at each of these (vdev, sector), of 512 bytes.
    fn pointer(places: &[(u64, u64)]) -> Blkptr {
        let mut words: [u64; 16] = std::array::from_fn(|i| 0x1000 + i as u64);
        words[..6].fill(0);
        words[6] = 1 << 63 | 1 << 56 | 19 << 48 | 7 << 40 | 2 << 32;
        words[7] = 1 << 63;
        words[8] = 0;
        words[11] = 0;
        for (i, (vdev, sector)) in places.iter().enumerate() {
            words[2 * i] = vdev << 32 | 1;
            words[2 * i + 1] = *sector;
        }
        Blkptr::from_words(words)
    }

    fn at(blkid: u64) -> Bookmark {
        Bookmark::new(54, 7, 1, blkid)
    }

    fn drain(gathered: &GatheredBlocks) -> Vec<(Blkptr, Bookmark)> {
        std::iter::from_fn(|| gathered.next(u64::from)).collect()
    }

    #[test]
    fn blocks_come_back_whole_and_in_order_of_their_places() {
        let gathered = GatheredBlocks::default();
        let one = pointer(&[(0, 30)]);
        let two = pointer(&[(1, 20), (0, 10)]);
        assert_eq!(
            (gathered.add(&one, at(1)), gathered.add(&two, at(2))),
            (GatherResult::New, GatherResult::New)
        );
        assert_eq!(gathered.add(&two, at(3)), GatherResult::Known);
        let turned = pointer(&[(0, 10), (1, 20)]);
        assert_eq!(drain(&gathered), [(turned, at(3)), (one, at(1)), (two, at(3))]);
        assert!(gathered.is_empty());
        let root = Bookmark::root(54);
        gathered.add(&one, root);
        assert_eq!(drain(&gathered), [(one, root)]);
    }

    #[test]
    fn freed_blocks_leave() {
        let (gathered, memory) = (GatheredBlocks::default(), Memory::of_size(1 << 20));
        gathered.add(&pointer(&[(1, 20), (0, 10)]), at(2));
        gathered.add(&pointer(&[(0, 30)]), at(1));
        gathered.forget(&pointer(&[(1, 20), (0, 10)]));
        gathered.forget(&pointer(&[(0, 31)]));
        assert_eq!((gathered.take_freed(), gathered.take_freed()), (1024, 0));
        assert!(!gathered.charge(&memory, u64::MAX) && gathered.charge(&memory, ENTRY));
        assert_eq!(drain(&gathered), [(pointer(&[(0, 30)]), at(1))]);
        gathered.charge(&memory, u64::MAX);
        assert_eq!((gathered.blocks.lock().bytes, memory.gathered()), (0, 0));
    }

    #[test]
    fn gangs_are_not_sorted() {
        let mut words = *pointer(&[(0, 10)]).words();
        words[1] |= 1 << 63;
        let gathered = GatheredBlocks::default();
        assert_eq!(gathered.add(&Blkptr::from_words(words), at(1)), GatherResult::Unsorted);
        assert_eq!(gathered.add(&pointer(&[]), at(1)), GatherResult::Unsorted);
        assert!(gathered.is_empty());
    }

    #[test]
    fn an_entry_takes_what_is_charged() {
        // A map that grows in order has six entries in each node of eleven.
        let node = 11 * (size_of::<Entry>() + 8) + 16;
        assert!(node as u64 / 6 <= ENTRY, "{node}");
        assert!(size_of::<[u64; 6]>() as u64 + 16 <= MORE);
    }
}
