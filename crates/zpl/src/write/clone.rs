//! Ranges of files that become references to the blocks of other files.
//!
//! A range is cloned block by block: both offsets are multiples of the source's block size, which becomes the target's.
//! Files of one pool may be in different file systems, and the source in a snapshot. Encrypted file systems must have
//! the same master key: only clones of each other have that.
//!
//! Only blocks on disk are cloned, because the intent log can name no others; the rest is waited for
//! (`zfs_bclone_wait_dirty`).
//!
//! Each transaction clones as many blocks as one record of the log names. The source is locked meanwhile, and read within
//! the transaction: changes by later transactions are written after the references are counted.
//!
//! Lock order: two files are locked in the order of their datasets and object numbers.
//!
//! Source: `zfs_clone_range`, zfs_vnops.c, OpenZFS 2.4. Differs from it: a range that ends within a block is cloned up to
//! that block.

use std::sync::Arc;

use engine::dmu::dirty::CloneSource;
use engine::dmu::range_lock::Locked;
use engine::dmu::{Object, Tx};
use engine::dsl::write::Hooks;
use engine::memory::Limit;
use engine::spa::Spa;
use engine::zio::deflated;
use engine::{Error, Kind, Result};
use ondisk::Blkptr;
use ondisk::zil::CloneRange;
use ondisk::znode::pflags;
use zcommon::features::Feature;

use super::data::MAX_SIZE;
use super::fs::{Clones, FsWriter};
use super::node::Node;
use super::sink::LogOp;

/// Blocks that one transaction clones, and one record of the log names.
const CHUNK: u64 = 512;
/// Bytes that one transaction clones at most, if they are more than a block.
const CHUNK_BYTES: u64 = 64 << 20;
/// Times that unwritten blocks are waited for before the caller has to copy them.
const WAITS: u32 = 3;

/// The source of a clone.
#[derive(Debug, Clone, Copy)]
pub enum CloneFrom<'a> {
    /// A file of a mounted file system.
    File(&'a FsWriter, u64),
    /// A file of a snapshot: its object and its size in bytes.
    Snapshot(&'a Object, u64),
}

impl CloneFrom<'_> {
    fn objset(&self) -> u64 {
        match self {
            Self::File(fs, _) => fs.objset.id,
            Self::Snapshot(object, _) => object.objset.id,
        }
    }
}

/// A range to be cloned, both files locked.
struct Job<'a> {
    spa: &'a Spa,
    source: Object,
    /// The file system of a source that may be unmounted meanwhile.
    fs: Option<&'a FsWriter>,
    node: &'a Node,
    block: u64,
    from: u64,
    to: u64,
    len: u64,
    keep_setid: bool,
}

fn unfit(what: &str) -> Error {
    Error::new(Kind::Invalid, format!("the range cannot be cloned: {what}"))
}

impl Clones<'_> {
    /// Makes `len` bytes of file `number` from `to` on references to the blocks of `source` at `from`. Returns how many
    /// bytes were cloned: fewer when the source ends before, or the range ends within a block; 0 past the end of the
    /// source. `keep_setid`: the caller may keep set-id bits.
    ///
    /// # Errors
    /// The caller can fall back to copying when this fails with `Invalid` (offsets or block sizes do not fit,
    /// the range overlaps itself), `OtherDevice` (another pool, another key), `Unsupported` (the pool has no
    /// `block_cloning`) and `Busy` (the source changes all the time). Otherwise those of a write.
    #[doc(alias = "zfs_clone_range")]
    pub fn clone_range(
        self,
        (source, from): (CloneFrom<'_>, u64),
        (number, to): (u64, u64),
        len: u64,
        keep_setid: bool,
    ) -> Result<u64> {
        let spa = check_pools(self.fs, &source)?;
        if !spa.pool.env.memory.limits.is_on(Limit::CloneEnabled) {
            return Err(Error::unsupported("block cloning is switched off (zfs_bclone_enabled)"));
        }
        // A snapshot that is destroyed meanwhile would free its blocks unseen.
        let _held = match &source {
            CloneFrom::Snapshot(object, _) => Some(spa.datasets.hold_long(object.objset.id)?),
            CloneFrom::File(..) => None,
        };
        let node = self.fs.file(number)?;
        self.fs.restrictions().check_writable(&node, Some(to))?;
        let theirs = match source {
            CloneFrom::File(fs, object) => Some((fs, fs.file(object)?)),
            CloneFrom::Snapshot(..) => None,
        };
        let done = {
            let reads = (from, from.saturating_add(len));
            let _locks = lock_two(self.fs, &node, theirs.as_ref(), reads, (to, to.saturating_add(len)));
            let (source, size, fs) = match (source, &theirs) {
                (CloneFrom::Snapshot(object, size), _) => (object.clone(), size, None),
                (CloneFrom::File(fs, _), Some((_, theirs))) => {
                    if theirs.word(fs.fields.flags) & pflags::AV_QUARANTINED != 0 {
                        return Err(Error::new(Kind::Denied, "the file is in quarantine"));
                    }
                    (fs.object(theirs)?, theirs.word(fs.fields.size), Some(fs))
                }
                (CloneFrom::File(..), None) => return Err(unfit("it has no source")),
            };
            let is_same = theirs.as_ref().is_some_and(|(_, theirs)| Arc::ptr_eq(theirs, &node));
            let block = source.dnode.datablksz();
            let len = fit(self.fs, &node, (block, size), (from, to, len), is_same)?;
            let (spa, node) = (&*spa, &*node);
            clone_locked(self.fs, &Job { spa, source, fs, node, block, from, to, len, keep_setid })
        };
        self.fs.settled(number, || done)
    }

    /// Does a record again; false when the file has blocks of another size now, or the pointers are not such blocks.
    #[doc(alias = "zfs_clone_range_replay")]
    pub(super) fn replay(self, c: &CloneRange) -> Result<bool> {
        let (lr, node) = (c.lr, self.fs.file(c.lr.foid)?);
        let is_block = |bp: &Blkptr| bp.is_hole() || bp.lsize() == lr.blksz && bp.level() == 0;
        let count = u64::try_from(c.bps.len()).unwrap_or(u64::MAX);
        let is_whole = lr.blksz > 0 && lr.offset.is_multiple_of(lr.blksz);
        if !is_whole || lr.length.div_ceil(lr.blksz) != count || !c.bps.iter().all(is_block) {
            return Ok(false);
        }
        let _range = node.ranges.lock(0..u64::MAX, true);
        let tx = self.fs.begin()?;
        let (dnode, size) = (node.handle.dnode(), node.word(self.fs.fields.size));
        if dnode.datablksz() < lr.blksz && dnode.maxblkid == 0 && size <= dnode.datablksz() {
            node.handle.set_block_size(&tx, lr.blksz)?;
        }
        if node.handle.dnode().datablksz() != lr.blksz {
            return Ok(false);
        }
        put_clones(self.fs, &tx, &node, (lr.offset, lr.length, lr.blksz), &c.bps, true)?;
        Ok(true)
    }
}

