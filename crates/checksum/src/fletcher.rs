//! Fletcher-2 and Fletcher-4: running sums of running sums, modulo 2^64.
//!
//! Fletcher-4 keeps (a, b, c, d) over 32-bit words w: a += w, b += a, c += b, d += c. Being linear, the
//! sums of two adjacent pieces can be combined without reading them again ([`Fletcher4::append`]);
//! the SIMD kernels and the incremental form for send streams both rest on that.
//!
//! Bytes past the last whole word (16 bytes for Fletcher-2, 4 for Fletcher-4) don't count, as in OpenZFS;
//! blocks never have any.

use crate::Cksum;

/// Fletcher-2 of `buf`: two interleaved sums of 64-bit words, big-endian ones when `byteswap`.
///
/// Result: (a0, a1, b0, b1).
#[doc(alias = "fletcher_2_native")]
#[doc(alias = "fletcher_2_byteswap")]
pub fn fletcher2(buf: &[u8], byteswap: bool) -> Cksum {
    if byteswap { fletcher2_by(buf, u64::from_be_bytes) } else { fletcher2_by(buf, u64::from_le_bytes) }
}

#[inline(always)]
fn fletcher2_by(buf: &[u8], word: impl Fn([u8; 8]) -> u64) -> Cksum {
    let (mut a, mut b) = ([0u64; 2], [0u64; 2]);
    for pair in buf.as_chunks::<8>().0.as_chunks::<2>().0 {
        for ((a, b), bytes) in a.iter_mut().zip(&mut b).zip(pair) {
            *a = a.wrapping_add(word(*bytes));
            *b = b.wrapping_add(*a);
        }
    }
    [a[0], a[1], b[0], b[1]]
}

/// Fletcher-4 of `buf`: sums of 32-bit words, big-endian ones when `byteswap`.
#[doc(alias = "fletcher_4_native")]
#[doc(alias = "fletcher_4_byteswap")]
pub fn fletcher4(buf: &[u8], byteswap: bool) -> Cksum {
    let mut state = Fletcher4::new(byteswap);
    state.update(buf);
    state.finish()
}

/// Fletcher-4 over a sequence of pieces, as send streams checksum themselves.
///
/// Every piece but the last must be a multiple of 4 bytes: a shorter rest is ignored, not carried over.
#[doc(alias = "fletcher_4_incremental_native")]
#[doc(alias = "fletcher_4_incremental_byteswap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fletcher4 {
    sums: Cksum,
    byteswap: bool,
}

impl Fletcher4 {
    /// The sum of nothing; `byteswap`: the words to come are big-endian.
    pub const fn new(byteswap: bool) -> Self {
        Self::resume([0; 4], byteswap)
    }

    /// Continues from a sum that was taken out with [`Self::finish`].
    pub const fn resume(sums: Cksum, byteswap: bool) -> Self {
        Self { sums, byteswap }
    }

    /// Adds the words of `piece`.
    pub fn update(&mut self, piece: &[u8]) {
        let (words, _) = piece.as_chunks::<4>();
        #[cfg(target_arch = "x86_64")]
        let words = {
            let (sums, done) = crate::fletcher4_x86::sum(words, self.byteswap);
            let (head, rest) = words.split_at_checked(done).unwrap_or((&[], words));
            self.append(sums, head.len() as u64);
            rest
        };
        self.sums = scalar(self.sums, words, self.byteswap);
    }

    /// Adds a piece of `count` words whose own sums (from zero) are `tail`.
    pub fn append(&mut self, tail: Cksum, count: u64) {
        let [a, b, c, d] = self.sums;
        let [n1, n2, n3] = [rising(count, 1), rising(count, 2), rising(count, 3)];
        self.sums = [
            sum([a, tail[0]]),
            sum([b, n1.wrapping_mul(a), tail[1]]),
            sum([c, n1.wrapping_mul(b), n2.wrapping_mul(a), tail[2]]),
            sum([d, n1.wrapping_mul(c), n2.wrapping_mul(b), n3.wrapping_mul(a), tail[3]]),
        ];
    }

    /// The sums so far.
    pub const fn finish(&self) -> Cksum {
        self.sums
    }
}

/// n, n(n+1)/2, n(n+1)(n+2)/6: how often an old sum enters the next orders over `n` further words.
fn rising(n: u64, order: u32) -> u64 {
    let n = u128::from(n);
    let exact = match order {
        1 => n,
        2 => n * (n + 1) / 2,
        // A slice has fewer than 2^61 words; the product can still pass 2^128, so it is divided in between.
        _ => {
            let pair = n * (n + 1) / 2;
            let next = n + 2;
            if pair % 3 == 0 { (pair / 3).wrapping_mul(next) } else { pair.wrapping_mul(next / 3) }
        }
    };
    exact as u64
}

fn sum<const N: usize>(terms: [u64; N]) -> u64 {
    terms.iter().fold(0, |total, term| total.wrapping_add(*term))
}

/// The scalar twin of the SIMD kernels, continuing from `sums`.
pub(crate) fn scalar(sums: Cksum, words: &[[u8; 4]], byteswap: bool) -> Cksum {
    if byteswap {
        scalar_by(sums, words, u32::from_be_bytes)
    } else {
        scalar_by(sums, words, u32::from_le_bytes)
    }
}

#[inline(always)]
fn scalar_by(sums: Cksum, words: &[[u8; 4]], word: impl Fn([u8; 4]) -> u32) -> Cksum {
    let [mut a, mut b, mut c, mut d] = sums;
    for bytes in words {
        a = a.wrapping_add(u64::from(word(*bytes)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fletcher2_by_hand() {
        let words = [1u64, 10, 2, 20, 3, 30];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(fletcher2(&bytes, false), [6, 60, 1 + 3 + 6, 10 + 30 + 60]);
        let swapped: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        assert_eq!(fletcher2(&swapped, true), [6, 60, 10, 100]);
    }

    #[test]
    fn fletcher4_by_hand() {
        let bytes: Vec<u8> = [1u32, 2, 3].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(fletcher4(&bytes, false), [6, 10, 15, 21]);
        assert_eq!(fletcher4(&[], false), [0; 4]);
        assert_eq!(fletcher4(&[0xff; 3], false), [0; 4], "a lone rest doesn't count");
    }

    proptest! {
        #[test]
        fn simd_equals_scalar(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            skip in 0usize..9, swap in any::<bool>(), saturated in any::<bool>(),
        ) {
            if saturated { bytes.fill(0xff); }
            let bytes = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(fletcher4(bytes, swap), scalar([0; 4], bytes.as_chunks().0, swap));
        }

        #[test]
        fn pieces_equal_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..4000), cut in 0usize..4000, swap in any::<bool>(),
        ) {
            let cut = cut.min(bytes.len()) & !3;
            let mut state = Fletcher4::new(swap);
            state.update(&bytes[..cut]);
            let mut state = Fletcher4::resume(state.finish(), swap);
            state.update(&bytes[cut..]);
            prop_assert_eq!(state.finish(), fletcher4(&bytes, swap));
        }

        #[test]
        fn rising_factors_match_their_formula(n in 0u64..2_000_000) {
            let wide = u128::from(n);
            prop_assert_eq!(u128::from(rising(n, 2)), wide * (wide + 1) / 2);
            prop_assert_eq!(u128::from(rising(n, 3)), wide * (wide + 1) * (wide + 2) / 6);
        }
    }
}
