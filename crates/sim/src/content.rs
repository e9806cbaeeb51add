//! Bytes of a file in the model: non-zero pieces, shared between the states of a file.
//!
//! Files of OpenZFS's pools may be long holes with a few data ranges; a copy costs only the data.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a piece.
const PIECE: usize = 4096;
/// Bytes read at a time.
const WINDOW: usize = 1 << 20;

/// Bytes with an end. Equal bytes are equal values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    len: u64,
    /// By number; none of them is all zeros, and the bytes after the end are zeros.
    pieces: BTreeMap<u64, Arc<[u8; PIECE]>>,
}

/// Number of the piece and offset in it.
fn split(offset: u64) -> (u64, usize) {
    let piece = PIECE as u64;
    (offset / piece, usize::try_from(offset % piece).unwrap_or(0))
}

impl Content {
    /// That many zeros.
    pub fn zeros(len: u64) -> Self {
        Self { len, pieces: BTreeMap::new() }
    }

    /// These bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    /// The content of a file or volume of `len` bytes. `next` finds the next data, `read` returns it; ends early
    /// where `read` does.
    pub fn read<E>(
        len: u64,
        next: impl Fn(u64) -> Result<Option<u64>, E>,
        read: impl Fn(u64, &mut [u8]) -> Result<usize, E>,
    ) -> Result<Self, E> {
        let (mut content, mut at, mut window) = (Self::default(), 0, Vec::new());
        while at < len {
            let Some(start) = next(at)?.filter(|start| *start < len) else { break };
            let wanted = usize::try_from(len - start).map_or(WINDOW, |left| left.min(WINDOW));
            window.resize(wanted, 0);
            let got = read(start, &mut window)?;
            content.write(start, window.get(..got).unwrap_or_default());
            if got < wanted {
                return Ok(content);
            }
            at = start + got as u64;
        }
        content.resize(len);
        Ok(content)
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of pieces.
    pub fn stored(&self) -> u64 {
        (self.pieces.len() * PIECE) as u64
    }

    /// Writes bytes; a write beyond the end moves the end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (number, skip) = split(at);
            let (now, later) = rest.split_at(rest.len().min(PIECE - skip));
            self.change(number, |piece| {
                if let Some(to) = piece.get_mut(skip..skip + now.len()) {
                    to.copy_from_slice(now);
                }
            });
            (at, rest) = (at + now.len() as u64, later);
        }
        if !bytes.is_empty() {
            self.len = self.len.max(at);
        }
    }

    /// Zeros the range from `start` to `end`, limited to the end of the content.
    pub fn zero(&mut self, start: u64, end: u64) {
        let end = end.min(self.len);
        let known: Vec<u64> = self.pieces.range(start / PIECE as u64..).map(|(n, _)| *n).collect();
        for number in known {
            let first = number * PIECE as u64;
            let range = start.max(first)..end.min(first + PIECE as u64);
            if first >= end || range.is_empty() {
                break;
            }
            let place = |at: u64| usize::try_from(at - first).unwrap_or(0);
            self.change(number, |piece| {
                if let Some(bytes) = piece.get_mut(place(range.start)..place(range.end)) {
                    bytes.fill(0);
                }
            });
        }
    }

    /// Moves the end; new bytes are zeros.
    pub fn resize(&mut self, len: u64) {
        self.zero(len, self.len);
        self.len = len;
    }

    /// The byte at an offset; zero after the end.
    pub fn byte(&self, offset: u64) -> u8 {
        let (number, skip) = split(offset);
        self.pieces.get(&number).and_then(|piece| piece.get(skip)).copied().unwrap_or(0)
    }

    /// The first difference of two contents before the end of the longer.
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        self.differing(other).find_map(|number| {
            let first = number * PIECE as u64;
            (first..first + PIECE as u64).find(|at| self.byte(*at) != other.byte(*at))
        })
    }

    /// Pieces that differ.
    pub fn differing<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u64> + 'a {
        let mut numbers: Vec<u64> = self.pieces.keys().chain(other.pieces.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().filter(|number| self.pieces.get(number) != other.pieces.get(number))
    }

    /// Offsets of a piece's bytes.
    pub fn offsets(number: u64) -> std::ops::Range<u64> {
        number * PIECE as u64..(number + 1) * PIECE as u64
    }

    fn change(&mut self, number: u64, work: impl FnOnce(&mut [u8; PIECE])) {
        let piece = self.pieces.entry(number).or_insert_with(|| Arc::new([0; PIECE]));
        work(Arc::make_mut(piece));
        if piece.iter().all(|byte| *byte == 0) {
            self.pieces.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use stdx::rng::Rng;

    use super::*;

    #[test]
    fn it_does_what_a_vector_does() {
        let (mut content, mut model, mut random) = (Content::default(), Vec::<u8>::new(), Rng::new(1));
        for _ in 0..2000 {
            let (at, len) = (random.below(20_000), random.below(6000));
            let (start, end) = (usize::try_from(at).unwrap(), usize::try_from(at + len).unwrap());
            match random.below(3) {
                0 => {
                    let bytes = vec![u8::try_from(random.below(3)).unwrap(); end - start];
                    content.write(at, &bytes);
                    model.resize(if bytes.is_empty() { model.len() } else { model.len().max(end) }, 0);
                    if !bytes.is_empty() {
                        model[start..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    content.zero(at, at + len);
                    let end = end.min(model.len());
                    model[start.min(end)..end].fill(0);
                }
                _ => {
                    content.resize(at);
                    model.resize(start, 0);
                }
            }
            assert_eq!(content.len(), model.len() as u64);
            assert!((0u64..).zip(&model).all(|(at, byte)| content.byte(at) == *byte));
            assert_eq!(content, Content { len: content.len, ..Content::of(&model) });
        }
    }

    #[test]
    fn the_first_byte_that_differs_is_found() {
        let (mut a, mut b) = (Content::zeros(1 << 40), Content::zeros(1 << 40));
        assert_eq!(a.first_difference(&b), None);
        a.write(5 << 30, &[1, 2]);
        b.write(5 << 30, &[1, 3]);
        assert_eq!(a.first_difference(&b), Some((5 << 30) + 1));
    }
}
