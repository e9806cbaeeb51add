//! The record size of files that exist (`zfs rewrite --recordsize`).
//!
//! ```text
//!  short, without holes   one transaction frees all blocks and writes the content in new ones
//!  other files            begin ─▶ copy … copy ─▶ finish ─┬─▶ done: the two objects exchanged their blocks
//!                         ▲  the caller's hidden file gets the content     └─▶ again: copy these ranges, then finish
//!                         └─ it is new, open, and has no name
//! ```
//!
//! The file keeps its object number, attributes, names, handles and locks; only its blocks are others. Readers and writers go
//! on during copies. Their changes meanwhile are found by the births of the file's blocks: each copy is as of a txg, and blocks
//! that are newer are copied again. The last copy and the exchange happen with the whole file locked.
//!
//! Crash argument: the file's blocks are all old or all new in every txg. The hidden file is in the delete queue from its first
//! transaction on: after a crash, or when its last user closes it, it is freed with whatever blocks it has, the new ones before
//! the exchange and the old ones after it. Snapshots refer to blocks, not to objects, and keep the old ones.
//!
//! Incremental streams and scans leave out old blocks, so no block that is exchanged may be older than the newest snapshot,
//! bookmark or scan ([`engine::spa::PoolDatasets::tree_age`]); older ones are copied again. Holes get births, too.
//!
//! The log: records of the file that are still needed could name blocks of the other size. All its changes are on disk before an
//! exchange, and the exchange itself makes the next commit wait for its txg.
//!
//! Owners: both files have the same owner, group and project on disk when they are exchanged, so the sums of none change.
//!
//! Lock order: the range lock of the file. The hidden file refuses ordinary writes.

use std::ops::Range;
use std::sync::Arc;

use engine::dmu::{Handle, Object};
use engine::dsl::write::Hooks;
use engine::spa::Spa;
use engine::{Error, Kind, Result};
use stdx::{AlignedBuf, Buf, RangeSet};
use zcommon::features::Feature;

use super::fs::{FsWriter, Reblocking};
use super::node::Node;
use super::rewrite::{RewriteHow, Rewriting, Tally, Which};

/// Longest file whose blocks are all written in one transaction.
const AT_ONCE: u64 = 8 << 20;
/// Most bytes that one transaction copies, if they are more than a block.
const CHUNK: u64 = 1 << 20;
/// Most bytes that are copied with the file locked, unless the caller has no patience left.
const LAST: u64 = 16 << 20;
/// Exchanges that are tried before the file counts as busy.
const TRIES: u32 = 32;

/// The bytes that a change of the record size needs, or wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reblocked {
    /// The blocks have the wanted size, as far as the file is long enough.
    Already,
    /// So many bytes were written.
    Done(u64),
    /// The file is long or has holes: a hidden file is needed.
    NeedsHidden,
}

/// The end of a change of the record size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The file has its new blocks.
    Done,
    /// These ranges of bytes changed: copy them, then finish again with this txg.
    Again(Vec<(u64, u64)>, u64),
}

/// A hidden file that is open as long as this lives.
struct Kept<'a> {
    fs: &'a FsWriter,
    node: Arc<Node>,
}

impl std::ops::Deref for Kept<'_> {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        // A file that cannot be freed stays in the delete queue, and the next mount tries again.
        let _ = self.fs.close_file(self.node.number);
    }
}

fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

