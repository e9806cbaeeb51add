//! Requests of `zfs rewrite` beyond OpenZFS's: chosen blocks, and other record sizes; and those of `aquifer clone`
//! ([`super::offers`]).
//!
//! One request of our own carries all of it: 4 KiB of little-endian words in, the same out. The answer has its own error number
//! and a text, since the kernel passes on no text. The steps of a change of the record size are the caller's, and so is the
//! hidden file that it needs: a file without a name (`O_TMPFILE`), which the kernel closes when the caller dies. The caller
//! shows by a request on that file's descriptor that it is its own.
//!
//! Words of a request: operation, offset, length, choice, physical, record size, inode of the hidden file, token, txg, patience.
//! A request to clone has the source's offset instead of the choice.
//! Words of an answer: error, tally (written, kept, shared, passed), state, number of ranges, length of the text.

use engine::{Error, Kind, Result};
use zpl::write::{Finish, Reblocked, RewriteHow, Rewriting, Tally, Which};

use super::Live;
use super::flags::long;
use super::fs_swap::WRITES;
use super::privileges::Setter;
use crate::attr::errno;
use crate::wire::{FileHandle, INodeNo};

/// `_IOWR(0x83, 0x40, char[4096])`.
pub(super) const CHOSEN: u32 = 0xd000_8340;
const SIZE: usize = 4096;
/// Where ranges begin, how many there may be, and where the text begins.
const RANGES: usize = 64;
const MOST: usize = 200;
const TEXT: usize = RANGES + MOST * 16;
/// The word with the inode of the hidden file.
const HIDDEN: usize = 6;
/// The operations that offer a file to be cloned, and that clone an offered one.
const OFFER: u64 = 8;
const CLONE: u64 = 9;
/// Longest piece of a file that one request works on.
const PIECE: u64 = 64 << 20;

/// The answer of an operation.
#[derive(Debug, Default)]
struct Answer {
    tally: Tally,
    state: u64,
    ranges: Vec<(u64, u64)>,
}

/// States of an answer about record sizes.
const ALREADY: u64 = 0;
const DONE: u64 = 1;
const LONG: u64 = 2;

/// Few ranges that cover all.
fn joined(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut gap = 1 << 20;
    while ranges.len() > MOST {
        let mut fewer: Vec<(u64, u64)> = Vec::new();
        for (start, end) in ranges {
            match fewer.last_mut() {
                Some(last) if start <= last.1.saturating_add(gap) => last.1 = last.1.max(end),
                _ => fewer.push((start, end)),
            }
        }
        ranges = fewer;
        gap = gap.saturating_mul(2);
    }
    ranges
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(to) = out.get_mut(at..at + bytes.len()) {
        to.copy_from_slice(bytes);
    }
}

fn encode(result: Result<Answer>) -> Vec<u8> {
    let mut out = vec![0; SIZE];
    let (answer, error, text) = match result {
        Ok(answer) => (answer, 0, String::new()),
        Err(e) => (Answer::default(), u64::from(errno(&e).code().unsigned_abs()), e.to_string()),
    };
    let text = text.as_bytes();
    let text = text.get(..text.len().min(SIZE - TEXT)).unwrap_or_default();
    let Tally { written, kept, shared, passed } = answer.tally;
    let count = |n: usize| u64::try_from(n).unwrap_or(0);
    let words =
        [error, written, kept, shared, passed, answer.state, count(answer.ranges.len()), count(text.len())];
    let ranges = answer.ranges.iter().flat_map(|(start, end)| [*start, *end]);
    for (index, word) in words.into_iter().chain(ranges).enumerate() {
        put(&mut out, index * 8, &word.to_le_bytes());
    }
    put(&mut out, TEXT, text);
    out
}

/// Whether a request offers a file.
pub(super) fn is_offer(input: &[u8]) -> bool {
    long(input, 0).is_ok_and(|op| op == OFFER)
}

/// The range (offset, length) of the file that a request to clone has changed, according to its answer.
pub(super) fn cloned(input: &[u8], answer: &[u8]) -> Option<(u64, u64)> {
    let (op, to) = (long(input, 0).ok()?, long(input, 8).ok()?);
    let bytes = long(answer, 8).ok()?;
    (op == CLONE && bytes > 0).then_some((to, bytes))
}

impl Live {
    /// Answers a request of `setter` on a descriptor.
    pub(super) fn rewrite_chosen(
        &self,
        setter: &Setter,
        (ino, handle): (INodeNo, FileHandle),
        input: &[u8],
    ) -> Vec<u8> {
        let writes = handle.0 & WRITES != 0;
        let result = match long(input, 0) {
            Ok(OFFER) => self.offered(ino, handle, input),
            Ok(CLONE) => self.clone_from_offer(setter, (ino, handle), input),
            _ => self.chosen(ino, writes, input),
        };
        if result.is_ok() && writes {
            self.tell_changed(ino);
            // Its owners may be others now.
            if let Some(hidden) = long(input, HIDDEN * 8).ok().filter(|hidden| *hidden != 0) {
                self.tell_changed(INodeNo(hidden));
            }
        }
        encode(result)
    }

    fn offered(&self, ino: INodeNo, handle: FileHandle, input: &[u8]) -> Result<Answer> {
        if self.object(ino.0).is_some_and(|object| !self.is_of(handle, object)) {
            return Err(Error::not_found("the file was replaced by a rollback"));
        }
        self.offer(ino, handle, long(input, 7 * 8)?)?;
        Ok(Answer::default())
    }

