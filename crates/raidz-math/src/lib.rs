//! RAIDZ parity: making it, and getting up to three missing columns back.
//!
//! A row has data columns D0 … Dn-1 and up to three parity columns over GF(2^8) with the polynomial
//! x^8 + x^4 + x^3 + x^2 + 1 and generator 2, byte by byte:
//!
//! ```text
//! P = D0        + D1        + … + Dn-1
//! Q = 2^(n-1)D0 + 2^(n-2)D1 + … + Dn-1
//! R = 4^(n-1)D0 + 4^(n-2)D1 + … + Dn-1
//! ```
//!
//! So with x_j = 2^(n-1-j), parity row k is the sum of x_j^k D_j: rows of a Vandermonde matrix. Any m of the
//! three rows, restricted to any m columns, can be inverted for up to 255 data columns; [`reconstruct`] does
//! that. A column that is shorter than its row's parity counts as zeros past its end.
//!
//! Layout: `gf` (the field and small matrices), `segment` (one stretch where every column is whole or
//! absent), `kernel` (the loop, generic over vector types), `scalar` and `x86` (the vector types).
//!
//! Format source: `vdev_raidz.c`, `vdev_raidz_math.c`, OpenZFS 2.3.

mod gf;
mod kernel;
mod scalar;
mod segment;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Deref;

use gf::Solution;
use segment::Segment;
use thiserror::Error;

/// Most parity columns in a row (RAIDZ3).
pub const MAX_PARITY: usize = 3;
/// Most data columns in a row: the powers of 2 start over after this many.
pub const MAX_DATA: usize = 255;

/// Why a row can't be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RaidzError {
    /// No parity column or more than three; no data column or more than 255.
    #[error("a RAIDZ row can't have this many columns")]
    Columns,
    /// Parity columns differ in length, or a data column is longer than them.
    #[error("column lengths don't fit each other")]
    Lengths,
    /// A missing column's number is out of range or given twice.
    #[error("no such column")]
    Index,
    /// More data columns are missing than parity columns are there.
    #[error("more columns are missing than parity can replace")]
    TooManyMissing,
}

/// Fills `parity` (P, or P and Q, or P, Q and R) from the data columns, in row order.
///
/// All parity columns have the same length, at least that of the longest data column. An empty parity
/// column isn't wanted and is left out.
///
/// # Errors
/// [`RaidzError::Columns`], [`RaidzError::Lengths`]; nothing has been written then.
#[doc(alias = "vdev_raidz_generate_parity")]
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
    let lens = parity.iter().map(|column| column.len());
    let len = check_shape(lens, data.iter().map(|column| column.len()))?;
    for (from, to) in stretches(len, data.iter().map(|column| column.len())) {
        let sources = data.iter().map(|column| column.get(from..to)).collect();
        let mut out = [None, None, None];
        for (slot, column) in out.iter_mut().zip(parity.iter_mut()) {
            *slot = column.get_mut(from..to);
        }
        kernel::run(&mut Segment::generate(to - from, sources, out).ok_or(RaidzError::Lengths)?);
    }
    Ok(())
}

/// Rebuilds the columns with the numbers in `missing`, in place.
///
/// `columns` is the whole row: `nparity` parity columns, then the data columns. The content of a missing
/// column is ignored and overwritten; its length must be right. A parity column that wasn't read and isn't
/// wanted either is passed as an empty slice: it is neither used nor rebuilt.
///
/// # Errors
/// Any [`RaidzError`]; nothing has been written then.
#[doc(alias = "vdev_raidz_reconstruct")]
pub fn reconstruct(nparity: usize, columns: &mut [&mut [u8]], missing: &[usize]) -> Result<(), RaidzError> {
    let (parity, data) = columns.split_at_mut_checked(nparity).ok_or(RaidzError::Columns)?;
    let lens = parity.iter().map(|column| column.len());
    let len = check_shape(lens, data.iter().map(|column| column.len()))?;
    let lost = Missing::sort(nparity, data.len(), missing)?;
    if !lost.data.is_empty() {
        let have = std::array::from_fn(|row| {
            !lost.parity.contains(&row) && parity.get(row).is_some_and(|column| !column.is_empty())
        });
        let solution = Solution::new(data.len(), have, &lost.data).ok_or(RaidzError::TooManyMissing)?;
        rebuild_data(parity, data, len, &lost, &solution)?;
    }
    if lost.parity.is_empty() {
        return Ok(());
    }
    let sources: Vec<&[u8]> = data.iter().map(|column| &**column).collect();
    let mut wanted: Vec<&mut [u8]> = Vec::with_capacity(nparity);
    for (row, column) in parity.iter_mut().enumerate() {
        wanted.push(if lost.parity.contains(&row) { &mut **column } else { &mut [] });
    }
    generate(&sources, &mut wanted)
}

