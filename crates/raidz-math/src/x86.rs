//! Vectors of x86-64: AVX2 (32 elements), and AVX-512 with GFNI (64 elements, one instruction a product).

use std::arch::x86_64::{
    __m256i, __m512i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setr_epi8, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srli_epi16, _mm256_storeu_si256, _mm256_xor_si256,
    _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_setzero_si512,
    _mm512_storeu_si512, _mm512_xor_si512,
};

use crate::gf::Factor;
use crate::kernel::{Vector, strides};
use crate::segment::Segment;

const DOUBLE: Factor = Factor::new(2);
const QUADRUPLE: Factor = Factor::new(4);

/// Computes as many bytes from the start as fit; how many.
pub(crate) fn run(segment: &mut Segment<'_>) -> usize {
    let mut at = 0;
    if has_avx512() {
        // SAFETY: the processor has the features that the function enables.
        at = unsafe { avx512(segment, at) };
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature that the function enables.
        at = unsafe { avx2(segment, at) };
    }
    at
}

pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("gfni")
}

#[target_feature(enable = "avx2")]
pub(crate) fn avx2(segment: &mut Segment<'_>, start: usize) -> usize {
    // SAFETY: this function enables the target features of the vector type.
    unsafe { strides::<Avx2>(segment, start) }
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
pub(crate) fn avx512(segment: &mut Segment<'_>, start: usize) -> usize {
    // SAFETY: this function enables the target features of the vector type.
    unsafe { strides::<Avx512>(segment, start) }
}

#[derive(Clone, Copy)]
struct Avx2(__m256i);

impl Vector for Avx2 {
    const BYTES: usize = 32;
    const PER_STRIDE: [usize; 3] = [4, 4, 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the bytes and for AVX2; the load is unaligned.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller vouches for the bytes and for AVX2; the store is unaligned.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller vouches for AVX2.
        unsafe { Self(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller vouches for AVX2.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let overflowed = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            let fix = _mm256_and_si256(overflowed, _mm256_set1_epi8(0x1d));
            Self(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), fix))
        }
    }

    #[inline(always)]
    unsafe fn quadruple(self) -> Self {
        // SAFETY: the caller vouches for AVX2.
        unsafe {
            let shifted = _mm256_and_si256(_mm256_slli_epi16(self.0, 2), _mm256_set1_epi8(0xfc_u8 as i8));
            let top_two = _mm256_and_si256(_mm256_srli_epi16(self.0, 6), _mm256_set1_epi8(3));
            // The values to add for the two bits shifted out: 4 times 0x00, 0x40, 0x80 and 0xc0, reduced.
            let fixes = _mm256_setr_epi8(
                0, 0x1d, 0x3a, 0x27, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                0, 0x1d, 0x3a, 0x27, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            );
            Self(_mm256_xor_si256(shifted, _mm256_shuffle_epi8(fixes, top_two)))
        }
    }

    #[inline(always)]
    unsafe fn scale(self, by: &Factor) -> Self {
        // SAFETY: the caller vouches for AVX2; the tables are 16 bytes long.
        unsafe {
            let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(by.low.as_ptr().cast()));
            let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(by.high.as_ptr().cast()));
            let nibble = _mm256_set1_epi8(15);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, nibble));
            let high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(self.0, 4), nibble));
            Self(_mm256_xor_si256(low, high))
        }
    }
}

#[derive(Clone, Copy)]
struct Avx512(__m512i);

impl Vector for Avx512 {
    const BYTES: usize = 64;
    const PER_STRIDE: [usize; 3] = [4, 4, 4];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the bytes and for AVX-512; the load is unaligned.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller vouches for the bytes and for AVX-512; the store is unaligned.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { Self(_mm512_setzero_si512()) }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the caller vouches for AVX-512 and GFNI.
        unsafe { self.scale(&DOUBLE) }
    }

    #[inline(always)]
    unsafe fn quadruple(self) -> Self {
        // SAFETY: the caller vouches for AVX-512 and GFNI.
        unsafe { self.scale(&QUADRUPLE) }
    }

    #[inline(always)]
    unsafe fn scale(self, by: &Factor) -> Self {
        // SAFETY: the caller vouches for AVX-512 and GFNI.
        unsafe { Self(_mm512_gf2p8affine_epi64_epi8::<0>(self.0, _mm512_set1_epi64(by.matrix as i64))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf::Solution;
    use crate::scalar;

    /// A way to compute a segment from some byte on: where it stopped.
    type Way = fn(&mut Segment<'_>, usize) -> usize;

    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = vec![scalar::words];
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            ways.push(|segment, at| unsafe { avx2(segment, at) });
        }
        if has_avx512() {
            // SAFETY: the processor has the features.
            ways.push(|segment, at| unsafe { avx512(segment, at) });
        }
        ways
    }

    /// The result of `way`, then of single bytes, for a row of six columns, of which `missing` are
    /// reconstructed; without any, the parity of the `rows`.
    fn compute(way: Way, rows: [bool; 3], missing: &[usize], len: usize) -> [Vec<u8>; 3] {
        let mut bytes = vec![0; len * 9];
        stdx::rng::Rng::new(len as u64).fill(&mut bytes);
        let columns: Vec<&[u8]> = (0..9).map(|i| &bytes[i * len..(i + 1) * len]).collect();
        let data = (0..6).map(|i| (i != 4 && !missing.contains(&i)).then(|| columns[i])).collect();
        let known = std::array::from_fn(|row| Some(columns[6 + row]));
        let mut out = [const { Vec::new() }; 3];
        let wanted: Vec<usize> =
            (0..3).filter(|i| if missing.is_empty() { rows[*i] } else { *i < missing.len() }).collect();
        wanted.iter().for_each(|i| out[*i] = vec![0xcc; len]);
        let slots = out.each_mut().map(|slot| (!slot.is_empty()).then_some(slot.as_mut_slice()));
        let solution = Solution::new(6, rows, missing).unwrap();
        let mut segment = if missing.is_empty() {
            Segment::generate(len, data, slots).unwrap()
        } else {
            Segment::rebuild(len, data, known, slots, &solution).unwrap()
        };
        let at = way(&mut segment, 0);
        scalar::bytes(&mut segment, at);
        out
    }

    #[test]
    fn every_vector_equals_single_bytes() {
        let bytes: Way = |_, at| at;
        for mask in 1..8u8 {
            let rows = [0, 1, 2].map(|row| mask >> row & 1 == 1);
            let some: Vec<usize> = (1..=mask.count_ones() as usize).collect();
            for missing in [&[], some.as_slice()] {
                for len in [31, 64, 255, 1000, 4096 + 72] {
                    let expected = compute(bytes, rows, missing, len);
                    for way in ways() {
                        assert!(compute(way, rows, missing, len) == expected, "{rows:?} {missing:?} {len}");
                    }
                }
            }
        }
    }
}
