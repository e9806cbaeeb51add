//! Bytes of files.
//!
//! A file begins with one block of 512 bytes, which grows with it in steps of 512 bytes up to the record size; from
//! then on all its blocks have that size. Source: `zfs_write`, `zfs_grow_blocksize`, OpenZFS 2.3.

use std::ops::Range;
use std::sync::atomic::Ordering;

use engine::dmu::dirty::PendingBlock;
use engine::dmu::{Content, Passes, Tx};
use engine::{Error, Kind, Result};
use ondisk::znode::pflags;
use stdx::Buf;

use super::fs::{FileData, FsWriter};
use super::node::{Node, NodeState};
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

pub(super) fn too_large() -> Error {
    Error::new(Kind::TooLarge, "the maximum file size is exceeded")
}

impl FileData<'_> {
    /// Fills `out` from `offset`; how many bytes there were before the end of the file.
    pub fn read(self, number: u64, offset: u64, out: &mut [u8]) -> Result<usize> {
        let node = self.fs.file(number)?;
        let len = read_content(self.fs, &node, offset, out)?;
        accessed(self.fs, &node)?;
        Ok(len)
    }

    /// The `len` bytes from `offset`, or those before the end of the file, without copying them; reads ahead what the file's
    /// readers are expected to need next.
    #[doc(alias = "zfs_read")]
    pub fn read_pieces(self, number: u64, offset: u64, len: usize, how: ReadHow) -> Result<Vec<Buf>> {
        let node = self.fs.file(number)?;
        let pieces = reading(self.fs, &node, offset, len, |content| {
            let is_stream =
                self.fs.options().reads_ahead && content.read_ahead(&node.readers, offset, len, how.paged);
            let passes = match (how.paged, is_stream) {
                (false, _) => Passes::Nothing,
                (true, false) => Passes::Whole { end: node.word(self.fs.fields.size) },
                (true, true) => Passes::Stream,
            };
            content.pieces(offset, len, passes)
        })?;
        self.fs.objset.stats.read(pieces.iter().map(|piece| piece.len()).sum());
        if how.noticed {
            accessed(self.fs, &node)?;
        }
        Ok(pieces)
    }

    /// Updates the access time for an open for reading whose reads may be answered from the kernel's cache.
    /// Returns true when the access time changed.
    pub fn note_access(self, number: u64) -> Result<bool> {
        accessed(self.fs, &*self.fs.node(number)?)
    }

    /// Writes `data` at `offset`. `keep_setid`: the caller may keep set-id bits.
    #[doc(alias = "zfs_write")]
    pub fn write(self, number: u64, offset: u64, data: &[u8], keep_setid: bool) -> Result<()> {
        write_from(self.fs, number, offset, data, (keep_setid, false))
    }

    /// As [`FileData::write`], of bytes that the system's page cache keeps.
    pub fn write_paged(self, number: u64, offset: u64, data: &[u8], keep_setid: bool) -> Result<()> {
        write_from(self.fs, number, offset, data, (keep_setid, true))
    }

    /// Appends `data`; returns its offset.
    pub fn append(self, number: u64, data: &[u8], keep_setid: bool) -> Result<u64> {
        self.fs.settled(number, || append_now(self.fs, number, data, keep_setid))
    }

    /// `grows`: the whole file is locked, so its only block may grow.
    pub(super) fn write_locked(
        self,
        node: &Node,
        offset: u64,
        data: &[u8],
        (keep_setid, chunk): (bool, usize),
        grows: bool,
    ) -> Result<()> {
        let mut at = offset;
        let end = grows.then(|| offset.saturating_add(len64(data.len())));
        for chunk in data.chunks(chunk) {
            let more = grows_by(self.fs, node, at, len64(chunk.len()));
            let quota = self.fs.quotas().reserve_bytes(node, (more, more))?;
            let tx = begin_write(self.fs, node, at, len64(chunk.len()), end)?;
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

    /// Writes `data` under a transaction. `end`: the file will be written up to there, and its only block may grow for that.
    pub(super) fn put(
        self,
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
    pub(super) fn written(self, tx: &Tx, node: &Node, end: u64, keep_setid: bool) -> Result<()> {
        if note_written(self.fs, tx, node, end, keep_setid.then_some(Bits::Stay))? {
            return Ok(());
        }
        let _order = node.modes.lock();
        let before = node.word(self.fs.fields.mode);
        note_written(self.fs, tx, node, end, Some(Bits::Go))?;
        let mode = node.word(self.fs.fields.mode);
        if mode != before {
            let (uid, gid) = (node.word(self.fs.fields.uid), node.word(self.fs.fields.gid));
            let settings = &Settings { mode: Some(mode & 0o7777), ..Settings::default() };
            self.fs.log_of(node, tx, &LogOp::Setattr { object: node.number, settings, mode, uid, gid });
        }
        Ok(())
    }

    /// Logs a write; `sync`: every commit writes it.
    pub(super) fn log_write(self, tx: &Tx, node: &Node, (offset, data): (u64, &[u8]), sync: bool) {
        let block_size = node.handle.block_size();
        self.fs.log_of(node, tx, &LogOp::Write { object: node.number, offset, data, block_size, sync });
    }

    /// Under a lock of the whole file: lets its only block grow so that `end` bytes fit, or to the record size.
    #[doc(alias = "zfs_grow_blocksize")]
    pub(super) fn grow_block(self, tx: &Tx, node: &Node, end: u64) -> Result<()> {
        let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz(), dnode.maxblkid));
        let record = self.fs.options.read().recordsize;
        let size = node.word(self.fs.fields.size);
        let end = end.max(size);
        if end <= block || last > 0 || size > block || (block.is_power_of_two() && block >= record) {
            return Ok(());
        }
        // A block that outgrew a smaller record size may only become a power of two.
        let limit = if block > record { block.next_power_of_two() } else { record };
        let wanted = end.min(limit).next_multiple_of(ondisk::MIN_BLOCK_SIZE);
        if wanted <= block { Ok(()) } else { node.handle.set_block_size(tx, wanted) }
    }

    /// The target of a symbolic link.
    pub fn readlink(self, number: u64) -> Result<Vec<u8>> {
        let node = self.fs.node(number)?;
        if node.kind != FileKind::Symlink {
            return Err(Error::new(Kind::Invalid, "not a symbolic link"));
        }
        if let Some(target) = node.state.read().attrs.get(self.fs.fields.symlink) {
            return Ok(target.to_vec());
        }
        let len = node.word(self.fs.fields.size).min(64 << 10);
        let tail = node.state.read().attrs.znode_tail().map(<[u8]>::to_vec).unwrap_or_default();
        if let Some(target) = usize::try_from(len).ok().and_then(|len| tail.get(..len)) {
            return Ok(target.to_vec());
        }
        self.fs.object(&node)?.read_vec(0, usize::try_from(len).unwrap_or(0))
    }
}