/// The pool, if blocks of `source` may be referred to here.
fn check_pools(fs: &FsWriter, source: &CloneFrom<'_>) -> Result<Arc<Spa>> {
    let spa = fs.spa().ok_or_else(|| Error::unsupported("the file system is not mounted"))?;
    let is_ours = match source {
        CloneFrom::File(fs, _) => fs.spa().is_some_and(|theirs| Arc::ptr_eq(theirs, spa)),
        CloneFrom::Snapshot(object, _) => Arc::ptr_eq(object.objset.arc(), fs.objset.arc()),
    };
    if !is_ours {
        return Err(Error::new(Kind::OtherDevice, "the files are in different pools"));
    }
    if spa.feature(Feature::BlockCloning).is_none() {
        return Err(Error::unsupported("the feature block_cloning of the pool is not enabled"));
    }
    // A reference that cannot be counted would suspend the pool when it is written.
    if let Some(why) = spa.shared.refuses_clones() {
        return Err(Error::unsupported("a clone table of the pool is damaged").because(why));
    }
    let theirs = source.objset();
    if theirs != fs.objset.id && !spa.pool.dsl.keys.same_key(theirs, fs.objset.id)? {
        return Err(Error::new(Kind::OtherDevice, "the files are encrypted by different keys"));
    }
    Ok(Arc::clone(spa))
}

/// Locks the ranges to read and to write: all of a file whose block size may change, or that is both
/// source and target.
fn lock_two<'a>(
    fs: &FsWriter,
    node: &'a Node,
    theirs: Option<&'a (&FsWriter, Arc<Node>)>,
    reads: (u64, u64),
    writes: (u64, u64),
) -> Vec<Locked<'a>> {
    let ours = || {
        let is_fixed = node.handle.dnode().maxblkid > 0;
        node.ranges.lock(if is_fixed { writes.0..writes.1 } else { 0..u64::MAX }, true)
    };
    let Some((their_fs, theirs)) = theirs else { return vec![ours()] };
    if std::ptr::eq(node, &**theirs) {
        return vec![node.ranges.lock(0..u64::MAX, true)];
    }
    let read = || theirs.ranges.lock(reads.0..reads.1, false);
    match (their_fs.objset.id, theirs.number) < (fs.objset.id, node.number) {
        true => {
            let first = read();
            vec![first, ours()]
        }
        false => {
            let first = ours();
            vec![first, read()]
        }
    }
}

