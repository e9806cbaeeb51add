//! The LZ4 encoder: its choice of matches is OpenZFS's, so that a block has the same bytes wherever it is compressed.
//!
//! Any LZ4 stream that decodes to the block is valid. But a block that is compressed again must get the checksum of
//! the stored one for a corrective receive to repair it, for deduplication to share it and for a rewrite of equal
//! data to write nothing (`nopwrite`). Libraries choose other matches from release to release; OpenZFS still has
//! the choice of LZ4 r85 (2012).
//!
//! The search is greedy. A table keeps the last position of each hash of four bytes. From the last match on, each
//! position is looked up; after 64 failures every second one, after 128 every third, and so on. A match grows to both
//! sides; after it the position two bytes before its end and its end itself are entered, and the end is looked up
//! at once. No match starts in the last 12 bytes, and none reaches into the last 5.
//!
//! Blocks of less than 64 KiB + 11 bytes have a table of 8,192 positions, longer ones of 4,096: that changes the choice.
//! So does the rule for a full buffer, which counts some bytes more than the step needs. Both are part of the format here.
//!
//! Format source: `lz4_zfs.c`, OpenZFS 2.3; the stream: the LZ4 block format.
#![expect(
    clippy::indexing_slicing,
    reason = "indices are positions within the block, or within room that was checked; a check for each costs a quarter"
)]

use std::cell::RefCell;

/// Bytes of the shortest match.
const MIN_MATCH: usize = 4;
/// Bytes at the end that stay literals.
const LAST_LITERALS: usize = 5;
/// No match starts later than this many bytes before the end.
const MATCH_LIMIT: usize = 12;
/// The largest distance that two bytes can say.
const MAX_DISTANCE: usize = u16::MAX as usize;
/// Blocks from this length on have the table of 4,096 positions.
const LONG: usize = (1 << 16) + MATCH_LIMIT - 1;
/// The search takes longer steps after each 2^6 failures.
const PATIENCE: u32 = 6;
/// Lengths from here on continue in bytes of their own.
const NIBBLE: usize = 15;
/// Bytes that are copied at once where there is room, however few of them count.
const CHUNK: usize = 16;

/// A position as a table keeps it.
trait Slot: Copy + Default {
    fn of(position: usize) -> Self;
    fn position(self) -> usize;
}

impl Slot for u16 {
    fn of(position: usize) -> Self {
        // No position that is entered in this table is beyond its range: see LONG.
        position as Self
    }
    fn position(self) -> usize {
        usize::from(self)
    }
}

impl Slot for u32 {
    fn of(position: usize) -> Self {
        position as Self
    }
    fn position(self) -> usize {
        self as usize
    }
}

/// The tables of a thread: cleared for each block.
struct Tables {
    short: [u16; 1 << 13],
    long: [u32; 1 << 12],
}

thread_local! {
    static TABLES: RefCell<Box<Tables>> = RefCell::new(Box::new(Tables { short: [0; 1 << 13], long: [0; 1 << 12] }));
}

/// Returns the length of the stream in `out`, or `None` when it does not fit or `src` is longer than 4 GiB.
pub(super) fn encode(src: &[u8], out: &mut [u8]) -> Option<usize> {
    fetch(src);
    TABLES.with_borrow_mut(|tables| {
        if src.len() < LONG {
            tables.short.fill(0);
            Encoder { src, out, filled: 0, table: &mut tables.short }.run()
        } else if u32::try_from(src.len()).is_ok() {
            tables.long.fill(0);
            Encoder { src, out, filled: 0, table: &mut tables.long }.run()
        } else {
            None
        }
    })
}

/// Reads each cache line once, in order. The search takes ever longer steps through a block that does not compress, which
/// processors cannot foresee, and the block usually comes from another processor's cache.
fn fetch(src: &[u8]) {
    std::hint::black_box(src.iter().step_by(64).fold(0_u8, |sum, byte| sum ^ byte));
}

/// A match: the bytes at `at` are those at `from`, which is before it.
#[derive(Clone, Copy)]
struct Match {
    at: usize,
    from: usize,
}

struct Encoder<'a, S, const N: usize> {
    src: &'a [u8],
    out: &'a mut [u8],
    filled: usize,
    table: &'a mut [S; N],
}