fn read_content(fs: &FsWriter, node: &Node, offset: u64, out: &mut [u8]) -> Result<usize> {
    let len = reading(fs, node, offset, out.len(), |content| content.read_at(offset, out))?;
    fs.objset.stats.read(len);
    Ok(len)
}

/// Calls `read` with a file's content while no byte of the range changes.
fn reading<T>(
    fs: &FsWriter,
    node: &Node,
    offset: u64,
    len: usize,
    read: impl FnOnce(&Content<'_>) -> Result<T>,
) -> Result<T> {
    fs.restrictions().check_unreserved(node)?;
    let _range = node.ranges.lock(offset..offset.saturating_add(len64(len)), false);
    let object = fs.object(node)?;
    read(&Content::new(&object, node.word(fs.fields.size)))
}

/// Keeps the access time, where properties ask for it. True when it did.
fn accessed(fs: &FsWriter, node: &Node) -> Result<bool> {
    let options = fs.options();
    let Some(now) = fs.now() else { return Ok(false) };
    let wants = |state: &NodeState| {
        let time = |attr| {
            let bytes = state.attrs.get(attr).unwrap_or_default();
            let word = |at: usize| {
                bytes.get(at..at + 8).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
            };
            Time::from_words([word(0), word(8)])
        };
        let atime = time(fs.fields.atime);
        let old = now.sec.saturating_sub(atime.sec) >= DAY;
        old || atime <= time(fs.fields.mtime) || atime <= time(fs.fields.ctime)
    };
    if !options.atime || (options.relatime && !wants(&node.state.read())) {
        return Ok(false);
    }
    let Ok(tx) = fs.begin() else { return Ok(false) };
    fs.change(&tx, node, |state| state.time(fs.fields.atime, now))?;
    Ok(true)
}

fn write_from(
    fs: &FsWriter,
    number: u64,
    offset: u64,
    data: &[u8],
    (keep_setid, paged): (bool, bool),
) -> Result<()> {
    let node = fs.file(number)?;
    node.handle.set_paged(paged);
    fs.restrictions().check_writable(&node, Some(offset))?;
    let end = offset.checked_add(len64(data.len())).filter(|end| *end <= MAX_SIZE);
    let end = end.ok_or_else(too_large)?;
    let done = {
        let (_range, whole) = lock_write(fs, &node, offset..end);
        fs.data().write_locked(&node, offset, data, (keep_setid, CHUNK), whole)
    };
    if done.is_ok() {
        fs.objset.stats.written(data.len());
    }
    fs.settled(number, || done)
}

fn append_now(fs: &FsWriter, number: u64, data: &[u8], keep_setid: bool) -> Result<u64> {
    let node = fs.file(number)?;
    fs.restrictions().check_writable(&node, None)?;
    let _range = node.ranges.lock(0..u64::MAX, true);
    let offset = node.word(fs.fields.size);
    let end = offset.checked_add(len64(data.len())).filter(|end| *end <= MAX_SIZE);
    end.ok_or_else(too_large)?;
    fs.data().write_locked(&node, offset, data, (keep_setid, CHUNK), true)?;
    fs.objset.stats.written(data.len());
    Ok(offset)
}

/// A transaction that writes `len` bytes at `at`. A write into blocks that the open txg writes already takes no more space than they
/// did, so that in a nearly full pool a large block waits for one txg, not for one for each piece that is written to it. `end`:
/// the only block of the file may grow that far.
fn begin_write(fs: &FsWriter, node: &Node, at: u64, len: u64, end: Option<u64>) -> Result<Tx> {
    fs.check_open()?;
    if fs.replaying.load(Ordering::Acquire) {
        return fs.begin_for(len, false);
    }
    let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz().max(1), dnode.maxblkid));
    let end = end.unwrap_or(0).min(fs.options.read().recordsize);
    let grows = if last == 0 { end.saturating_sub(block) } else { 0 };
    let block = block.saturating_add(grows);
    let blocks = at / block..=at.saturating_add(len.saturating_sub(1)) / block;
    let bytes = (blocks.end() - blocks.start() + 1).saturating_mul(block);
    let is_dirty = |txg, blkid| matches!(node.handle.waiting(txg, blkid), PendingBlock::Bytes(_));
    fs.txs.begin_within(bytes, grows, &|txg| blocks.clone().all(|blkid| is_dirty(txg, blkid)))
}

