//! Vectors for any processor: eight elements in a `u64`, and single bytes for the remainder.

use crate::gf::{Factor, double, multiply};
use crate::kernel::{Vector, strides};
use crate::segment::Segment;

/// The polynomial in every byte.
const POLYNOMIAL: u64 = 0x1d1d_1d1d_1d1d_1d1d;
const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// Computes bytes from `start` to the end of the segment.
pub(crate) fn run(segment: &mut Segment<'_>, start: usize) {
    let at = words(segment, start);
    bytes(segment, at);
}

/// Computes as many bytes from `start` as fit eights; where it stopped.
pub(crate) fn words(segment: &mut Segment<'_>, start: usize) -> usize {
    // SAFETY: these vectors need no processor feature.
    unsafe { strides::<u64>(segment, start) }
}

/// Computes the rest from `start`, byte by byte; the end.
pub(crate) fn bytes(segment: &mut Segment<'_>, start: usize) -> usize {
    // SAFETY: these vectors need no processor feature.
    unsafe { strides::<u8>(segment, start) }
}

impl Vector for u64 {
    const BYTES: usize = 8;
    const PER_STRIDE: [usize; 3] = [4, 2, 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the eight bytes; the read is unaligned.
        unsafe { from.cast::<u64>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller vouches for the eight bytes; the write is unaligned.
        unsafe { to.cast::<u64>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        0
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        let top = self & TOP_BITS;
        let overflowed = (top << 1).wrapping_sub(top >> 7);
        ((self & !TOP_BITS) << 1) ^ (overflowed & POLYNOMIAL)
    }

    #[inline(always)]
    unsafe fn quadruple(self) -> Self {
        // SAFETY: no feature is needed.
        unsafe { self.double().double() }
    }

    #[inline(always)]
    unsafe fn scale(self, by: &Factor) -> Self {
        u64::from_ne_bytes(self.to_ne_bytes().map(|byte| by.times(byte)))
    }
}

impl Vector for u8 {
    const BYTES: usize = 1;
    const PER_STRIDE: [usize; 3] = [1, 1, 1];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller vouches for the byte.
        unsafe { from.read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller vouches for the byte.
        unsafe { to.write(self) }
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        0
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        double(self)
    }

    #[inline(always)]
    unsafe fn quadruple(self) -> Self {
        multiply(self, 4)
    }

    #[inline(always)]
    unsafe fn scale(self, by: &Factor) -> Self {
        by.times(self)
    }
}