impl Reblocking<'_> {
    /// The record size that `asked` (0: the property) means.
    ///
    /// # Errors
    /// `Invalid` for one that is no power of two from 512 bytes to 16 MiB; `Unsupported` for one that the pool has no feature
    /// for.
    pub fn record_of(self, asked: u64) -> Result<u64> {
        if asked == 0 {
            return Ok(self.fs.options().recordsize);
        }
        if !asked.is_power_of_two() || !(ondisk::MIN_BLOCK_SIZE..=16 << 20).contains(&asked) {
            return Err(Error::new(Kind::Invalid, "a record size is a power of two from 512 to 16M"));
        }
        let large = asked > 128 << 10;
        if large && self.fs.spa().is_some_and(|spa| spa.feature(Feature::LargeBlocks).is_none()) {
            return Err(Error::unsupported(
                "the feature large_blocks is not enabled: the largest record has 128K",
            ));
        }
        Ok(asked)
    }

    /// Gives file `number` blocks of `record` bytes, if it is short.
    ///
    /// # Errors
    /// The errors of reads and writes; the file is as it was.
    pub fn at_once(self, number: u64, record: u64) -> Result<Reblocked> {
        let node = self.fs.file(number)?;
        if wanted_block(self.fs, &node, record).is_none() {
            return Ok(Reblocked::Already);
        }
        let _range = node.ranges.lock(0..u64::MAX, true);
        settle_blocks(self.fs, &node)?;
        let Some(block) = wanted_block(self.fs, &node, record) else { return Ok(Reblocked::Already) };
        let object = self.fs.object(&node)?;
        let end = node.word(self.fs.fields.size).next_multiple_of(block);
        let dense =
            object.next_extent(0, end)?.is_none_or(|e| e.start == 0 && e.end >= end.min(object.max_offset()));
        if end > AT_ONCE.max(block) || !dense {
            return Ok(Reblocked::NeedsHidden);
        }
        self.fs.quotas().check(&node)?;
        let blocks = blocks_of(&object, block, 0..end)?;
        drop(object);
        let tx = self.fs.begin_for(end, false)?;
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        node.handle.reshape(&tx, block)?;
        for (blkid, bytes) in blocks {
            node.handle.write_block(&tx, blkid, bytes)?;
        }
        self.fs.log_nothing(&tx);
        Ok(Reblocked::Done(end))
    }

    /// A user who has the new file `hidden` open lends it for a change of another file's blocks; `token` permits its use.
    ///
    /// # Errors
    /// `Invalid` for a file with a name or content.
    pub fn lend(self, hidden: u64, token: u64) -> Result<()> {
        let hidden = self.fs.file(hidden)?;
        check_hidden(self.fs, &hidden)?;
        hidden.lend(token);
        Ok(())
    }

    /// Whether a file was lent with this token.
    pub fn is_lent(self, hidden: u64, token: u64) -> bool {
        self.fs.file(hidden).is_ok_and(|hidden| hidden.is_lent(token))
    }

    /// The bytes that a change of file `number` to blocks of `record` bytes writes; `None`: nothing.
    ///
    /// # Errors
    /// Errors of reading indirect blocks.
    pub fn plan(self, number: u64, record: u64) -> Result<Option<Tally>> {
        let node = self.fs.file(number)?;
        if wanted_block(self.fs, &node, record).is_none() {
            return Ok(None);
        }
        let how = RewriteHow { births: Rewriting::Logical, which: Which::All, dry: true };
        self.fs.rewrites().rewrite_some(number, 0, 0, how).map(Some)
    }

    /// Begins to give file `number` blocks of `record` bytes with the help of `hidden`, a new file that has no name and is open.
    /// Returns the txg that the first copy is as of; `None` when nothing is to be done.
    ///
    /// # Errors
    /// `NoSpace` when there is no space for both contents; `Unsupported` where holes have no births, or dnodes differ;
    /// `Invalid` for another hidden file.
    pub fn begin(self, number: u64, hidden: u64, record: u64) -> Result<Option<u64>> {
        let (node, hidden) = (self.fs.file(number)?, self.fs.file(hidden)?);
        let spa = pool(self.fs)?;
        if spa.feature(Feature::HoleBirth).is_none() {
            return Err(Error::unsupported(
                "the feature hole_birth is not enabled: changed holes could not be told",
            ));
        }
        if Arc::ptr_eq(&node, &hidden) {
            return Err(Error::new(Kind::Invalid, "source and target are the same file"));
        }
        check_hidden(self.fs, &hidden)?;
        let pointers = |node: &Node| node.handle.with_dnode(ondisk::Dnode::nblkptr);
        if pointers(&node) != pointers(&hidden) {
            return Err(Error::unsupported("a file of an older version: copy it to change its record size"));
        }
        let Some(block) = wanted_block(self.fs, &node, record) else { return Ok(None) };
        let needs = node.handle.with_dnode(ondisk::Dnode::used_bytes);
        if let Some(room) = self.fs.available()?.filter(|room| *room < needs) {
            let what = format!(
                "the new blocks need up to {needs} bytes beside the old ones, and {room} are available"
            );
            return Err(Error::new(Kind::NoSpace, what));
        }
        {
            // A file gets a name under this lock only.
            let _names = self.fs.names.write();
            check_hidden(self.fs, &hidden)?;
            hidden.reserve_for(number);
        }
        let as_of = spa.txgs.synced();
        {
            let tx = self.fs.begin()?;
            own_as(self.fs, &tx, &hidden, &node)?;
            hidden.handle.set_block_size(&tx, block)?;
        }
        // Holes are marked in a tree on disk.
        self.fs.txs.sync()?;
        Ok(Some(as_of))
    }

    /// Copies bytes of `range` of the file, as far as it is long, to the hidden file. Returns how many bytes it wrote.
    ///
    /// # Errors
    /// The errors of reads and writes.
    pub fn copy(self, number: u64, hidden: u64, range: Range<u64>) -> Result<u64> {
        let (node, hidden) = two(self.fs, number, hidden)?;
        copy_range(self.fs, &node, &hidden, range, false)
    }

    /// Exchanges the blocks of the two files, if what changed after txg `as_of` can be copied in a short time; without
    /// `patience`, however long that takes, while writers of the file wait. The caller then closes the hidden file, which frees
    /// the old blocks.
    ///
    /// # Errors
    /// The errors of reads and writes; `Busy` when snapshots come faster than blocks are copied. The file is as it was.
    pub fn finish(self, number: u64, hidden: u64, as_of: u64, patience: bool) -> Result<Finish> {
        let (node, hidden) = two(self.fs, number, hidden)?;
        let spa = pool(self.fs)?;
        let most = if patience { LAST } else { u64::MAX };
        let _range = node.ranges.lock(0..u64::MAX, true);
        settle_blocks(self.fs, &node)?;
        let block = hidden.handle.block_size();
        if !block.is_power_of_two() && node.word(self.fs.fields.size) > block {
            return Err(Error::new(Kind::Busy, "the file has grown past its only block: begin again"));
        }
        let mut changed = changed_since(&node, as_of)?;
        for _ in 0..TRIES {
            if changed.covered() > most {
                return Ok(Finish::Again(ranges_of(&changed), spa.txgs.synced()));
            }
            for (start, end) in changed.iter() {
                copy_range(self.fs, &node, &hidden, start..end, true)?;
            }
            end_hidden(self.fs, &node, &hidden)?;
            self.fs.txs.sync()?;
            let tx = self.fs.begin()?;
            let age = spa.dsl().tree_age(self.fs.objset.id, tx.txg())?;
            if node.handle.is_free() || hidden.handle.is_free() {
                return Err(Error::not_found("the file was removed"));
            }
            changed = too_old(&hidden.handle, age)?;
            // Nothing is behind the end of the file.
            changed.remove(
                node.word(self.fs.fields.size).next_multiple_of(hidden.handle.block_size().max(1)),
                u64::MAX,
            );
            let same = owners(self.fs, &node) == owners(self.fs, &hidden);
            if same && changed.is_empty() && node.handle.exchange(&hidden.handle, &tx)? {
                self.fs.log_nothing(&tx);
                return Ok(Finish::Done);
            }
            drop(tx);
            settle_blocks(self.fs, &node)?;
        }
        Err(Error::new(Kind::Busy, "snapshots or owners of the file change all the time"))
    }

    /// Gives file `number` blocks of `record` bytes, whatever that takes. Returns how many bytes were written.
    ///
    /// # Errors
    /// The errors of the parts.
    pub fn reblock(self, number: u64, record: u64) -> Result<u64> {
        match self.at_once(number, record)? {
            Reblocked::Already => return Ok(0),
            Reblocked::Done(bytes) => return Ok(bytes),
            Reblocked::NeedsHidden => {}
        }
        let new = super::NewNode::new(crate::FileKind::Regular, 0o600, 0, 0);
        let hidden = self.fs.dirs().create_unnamed(self.fs.root, &new)?;
        let done = reblock_with(self.fs, number, hidden, record);
        self.fs.close_file(hidden)?;
        done
    }
}

