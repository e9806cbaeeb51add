//! Tables of a pass: fingerprints of blocks, and the blocks that stay.

use ondisk::{Blkptr, ChecksumType};

use super::walk::Spot;

/// Bit of the property word for blocks listed in a dedup table.
const DEDUP: u64 = 1 << 62;

/// The common properties of equal blocks: checksum, sizes, compression, type, byte order, copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    checksum: [u64; 4],
    prop: u64,
    copies: usize,
}

impl Look {
    /// The look of a stored block; `None` if its content cannot be compared.
    pub(crate) fn of(bp: &Blkptr) -> Option<Self> {
        if bp.is_hole() || bp.is_embedded() || bp.is_redacted() || bp.is_encrypted() {
            return None;
        }
        let function = bp.checksum()?;
        let has_one = !matches!(function, ChecksumType::Off | ChecksumType::NoParity | ChecksumType::Inherit);
        (has_one && !function.is_embedded()).then(|| Self {
            checksum: bp.checksum_words(),
            prop: bp.prop() & !DEDUP,
            copies: bp.ndvas(),
        })
    }

    /// Whether blocks that look equal are equal: OpenZFS trusts the same checksums for dedup without `verify`.
    pub(crate) fn is_proof(bp: &Blkptr) -> bool {
        bp.checksum().is_some_and(ChecksumType::is_dedup_strong)
    }
}

/// The fingerprint of a block that can be compared: equal blocks have equal ones. Its lowest bit is 0.
pub(crate) fn print_of(bp: &Blkptr) -> Option<u64> {
    let look = Look::of(bp)?;
    let words = look.checksum.into_iter().chain([look.prop, u64::try_from(look.copies).unwrap_or(0)]);
    // Fletcher's words are far from evenly distributed: splitmix64's finalizer spreads them.
    let mixed = words.fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| {
        let mut x = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    });
    Some(mixed & !1)
}

/// Fingerprints of a range, as wide as memory allows. The lowest bit of a kept one is set when it occurred
/// more than once.
#[derive(Debug)]
pub(crate) struct Prints {
    first: u64,
    /// The last fingerprint of the range.
    last: u64,
    kept: Vec<u64>,
    capacity: usize,
}

impl Prints {
    /// An empty table of at most `capacity` fingerprints, from `first` on.
    pub(crate) fn new(first: u64, capacity: usize) -> Self {
        Self { first, last: u64::MAX, kept: Vec::new(), capacity: capacity.max(16) }
    }

    /// Adds a fingerprint, if it is in the range. A full table makes the range shorter.
    pub(crate) fn extend(&mut self, print: Option<u64>) {
        let Some(print) = print.filter(|print| (self.first..=self.last).contains(print)) else { return };
        self.kept.push(print);
        if self.kept.len() >= self.capacity {
            self.compact();
            if self.kept.len() > self.capacity / 2 {
                self.cut();
            }
        }
    }

    fn compact(&mut self) {
        self.kept.sort_unstable();
        self.kept.dedup_by(|print, kept| {
            let is_same = *print & !1 == *kept & !1;
            *kept |= u64::from(is_same);
            is_same
        });
    }

    /// Leaves the upper half of the range to a later pass.
    fn cut(&mut self) {
        let half = self.kept.len() / 2;
        if let Some(above) = self.kept.get(half) {
            self.last = (*above & !1).saturating_sub(1);
            self.kept.truncate(half);
        }
    }

    /// The fingerprints that occurred more than once, in order; and where the next pass begins, if one is needed.
    pub(crate) fn finish(mut self) -> (Vec<u64>, Option<u64>) {
        self.compact();
        self.kept.retain(|print| print & 1 == 1);
        self.kept.iter_mut().for_each(|print| *print &= !1);
        self.kept.shrink_to_fit();
        (self.kept, self.last.checked_add(1))
    }
}

/// The block that stays, of all that have its fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its dataset, among the targets.
    pub(crate) target: u32,
    /// Whether a snapshot of the dataset holds it.
    pub(crate) is_held: bool,
    /// Its object and block.
    pub(crate) place: (u64, u64),
    /// Its first address: vdev and offset.
    pub(crate) dva: (u32, u64),
    birth: u64,
}

impl Candidate {
    /// Bytes of an entry of the table with its fingerprint, which a second table holds.
    pub(crate) const BYTES: u64 = 64;

    /// The block of a place; `None` without an address.
    pub(crate) fn of(spot: &Spot<'_>, is_held: bool) -> Option<Self> {
        let dva = spot.bp.dva(0)?;
        let target = u32::try_from(spot.target).ok()?;
        let place = (spot.object.number, spot.blkid);
        Some(Self { target, is_held, place, dva: (dva.vdev, dva.offset), birth: spot.bp.physical_birth() })
    }

    /// Whether keeping this block saves more: a block that a snapshot holds cannot be freed; an old block is likely shared
    /// already.
    pub(crate) fn is_better_than(&self, other: &Self) -> bool {
        (!self.is_held, self.birth, self.dva) < (!other.is_held, other.birth, other.dva)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_candidate_fits_its_bytes() {
        assert!(size_of::<Option<Candidate>>() + size_of::<u64>() <= Candidate::BYTES as usize);
    }

    #[test]
    fn passes_find_every_repeated_fingerprint_within_any_memory() {
        let mut random = stdx::rng::Rng::new(7);
        let all: Vec<u64> =
            (0..5000).map(|_| (random.next_u64() % 3000).wrapping_mul(0x9e37_79b9_7f4a_7c15) & !1).collect();
        let mut times = BTreeMap::<u64, u32>::new();
        all.iter().for_each(|print| *times.entry(*print).or_default() += 1);
        let wanted: Vec<u64> = times.into_iter().filter(|(_, n)| *n > 1).map(|(print, _)| print).collect();
        for capacity in [16, 100, 1000, 100_000] {
            let (mut from, mut found, mut passes) = (Some(0), Vec::new(), 0);
            while let Some(first) = from {
                let mut prints = Prints::new(first, capacity);
                all.iter().for_each(|print| prints.extend(Some(*print)));
                assert!(prints.kept.len() <= capacity);
                let (twice, next) = prints.finish();
                found.extend(twice);
                (from, passes) = (next, passes + 1);
            }
            assert_eq!(found, wanted, "capacity {capacity}");
            assert_eq!(passes > 1, capacity < 3000, "capacity {capacity}: {passes} passes");
        }
        // One block in a million places takes no more memory than in two.
        let mut prints = Prints::new(0, 16);
        (0..10_000).for_each(|_| prints.extend(Some(42)));
        assert_eq!(prints.finish(), (vec![42], None));
    }
}
