//! The loop over a segment: sums by Horner's rule, all parity rows in one pass over the data.
//!
//! For each stride of bytes: start from zero; for each data column, double Q, quadruple R, add the column
//! to all. The result is the parity; or, with known parity added, the syndromes, of which each missing column
//! is a linear combination.

use crate::MAX_PARITY;
use crate::gf::Solution;
use crate::segment::Segment;

/// A bundle of field elements that is computed with at once.
///
/// # Safety
/// The methods may use processor features that the implementor's entry function has enabled, and must
/// only be called below it. `load` and `store` access [`Self::BYTES`] bytes, at any alignment.
pub(crate) trait Vector: Copy {
    /// Elements in a bundle.
    const BYTES: usize;
    /// Bundles that a stride takes when one, two or three sums are kept: as registers allow.
    const PER_STRIDE: [usize; MAX_PARITY];

    /// # Safety
    /// As the trait says; the bytes at `from` may be read.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// As the trait says; the bytes at `to` may be written.
    unsafe fn store(self, to: *mut u8);
    /// # Safety
    /// As the trait says.
    unsafe fn zero() -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn add(self, other: Self) -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn double(self) -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn quadruple(self) -> Self;
    /// # Safety
    /// As the trait says.
    unsafe fn scale(self, by: &crate::gf::Factor) -> Self;
}

/// Computes the whole segment with the best vectors that this processor has.
pub(crate) fn run(segment: &mut Segment<'_>) {
    #[cfg(target_arch = "x86_64")]
    let done = crate::x86::run(segment);
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    crate::scalar::run(segment, done);
}

/// Computes bytes from `start` (a multiple of nothing in particular) in whole strides; where it stopped.
///
/// # Safety
/// Only below an entry function that has enabled the target features of `V`.
#[inline(always)]
pub(crate) unsafe fn strides<V: Vector>(segment: &mut Segment<'_>, start: usize) -> usize {
    // SAFETY: the contract is the caller's, handed on.
    unsafe {
        match segment.rows() {
            [true, false, false] => by_rows::<V, true, false, false, 1>(segment, start),
            [false, true, false] => by_rows::<V, false, true, false, 1>(segment, start),
            [false, false, true] => by_rows::<V, false, false, true, 1>(segment, start),
            [true, true, false] => by_rows::<V, true, true, false, 2>(segment, start),
            [true, false, true] => by_rows::<V, true, false, true, 2>(segment, start),
            [false, true, true] => by_rows::<V, false, true, true, 2>(segment, start),
            [true, true, true] => by_rows::<V, true, true, true, 3>(segment, start),
            [false, false, false] => segment.len(),
        }
    }
}

/// `N` rows are in use: those of P, Q and R that are true.
#[inline(always)]
unsafe fn by_rows<V: Vector, const P: bool, const Q: bool, const R: bool, const N: usize>(
    segment: &mut Segment<'_>,
    start: usize,
) -> usize {
    let bundles = V::PER_STRIDE.get(N.wrapping_sub(1)).copied().unwrap_or(1);
    // SAFETY: the contract is the caller's, handed on.
    unsafe {
        let at = if bundles == 4 { by_width::<V, P, Q, R, N, 4>(segment, start) } else { start };
        let at = if bundles >= 2 { by_width::<V, P, Q, R, N, 2>(segment, at) } else { at };
        by_width::<V, P, Q, R, N, 1>(segment, at)
    }
}

#[inline(always)]
unsafe fn by_width<V: Vector, const P: bool, const Q: bool, const R: bool, const N: usize, const W: usize>(
    segment: &mut Segment<'_>,
    start: usize,
) -> usize {
    let stride = V::BYTES * W;
    if segment.len() - start < stride {
        return start;
    }
    let sources = segment.sources();
    let known = segment.known();
    let targets = segment.targets();
    let mut at = start;
    while segment.len() - at >= stride {
        // SAFETY: every pointer that isn't null starts a slice of `segment.len()` bytes (checked when the
        // segment was made), of which at least `stride` lie behind `at`; targets are exclusive slices.
        unsafe {
            let sums = horner::<V, P, Q, R, W>(&sources, at);
            match segment.solution() {
                None => store::<V, W>(&sums, &targets, at),
                Some(solution) => {
                    let syndromes = pack::<V, P, Q, R, W>(sums, &known, at);
                    solve::<V, P, N, W>(&syndromes, solution, &targets, at);
                }
            }
        }
        at += stride;
    }
    at
}