/// The most that a write adds to the space of a file, as far as quotas of its owners count that: it begins in a block that is not
/// stored.
fn grows_by(fs: &FsWriter, node: &Node, at: u64, len: u64) -> u64 {
    if !fs.quotas().are_respected() {
        return 0;
    }
    let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz().max(1), dnode.maxblkid));
    let is_stored = |object: engine::dmu::Object| object.is_stored(at / block);
    let stored = at / block <= last && fs.object(node).and_then(is_stored).unwrap_or(false);
    // A block that is written in part is stored whole.
    if stored { 0 } else { len.max(block) }
}

/// Without `bits` set-id bits are an obstacle: then nothing is changed, and false is returned.
fn note_written(fs: &FsWriter, tx: &Tx, node: &Node, end: u64, bits: Option<Bits>) -> Result<bool> {
    let now = fs.now();
    fs.change(tx, node, |state| {
        let mode = state.word(fs.fields.mode);
        // As Linux does: the set-group-id bit without the group's right to execute means locks that are enforced.
        let cleared = mode & !if mode & GROUP_EXEC == 0 { SETUID } else { SETUID | SETGID };
        match bits {
            None if mode != cleared => return Ok(false),
            Some(Bits::Go) => state.attrs.set_word(fs.fields.mode, cleared)?,
            _ => {}
        }
        let size = state.word(fs.fields.size).max(end);
        state.attrs.set_word(fs.fields.size, size)?;
        content_changed(fs, state, now)?;
        Ok(true)
    })
}

/// Notes a change of a file's bytes at the moment `now`.
pub(super) fn content_changed(fs: &FsWriter, state: &mut NodeState, now: Option<Time>) -> Result<()> {
    let flags = state.word(fs.fields.flags) | pflags::ARCHIVE | pflags::AV_MODIFIED;
    state.attrs.set_word(fs.fields.flags, flags)?;
    state.time(fs.fields.mtime, now)?;
    state.time(fs.fields.ctime, now)
}

/// The whole file while its block may grow, else the range; and whether it is the whole file. The record size may change
/// after that: the write keeps this decision.
fn lock_write<'a>(fs: &FsWriter, node: &'a Node, range: Range<u64>) -> (Locked<'a>, bool) {
    if !may_grow(fs, node, range.end) {
        let locked = node.ranges.lock(range.clone(), true);
        if !may_grow(fs, node, range.end) {
            return (locked, false);
        }
    }
    (node.ranges.lock(0..u64::MAX, true), true)
}

fn may_grow(fs: &FsWriter, node: &Node, end: u64) -> bool {
    let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz(), dnode.maxblkid));
    let record = fs.options.read().recordsize;
    end > block && last == 0 && (!block.is_power_of_two() || block < record)
}