/// How much of a range can be cloned from a file of `size` bytes in blocks of `block`.
fn fit(
    fs: &FsWriter,
    node: &Node,
    (block, size): (u64, u64),
    (from, to, len): (u64, u64, u64),
    is_same: bool,
) -> Result<u64> {
    let mut len = len.min(size.saturating_sub(from));
    if len == 0 {
        return Ok(0);
    }
    let end = to.checked_add(len).filter(|end| *end <= MAX_SIZE);
    let end = end.ok_or_else(|| Error::new(Kind::TooLarge, "the maximum file size is exceeded"))?;
    if is_same && from < end && to < from.saturating_add(len) {
        return Err(unfit("it overlaps itself"));
    }
    let (target, ours) = (node.handle.dnode(), node.word(fs.fields.size));
    let grows = block > target.datablksz() && target.maxblkid == 0 && ours <= target.datablksz();
    if block != target.datablksz() && !grows {
        return Err(unfit("the files have blocks of different sizes"));
    }
    if !from.is_multiple_of(block) || !to.is_multiple_of(block) || to != 0 && !block.is_power_of_two() {
        return Err(unfit("it does not begin at a block"));
    }
    if len < size - from || len < ours.saturating_sub(to) {
        len -= len % block;
    }
    // Otherwise a short block would be the file's block size for ever.
    let stuck = len <= block && block < fs.options().recordsize && ours <= block && end > block;
    match len > 0 && !stuck {
        true => Ok(len),
        false => Err(unfit("it has no whole block")),
    }
}

/// Clones chunk by chunk. An error after the first chunk ends the range there.
fn clone_locked(fs: &FsWriter, job: &Job<'_>) -> Result<u64> {
    let is_patient = job.spa.pool.env.memory.limits.is_on(Limit::CloneWaitDirty);
    let most_waits = if is_patient { WAITS } else { 0 };
    let (mut done, mut waits) = (0, 0);
    let blocks = (CHUNK_BYTES / job.block.max(1)).clamp(1, CHUNK);
    while done < job.len {
        let len = (job.len - done).min(job.block.saturating_mul(blocks));
        match clone_chunk(fs, job, done, len) {
            Ok(Some(cloned)) => (done, waits) = (done + cloned, 0),
            Ok(None) if waits < most_waits => {
                fs.txs.sync()?;
                waits += 1;
            }
            Ok(None) if done == 0 && !is_patient => {
                return Err(Error::new(Kind::Busy, "blocks of the source are not on disk"));
            }
            Ok(None) if done == 0 => {
                return Err(Error::new(Kind::Busy, "the source of the clone changes all the time"));
            }
            Err(e) if done == 0 => return Err(e),
            Ok(None) | Err(_) => break,
        }
    }
    Ok(done)
}

/// Clones up to `len` bytes in one transaction, and at least a block; returns how many; `None` when some are not on disk yet.
fn clone_chunk(fs: &FsWriter, job: &Job<'_>, done: u64, len: u64) -> Result<Option<u64>> {
    let (node, block) = (job.node, job.block);
    let quota = fs.quotas().reserve_bytes(node, (block.min(len), len))?;
    let len = if quota.bytes() < len { (quota.bytes() / block).max(1).saturating_mul(block) } else { len };
    let tx = fs.begin_for(0, false)?;
    if node.handle.is_free() {
        return Err(Error::not_found("the file was removed"));
    }
    // Its dataset may be destroyed once it is unmounted, in a later txg than this.
    if let Some(fs) = job.fs {
        fs.check_open()?;
    }
    let (synced, first) = (job.spa.txgs.synced(), (job.from + done) / block);
    let mut pointers = Vec::new();
    for blkid in first..first + len.div_ceil(block) {
        pointers.push(match job.source.clone_source(blkid, synced)? {
            CloneSource::Hole => Blkptr::default(),
            CloneSource::Block(bp) => bp,
            CloneSource::Unwritten => return Ok(None),
        });
    }
    // A reference that cannot be counted would suspend the pool when it is written.
    job.spa
        .sharing()
        .check_clones(&pointers)
        .map_err(|why| Error::unsupported("a clone table of the pool is damaged").because(why))?;
    let to = job.to + done;
    if node.handle.dnode().datablksz() != block {
        node.handle.set_block_size(&tx, block)?;
    }
    put_clones(fs, &tx, node, (to, len, block), &pointers, job.keep_setid)?;
    let tree = job.spa.pool.zio.tree();
    let taken = pointers.iter().map(|bp| deflated(&tree, bp));
    quota.spend(&tx, taken.fold(0, u64::saturating_add));
    Ok(Some(len))
}

/// Puts pointers into a file under a transaction.
fn put_clones(
    fs: &FsWriter,
    tx: &Tx,
    node: &Node,
    (to, len, block): (u64, u64, u64),
    pointers: &[Blkptr],
    keep_setid: bool,
) -> Result<()> {
    let mut blkid = to / block;
    for run in pointers.chunk_by(|a, b| a.is_hole() && b.is_hole()) {
        let next = blkid.saturating_add(u64::try_from(run.len()).unwrap_or(u64::MAX));
        match run {
            [bp, ..] if !bp.is_hole() => node.handle.clone_block(tx, blkid, bp)?,
            _ => node.handle.free_blocks(tx, blkid, next)?,
        }
        blkid = next;
    }
    fs.data().written(tx, node, to.saturating_add(len), keep_setid)?;
    let object = node.number;
    fs.log_of(node, tx, &LogOp::Clone { object, offset: to, length: len, block_size: block, pointers });
    Ok(())
}
