//! Bytes of files.
//!
//! A file begins with one block of 512 bytes, which grows with it in steps of 512 bytes up to the record size; from
//! then on all its blocks have that size. Source: `zfs_write`, `zfs_grow_blocksize`, `zfs_freesp`, OpenZFS 2.3.

use std::cmp;
use std::ops::Range;
use std::sync::atomic::Ordering;

use engine::dmu::dirty::PendingBlock;
use engine::dmu::{Content, Passes, Span, Tx};
use engine::{Error, Kind, Result};
use ondisk::znode::pflags;
use stdx::Buf;

use super::fs::FsWriter;
use super::node::Node;
use super::sink::{LogOp, Settings};
use crate::attr::{FileKind, Time};
use engine::dmu::range_lock::Locked;

/// Most bytes that one transaction writes.
const CHUNK: usize = 1 << 20;
/// Size that no file reaches.
pub(super) const MAX_SIZE: u64 = i64::MAX as u64;
/// Seconds after which a read is worth a new access time (`relatime`).
const DAY: i64 = 24 * 60 * 60;
const SETUID: u64 = 0o4000;
const SETGID: u64 = 0o2000;
const GROUP_EXEC: u64 = 0o010;

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

/// The effect of a write on set-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    Stay,
    Go,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadHow {
    /// The access time changes where properties ask for it (without `O_NOATIME`).
    pub noticed: bool,
    /// The system's page cache keeps the bytes: streams of them need not stay in memory.
    pub paged: bool,
}

pub(super) fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

fn too_large() -> Error {
    Error::new(Kind::TooLarge, "the maximum file size is exceeded")
}

impl FsWriter {
    pub(super) fn file(&self, number: u64) -> Result<std::sync::Arc<Node>> {
        let node = self.node(number)?;
        match node.kind {
            FileKind::Regular => Ok(node),
            FileKind::Directory => Err(Error::new(Kind::IsDirectory, "is a directory")),
            _ => Err(Error::new(Kind::Invalid, "not a regular file")),
        }
    }

    /// Fills `out` from `offset`; how many bytes there were before the end of the file.
    pub fn read(&self, number: u64, offset: u64, out: &mut [u8]) -> Result<usize> {
        let node = self.file(number)?;
        let len = self.read_content(&node, offset, out)?;
        self.accessed(&node)?;
        Ok(len)
    }

    /// The `len` bytes from `offset`, or those before the end of the file, without copying them; reads ahead what the file's
    /// readers are expected to need next.
    #[doc(alias = "zfs_read")]
    pub fn read_pieces(&self, number: u64, offset: u64, len: usize, how: ReadHow) -> Result<Vec<Buf>> {
        let node = self.file(number)?;
        let pieces = self.reading(&node, offset, len, |content| {
            let is_stream =
                self.options().reads_ahead && content.read_ahead(&node.readers, offset, len, how.paged);
            let passes = match (how.paged, is_stream) {
                (false, _) => Passes::Nothing,
                (true, false) => Passes::Whole { end: node.word(self.fields.size) },
                (true, true) => Passes::Stream,
            };
            content.pieces(offset, len, passes)
        })?;
        self.objset.stats.read(pieces.iter().map(|piece| piece.len()).sum());
        if how.noticed {
            self.accessed(&node)?;
        }
        Ok(pieces)
    }

    fn read_content(&self, node: &Node, offset: u64, out: &mut [u8]) -> Result<usize> {
        let len = self.reading(node, offset, out.len(), |content| content.read_at(offset, out))?;
        self.objset.stats.read(len);
        Ok(len)
    }