/// The block size that a file gets for `record`; `None` when it has that already.
fn wanted_block(fs: &FsWriter, node: &Node, record: u64) -> Option<u64> {
    let (block, last) = node.handle.with_dnode(|dnode| (dnode.datablksz(), dnode.maxblkid));
    let size = node.word(fs.fields.size);
    let only = size.next_multiple_of(ondisk::MIN_BLOCK_SIZE).max(ondisk::MIN_BLOCK_SIZE);
    let wanted = if only <= record { only } else { record };
    // A single block grows with the file.
    let fits = block == record || last == 0 && block <= record;
    (!fits && wanted != block).then_some(wanted)
}

/// Waits until nothing of the file's blocks waits to be written. The file is locked.
fn settle_blocks(fs: &FsWriter, node: &Node) -> Result<()> {
    while node.handle.has_waiting_blocks() {
        fs.txs.sync()?;
    }
    Ok(())
}

fn pool(fs: &FsWriter) -> Result<&Arc<Spa>> {
    fs.spa().ok_or_else(|| Error::unsupported("the file system is not mounted"))
}

/// The two files of a change, which has begun. The hidden one is kept until the caller is done with it: its blocks must
/// not be freed when its user closes it meanwhile.
fn two(fs: &FsWriter, number: u64, hidden: u64) -> Result<(Arc<Node>, Kept<'_>)> {
    let (node, hidden) = (fs.file(number)?, fs.file(hidden)?);
    let is_hidden = hidden.word(fs.fields.links) == 0 && hidden.is_open();
    if !hidden.is_reserved_for(number) || !is_hidden || Arc::ptr_eq(&node, &hidden) {
        return Err(Error::new(Kind::Invalid, "the change of the record size has not begun"));
    }
    let node_of_hidden = fs.open_file(hidden.number)?;
    Ok((node, Kept { fs, node: node_of_hidden }))
}

