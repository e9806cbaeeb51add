//! Sizes and holes of files: cutting and extending, freeing ranges, fallocate, seeks.
//!
//! Blocks are never overwritten in place, so no space is set aside for a range: there are files of a size, and holes in them.
//! Source: `zfs_freesp`, `zfs_holey`, OpenZFS 2.3.

use std::cmp;
use std::ops::Range;

use engine::dmu::{Content, Span, Tx};
use engine::{Error, Kind, Result};

use super::data::{MAX_SIZE, content_changed, too_large};
use super::fs::{FileData, FsWriter};
use super::node::Node;
use super::sink::LogOp;

/// Target of a seek, for SEEK_DATA and SEEK_HOLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next byte in a hole; the end of the file counts as one.
    Hole,
}

/// The result of a seek.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The offset; `None` past the end, or when only a hole follows.
    pub at: Option<u64>,
    /// The stored hole that was passed over, or found; `None`: there is none, or the end of the file was found.
    pub hole: Option<Range<u64>>,
}

impl FileData<'_> {
    /// Cuts or extends a file.
    pub fn truncate(self, number: u64, size: u64) -> Result<()> {
        self.fs.settled(number, || truncate_now(self.fs, number, size))
    }

    /// Frees most blocks behind `size` in bounded pieces, so that the truncation itself is bounded, too.
    /// After a crash in the middle the file is as long as before, with a hole in it.
    pub(super) fn free_end(self, node: &Node, size: u64) -> Result<()> {
        let block = node.handle.block_size().max(1);
        self.free_in_pieces(node, size.div_ceil(block), u64::MAX)
    }

    /// The same under locks that are held.
    #[doc(alias("zfs_trunc", "zfs_extend"))]
    pub(super) fn resize(self, tx: &Tx, node: &Node, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(too_large());
        }
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        let old = node.word(self.fs.fields.size);
        if size > old {
            self.grow_block(tx, node, size)?;
        } else if size < old {
            self.free_bytes(tx, node, size..u64::MAX, old)?;
        }
        let now = self.fs.now();
        self.fs.change(tx, node, |state| {
            state.attrs.set_word(self.fs.fields.size, size)?;
            content_changed(self.fs, state, now)
        })
    }

    /// Makes a range read as zeros: whole blocks are freed, the rest is overwritten.
    pub(super) fn free_bytes(self, tx: &Tx, node: &Node, range: Range<u64>, size: u64) -> Result<()> {
        let block = node.handle.block_size().max(1);
        let last = node.handle.max_block();
        let to_end = range.end >= size;
        let first_whole = range.start.div_ceil(block);
        let end_whole = if to_end { u64::MAX } else { range.end / block };
        let zero = |from: u64, to: u64| -> Result<()> {
            let stored = from / block <= last && self.fs.object(node)?.is_stored(from / block)?;
            match usize::try_from(to.saturating_sub(from)) {
                Ok(len) if len > 0 && stored => node.handle.write(tx, from, &vec![0; len]),
                _ => Ok(()),
            }
        };
        let head_end = first_whole.saturating_mul(block).min(if to_end { u64::MAX } else { range.end });
        zero(range.start, head_end)?;
        if first_whole < end_whole {
            let blocks = end_whole.min(last.saturating_add(1)).saturating_sub(first_whole);
            tx.frees(blocks.min(engine::dmu::dirty::LONG));
            node.handle.free_blocks(tx, first_whole, end_whole)?;
        }
        if !to_end && end_whole >= first_whole {
            zero(end_whole.saturating_mul(block), range.end)?;
        }
        Ok(())
    }

    /// Makes a range a hole (FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE with FALLOC_FL_KEEP_SIZE); the size stays.
    #[doc(alias = "zfs_free_range")]
    pub fn punch(self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.fs.settled(number, || punch_now(self.fs, number, offset, len))
    }

    /// Makes a range a hole, up to which a shorter file grows (FALLOC_FL_ZERO_RANGE). This takes no space for the range. The
    /// file grows first, because that may fail, and no bytes are gone then.
    #[doc(alias = "zfs_freesp")]
    pub fn zero_range(self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.fs.settled(number, || {
            let node = self.fs.file(number)?;
            self.fs.restrictions().check_writable(&node, Some(offset))?;
            self.fs.restrictions().check_granted(&node)?;
            grow_to(self.fs, &node, offset.saturating_add(len))?;
            punch_now(self.fs, number, offset, len)
        })
    }

    /// Implements fallocate without flags: the file becomes at least so long. No space is set aside, as
    /// blocks are never overwritten in place; but the call fails when there is not room now for the range and
    /// a tenth more.
    #[doc(alias = "zfs_fallocate_reserve_percent")]
    pub fn allocate(self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.fs.settled(number, || allocate_now(self.fs, number, offset, len))
    }

    /// The same for `FALLOC_FL_KEEP_SIZE`: the file stays as it is.
    pub fn reserve(self, number: u64, offset: u64, len: u64) -> Result<()> {
        check_room(self.fs, &*self.fs.file(number)?, offset, len).map(drop)
    }

    /// The next data or hole from `offset` on; `None` past the end, or when only a hole follows.
    pub fn seek(self, number: u64, offset: u64, what: Seek) -> Result<Option<u64>> {
        self.seek_hole(number, offset, what).map(|found| found.at)
    }

    /// The same with the hole that decides the answer.
    #[doc(alias = "zfs_holey")]
    pub fn seek_hole(self, number: u64, offset: u64, what: Seek) -> Result<Found> {
        let node = self.fs.file(number)?;
        let _range = node.ranges.lock(0..u64::MAX, false);
        let (object, size) = (self.fs.object(&node)?, node.word(self.fs.fields.size));
        let content = Content::new(&object, size);
        let (at, hole) = match (content.span(offset, u64::MAX), what) {
            (None, _) => (None, None),
            (Some(Span::Unreadable(u)), _) => return Err(u.error),
            (Some(Span::Data(_)), Seek::Data) => (Some(offset), None),
            (Some(Span::Hole(hole)), Seek::Hole) => (Some(offset), Some(hole)),
            (Some(Span::Data(range)), Seek::Hole) => {
                let next = content.span(range.end, u64::MAX);
                (
                    Some(range.end),
                    next.and_then(|next| if let Span::Hole(hole) = next { Some(hole) } else { None }),
                )
            }
            (Some(Span::Hole(hole)), Seek::Data) => (Some(hole.end).filter(|end| *end < size), Some(hole)),
        };
        Ok(Found { at, hole })
    }

    /// Frees blocks `[start, end)` of a file but for the last piece.
    pub(super) fn free_in_pieces(self, node: &Node, start: u64, end: u64) -> Result<()> {
        node.handle.free_long(start, end, &|| self.fs.begin_for(0, true)).map(drop)
    }
}