    fn clone_from_offer(
        &self,
        setter: &Setter,
        (ino, handle): (INodeNo, FileHandle),
        input: &[u8],
    ) -> Result<Answer> {
        let object = self.writable(ino.0)?;
        if handle.0 & WRITES == 0 || !self.is_of(handle, object) {
            return Err(Error::new(Kind::Denied, "the file is not open for writing"));
        }
        let [to, len, from, token] = [1, 2, 3, 7].map(|word| long(input, word * 8));
        let written = self.clone_offered((token?, from?), (object, to?), len?, setter)?;
        Ok(Answer { tally: Tally { written, ..Tally::default() }, ..Answer::default() })
    }

    fn chosen(&self, ino: INodeNo, writes: bool, input: &[u8]) -> Result<Answer> {
        let words = (0..10).map(|index| long(input, index * 8)).collect::<Result<Vec<u64>>>()?;
        let [op, offset, len, choice, physical, record, hidden, token, txg, patience] = *words else {
            return Err(Error::new(Kind::Invalid, "a short request"));
        };
        let asks = matches!(op, 0 | 1);
        let object = match asks {
            true => self
                .object(ino.0)
                .ok_or_else(|| Error::unsupported("a file of a snapshot is not rewritten"))?,
            false => self.writable(ino.0)?,
        };
        if !asks && !writes {
            return Err(Error::new(Kind::Denied, "the file is not open for writing"));
        }
        let births = if physical == 0 { Rewriting::Logical } else { Rewriting::Physical };
        match op {
            0 => self.plan_record(object, record),
            1 | 2 => {
                let which = [Which::All, Which::Balance, Which::Compact, Which::Dedup, Which::Undedup];
                let which = usize::try_from(choice).ok().and_then(|at| which.get(at));
                let which = *which.ok_or_else(|| Error::new(Kind::Invalid, "an unknown choice of blocks"))?;
                let how = RewriteHow { births, which, dry: op == 1 };
                let len = if asks { len } else { len.clamp(1, PIECE) };
                let tally = self.files.rewrites().rewrite_some(object, offset, len, how)?;
                Ok(Answer { tally, ..Answer::default() })
            }
            3 => {
                let done =
                    self.files.reblocking().at_once(object, self.files.reblocking().record_of(record)?)?;
                let (state, written) = match done {
                    Reblocked::Already => (ALREADY, 0),
                    Reblocked::Done(written) => (DONE, written),
                    Reblocked::NeedsHidden => (LONG, 0),
                };
                Ok(Answer { state, tally: Tally { written, ..Tally::default() }, ..Answer::default() })
            }
            4 => self.files.reblocking().lend(object, token).map(|()| Answer::default()),
            _ => self.with_hidden(object, (op, hidden, token), (offset, len), (record, txg, patience != 0)),
        }
    }

    fn plan_record(&self, object: u64, record: u64) -> Result<Answer> {
        let plan = self.files.reblocking().plan(object, self.files.reblocking().record_of(record)?)?;
        let state = if plan.is_some() { DONE } else { ALREADY };
        Ok(Answer { state, tally: plan.unwrap_or_default(), ..Answer::default() })
    }

    fn with_hidden(
        &self,
        object: u64,
        (op, hidden, token): (u64, u64, u64),
        (offset, len): (u64, u64),
        (record, txg, patience): (u64, u64, bool),
    ) -> Result<Answer> {
        let hidden = self.writable(hidden)?;
        if !self.files.reblocking().is_lent(hidden, token) {
            return Err(Error::new(Kind::Denied, "the hidden file is another user's"));
        }
        match op {
            5 => {
                let begun = self.files.reblocking().begin(
                    object,
                    hidden,
                    self.files.reblocking().record_of(record)?,
                )?;
                Ok(Answer { state: begun.unwrap_or(0), ..Answer::default() })
            }
            6 => {
                let end = offset.saturating_add(len.min(PIECE));
                let written = self.files.reblocking().copy(object, hidden, offset..end)?;
                Ok(Answer { tally: Tally { written, ..Tally::default() }, ..Answer::default() })
            }
            7 => match self.files.reblocking().finish(object, hidden, txg, patience)? {
                Finish::Done => Ok(Answer::default()),
                Finish::Again(ranges, txg) => {
                    Ok(Answer { state: txg, ranges: joined(ranges), ..Answer::default() })
                }
            },
            _ => Err(Error::new(Kind::Invalid, "an unknown operation of a rewrite")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    #[test]
    fn many_ranges_become_few_that_cover_them() {
        let many: Vec<_> = (0..10_000_u64).map(|n| (n << 22, (n << 22) + 4096)).collect();
        let few = joined(many.clone());
        assert!(few.len() <= MOST);
        assert!(many.iter().all(|(a, b)| few.iter().any(|(c, d)| c <= a && b <= d)));
        let out = encode(Ok(Answer { ranges: few.clone(), state: 7, ..Answer::default() }));
        assert_eq!((long(&out, 40).unwrap(), long(&out, 48).unwrap()), (7, few.len() as u64));
        assert_eq!(long(&out, RANGES + 8).unwrap(), few[0].1);
        let out = encode(Err(Error::new(Kind::NoSpace, "x".repeat(5000))));
        assert_eq!((out.len(), long(&out, 0).unwrap()), (SIZE, 28));
    }
}