fn check_hidden(fs: &FsWriter, hidden: &Node) -> Result<()> {
    let is_new = hidden.word(fs.fields.links) == 0
        && hidden.word(fs.fields.size) == 0
        && hidden.handle.max_block() == 0
        && hidden.is_open()
        && !hidden.is_reserved();
    match is_new {
        true => Ok(()),
        false => Err(Error::new(Kind::Invalid, "the hidden file has a name or content")),
    }
}

fn owners(fs: &FsWriter, node: &Node) -> [u64; 3] {
    [fs.fields.uid, fs.fields.gid, fs.fields.projid].map(|attr| node.word(attr))
}

/// Makes the owners of the file those of the hidden file, whose set-id bits are cleared.
fn own_as(fs: &FsWriter, tx: &engine::dmu::Tx, hidden: &Node, node: &Node) -> Result<()> {
    let [uid, gid, projid] = owners(fs, node);
    if owners(fs, hidden) == [uid, gid, projid] {
        return Ok(());
    }
    fs.change(tx, hidden, |state| {
        let mode = state.word(fs.fields.mode) & !0o6000;
        state.attrs.set_word(fs.fields.mode, mode)?;
        state.attrs.set_word(fs.fields.uid, uid)?;
        state.attrs.set_word(fs.fields.gid, gid)?;
        if owners(fs, node).last() == Some(&state.word(fs.fields.projid)) {
            return Ok(());
        }
        fs.attrs().set_project(tx, state, projid)?;
        let flags = state.word(fs.fields.flags) | ondisk::znode::pflags::PROJID;
        state.attrs.set_word(fs.fields.flags, flags)
    })
}

fn copy_range(fs: &FsWriter, node: &Node, hidden: &Node, range: Range<u64>, is_locked: bool) -> Result<u64> {
    let block = hidden.handle.block_size().max(1);
    let piece = (CHUNK / block).max(1).saturating_mul(block);
    let (mut at, mut written) = (range.start / block * block, 0_u64);
    loop {
        let size = node.word(fs.fields.size);
        let end = range.end.min(size).next_multiple_of(block);
        if at >= end {
            return Ok(written);
        }
        let _range = (!is_locked).then(|| node.ranges.lock(at..at.saturating_add(piece), false));
        let object = fs.object(node)?;
        let stored = object.next_extent(at, end)?;
        let first = stored.map_or(end, |extent| extent.start / block * block).max(at);
        let stop = if first > at { first } else { end.min(at.saturating_add(piece)) };
        written = written.saturating_add(copy_piece(fs, node, hidden, &object, at..stop)?);
        at = stop;
    }
}