fn truncate_now(fs: &FsWriter, number: u64, size: u64) -> Result<()> {
    let node = fs.file(number)?;
    fs.restrictions().check_writable(&node, None)?;
    fs.restrictions().check_granted(&node)?;
    let _range = node.ranges.lock(0..u64::MAX, true);
    fs.data().free_end(&node, size)?;
    // The reserve for removals is not for files that grow, which may take a larger block.
    let shrinks = size < node.word(fs.fields.size);
    let tx = fs.begin_for(resized_bytes(fs, &node, size), shrinks)?;
    fs.data().resize(&tx, &node, size)?;
    fs.log_of(&node, &tx, &LogOp::Truncate { object: number, offset: size, length: 0, sync: false });
    Ok(())
}

/// Bytes of the block that is written when a file gets the size: its last block is zeroed in part, or its only block grows.
fn resized_bytes(fs: &FsWriter, node: &Node, size: u64) -> u64 {
    let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz().max(1), dnode.maxblkid));
    match size.cmp(&node.word(fs.fields.size)) {
        cmp::Ordering::Less if !size.is_multiple_of(block) => block,
        cmp::Ordering::Greater if last == 0 => {
            let record = size.min(fs.options.read().recordsize);
            block.next_power_of_two().max(record.next_multiple_of(ondisk::MIN_BLOCK_SIZE))
        }
        _ => 0,
    }
}

fn punch_now(fs: &FsWriter, number: u64, offset: u64, len: u64) -> Result<()> {
    let node = fs.file(number)?;
    fs.restrictions().check_writable(&node, Some(offset))?;
    fs.restrictions().check_granted(&node)?;
    let end = offset.saturating_add(len);
    let _range = node.ranges.lock(0..u64::MAX, true);
    let block = node.handle.block_size().max(1);
    fs.data().free_in_pieces(&node, offset.div_ceil(block), end / block)?;
    let frees = offset.div_ceil(block) < end / block || end >= node.word(fs.fields.size);
    // A block at either end is zeroed in part.
    let tx = fs.begin_for(block.saturating_mul(2), frees)?;
    if node.handle.is_free() {
        return Err(Error::not_found("the file was removed"));
    }
    let size = node.word(fs.fields.size);
    if len == 0 || offset >= size {
        return Ok(());
    }
    fs.data().free_bytes(&tx, &node, offset..end.min(size), size)?;
    let now = fs.now();
    fs.change(&tx, &node, |state| content_changed(fs, state, now))?;
    let length = end.min(size) - offset;
    fs.log_of(&node, &tx, &LogOp::Truncate { object: number, offset, length, sync: false });
    Ok(())
}

/// Fails if the file system, or the quota of the file's project, has no room for the range. Returns the end of the range.
#[doc(alias = "zpl_fallocate_common")]
fn check_room(fs: &FsWriter, node: &Node, offset: u64, len: u64) -> Result<u64> {
    fs.restrictions().check_writable(node, None)?;
    let end = offset.saturating_add(len);
    if end > MAX_SIZE {
        return Err(too_large());
    }
    let needed = len.saturating_add(len / 10);
    let [project, _] = fs.quotas().project_limits(node.number)?;
    let left = fs.available()?.into_iter().chain(project.map(|(_, left)| left)).min();
    if left.is_some_and(|left| left < needed) {
        return Err(Error::new(Kind::NoSpace, format!("there is not room for {needed} bytes")));
    }
    Ok(end)
}

fn allocate_now(fs: &FsWriter, number: u64, offset: u64, len: u64) -> Result<()> {
    let node = fs.file(number)?;
    let end = check_room(fs, &node, offset, len)?;
    grow_to(fs, &node, end)
}

/// Extends a file that is shorter.
fn grow_to(fs: &FsWriter, node: &Node, end: u64) -> Result<()> {
    let _range = node.ranges.lock(0..u64::MAX, true);
    if end <= node.word(fs.fields.size) {
        return Ok(());
    }
    let tx = fs.begin()?;
    fs.data().resize(&tx, node, end)?;
    fs.log_of(node, &tx, &LogOp::Truncate { object: node.number, offset: end, length: 0, sync: false });
    Ok(())
}