impl<S: Slot, const N: usize> Encoder<'_, S, N> {
    fn run(mut self) -> Option<usize> {
        let mut anchor = 0;
        if self.src.len() > MATCH_LIMIT {
            self.swap(0);
            let last = self.src.len() - MATCH_LIMIT;
            let mut next = 1;
            while let Some(found) = self.search(next, last) {
                let found = self.grown_back(found, anchor);
                let token = self.literals(anchor, found.at)?;
                anchor = self.matched(token, found)?;
                // Matches that follow one another directly have no literals between them.
                loop {
                    if anchor > last {
                        return self.last_literals(anchor);
                    }
                    self.swap(anchor - 2);
                    let from = self.swap(anchor);
                    if !self.is_match(from, anchor) {
                        break;
                    }
                    let token = self.literals_none()?;
                    anchor = self.matched(token, Match { at: anchor, from })?;
                }
                next = anchor + 1;
            }
        }
        self.last_literals(anchor)
    }

    /// The next position from `at` on that has a match, or `None` when the search comes to `last` first.
    #[inline(always)]
    fn search(&mut self, mut at: usize, last: usize) -> Option<Match> {
        let mut attempts = (1_usize << PATIENCE) + 3;
        loop {
            let next = at + (attempts >> PATIENCE);
            attempts += 1;
            if next > last {
                return None;
            }
            let from = self.swap(at);
            if self.is_match(from, at) {
                return Some(Match { at, from });
            }
            at = next;
        }
    }

    /// Enters `at` and returns the position that its hash had.
    #[inline(always)]
    fn swap(&mut self, at: usize) -> usize {
        let hash = word(self.src, at).wrapping_mul(2_654_435_761) >> (32 - N.trailing_zeros());
        std::mem::replace(&mut self.table[hash as usize % N], S::of(at)).position()
    }

    #[inline(always)]
    fn is_match(&self, from: usize, at: usize) -> bool {
        at - from <= MAX_DISTANCE && word(self.src, from) == word(self.src, at)
    }

    #[inline(always)]
    fn grown_back(&self, found: Match, anchor: usize) -> Match {
        let Match { at, from } = found;
        let (ahead, behind) = (&self.src[anchor..at], &self.src[..from]);
        let more = ahead.iter().rev().zip(behind.iter().rev()).take_while(|(a, b)| a == b).count();
        Match { at: at - more, from: from - more }
    }

    /// Writes the literals from `anchor` to `end` with their token, and returns its place.
    #[inline(always)]
    fn literals(&mut self, anchor: usize, end: usize) -> Option<usize> {
        let (token, len) = (self.filled, end - anchor);
        let mut to = token + 1;
        if to + len + (2 + 1 + LAST_LITERALS) + (len >> 8) > self.out.len() {
            return None;
        }
        self.out[token] = (len.min(NIBBLE) as u8) << 4;
        if len >= NIBBLE {
            to = self.extended(to, len - NIBBLE);
        }
        match (self.src.get(anchor..anchor + CHUNK), self.out.get_mut(to..to + CHUNK)) {
            (Some(from), Some(room)) if len <= CHUNK => room.copy_from_slice(from),
            _ => self.out[to..to + len].copy_from_slice(&self.src[anchor..end]),
        }
        self.filled = to + len;
        Some(token)
    }

    /// A token without literals.
    #[inline(always)]
    fn literals_none(&mut self) -> Option<usize> {
        let token = self.filled;
        *self.out.get_mut(token)? = 0;
        self.filled += 1;
        Some(token)
    }

    /// Writes a match whose token is at `token`, and returns its end.
    #[inline(always)]
    fn matched(&mut self, token: usize, found: Match) -> Option<usize> {
        let distance = (found.at - found.from) as u16;
        self.out.get_mut(self.filled..self.filled + 2)?.copy_from_slice(&distance.to_le_bytes());
        self.filled += 2;
        let start = found.at + MIN_MATCH;
        let len = equal(self.src, found.from + MIN_MATCH, start, self.src.len() - LAST_LITERALS);
        if self.filled + (1 + LAST_LITERALS) + (len >> 8) > self.out.len() {
            return None;
        }
        self.out[token] |= len.min(NIBBLE) as u8;
        if len >= NIBBLE {
            self.filled = self.extended(self.filled, len - NIBBLE);
        }
        Some(start + len)
    }

    /// Writes the rest of a length at `to`: bytes of 255, then one that is less. Returns its end.
    #[inline(always)]
    fn extended(&mut self, mut to: usize, mut rest: usize) -> usize {
        while rest >= 255 {
            self.out[to] = 255;
            to += 1;
            rest -= 255;
        }
        self.out[to] = rest as u8;
        to + 1
    }

    fn last_literals(mut self, anchor: usize) -> Option<usize> {
        let (token, len) = (self.filled, self.src.len() - anchor);
        if token + len + 1 + (len + 255 - NIBBLE) / 255 > self.out.len() {
            return None;
        }
        self.out[token] = (len.min(NIBBLE) as u8) << 4;
        let to = if len >= NIBBLE { self.extended(token + 1, len - NIBBLE) } else { token + 1 };
        self.out[to..to + len].copy_from_slice(&self.src[anchor..]);
        Some(to + len)
    }
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}

#[inline(always)]
fn long_word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// How many bytes from `at` up to `end` equal those from `from`, which is before `at`.
#[inline(always)]
fn equal(bytes: &[u8], from: usize, at: usize, end: usize) -> usize {
    let (back, mut to) = (at - from, at);
    while to + 8 <= end {
        let differing = long_word(bytes, to) ^ long_word(bytes, to - back);
        if differing != 0 {
            return to - at + (differing.trailing_zeros() / 8) as usize;
        }
        to += 8;
        // A match that has come so far is often a long one.
        while to + 32 <= end && bytes[to..to + 32] == bytes[to - back..to - back + 32] {
            to += 32;
        }
    }
    while to < end && bytes[to] == bytes[to - back] {
        to += 1;
    }
    to - at
}

#[cfg(test)]
mod tests {
    /// FNV-1a, so that whole streams need not stand here.
    fn hash(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
    }

    /// Lengths and hashes are those of `lz4_zfs.c` of OpenZFS 2.3.2, for both tables and at the border between them.
    #[test]
    fn streams_are_those_of_openzfs() {
        let digits = (0_u32..400_000).flat_map(|i| (i.wrapping_mul(i) % 9973).to_string().into_bytes());
        let text: Vec<u8> = digits.take(300_000).collect();
        for (len, stream, expected) in [
            (16_384, 13_639, 0x469a_a22e_7409_a6ba_u64),
            (65_546, 31_237, 0x39c8_7788_702e_043e),
            (65_547, 31_943, 0x68cb_c9e9_8c18_03ef),
            (300_000, 64_519, 0xacce_5b4d_f1f6_b7a0),
        ] {
            let mut out = vec![0; len];
            let got = super::super::compress_into(&text[..len], &mut out);
            assert_eq!((got, hash(&out[..stream])), (Some(stream), expected), "{len}");
            assert_eq!(super::super::compress_into(&text[..len], &mut out[..stream - 1]), None, "{len}");
        }
    }
}