/// The sums P, Q and R of one stride; those that aren't wanted stay zero.
#[inline(always)]
unsafe fn horner<V: Vector, const P: bool, const Q: bool, const R: bool, const W: usize>(
    sources: &[*const u8],
    at: usize,
) -> [[V; W]; MAX_PARITY] {
    // SAFETY: the contract is the caller's: sources that aren't null can be read for a stride from `at`.
    unsafe {
        let (mut p, mut q, mut r) = ([V::zero(); W], [V::zero(); W], [V::zero(); W]);
        for source in sources {
            for (q, r) in q.iter_mut().zip(&mut r) {
                if Q {
                    *q = q.double();
                }
                if R {
                    *r = r.quadruple();
                }
            }
            if source.is_null() {
                continue;
            }
            for (i, ((p, q), r)) in p.iter_mut().zip(&mut q).zip(&mut r).enumerate() {
                let column = V::load(source.add(at + i * V::BYTES));
                if P {
                    *p = p.add(column);
                }
                if Q {
                    *q = q.add(column);
                }
                if R {
                    *r = r.add(column);
                }
            }
        }
        [p, q, r]
    }
}

#[inline(always)]
unsafe fn store<V: Vector, const W: usize>(
    sums: &[[V; W]; MAX_PARITY],
    targets: &[*mut u8; MAX_PARITY],
    at: usize,
) {
    for (sum, target) in sums.iter().zip(targets) {
        // SAFETY: the contract is the caller's: the target is null or can be written for a stride from `at`.
        unsafe { store_or_skip(sum, *target, at) };
    }
}

#[inline(always)]
unsafe fn store_or_skip<V: Vector, const W: usize>(bundles: &[V; W], target: *mut u8, at: usize) {
    if target.is_null() {
        return;
    }
    for (i, bundle) in bundles.iter().enumerate() {
        // SAFETY: the contract is the caller's: the target can be written for a stride from `at`.
        unsafe { bundle.store(target.add(at + i * V::BYTES)) };
    }
}

/// Adds the known parity to the sums in use and moves them to the front.
#[inline(always)]
unsafe fn pack<V: Vector, const P: bool, const Q: bool, const R: bool, const W: usize>(
    sums: [[V; W]; MAX_PARITY],
    known: &[*const u8; MAX_PARITY],
    at: usize,
) -> [[V; W]; MAX_PARITY] {
    // SAFETY: the contract is the caller's: parity of rows in use can be read for a stride from `at`.
    unsafe {
        let [mut p, mut q, mut r] = sums;
        for (used, sum, known) in [(P, &mut p, known[0]), (Q, &mut q, known[1]), (R, &mut r, known[2])] {
            if used {
                for (i, bundle) in sum.iter_mut().enumerate() {
                    *bundle = bundle.add(V::load(known.add(at + i * V::BYTES)));
                }
            }
        }
        match (P, Q) {
            (true, true) => [p, q, r],
            (true, false) => [p, r, q],
            (false, true) => [q, r, p],
            (false, false) => [r, p, q],
        }
    }
}

/// Writes the `N` missing columns. With P in use, the last is P's syndrome minus the others.
#[inline(always)]
unsafe fn solve<V: Vector, const P: bool, const N: usize, const W: usize>(
    syndromes: &[[V; W]; MAX_PARITY],
    solution: &Solution,
    targets: &[*mut u8; MAX_PARITY],
    at: usize,
) {
    // SAFETY: the contract is the caller's: targets that aren't null can be written for a stride from `at`.
    unsafe {
        let mut left = syndromes[0];
        for (number, (factors, target)) in solution.factors.iter().zip(targets).take(N).enumerate() {
            if P && number + 1 == N {
                store_or_skip(&left, *target, at);
                return;
            }
            let mut column = [V::zero(); W];
            for (syndrome, factor) in syndromes.iter().zip(factors).take(N) {
                for (sum, bundle) in column.iter_mut().zip(syndrome) {
                    *sum = sum.add(bundle.scale(factor));
                }
            }
            for (left, column) in left.iter_mut().zip(&column) {
                *left = left.add(*column);
            }
            store_or_skip(&column, *target, at);
        }
    }
}