/// Copies whole blocks in one transaction.
fn copy_piece(fs: &FsWriter, node: &Node, hidden: &Node, object: &Object, range: Range<u64>) -> Result<u64> {
    fs.quotas().check(hidden)?;
    let block = hidden.handle.block_size().max(1);
    let mut blocks = match object.next_extent(range.start, range.end)? {
        Some(_) => blocks_of(object, block, range.clone())?,
        None => Vec::new(),
    };
    // A compressed block of zeros would be a hole without a birth.
    blocks.retain(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
    let bytes = block.saturating_mul(len64(blocks.len()));
    let tx = fs.begin_for(bytes, false)?;
    if node.handle.is_free() || hidden.handle.is_free() {
        return Err(Error::not_found("the file was removed"));
    }
    let mut at = range.start / block;
    for (blkid, bytes) in blocks {
        hidden.handle.mark_holes(&tx, at, blkid)?;
        hidden.handle.write_anew(&tx, blkid, bytes)?;
        at = blkid.saturating_add(1);
    }
    hidden.handle.mark_holes(&tx, at, range.end / block)?;
    Ok(bytes)
}

/// The ranges of bytes whose blocks on disk are newer than txg `as_of`.
fn changed_since(node: &Node, as_of: u64) -> Result<RangeSet> {
    let synced = node.handle.synced();
    Ok(bytes_of(&synced.born_after(as_of)?, synced.dnode.datablksz()))
}

/// Cuts what the hidden file has behind the file's end, and gives it the file's owners.
fn end_hidden(fs: &FsWriter, node: &Node, hidden: &Node) -> Result<()> {
    let block = hidden.handle.block_size().max(1);
    let blocks = node.word(fs.fields.size).div_ceil(block);
    fs.data().free_in_pieces(hidden, blocks, u64::MAX)?;
    let tx = fs.begin()?;
    own_as(fs, &tx, hidden, node)?;
    if blocks == 0 {
        // The first block is one of the tree, even of an empty file.
        hidden.handle.mark_holes(&tx, 0, 1)?;
    }
    hidden.handle.free_blocks(&tx, blocks, u64::MAX)
}

fn reblock_with(fs: &FsWriter, number: u64, hidden: u64, record: u64) -> Result<u64> {
    let Some(mut as_of) = fs.reblocking().begin(number, hidden, record)? else { return Ok(0) };
    let mut written = fs.reblocking().copy(number, hidden, 0..u64::MAX)?;
    for round in 0_u32.. {
        match fs.reblocking().finish(number, hidden, as_of, round < 4)? {
            Finish::Done => break,
            Finish::Again(ranges, txg) => {
                for (start, end) in ranges {
                    written = written.saturating_add(fs.reblocking().copy(number, hidden, start..end)?);
                }
                as_of = txg;
            }
        }
    }
    Ok(written)
}

/// The blocks of `block` bytes of a range that have stored bytes.
fn blocks_of(object: &Object, block: u64, range: Range<u64>) -> Result<Vec<(u64, Buf)>> {
    let mut blocks = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(extent) = object.next_extent(at, range.end)? else { break };
        let blkid = extent.start.max(at) / block;
        let mut bytes = AlignedBuf::zeroed(usize::try_from(block).unwrap_or(0));
        object.read_at(blkid.saturating_mul(block), &mut bytes)?;
        blocks.push((blkid, bytes.into()));
        at = blkid.saturating_add(1).saturating_mul(block);
    }
    Ok(blocks)
}

/// The ranges of bytes of blocks.
fn bytes_of(blocks: &RangeSet, size: u64) -> RangeSet {
    let mut bytes = RangeSet::new();
    for (start, end) in blocks.iter() {
        bytes.insert(start.saturating_mul(size), end.saturating_mul(size));
    }
    bytes
}

/// The ranges of bytes that may not be exchanged, as their blocks were there in txg `age`.
fn too_old(hidden: &Handle, age: u64) -> Result<RangeSet> {
    let synced = hidden.synced();
    Ok(bytes_of(&synced.born_until(age)?, synced.dnode.datablksz()))
}

fn ranges_of(set: &RangeSet) -> Vec<(u64, u64)> {
    set.iter().collect()
}
