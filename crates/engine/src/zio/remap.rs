//! Blocks of removed vdevs: read from where the removal put them.
//!
//! A block that was split has no checksum per piece. Each piece is read once; when the whole does not
//! match, every version of each piece is collected and combinations are tried, up to a bound. Once the bytes are known,
//! the copies of each piece are compared with them where it matters which are bad: for scans, and after a mismatch.
//!
//! The copies of a removal have births of their own: a leaf that lacks the txg of a block may have its copy, and the
//! reverse. Leaves are asked for the txg of the copy.
//!
//! Differs from OpenZFS: it walks combinations at random beyond a limit; here the first
//! [`MAX_COMBINATIONS`] in order are tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::Blkptr;
use parking_lot::Mutex;
use stdx::{AlignedBuf, Buf};

use super::Zio;
use super::drive::Judge;
use super::read::{CopyDone, CopyResult, Range, read_range};
use crate::error::Error;
use crate::vdev::indirect::Segment;
use crate::vdev::plan::Depth;
use crate::vdev::top::Top;

/// Combinations of piece versions that are tried.
const MAX_COMBINATIONS: usize = 4096;
/// Bytes that trying combinations may look at.
const MAX_TRIED: usize = 256 << 20;
/// Versions kept of one piece.
const MAX_VERSIONS: usize = 32;

/// Reads a range of a removed vdev.
pub(crate) fn read(zio: &Arc<Zio>, top: &Top, range: Range, depth: Depth, judge: Judge, done: CopyDone) {
    let pieces = match places(zio, range) {
        Ok(pieces) => pieces,
        Err(e) => return done(CopyResult { error: Some(e.on_vdev(&top.name)), ..CopyResult::default() }),
    };
    if let [only] = pieces.as_slice() {
        return read_range(zio, *only, depth, judge, done);
    }
    let again = (Arc::clone(zio), pieces.clone());
    let whole = move |parts: Vec<CopyResult>| {
        let mut result = CopyResult::default();
        let mut versions = Vec::new();
        for part in parts {
            result.damage.extend(part.damage);
            result.error = result.error.or(part.error);
            versions.push(part.data.into_iter().collect::<Vec<Buf>>());
        }
        result.data = combine(&versions, &judge);
        match &result.data {
            Some(data) if depth != Depth::First => {
                let data = data.clone();
                compare(&again.0, again.1, &data, result, done);
            }
            Some(_) => done(result),
            None => collect(&again.0, again.1, result, judge, done),
        }
    };
    read_all(zio, pieces, depth, |_| Arc::new(|_| true), Box::new(whole));
}

/// Reads all copies of all pieces and compares them with the right bytes: the damage of `result` lists the copies that differ.
fn compare(zio: &Arc<Zio>, pieces: Vec<Range>, data: &Buf, mut result: CopyResult, done: CopyDone) {
    let parts = split(&pieces, data);
    let judges = move |i: usize| -> Judge {
        let part = parts.get(i).cloned();
        Arc::new(move |bytes: &[u8]| part.as_ref().is_some_and(|part| **part == *bytes))
    };
    let whole = Box::new(move |found: Vec<CopyResult>| {
        result.damage = found.into_iter().flat_map(|piece| piece.damage).collect();
        done(result);
    });
    read_all(zio, pieces, Depth::All, judges, whole);
}

/// The bytes of each piece.
fn split(pieces: &[Range], data: &Buf) -> Vec<Buf> {
    let mut at = 0;
    let part = |piece: &Range| {
        let end = usize::try_from(piece.size).unwrap_or(usize::MAX).saturating_add(at).min(data.len());
        let part = data.slice(at.min(end)..end);
        at = end;
        part
    };
    pieces.iter().map(part).collect()
}

/// Where the parts of a block of these bytes at a DVA are, each with its bytes: one part unless it was on a removed vdev.
///
/// # Errors
/// When a mapping is not known, or damaged.
pub(super) fn parts(zio: &Zio, range: Range, data: &Buf) -> Result<Vec<(Range, Buf)>, Error> {
    let pieces = places(zio, range)?;
    let parts = split(&pieces, data);
    Ok(pieces.into_iter().zip(parts).collect())
}

