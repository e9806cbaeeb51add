//! The field GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, and the small linear systems of RAIDZ.

use crate::MAX_PARITY;

/// The polynomial without its top term.
const POLYNOMIAL: u8 = 0x1d;

/// `a` times 2.
pub(crate) const fn double(a: u8) -> u8 {
    (a << 1) ^ if a & 0x80 == 0 { 0 } else { POLYNOMIAL }
}

/// The product of two elements.
pub(crate) const fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

/// `a` to the power of `exponent`.
pub(crate) const fn power(a: u8, exponent: usize) -> u8 {
    let mut left = exponent % 255;
    let mut result = 1;
    while left > 0 {
        result = multiply(result, a);
        left -= 1;
    }
    result
}

/// The inverse of `a`; 0 for 0.
const fn invert(a: u8) -> u8 {
    power(a, 254)
}

/// A constant factor in the forms that the vector types multiply by.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    /// Products with 0 … 15, and with 0x00, 0x10 … 0xf0.
    pub(crate) low: [u8; 16],
    /// See `low`.
    pub(crate) high: [u8; 16],
    /// The 8 by 8 bit matrix of the multiplication, as GFNI wants it: output bit 7 in the lowest byte.
    pub(crate) matrix: u64,
}

impl Factor {
    pub(crate) const fn new(by: u8) -> Self {
        let (mut low, mut high) = ([0; 16], [0; 16]);
        let mut matrix = 0;
        let mut i = 0;
        #[expect(
            clippy::indexing_slicing,
            reason = "the loop ends at the arrays' length; iterators aren't const"
        )]
        while i < 16 {
            low[i] = multiply(by, i as u8);
            high[i] = multiply(by, (i as u8) << 4);
            i += 1;
        }
        let mut column = 0;
        while column < 8 {
            let image = multiply(by, 1 << column);
            let mut row = 0;
            while row < 8 {
                matrix |= ((image >> row & 1) as u64) << ((7 - row) * 8 + column);
                row += 1;
            }
            column += 1;
        }
        Self { low, high, matrix }
    }

    /// The product with one element.
    pub(crate) fn times(&self, a: u8) -> u8 {
        let at = |table: &[u8; 16], nibble: u8| table.get(usize::from(nibble)).copied().unwrap_or(0);
        at(&self.low, a & 15) ^ at(&self.high, a >> 4)
    }
}

/// How missing data columns follow from the syndromes (parity plus what is left of its sum).
pub(crate) struct Solution {
    /// Which parity rows are used: as many as there are missing columns.
    pub(crate) rows: [bool; MAX_PARITY],
    /// Factor of syndrome k (the k-th used row) in missing column t, at `[t][k]`.
    pub(crate) factors: [[Factor; MAX_PARITY]; MAX_PARITY],
}

impl Solution {
    /// Solves for the `missing` of `ndata` data columns from the first parity rows that are there.
    ///
    /// `None` when too few are, or a column is out of range.
    pub(crate) fn new(ndata: usize, have: [bool; MAX_PARITY], missing: &[usize]) -> Option<Self> {
        let mut rows = [false; MAX_PARITY];
        let mut matrix = Vec::with_capacity(missing.len());
        for (row, (used, have)) in rows.iter_mut().zip(have).enumerate() {
            if !have || matrix.len() == missing.len() {
                continue;
            }
            *used = true;
            let base = power(2, row);
            let line: Option<Vec<u8>> =
                missing.iter().map(|column| Some(power(base, ndata.checked_sub(column + 1)?))).collect();
            matrix.push(line?);
        }
        let inverse = invert_matrix(matrix, missing.len())?;
        let mut factors = [[Factor::new(0); MAX_PARITY]; MAX_PARITY];
        for (to, from) in factors.iter_mut().zip(inverse) {
            for (to, from) in to.iter_mut().zip(from) {
                *to = Factor::new(from);
            }
        }
        Some(Self { rows, factors })
    }
}

/// Gauss-Jordan elimination on `matrix` beside the unit matrix; `None` if it isn't square and regular.
fn invert_matrix(mut matrix: Vec<Vec<u8>>, size: usize) -> Option<Vec<Vec<u8>>> {
    if matrix.len() != size {
        return None;
    }
    for (number, line) in matrix.iter_mut().enumerate() {
        line.extend((0..size).map(|column| u8::from(column == number)));
    }
    for step in 0..size {
        let pivot = (step..size).find(|row| matrix.get(*row).and_then(|line| line.get(step)) != Some(&0))?;
        matrix.swap(step, pivot);
        let scale = invert(*matrix.get(step)?.get(step)?);
        let pivot_line: Vec<u8> = matrix.get(step)?.iter().map(|cell| multiply(*cell, scale)).collect();
        for (number, line) in matrix.iter_mut().enumerate() {
            if number == step {
                line.copy_from_slice(&pivot_line);
                continue;
            }
            let weight = *line.get(step)?;
            for (cell, pivot) in line.iter_mut().zip(&pivot_line) {
                *cell ^= multiply(weight, *pivot);
            }
        }
    }
    matrix.iter().map(|line| line.get(size..).map(<[u8]>::to_vec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_a_field() {
        assert_eq!(multiply(0x80, 2), 0x1d);
        assert_eq!(power(2, 255), 1);
        assert!((1..255).all(|exponent| power(2, exponent) != 1), "2 generates every element");
        for a in 1..=255 {
            assert_eq!(multiply(a, invert(a)), 1);
        }
    }

    #[test]
    fn factors_multiply() {
        for by in 0..=255u8 {
            let factor = Factor::new(by);
            for a in 0..=255u8 {
                assert_eq!(factor.times(a), multiply(by, a));
                let by_matrix = (0..8).fold(0, |all, bit| {
                    let row = (factor.matrix >> ((7 - bit) * 8)) as u8;
                    all | (((row & a).count_ones() as u8 & 1) << bit)
                });
                assert_eq!(by_matrix, multiply(by, a));
            }
        }
    }

    #[test]
    fn every_pair_of_rows_solves_every_pair_of_columns() {
        for have in [[true, true, false], [true, false, true], [false, true, true]] {
            for a in 0..crate::MAX_DATA {
                for b in a + 1..crate::MAX_DATA {
                    assert!(Solution::new(crate::MAX_DATA, have, &[a, b]).is_some());
                }
            }
        }
        assert!(Solution::new(10, [true, false, false], &[1, 2]).is_none());
        assert!(Solution::new(10, [true; 3], &[10]).is_none());
    }
}
