//! Fletcher-4 on x86-64: every lane of a vector sums each L-th word, and the lanes are put together at the end.
//!
//! A lane is 64 bits wide, as the sums are. A load of words becomes two vectors of lanes: the even words
//! (upper half masked out) and the odd ones (shifted down), which keeps two independent chains busy.
//!
//! Why lanes can be put together: a word that r - 1 words follow counts r times in b, r(r+1)/2 times in c and
//! r(r+1)(r+2)/6 times in d. If in its lane l it counts for x, then r = Lx - l, and the three factors are
//! combinations of lane l's own x, x(x+1)/2 and x(x+1)(x+2)/6 with coefficients that depend only on L and l.

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi64, _mm256_and_si256, _mm256_loadu_si256, _mm256_set1_epi64x,
    _mm256_setr_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm512_add_epi64, _mm512_and_si512, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_set4_epi32,
    _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_srli_epi64, _mm512_storeu_si512,
};

use crate::Cksum;

/// Words in 256 and in 512 bits.
const LANES_256: usize = 8;
const LANES_512: usize = 16;
/// Fewer words than this aren't worth putting lanes together.
const WORTH_IT: usize = 128;

/// The sums of a prefix of `words`, and the length of that prefix: 0 when the processor has no vectors for it.
pub(crate) fn sum(words: &[[u8; 4]], byteswap: bool) -> (Cksum, usize) {
    if words.len() < WORTH_IT {
        return ([0; 4], 0);
    }
    if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the features that the function enables.
        return unsafe { if byteswap { avx512::<true>(words) } else { avx512::<false>(words) } };
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function enables.
        return unsafe { if byteswap { avx2::<true>(words) } else { avx2::<false>(words) } };
    }
    ([0; 4], 0)
}

#[target_feature(enable = "avx2")]
fn avx2<const SWAP: bool>(words: &[[u8; 4]]) -> (Cksum, usize) {
    let (blocks, _) = words.as_chunks::<LANES_256>();
    let low_half = _mm256_set1_epi64x(0xffff_ffff);
    let swapped = _mm256_setr_epi8(
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, //
        3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,
    );
    let mut even = [_mm256_setzero_si256(); 4];
    let mut odd = even;
    for block in blocks {
        // SAFETY: a block is 32 bytes long; the load is unaligned.
        let mut vector = unsafe { _mm256_loadu_si256(block.as_ptr().cast::<__m256i>()) };
        if SWAP {
            vector = _mm256_shuffle_epi8(vector, swapped);
        }
        even[0] = _mm256_add_epi64(even[0], _mm256_and_si256(vector, low_half));
        odd[0] = _mm256_add_epi64(odd[0], _mm256_srli_epi64::<32>(vector));
        even[1] = _mm256_add_epi64(even[1], even[0]);
        odd[1] = _mm256_add_epi64(odd[1], odd[0]);
        even[2] = _mm256_add_epi64(even[2], even[1]);
        odd[2] = _mm256_add_epi64(odd[2], odd[1]);
        even[3] = _mm256_add_epi64(even[3], even[2]);
        odd[3] = _mm256_add_epi64(odd[3], odd[2]);
    }
    let mut lanes = [[0; LANES_256]; 4];
    for ((lanes, even), odd) in lanes.iter_mut().zip(even).zip(odd) {
        let mut halves = [[0u64; 4]; 2];
        // SAFETY: each half is 32 bytes long; the stores are unaligned.
        unsafe {
            _mm256_storeu_si256(halves[0].as_mut_ptr().cast::<__m256i>(), even);
            _mm256_storeu_si256(halves[1].as_mut_ptr().cast::<__m256i>(), odd);
        }
        interleave(lanes, &halves[0], &halves[1]);
    }
    (join(&lanes), blocks.len() * LANES_256)
}

