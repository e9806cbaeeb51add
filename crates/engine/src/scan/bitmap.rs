//! Bits in chunks that exist only where a bit is set: which sectors of a vdev are in use.

/// Bits of a chunk: 8 KiB of memory.
const CHUNK_BITS: u64 = 1 << 16;
const WORDS: usize = (CHUNK_BITS / 64) as usize;

/// A set of small numbers.
#[derive(Debug, Default)]
pub struct Bitmap {
    chunks: Vec<Option<Box<[u64; WORDS]>>>,
}

impl Bitmap {
    /// Room for `bits` numbers, none set.
    pub fn new(bits: u64) -> Self {
        let chunks = usize::try_from(bits.div_ceil(CHUNK_BITS)).unwrap_or(0);
        Self { chunks: std::iter::repeat_with(|| None).take(chunks).collect() }
    }

    /// Whether a number is in the set.
    pub fn get(&self, bit: u64) -> bool {
        let (chunk, word, mask) = place(bit);
        let chunk = self.chunks.get(chunk).and_then(Option::as_ref);
        chunk.and_then(|c| c.get(word)).is_some_and(|w| w & mask != 0)
    }

    fn room(&self) -> u64 {
        CHUNK_BITS * u64::try_from(self.chunks.len()).unwrap_or(0)
    }

    fn word(&self, bit: u64) -> u64 {
        let (chunk, word, _) = place(bit);
        let chunk = self.chunks.get(chunk).and_then(Option::as_ref);
        chunk.and_then(|c| c.get(word)).copied().unwrap_or(0)
    }

    /// Sets or clears `[start, end)`; numbers past the room are ignored. Gives how many changed.
    pub fn fill(&mut self, start: u64, end: u64, on: bool) -> u64 {
        let mut changed = 0;
        for (bit, mask) in words(start, end.min(self.room())) {
            let (chunk, word, _) = place(bit);
            let Some(slot) = self.chunks.get_mut(chunk) else { break };
            if slot.is_none() && !on {
                continue;
            }
            let chunk = slot.get_or_insert_with(|| Box::new([0; WORDS]));
            if let Some(w) = chunk.get_mut(word) {
                let new = if on { *w | mask } else { *w & !mask };
                changed += u64::from((*w ^ new).count_ones());
                *w = new;
            }
        }
        changed
    }

    /// How many of `[start, end)` are set.
    pub fn count(&self, start: u64, end: u64) -> u64 {
        words(start, end.min(self.room()))
            .map(|(bit, mask)| u64::from((self.word(bit) & mask).count_ones()))
            .sum()
    }

    /// Runs of numbers that are in `self` and not in `other`.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.seek(other, at, true)?;
            let end = self.seek(other, start, false).unwrap_or(self.room());
            at = end;
            Some((start, end))
        })
    }

    /// The first number from `from` on whose being in `self` but not in `other` is `wanted`.
    fn seek(&self, other: &Self, from: u64, wanted: bool) -> Option<u64> {
        let mut bit = from;
        while bit < self.room() {
            let (chunk, ..) = place(bit);
            if wanted && self.chunks.get(chunk).is_some_and(Option::is_none) {
                bit = (bit / CHUNK_BITS + 1) * CHUNK_BITS;
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
    pub fn footprint(&self) -> usize {
        let used = self.chunks.iter().flatten().count();
        used * size_of::<[u64; WORDS]>() + self.chunks.capacity() * size_of::<usize>()
    }
}

fn place(bit: u64) -> (usize, usize, u64) {
    let chunk = usize::try_from(bit / CHUNK_BITS).unwrap_or(usize::MAX);
    let word = usize::try_from(bit % CHUNK_BITS / 64).unwrap_or(usize::MAX);
    (chunk, word, 1 << (bit % 64))
}

/// The words that `[start, end)` touches: a number in each, and the mask of those wanted.
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
