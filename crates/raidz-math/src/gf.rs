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

/// The powers of 2; as 2 generates every element but 0, the last repeats the first.
const POWERS: [u8; 256] = {
    let mut powers = [1; 256];
    let mut i = 1;
    #[expect(
        clippy::indexing_slicing,
        reason = "the loop ends at the array's length; iterators aren't const"
    )]
    while i < 256 {
        powers[i] = double(powers[i - 1]);
        i += 1;
    }
    powers
};

/// 2 to the power of `exponent`.
fn power_of_two(exponent: usize) -> u8 {
    POWERS.get(exponent % 255).copied().unwrap_or(1)
}

/// The inverse of `a`; `None` for 0.
fn invert(a: u8) -> Option<u8> {
    let exponent = POWERS.iter().position(|power| *power == a)?;
    Some(power_of_two(255 - exponent))
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

/// Every factor there is.
static FACTORS: [Factor; 256] = {
    let mut factors = [Factor::new(0); 256];
    let mut by = 1;
    #[expect(
        clippy::indexing_slicing,
        reason = "the loop ends at the array's length; iterators aren't const"
    )]
    while by < 256 {
        factors[by] = Factor::new(by as u8);
        by += 1;
    }
    factors
};

/// A square matrix of up to three rows, in the upper left corner.
type Matrix = [[u8; MAX_PARITY]; MAX_PARITY];

/// How missing data columns follow from the syndromes (parity plus the sum of the columns present).
pub(crate) struct Solution {
    /// Which parity rows are used: as many as there are missing columns.
    pub(crate) rows: [bool; MAX_PARITY],
    /// Factor of syndrome k (the k-th used row) in missing column t, at `[t][k]`.
    pub(crate) factors: [[&'static Factor; MAX_PARITY]; MAX_PARITY],
}

impl Solution {
    /// Solves for the `missing` of `ndata` data columns from the first parity rows that are there.
    ///
    /// `None` when too few are, or a column is out of range.
    pub(crate) fn new(ndata: usize, have: [bool; MAX_PARITY], missing: &[usize]) -> Option<Self> {
        let mut rows = [false; MAX_PARITY];
        let mut matrix = Matrix::default();
        let mut lines = matrix.iter_mut().take(missing.len());
        for (row, (used, _)) in rows.iter_mut().zip(have).enumerate().filter(|(_, (_, have))| *have) {
            let Some(line) = lines.next() else { break };
            *used = true;
            for (cell, column) in line.iter_mut().zip(missing) {
                *cell = power_of_two(row * ndata.checked_sub(column + 1)?);
            }
        }
        if lines.next().is_some() || missing.len() > MAX_PARITY {
            return None;
        }
        let inverse = invert_matrix(matrix, missing.len())?;
        let factor = |by: u8| FACTORS.get(usize::from(by));
        let mut factors = [[factor(0)?; MAX_PARITY]; MAX_PARITY];
        for (to, from) in factors.iter_mut().flatten().zip(inverse.iter().flatten()) {
            *to = factor(*from)?;
        }
        Some(Self { rows, factors })
    }
}

/// Gauss-Jordan elimination beside the unit matrix; `None` if the matrix is singular.
fn invert_matrix(mut matrix: Matrix, size: usize) -> Option<Matrix> {
    let mut inverse: Matrix = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    for step in 0..size {
        let pivot = (step..size).find(|row| matrix.get(*row).and_then(|line| line.get(step)) != Some(&0))?;
        matrix.swap(step, pivot);
        inverse.swap(step, pivot);
        let scale = invert(*matrix.get(step)?.get(step)?)?;
        let pivot_line = matrix.get(step)?.map(|cell| multiply(cell, scale));
        let pivot_inverse = inverse.get(step)?.map(|cell| multiply(cell, scale));
        for (number, (line, inverse)) in matrix.iter_mut().zip(&mut inverse).take(size).enumerate() {
            if number == step {
                (*line, *inverse) = (pivot_line, pivot_inverse);
                continue;
            }
            let weight = *line.get(step)?;
            let pivots = pivot_line.iter().chain(&pivot_inverse);
            for (cell, pivot) in line.iter_mut().chain(inverse).zip(pivots) {
                *cell ^= multiply(weight, *pivot);
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_a_field() {
        assert_eq!(multiply(0x80, 2), 0x1d);
        assert_eq!(power_of_two(255), 1);
        assert!((1..255).all(|exponent| power_of_two(exponent) != 1), "2 generates every element");
        for a in 1..=255 {
            assert_eq!(multiply(a, invert(a).unwrap()), 1);
        }
        assert_eq!(invert(0), None);
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