/// The txgs that wrote a block: its own, or those of the copies of its parts from a removed vdev.
pub(crate) fn written_in(zio: &Zio, bp: &Blkptr) -> BTreeSet<u64> {
    let birth = bp.physical_birth();
    let places = bp.dvas().filter_map(|dva| places(zio, Range::of(&dva, bp.psize(), birth)).ok());
    places.flatten().map(|place| place.birth).chain([birth]).collect()
}

/// The pieces of a range on vdevs that are there: all removals are followed here, so that no reader of a piece meets another.
///
/// # Errors
/// When a mapping is not known, or damaged.
fn places(zio: &Zio, range: Range) -> Result<Vec<Range>, Error> {
    let to = |s: Segment| Range {
        vdev: s.vdev,
        offset: s.offset,
        size: s.len,
        birth: s.born.unwrap_or(range.birth),
    };
    let pieces = zio.tree().pieces(Segment::new(range.vdev, range.offset, range.size))?;
    match pieces.is_empty() {
        true => Err(Error::corrupt("a block without bytes on a removed vdev")),
        false => Ok(pieces.into_iter().map(to).collect()),
    }
}

type AllDone = Box<dyn FnOnce(Vec<CopyResult>) + Send>;

struct Join {
    left: usize,
    parts: Vec<CopyResult>,
    done: Option<AllDone>,
}

fn read_all(
    zio: &Arc<Zio>,
    pieces: Vec<Range>,
    depth: Depth,
    judges: impl Fn(usize) -> Judge,
    done: AllDone,
) {
    let parts = pieces.iter().map(|_| CopyResult::default()).collect();
    let join = Arc::new(Mutex::new(Join { left: pieces.len(), parts, done: Some(done) }));
    for (i, piece) in pieces.into_iter().enumerate() {
        let join = Arc::clone(&join);
        let part_done: CopyDone = Box::new(move |part| {
            let mut state = join.lock();
            if let Some(slot) = state.parts.get_mut(i) {
                *slot = part;
            }
            state.left -= 1;
            if state.left == 0
                && let Some(done) = state.done.take()
            {
                let parts = std::mem::take(&mut state.parts);
                drop(state);
                done(parts);
            }
        });
        read_range(zio, piece, depth, judges(i), part_done);
    }
}

/// Reads every version of each piece: a judge that accepts nothing sees them all.
fn collect(zio: &Arc<Zio>, pieces: Vec<Range>, mut result: CopyResult, judge: Judge, done: CopyDone) {
    let seen: Arc<Vec<Mutex<Vec<Buf>>>> = Arc::new(pieces.iter().map(|_| Mutex::default()).collect());
    let collectors = Arc::clone(&seen);
    let again = (Arc::clone(zio), pieces.clone());
    let collector = move |i: usize| -> Judge {
        let collectors = Arc::clone(&collectors);
        Arc::new(move |bytes| {
            if let Some(slot) = collectors.get(i) {
                let mut versions = slot.lock();
                if versions.len() < MAX_VERSIONS && !versions.iter().any(|v| **v == *bytes) {
                    versions.push(bytes.into());
                }
            }
            false
        })
    };
    let whole = Box::new(move |_parts: Vec<CopyResult>| {
        let versions: Vec<Vec<Buf>> = seen.iter().map(|slot| std::mem::take(&mut *slot.lock())).collect();
        result.data = combine(&versions, &judge);
        match result.data.clone() {
            Some(data) => compare(&again.0, again.1, &data, result, done),
            None => done(result),
        }
    });
    read_all(zio, pieces, Depth::First, collector, whole);
}

/// The first combination that the judge accepts.
fn combine(versions: &[Vec<Buf>], judge: &Judge) -> Option<Buf> {
    let total: usize =
        versions.iter().map(Vec::len).try_fold(1_usize, usize::checked_mul).unwrap_or(usize::MAX);
    let size: usize = versions.iter().filter_map(|choices| choices.first()).map(|buf| buf.len()).sum();
    let tries = MAX_TRIED.checked_div(size).unwrap_or(1).clamp(1, MAX_COMBINATIONS);
    for mut pick in 0..total.min(tries) {
        let mut whole = Vec::new();
        for choices in versions {
            let choice = choices.get(pick % choices.len())?;
            pick /= choices.len();
            whole.extend_from_slice(choice);
        }
        if judge(&whole) {
            return Some(AlignedBuf::copy_of(&whole).into());
        }
    }
    None
}
