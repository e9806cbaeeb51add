//! All sectors of a block in rows, for the search: the missing sectors, the rows that contradict the parity,
//! and the content of a row under the assumption that some of its sectors are wrong.

use super::gather::Gather;
use super::plan::{ChildRead, Children};
use super::search::Variant;
use super::stripe::{Column, Grid};
use super::stripe_plan::read_of;

/// One set of sectors that the parity equations tie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ParityRow {
    /// Index of the stripe's first column.
    stripe: usize,
    /// Sectors from the top of the columns.
    index: usize,
}

/// Bytes to put into the block.
#[derive(Debug, Clone)]
pub(super) struct RowBytes {
    at: usize,
    bytes: Vec<u8>,
}

impl RowBytes {
    pub(crate) fn apply(&self, image: &mut [u8]) {
        if let Some(to) = image.get_mut(self.at..self.at.saturating_add(self.bytes.len())) {
            to.copy_from_slice(&self.bytes);
        }
    }

    /// Returns the present bytes of the same place.
    pub(crate) fn of(&self, image: &[u8]) -> Self {
        let now = image.get(self.at..self.at.saturating_add(self.bytes.len()));
        Self { at: self.at, bytes: now.unwrap_or_default().to_vec() }
    }
}

/// A row under an assumption.
#[derive(Debug)]
pub(super) struct Solved {
    /// Data sectors that the assumption changes.
    pub(crate) fills: Vec<RowBytes>,
    /// Whether the parity left over agrees; `None` when none is left over.
    pub(crate) sound: Option<bool>,
}

/// The content of one column.
#[derive(Debug, Default)]
struct Face {
    bytes: Vec<u8>,
    /// By sector.
    have: Vec<bool>,
}

/// The block as one variant has it.
#[derive(Debug)]
pub(super) struct ParityRows<'a> {
    pub(crate) grid: &'a Grid,
    faces: Vec<Face>,
    sector: usize,
    /// The block, with missing sectors computed in all rows but the suspect ones.
    pub(crate) image: Vec<u8>,
    /// Rows that contradict their parity.
    pub(crate) suspects: Vec<ParityRow>,
}

impl<'a> ParityRows<'a> {
    /// `None` when some row misses more sectors than it has parity.
    pub(crate) fn new(
        grid: &'a Grid,
        gather: &Gather,
        children: &dyn Children,
        variant: &Variant,
    ) -> Option<Self> {
        let sector = usize::try_from(grid.sector).ok()?;
        let faces = grid.columns.iter().map(|column| face(grid, gather, children, variant, column));
        let faces = faces.collect::<Option<Vec<Face>>>()?;
        let image = vec![0; usize::try_from(grid.size).ok()?];
        let mut board = Self { grid, faces, sector, image, suspects: Vec::new() };
        board.copy_data()?;
        for row in board.rows() {
            let missing = board.missing(&row);
            let solved = board.solve(&row, &missing)?;
            if solved.sound == Some(false) {
                board.suspects.push(row);
            } else {
                solved.fills.iter().for_each(|fill| fill.apply(&mut board.image));
            }
        }
        Some(board)
    }

    fn copy_data(&mut self) -> Option<()> {
        for (number, (column, face)) in self.grid.columns.iter().zip(&self.faces).enumerate() {
            if !self.grid.is_parity(number.checked_rem(self.grid.width)?) {
                let at = usize::try_from(column.at).ok()?;
                self.image.get_mut(at..at.checked_add(face.bytes.len())?)?.copy_from_slice(&face.bytes);
            }
        }
        Some(())
    }

    fn rows(&self) -> Vec<ParityRow> {
        let mut rows = Vec::new();
        for stripe in (0..self.faces.len()).step_by(self.grid.width.max(1)) {
            let height = self.faces.get(stripe).map_or(0, |face| face.have.len());
            rows.extend((0..height).map(|index| ParityRow { stripe, index }));
        }
        rows
    }

    fn face(&self, row: &ParityRow, place: usize) -> Option<&Face> {
        self.faces.get(row.stripe.checked_add(place)?)
    }

    fn column(&self, row: &ParityRow, place: usize) -> Option<&Column> {
        self.grid.columns.get(row.stripe.checked_add(place)?)
    }

    /// Columns that reach this row.
    pub(super) fn places(&self, row: &ParityRow) -> impl Iterator<Item = usize> {
        (0..self.grid.width)
            .filter(|&place| self.face(row, place).is_some_and(|face| row.index < face.have.len()))
    }

    /// Columns whose sector of this row could not be read.
    pub(crate) fn missing(&self, row: &ParityRow) -> Vec<usize> {
        let lacks = |face: &Face| face.have.get(row.index) == Some(&false);
        self.places(row).filter(|&place| self.face(row, place).is_some_and(lacks)).collect()
    }