#[target_feature(enable = "avx512f,avx512bw")]
fn avx512<const SWAP: bool>(words: &[[u8; 4]]) -> (Cksum, usize) {
    let (blocks, _) = words.as_chunks::<LANES_512>();
    let low_half = _mm512_set1_epi64(0xffff_ffff);
    let swapped = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
    let mut even = [_mm512_setzero_si512(); 4];
    let mut odd = even;
    for block in blocks {
        // SAFETY: a block is 64 bytes long; the load is unaligned.
        let mut vector = unsafe { _mm512_loadu_si512(block.as_ptr().cast::<__m512i>()) };
        if SWAP {
            vector = _mm512_shuffle_epi8(vector, swapped);
        }
        even[0] = _mm512_add_epi64(even[0], _mm512_and_si512(vector, low_half));
        odd[0] = _mm512_add_epi64(odd[0], _mm512_srli_epi64::<32>(vector));
        even[1] = _mm512_add_epi64(even[1], even[0]);
        odd[1] = _mm512_add_epi64(odd[1], odd[0]);
        even[2] = _mm512_add_epi64(even[2], even[1]);
        odd[2] = _mm512_add_epi64(odd[2], odd[1]);
        even[3] = _mm512_add_epi64(even[3], even[2]);
        odd[3] = _mm512_add_epi64(odd[3], odd[2]);
    }
    let mut lanes = [[0; LANES_512]; 4];
    for ((lanes, even), odd) in lanes.iter_mut().zip(even).zip(odd) {
        let mut halves = [[0u64; 8]; 2];
        // SAFETY: each half is 64 bytes long; the stores are unaligned.
        unsafe {
            _mm512_storeu_si512(halves[0].as_mut_ptr().cast::<__m512i>(), even);
            _mm512_storeu_si512(halves[1].as_mut_ptr().cast::<__m512i>(), odd);
        }
        interleave(lanes, &halves[0], &halves[1]);
    }
    (join(&lanes), blocks.len() * LANES_512)
}

/// Puts the sums of even and odd words into the order of the words.
fn interleave(lanes: &mut [u64], even: &[u64], odd: &[u64]) {
    for (pair, (even, odd)) in lanes.as_chunks_mut::<2>().0.iter_mut().zip(even.iter().zip(odd)) {
        *pair = [*even, *odd];
    }
}

/// The four sums of the whole from those of L interleaved lanes.
fn join<const L: usize>(lanes: &[[u64; L]; 4]) -> Cksum {
    let [a, b, c, d] = lanes;
    let mut sums: Cksum = [0; 4];
    for (l, (((a, b), c), d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
        let [count, l] = [L as i64, l as i64];
        let terms: [&[(i64, u64)]; 4] = [
            &[(1, *a)],
            &[(count, *b), (-l, *a)],
            &[(count * count, *c), ((count - count * count) / 2 - count * l, *b), (l * (l - 1) / 2, *a)],
            &[
                (count.pow(3), *d),
                (count.pow(2) * (1 - l) - count.pow(3), *c),
                ((count.pow(3) - 3 * count.pow(2) * (1 - l) + count * (3 * l * l - 6 * l + 2)) / 6, *b),
                (-l * (l - 1) * (l - 2) / 6, *a),
            ],
        ];
        for (sum, terms) in sums.iter_mut().zip(terms) {
            for (factor, term) in terms {
                *sum = sum.wrapping_add((*factor as u64).wrapping_mul(*term));
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fletcher::scalar;

    /// Both vector widths against the scalar twin, whichever of them `sum` would choose here.
    #[test]
    fn vectors_equal_the_scalar_twin() {
        let mut bytes = vec![0xff; 200_000];
        for saturated in [true, false] {
            if !saturated {
                stdx::rng::Rng::new(4).fill(&mut bytes);
            }
            for len in [0, 1, 7, 8, 16, 17, 100, 1024, 32_768, 50_000] {
                let words = &bytes.as_chunks::<4>().0[..len];
                for swap in [false, true] {
                    let mut results = vec![sum(words, swap)];
                    if is_x86_feature_detected!("avx2") {
                        // SAFETY: the processor has the feature.
                        results
                            .push(unsafe { if swap { avx2::<true>(words) } else { avx2::<false>(words) } });
                    }
                    if is_x86_feature_detected!("avx512bw") {
                        let avx512 = if swap { avx512::<true> } else { avx512::<false> };
                        // SAFETY: the processor has the features.
                        results.push(unsafe { avx512(words) });
                    }
                    for (sums, done) in results {
                        assert_eq!(sums, scalar([0; 4], &words[..done], swap), "{len} {swap}");
                        assert!(len - done < WORTH_IT);
                    }
                }
            }
        }
    }
}
