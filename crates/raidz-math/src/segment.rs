//! One stretch of a row, checked: every slice in it has the same length. The kernels' safety rests on that.

use crate::MAX_PARITY;
use crate::gf::Solution;

/// A stretch in which each data column is whole or absent (zero, or missing).
pub(crate) struct Segment<'a> {
    len: usize,
    data: Vec<Option<&'a [u8]>>,
    rows: [bool; MAX_PARITY],
    known: [Option<&'a [u8]>; MAX_PARITY],
    out: [Option<&'a mut [u8]>; MAX_PARITY],
    solution: Option<&'a Solution>,
}

impl<'a> Segment<'a> {
    /// Parity from data; `out` by parity row.
    pub(crate) fn generate(
        len: usize,
        data: Vec<Option<&'a [u8]>>,
        out: [Option<&'a mut [u8]>; MAX_PARITY],
    ) -> Option<Self> {
        let rows = std::array::from_fn(|row| out.get(row).is_some_and(Option::is_some));
        Self { len, data, rows, known: [None; MAX_PARITY], out, solution: None }.checked()
    }

    /// Missing data from the rest; `known` by parity row, `out` by position in the solution.
    pub(crate) fn rebuild(
        len: usize,
        data: Vec<Option<&'a [u8]>>,
        mut known: [Option<&'a [u8]>; MAX_PARITY],
        out: [Option<&'a mut [u8]>; MAX_PARITY],
        solution: &'a Solution,
    ) -> Option<Self> {
        for (known, used) in known.iter_mut().zip(solution.rows) {
            *known = known.filter(|_| used);
            if used && known.is_none() {
                return None;
            }
        }
        Self { len, data, rows: solution.rows, known, out, solution: Some(solution) }.checked()
    }

    fn checked(self) -> Option<Self> {
        let sources = self.data.iter().chain(&self.known).flatten().all(|slice| slice.len() == self.len);
        let targets = self.out.iter().flatten().all(|slice| slice.len() == self.len);
        (sources && targets).then_some(self)
    }

    /// Bytes in every slice.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Which parity rows take part. For a rebuild each of them is known.
    pub(crate) fn rows(&self) -> [bool; MAX_PARITY] {
        self.rows
    }

    /// How to get from syndromes to data; `None`: the syndromes are the parity that is wanted.
    pub(crate) fn solution(&self) -> Option<&'a Solution> {
        self.solution
    }

    /// Where each data column starts; null for an absent one.
    pub(crate) fn sources(&self) -> Vec<*const u8> {
        self.data.iter().map(|slice| slice.map_or(std::ptr::null(), <[u8]>::as_ptr)).collect()
    }

    /// Where each known parity column starts; null for those that take no part.
    pub(crate) fn known(&self) -> [*const u8; MAX_PARITY] {
        self.known.map(|slice| slice.map_or(std::ptr::null(), <[u8]>::as_ptr))
    }

    /// Where each result starts; null for one that isn't wanted.
    pub(crate) fn targets(&mut self) -> [*mut u8; MAX_PARITY] {
        self.out
            .each_mut()
            .map(|slice| slice.as_mut().map_or(std::ptr::null_mut(), |slice| slice.as_mut_ptr()))
    }
}