    /// Columns whose sector of this row was read.
    pub(crate) fn present(&self, row: &ParityRow) -> Vec<usize> {
        let missing = self.missing(row);
        self.places(row).filter(|place| !missing.contains(place)).collect()
    }

    /// Everything that can be blamed for a suspect row, as in [`Grid::suspects`].
    pub(crate) fn blamable(&self) -> Vec<u64> {
        let mut all = std::collections::BTreeSet::new();
        for row in &self.suspects {
            for column in self.places(row).filter_map(|place| self.column(row, place)) {
                all.extend(self.grid.suspects(column));
            }
        }
        all.into_iter().collect()
    }

    /// Whether blaming these would make the column wrong.
    pub(crate) fn is_hit(&self, row: &ParityRow, place: usize, blamed: &[u64]) -> bool {
        self.column(row, place)
            .is_some_and(|column| self.grid.suspects(column).any(|id| blamed.contains(&id)))
    }

    fn cell(&self, row: &ParityRow, place: usize) -> Vec<u8> {
        let from = row.index.saturating_mul(self.sector);
        let cell =
            self.face(row, place).and_then(|face| face.bytes.get(from..from.checked_add(self.sector)?));
        cell.unwrap_or_default().to_vec()
    }

    /// The row if the sectors at the `erased` places were not known.
    pub(crate) fn solve(&self, row: &ParityRow, erased: &[usize]) -> Option<Solved> {
        let nparity = self.grid.nparity;
        if erased.len() > nparity {
            return None;
        }
        let mut cells: Vec<Vec<u8>> = (0..self.grid.width).map(|place| self.cell(row, place)).collect();
        let mut views: Vec<&mut [u8]> = cells.iter_mut().map(Vec::as_mut_slice).collect();
        raidz_math::reconstruct(nparity, &mut views, erased).ok()?;
        let sound = (erased.len() < nparity).then(|| is_sound(nparity, &cells, erased));
        let mut fills = Vec::new();
        for &place in erased.iter().filter(|&&place| !self.grid.is_parity(place)) {
            let at = usize::try_from(self.column(row, place)?.at).ok()?;
            let at = at.checked_add(row.index.checked_mul(self.sector)?)?;
            fills.push(RowBytes { at, bytes: cells.get(place)?.clone() });
        }
        Some(Solved { fills, sound })
    }
}

/// Whether the parity that was not erased belongs to the data.
fn is_sound(nparity: usize, cells: &[Vec<u8>], erased: &[usize]) -> bool {
    let Some((parity, data)) = cells.split_at_checked(nparity) else { return false };
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut fresh: Vec<Vec<u8>> = parity.iter().map(|cell| vec![0; cell.len()]).collect();
    let mut views: Vec<&mut [u8]> = fresh.iter_mut().map(Vec::as_mut_slice).collect();
    raidz_math::generate(&data, &mut views).is_ok()
        && parity.iter().zip(&fresh).enumerate().all(|(place, (a, b))| erased.contains(&place) || a == b)
}

/// The content of a column in a variant: the leaf it names, else the first that was read among those not
/// known to be faulty. Sectors that were only read in pieces are put together.
fn face(
    grid: &Grid,
    gather: &Gather,
    children: &dyn Children,
    variant: &Variant,
    column: &Column,
) -> Option<Face> {
    let named = variant.iter().filter(|(child, _)| *child == column.child).map(|&(_, side)| side);
    let fresh = (0..children.sides(column.child, column.offset))
        .filter(|&side| children.fault(column.child, side, column.offset).is_none());
    let sides: Vec<u32> = named.chain(fresh).collect();
    let any =
        |read: &dyn Fn(u32) -> ChildRead| sides.iter().find_map(|&side| gather.look_up(&read(side)).read());
    let sectors = column.len.checked_div(grid.sector)?;
    if let Some(bytes) = any(&|side| read_of(column, side)) {
        return Some(Face { bytes: bytes.to_vec(), have: vec![true; usize::try_from(sectors).ok()?] });
    }
    let mut face = Face::default();
    for sector in 0..sectors {
        let part =
            Column { offset: column.offset.checked_add(sector * grid.sector)?, len: grid.sector, ..*column };
        let bytes = any(&|side| read_of(&part, side));
        face.have.push(bytes.is_some());
        match bytes {
            Some(bytes) => face.bytes.extend_from_slice(&bytes),
            None => face.bytes.resize(face.bytes.len() + usize::try_from(grid.sector).ok()?, 0),
        }
    }
    Some(face)
}