/// Rebuilds the data columns with the numbers in `missing` (counted from the first data column), in place, from the others and
/// `parity`. Lengths and contents are as in [`reconstruct`]; no parity is rebuilt, and it is only read.
///
/// # Errors
/// Any [`RaidzError`]; nothing has been written then.
#[doc(alias = "vdev_raidz_reconstruct")]
pub fn rebuild(parity: &[&[u8]], data: &mut [&mut [u8]], missing: &[usize]) -> Result<(), RaidzError> {
    let lens = parity.iter().map(|column| column.len());
    let len = check_shape(lens, data.iter().map(|column| column.len()))?;
    let missing: Vec<usize> = missing.iter().map(|number| number.saturating_add(parity.len())).collect();
    let lost = Missing::sort(parity.len(), data.len(), &missing)?;
    if lost.data.is_empty() {
        return Ok(());
    }
    let have = std::array::from_fn(|row| parity.get(row).is_some_and(|column| !column.is_empty()));
    let solution = Solution::new(data.len(), have, &lost.data).ok_or(RaidzError::TooManyMissing)?;
    rebuild_data(parity, data, len, &lost, &solution)
}

fn rebuild_data(
    parity: &[impl Deref<Target = [u8]>],
    data: &mut [&mut [u8]],
    len: usize,
    lost: &Missing,
    solution: &Solution,
) -> Result<(), RaidzError> {
    let lens: Vec<usize> = data.iter().map(|column| column.len()).collect();
    for (from, to) in stretches(len, lens.iter().copied()) {
        let mut known = [None, None, None];
        for (slot, column) in known.iter_mut().zip(parity) {
            *slot = column.get(from..to);
        }
        let mut sources = Vec::with_capacity(data.len());
        let mut out = [None, None, None];
        for (number, column) in data.iter_mut().enumerate() {
            match lost.data.iter().position(|lost| *lost == number) {
                None => sources.push(column.get(from..to)),
                Some(target) => {
                    sources.push(None);
                    if let Some(slot) = out.get_mut(target) {
                        *slot = column.get_mut(from..to);
                    }
                }
            }
        }
        let segment = Segment::rebuild(to - from, sources, known, out, solution);
        kernel::run(&mut segment.ok_or(RaidzError::Lengths)?);
    }
    Ok(())
}

/// The missing columns, parity by row and data by position, each ascending.
struct Missing {
    parity: Vec<usize>,
    data: Vec<usize>,
}

impl Missing {
    fn sort(nparity: usize, ndata: usize, missing: &[usize]) -> Result<Self, RaidzError> {
        if missing.len() > nparity {
            return Err(RaidzError::TooManyMissing);
        }
        let mut sorted = missing.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let in_range = sorted.last().is_none_or(|last| *last < nparity + ndata);
        if sorted.len() != missing.len() || !in_range {
            return Err(RaidzError::Index);
        }
        let (parity, data): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|column| *column < nparity);
        Ok(Self { parity, data: data.into_iter().map(|column| column - nparity).collect() })
    }
}

/// Checks counts and lengths; the length of the parity columns.
fn check_shape(
    parity: impl ExactSizeIterator<Item = usize>,
    data: impl ExactSizeIterator<Item = usize>,
) -> Result<usize, RaidzError> {
    if !(1..=MAX_PARITY).contains(&parity.len()) || !(1..=MAX_DATA).contains(&data.len()) {
        return Err(RaidzError::Columns);
    }
    let longest = data.max().unwrap_or(0);
    let mut wanted = parity.filter(|len| *len > 0);
    let len = wanted.next().unwrap_or(longest);
    if wanted.any(|other| other != len) || longest > len {
        return Err(RaidzError::Lengths);
    }
    Ok(len)
}

/// Cuts 0..len where a column ends, so that each column covers a stretch wholly or not at all.
fn stretches(len: usize, columns: impl Iterator<Item = usize>) -> impl Iterator<Item = (usize, usize)> {
    let mut ends: Vec<usize> = columns.chain([len]).filter(|end| *end > 0).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut from = 0;
    ends.into_iter().map(move |to| (std::mem::replace(&mut from, to), to))
}