    /// Calls `read` with a file's content while no byte of the range changes.
    fn reading<T>(
        &self,
        node: &Node,
        offset: u64,
        len: usize,
        read: impl FnOnce(&Content<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_unreserved(node)?;
        let _range = node.ranges.lock(offset..offset.saturating_add(len64(len)), false);
        let object = self.object(node)?;
        read(&Content::new(&object, node.word(self.fields.size)))
    }

    /// Updates the access time for an open for reading whose reads may be answered from the kernel's cache.
    /// Returns true when the access time changed.
    pub fn note_access(&self, number: u64) -> Result<bool> {
        self.accessed(&*self.node(number)?)
    }

    /// Keeps the access time, where properties ask for it. True when it did.
    fn accessed(&self, node: &Node) -> Result<bool> {
        let options = self.options();
        let Some(now) = self.now() else { return Ok(false) };
        let wants = |state: &super::node::NodeState| {
            let time = |attr| {
                let bytes = state.attrs.get(attr).unwrap_or_default();
                let word = |at: usize| {
                    bytes.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
                };
                Time::from_words([word(0), word(8)])
            };
            let atime = time(self.fields.atime);
            let old = now.sec.saturating_sub(atime.sec) >= DAY;
            old || atime <= time(self.fields.mtime) || atime <= time(self.fields.ctime)
        };
        if !options.atime || (options.relatime && !wants(&node.state.read())) {
            return Ok(false);
        }
        let Ok(tx) = self.begin() else { return Ok(false) };
        self.change(&tx, node, |state| state.time(self.fields.atime, now))?;
        Ok(true)
    }

    /// Writes `data` at `offset`. `keep_setid`: the caller may keep set-id bits.
    #[doc(alias = "zfs_write")]
    pub fn write(&self, number: u64, offset: u64, data: &[u8], keep_setid: bool) -> Result<()> {
        self.write_from(number, offset, data, (keep_setid, false))
    }

    /// As [`FsWriter::write`], of bytes that the system's page cache keeps.
    pub fn write_paged(&self, number: u64, offset: u64, data: &[u8], keep_setid: bool) -> Result<()> {
        self.write_from(number, offset, data, (keep_setid, true))
    }

    fn write_from(
        &self,
        number: u64,
        offset: u64,
        data: &[u8],
        (keep_setid, paged): (bool, bool),
    ) -> Result<()> {
        let node = self.file(number)?;
        node.handle.set_paged(paged);
        self.check_writable(&node, Some(offset))?;
        let end = offset.checked_add(len64(data.len())).filter(|end| *end <= MAX_SIZE);
        let end = end.ok_or_else(too_large)?;
        let done = {
            let (_range, whole) = self.lock_write(&node, offset..end);
            self.write_locked(&node, offset, data, (keep_setid, CHUNK), whole)
        };
        if done.is_ok() {
            self.objset.stats.written(data.len());
        }
        self.settled(number, || done)
    }

    /// Appends `data`; returns its offset.
    pub fn append(&self, number: u64, data: &[u8], keep_setid: bool) -> Result<u64> {
        self.settled(number, || self.append_now(number, data, keep_setid))
    }

    fn append_now(&self, number: u64, data: &[u8], keep_setid: bool) -> Result<u64> {
        let node = self.file(number)?;
        self.check_writable(&node, None)?;
        let _range = node.ranges.lock(0..u64::MAX, true);
        let offset = node.word(self.fields.size);
        let end = offset.checked_add(len64(data.len())).filter(|end| *end <= MAX_SIZE);
        end.ok_or_else(too_large)?;
        self.write_locked(&node, offset, data, (keep_setid, CHUNK), true)?;
        self.objset.stats.written(data.len());
        Ok(offset)
    }

    /// `grows`: the whole file is locked, so its only block may grow.
    pub(super) fn write_locked(
        &self,
        node: &Node,
        offset: u64,
        data: &[u8],
        (keep_setid, chunk): (bool, usize),
        grows: bool,
    ) -> Result<()> {
        let mut at = offset;
        let end = grows.then(|| offset.saturating_add(len64(data.len())));
        for chunk in data.chunks(chunk) {
            let more = self.grows_by(node, at, len64(chunk.len()));
            let quota = self.reserve_bytes(node, (more, more))?;
            let tx = self.begin_write(node, at, len64(chunk.len()), end)?;
            if node.handle.is_free() {
                return Err(Error::not_found("the file was removed"));
            }
            self.put(&tx, node, at, chunk, keep_setid, end)?;
            self.log_write(&tx, node, (at, chunk), false);
            quota.spend(&tx, more);
            at = at.saturating_add(len64(chunk.len()));
        }
        Ok(())
    }

    /// A transaction that writes `len` bytes at `at`. A write into blocks that the open txg writes already takes no more space than they
    /// did, so that in a nearly full pool a large block waits for one txg, not for one for each piece that is written to it. `end`:
    /// the only block of the file may grow that far.
    fn begin_write(&self, node: &Node, at: u64, len: u64, end: Option<u64>) -> Result<Tx> {
        self.check_open()?;
        if self.replaying.load(Ordering::Acquire) {
            return self.begin_for(len, false);
        }
        let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz().max(1), dnode.maxblkid));
        let end = end.unwrap_or(0).min(self.options.read().recordsize);
        let grows = if last == 0 { end.saturating_sub(block) } else { 0 };
        let block = block.saturating_add(grows);
        let blocks = at / block..=at.saturating_add(len.saturating_sub(1)) / block;
        let bytes = (blocks.end() - blocks.start() + 1).saturating_mul(block);
        let is_dirty = |txg, blkid| matches!(node.handle.waiting(txg, blkid), PendingBlock::Bytes(_));
        self.txs.begin_within(bytes, grows, &|txg| blocks.clone().all(|blkid| is_dirty(txg, blkid)))
    }

    /// The most that a write adds to the space of a file, as far as quotas of its owners count that: it begins in a block that is not
    /// stored.
    fn grows_by(&self, node: &Node, at: u64, len: u64) -> u64 {
        if !self.has_quotas() {
            return 0;
        }
        let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz().max(1), dnode.maxblkid));
        let is_stored = |object: engine::dmu::Object| object.is_stored(at / block);
        let stored = at / block <= last && self.object(node).and_then(is_stored).unwrap_or(false);
        // A block that is written in part is stored whole.
        if stored { 0 } else { len.max(block) }
    }

    /// Writes `data` under a transaction. `end`: the file will be written up to there, and its only block may grow for that.
    pub(super) fn put(
        &self,
        tx: &Tx,
        node: &Node,
        offset: u64,
        data: &[u8],
        keep_setid: bool,
        end: Option<u64>,
    ) -> Result<()> {
        if let Some(end) = end {
            self.grow_block(tx, node, end)?;
        }
        node.handle.write(tx, offset, data)?;
        self.written(tx, node, offset.saturating_add(len64(data.len())), keep_setid)
    }

    /// Notes that bytes up to `end` were written. Set-id bits that this clears are cleared by a record of their own, as the replay
    /// of a write keeps them.
    #[doc(alias = "zfs_clear_setid_bits_if_necessary")]
    pub(super) fn written(&self, tx: &Tx, node: &Node, end: u64, keep_setid: bool) -> Result<()> {
        if self.note_written(tx, node, end, keep_setid.then_some(Bits::Stay))? {
            return Ok(());
        }
        let _order = node.modes.lock();
        let before = node.word(self.fields.mode);
        self.note_written(tx, node, end, Some(Bits::Go))?;
        let mode = node.word(self.fields.mode);
        if mode != before {
            let (uid, gid) = (node.word(self.fields.uid), node.word(self.fields.gid));
            let settings = &Settings { mode: Some(mode & 0o7777), ..Settings::default() };
            self.log_of(node, tx, &LogOp::Setattr { object: node.number, settings, mode, uid, gid });
        }
        Ok(())
    }

    /// Without `bits` set-id bits are an obstacle: then nothing is changed, and false is returned.
    fn note_written(&self, tx: &Tx, node: &Node, end: u64, bits: Option<Bits>) -> Result<bool> {
        let now = self.now();
        self.change(tx, node, |state| {
            let mode = state.word(self.fields.mode);
            // As Linux does: the set-group-id bit without the group's right to execute means locks that are enforced.
            let cleared = mode & !if mode & GROUP_EXEC == 0 { SETUID } else { SETUID | SETGID };
            match bits {
                None if mode != cleared => return Ok(false),
                Some(Bits::Go) => state.attrs.set_word(self.fields.mode, cleared)?,
                _ => {}
            }
            let size = state.word(self.fields.size).max(end);
            state.attrs.set_word(self.fields.size, size)?;
            self.content_changed(state, now)?;
            Ok(true)
        })
    }

    /// Logs a write; `sync`: every commit writes it.
    pub(super) fn log_write(&self, tx: &Tx, node: &Node, (offset, data): (u64, &[u8]), sync: bool) {
        let block_size = node.handle.block_size();
        self.log_of(node, tx, &LogOp::Write { object: node.number, offset, data, block_size, sync });
    }

    fn content_changed(&self, state: &mut super::node::NodeState, now: Option<Time>) -> Result<()> {
        let flags = state.word(self.fields.flags) | pflags::ARCHIVE | pflags::AV_MODIFIED;
        state.attrs.set_word(self.fields.flags, flags)?;
        state.time(self.fields.mtime, now)?;
        state.time(self.fields.ctime, now)
    }

    /// The whole file while its block may grow, else the range; and whether it is the whole file. The record size may change
    /// after that: the write keeps this decision.
    fn lock_write<'a>(&self, node: &'a Node, range: Range<u64>) -> (Locked<'a>, bool) {
        if !self.may_grow(node, range.end) {
            let locked = node.ranges.lock(range.clone(), true);
            if !self.may_grow(node, range.end) {
                return (locked, false);
            }
        }
        (node.ranges.lock(0..u64::MAX, true), true)
    }

    fn may_grow(&self, node: &Node, end: u64) -> bool {
        let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz(), dnode.maxblkid));
        let record = self.options.read().recordsize;
        end > block && last == 0 && (!block.is_power_of_two() || block < record)
    }

    /// Under a lock of the whole file: lets its only block grow so that `end` bytes fit, or to the record size.
    #[doc(alias = "zfs_grow_blocksize")]
    pub(super) fn grow_block(&self, tx: &Tx, node: &Node, end: u64) -> Result<()> {
        let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz(), dnode.maxblkid));
        let record = self.options.read().recordsize;
        let size = node.word(self.fields.size);
        let end = end.max(size);
        if end <= block || last > 0 || size > block || (block.is_power_of_two() && block >= record) {
            return Ok(());
        }
        // A block that outgrew a smaller record size may only become a power of two.
        let limit = if block > record { block.next_power_of_two() } else { record };
        let wanted = end.min(limit).next_multiple_of(ondisk::MIN_BLOCK_SIZE);
        if wanted <= block { Ok(()) } else { node.handle.set_block_size(tx, wanted) }
    }

    /// Cuts or extends a file.
    pub fn truncate(&self, number: u64, size: u64) -> Result<()> {
        self.settled(number, || self.truncate_now(number, size))
    }

    fn truncate_now(&self, number: u64, size: u64) -> Result<()> {
        let node = self.file(number)?;
        self.check_writable(&node, None)?;
        self.check_granted(&node)?;
        let _range = node.ranges.lock(0..u64::MAX, true);
        self.free_end(&node, size)?;
        // The reserve for removals is not for files that grow, which may take a larger block.
        let shrinks = size < node.word(self.fields.size);
        let tx = self.begin_for(self.resized_bytes(&node, size), shrinks)?;
        self.resize(&tx, &node, size)?;
        self.log_of(&node, &tx, &LogOp::Truncate { object: number, offset: size, length: 0, sync: false });
        Ok(())
    }

    /// Bytes of the block that is written when a file gets the size: its last block is zeroed in part, or its only block grows.
    fn resized_bytes(&self, node: &Node, size: u64) -> u64 {
        let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz().max(1), dnode.maxblkid));
        match size.cmp(&node.word(self.fields.size)) {
            cmp::Ordering::Less if !size.is_multiple_of(block) => block,
            cmp::Ordering::Greater if last == 0 => {
                let record = size.min(self.options.read().recordsize);
                block.next_power_of_two().max(record.next_multiple_of(ondisk::MIN_BLOCK_SIZE))
            }
            _ => 0,
        }
    }

    /// Frees most blocks behind `size` in bounded pieces, so that the truncation itself is bounded, too.
    /// After a crash in the middle the file is as long as before, with a hole in it.
    pub(super) fn free_end(&self, node: &Node, size: u64) -> Result<()> {
        let block = node.handle.block_size().max(1);
        self.free_in_pieces(node, size.div_ceil(block), u64::MAX)
    }

    /// The same under locks that are held.
    #[doc(alias("zfs_trunc", "zfs_extend"))]
    pub(super) fn resize(&self, tx: &Tx, node: &Node, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(too_large());
        }
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        let old = node.word(self.fields.size);
        if size > old {
            self.grow_block(tx, node, size)?;
        } else if size < old {
            self.free_bytes(tx, node, size..u64::MAX, old)?;
        }
        let now = self.now();
        self.change(tx, node, |state| {
            state.attrs.set_word(self.fields.size, size)?;
            self.content_changed(state, now)
        })
    }

    /// Makes a range read as zeros: whole blocks are freed, the rest is overwritten.
    pub(super) fn free_bytes(&self, tx: &Tx, node: &Node, range: Range<u64>, size: u64) -> Result<()> {
        let block = node.handle.block_size().max(1);
        let last = node.handle.max_block();
        let to_end = range.end >= size;
        let first_whole = range.start.div_ceil(block);
        let end_whole = if to_end { u64::MAX } else { range.end / block };
        let zero = |from: u64, to: u64| -> Result<()> {
            let stored = from / block <= last && self.object(node)?.is_stored(from / block)?;
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
    pub fn punch(&self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.settled(number, || self.punch_now(number, offset, len))
    }

    fn punch_now(&self, number: u64, offset: u64, len: u64) -> Result<()> {
        let node = self.file(number)?;
        self.check_writable(&node, Some(offset))?;
        self.check_granted(&node)?;
        let end = offset.saturating_add(len);
        let _range = node.ranges.lock(0..u64::MAX, true);
        let block = node.handle.block_size().max(1);
        self.free_in_pieces(&node, offset.div_ceil(block), end / block)?;
        let frees = offset.div_ceil(block) < end / block || end >= node.word(self.fields.size);
        // A block at either end is zeroed in part.
        let tx = self.begin_for(block.saturating_mul(2), frees)?;
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        let size = node.word(self.fields.size);
        if len == 0 || offset >= size {
            return Ok(());
        }
        self.free_bytes(&tx, &node, offset..end.min(size), size)?;
        let now = self.now();
        self.change(&tx, &node, |state| self.content_changed(state, now))?;
        let length = end.min(size) - offset;
        self.log_of(&node, &tx, &LogOp::Truncate { object: number, offset, length, sync: false });
        Ok(())
    }

    /// Makes a range a hole, up to which a shorter file grows (FALLOC_FL_ZERO_RANGE). This takes no space for the range. The
    /// file grows first, because that may fail, and no bytes are gone then.
    #[doc(alias = "zfs_freesp")]
    pub fn zero_range(&self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.settled(number, || {
            let node = self.file(number)?;
            self.check_writable(&node, Some(offset))?;
            self.check_granted(&node)?;
            self.grow_to(&node, offset.saturating_add(len))?;
            self.punch_now(number, offset, len)
        })
    }

    /// Implements fallocate without flags: the file becomes at least so long. No space is set aside, as
    /// blocks are never overwritten in place; but the call fails when there is not room now for the range and
    /// a tenth more.
    #[doc(alias = "zfs_fallocate_reserve_percent")]
    pub fn allocate(&self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.settled(number, || self.allocate_now(number, offset, len))
    }

    /// The same for `FALLOC_FL_KEEP_SIZE`: the file stays as it is.
    pub fn reserve(&self, number: u64, offset: u64, len: u64) -> Result<()> {
        self.check_room(&*self.file(number)?, offset, len).map(drop)
    }

    /// Fails if the file system, or the quota of the file's project, has no room for the range. Returns the end of the range.
    #[doc(alias = "zpl_fallocate_common")]
    fn check_room(&self, node: &Node, offset: u64, len: u64) -> Result<u64> {
        self.check_writable(node, None)?;
        let end = offset.saturating_add(len);
        if end > MAX_SIZE {
            return Err(too_large());
        }
        let needed = len.saturating_add(len / 10);
        let [project, _] = self.project_limits(node.number)?;
        let left = self.available()?.into_iter().chain(project.map(|(_, left)| left)).min();
        if left.is_some_and(|left| left < needed) {
            return Err(Error::new(Kind::NoSpace, format!("there is not room for {needed} bytes")));
        }
        Ok(end)
    }

    fn allocate_now(&self, number: u64, offset: u64, len: u64) -> Result<()> {
        let node = self.file(number)?;
        let end = self.check_room(&node, offset, len)?;
        self.grow_to(&node, end)
    }

    /// Extends a file that is shorter.
    fn grow_to(&self, node: &Node, end: u64) -> Result<()> {
        let _range = node.ranges.lock(0..u64::MAX, true);
        if end <= node.word(self.fields.size) {
            return Ok(());
        }
        let tx = self.begin()?;
        self.resize(&tx, node, end)?;
        self.log_of(node, &tx, &LogOp::Truncate { object: node.number, offset: end, length: 0, sync: false });
        Ok(())
    }

    /// The next data or hole from `offset` on; `None` past the end, or when only a hole follows.
    pub fn seek(&self, number: u64, offset: u64, what: Seek) -> Result<Option<u64>> {
        self.seek_hole(number, offset, what).map(|found| found.at)
    }

    /// The same with the hole that decides the answer.
    #[doc(alias = "zfs_holey")]
    pub fn seek_hole(&self, number: u64, offset: u64, what: Seek) -> Result<Found> {
        let node = self.file(number)?;
        let _range = node.ranges.lock(0..u64::MAX, false);
        let (object, size) = (self.object(&node)?, node.word(self.fields.size));
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

    /// The target of a symbolic link.
    pub fn readlink(&self, number: u64) -> Result<Vec<u8>> {
        let node = self.node(number)?;
        if node.kind != FileKind::Symlink {
            return Err(Error::new(Kind::Invalid, "not a symbolic link"));
        }
        if let Some(target) = node.state.read().attrs.get(self.fields.symlink) {
            return Ok(target.to_vec());
        }
        let len = node.word(self.fields.size).min(64 << 10);
        let tail = node.state.read().attrs.znode_tail().map(<[u8]>::to_vec).unwrap_or_default();
        if let Some(target) = usize::try_from(len).ok().and_then(|len| tail.get(..len)) {
            return Ok(target.to_vec());
        }
        self.object(&node)?.read_vec(0, usize::try_from(len).unwrap_or(0))
    }
}
