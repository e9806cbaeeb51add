//! A bitmap in chunks that exist only where a bit is set: the used sectors of a vdev.

use std::collections::BTreeMap;

/// Bits of a chunk: 8 KiB of memory.
const CHUNK_BITS: u64 = 1 << 16;
const WORDS: usize = (CHUNK_BITS / 64) as usize;

/// A set of small numbers.
#[derive(Debug, Default)]
pub(crate) struct Bitmap {
    chunks: BTreeMap<u64, Box<[u64; WORDS]>>,
    room: u64,
}

impl Bitmap {
    /// Capacity for `bits` numbers, none set.
    pub(crate) fn new(bits: u64) -> Self {
        Self { chunks: BTreeMap::new(), room: bits.div_ceil(CHUNK_BITS).saturating_mul(CHUNK_BITS) }
    }

    /// Whether a number is in the set.
    pub(crate) fn get(&self, bit: u64) -> bool {
        let (chunk, word, mask) = place(bit);
        self.chunks.get(&chunk).and_then(|c| c.get(word)).is_some_and(|w| w & mask != 0)
    }

    fn word(&self, bit: u64) -> u64 {
        let (chunk, word, _) = place(bit);
        self.chunks.get(&chunk).and_then(|c| c.get(word)).copied().unwrap_or(0)
    }

    /// Sets or clears `[start, end)`; numbers past the capacity are ignored. Returns the number of changed bits.
    pub(crate) fn fill(&mut self, start: u64, end: u64, on: bool) -> u64 {
        let mut changed = 0;
        let mut at = start;
        let end = end.min(self.room);
        while at < end {
            let stop = end.min((at / CHUNK_BITS + 1).saturating_mul(CHUNK_BITS));
            changed += self.fill_chunk(at, stop, on);
            at = stop;
        }
        changed
    }

    /// [`Self::fill`] within one chunk.
    fn fill_chunk(&mut self, start: u64, end: u64, on: bool) -> u64 {
        let mut changed = 0;
        let number = start / CHUNK_BITS;
        let chunk = match on {
            true => Some(self.chunks.entry(number).or_insert_with(|| Box::new([0; WORDS]))),
            false => self.chunks.get_mut(&number),
        };
        let Some(chunk) = chunk else { return 0 };
        for (bit, mask) in words(start, end) {
            let (_, word, _) = place(bit);
            if let Some(w) = chunk.get_mut(word) {
                let new = if on { *w | mask } else { *w & !mask };
                changed += u64::from((*w ^ new).count_ones());
                *w = new;
            }
        }
        changed
    }

    /// The number of set bits in `[start, end)`.
    pub(crate) fn count(&self, start: u64, end: u64) -> u64 {
        let end = end.min(self.room);
        if start >= end {
            return 0;
        }
        let chunks =
            self.chunks.range(start / CHUNK_BITS..end.div_ceil(CHUNK_BITS)).map(|(&number, _)| number);
        let first = |number: u64| number.saturating_mul(CHUNK_BITS);
        chunks
            .flat_map(|number| words(start.max(first(number)), end.min(first(number + 1))))
            .map(|(bit, mask)| u64::from((self.word(bit) & mask).count_ones()))
            .sum()
    }

    /// Runs of numbers in `self` but not in `other`.
    pub(crate) fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.seek(other, at, true)?;
            let end = self.seek(other, start, false).unwrap_or(self.room);
            at = end;
            Some((start, end))
        })
    }

    /// The first number from `from` on for which "in `self` but not in `other`" equals `wanted`.
    fn seek(&self, other: &Self, from: u64, wanted: bool) -> Option<u64> {
        let mut bit = from;
        while bit < self.room {
            let (chunk, ..) = place(bit);
            if !self.chunks.contains_key(&chunk) {
                if !wanted {
                    return Some(bit);
                }
                // A missing chunk has no set bit: continue with the next existing chunk.
                bit = self.chunks.range(chunk..).next()?.0.saturating_mul(CHUNK_BITS);
                continue;
            }
            let here = self.word(bit) & !other.word(bit);
            let hits = if wanted { here } else { !here } & (u64::MAX << (bit % 64));
            if hits != 0 {
                return Some(bit / 64 * 64 + u64::from(hits.trailing_zeros()));
            }
            bit = (bit / 64 + 1) * 64;
        }
        None
    }

    /// Bytes of memory in use.
    #[cfg(test)]
    pub(crate) fn footprint(&self) -> usize {
        self.chunks.len() * (size_of::<[u64; WORDS]>() + 4 * size_of::<usize>())
    }
}

fn place(bit: u64) -> (u64, usize, u64) {
    let chunk = bit / CHUNK_BITS;
    let word = usize::try_from(bit % CHUNK_BITS / 64).unwrap_or(usize::MAX);
    (chunk, word, 1 << (bit % 64))
}

/// The words of `[start, end)`: the number of each, and the mask of the wanted bits.
fn words(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let bit = at;
        let stop = end.min((bit / 64 + 1) * 64);
        let mask = u64::MAX << (bit % 64) & u64::MAX >> ((64 - stop % 64) % 64);
        at = stop;
        Some((bit, mask))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_counts_and_differs_across_chunks() {
        let (mut a, mut b) = (Bitmap::new(200_000), Bitmap::new(200_000));
        assert_eq!(a.fill(65_000, 66_000, true), 1000);
        assert_eq!(a.fill(65_500, 65_600, true), 0);
        assert_eq!(a.fill(131_072, 131_136, true), 64);
        assert_eq!(b.fill(65_100, 65_200, true), 100);
        assert_eq!(b.fill(10, 20, false), 0);
        let runs: Vec<_> = a.difference(&b).collect();
        assert_eq!(runs, [(65_000, 65_100), (65_200, 66_000), (131_072, 131_136)]);
        assert_eq!(a.fill(65_000, 65_064, false), 64);
        assert!(!a.get(65_063) && a.get(65_064) && !a.get(u64::MAX));
        assert_eq!(a.count(0, u64::MAX), 1000);
        assert!(a.footprint() < 64 << 10);
    }
}
