//! Blocks written anew with the same bytes, so that they take on today's properties and places.
//!
//! Each transaction marks some stored blocks as written; holes stay holes. A block that waits to be written anyway is left
//! out. Times do not change, and the log needs no record: the bytes are the same after a crash.
//!
//! Blocks of a snapshot stay, so space is used twice.
//!
//! Source: `zfs_rewrite`, zfs_vnops.c, OpenZFS 2.4. Differs from it: the file is locked for one transaction at a time,
//! not for all of them; a block that waits in an older txg is left out, too; and encrypted blocks are new after a physical
//! rewrite, because a raw incremental stream that lacks a block with a new MAC cannot be authenticated once received.

use engine::dmu::Object;
use engine::dsl::write::Hooks;
use engine::{Error, Result};
use zcommon::features::Feature;

use super::fs::FsWriter;
use super::node::Node;

/// Most bytes that one transaction rewrites, if they are more than a block.
const CHUNK: u64 = 1 << 20;

/// Treatment of rewritten blocks by incremental streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewriting {
    /// New: they are sent again.
    Logical,
    /// As old as they were: they keep their logical birth, and only their physical birth is new.
    #[doc(alias = "ZFS_REWRITE_PHYSICAL")]
    Physical,
}

impl FsWriter {
    /// Writes the stored blocks of `len` bytes (0: all) of file `number` from `offset` on again. Returns how many bytes
    /// it wrote; the part past the end of the file is skipped.
    ///
    /// # Errors
    /// Those of reads and writes; the blocks before are rewritten. `Unsupported` for a physical rewrite where the feature
    /// `physical_rewrite` is not enabled, or the file system is not mounted.
    #[doc(alias = "zfs_rewrite")]
    pub fn rewrite(&self, number: u64, offset: u64, len: u64, how: Rewriting) -> Result<u64> {
        let node = self.file(number)?;
        self.check_rewrite(how)?;
        let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
        let (mut at, mut written) = (offset, 0);
        loop {
            let span = node.handle.dnode().datablksz().saturating_add(CHUNK);
            let _range = node.ranges.lock(at..at.saturating_add(span), true);
            let end = end.min(node.word(self.fields.size));
            let object = self.object(&node)?;
            let block = object.dnode.datablksz().max(1);
            let next = object.next_block(at / block).map_err(|(_, e)| e)?;
            let Some(first) = next.filter(|blkid| blkid.saturating_mul(block) < end) else {
                return Ok(written);
            };
            if first > at / block {
                // The lock does not cover the part after the hole.
                at = first.saturating_mul(block);
                continue;
            }
            let stop = first.saturating_add((CHUNK / block).max(1)).min(end.div_ceil(block));
            written += self.rewrite_locked(&node, &object, first..stop, how)?;
            at = stop.saturating_mul(block);
        }
    }

    fn check_rewrite(&self, how: Rewriting) -> Result<()> {
        let feature = Feature::PhysicalRewrite;
        if how == Rewriting::Logical || self.spa().is_some_and(|spa| spa.feature(feature).is_some()) {
            return Ok(());
        }
        let what = "the feature physical_rewrite of the pool is not enabled: blocks are rewritten with a new birth only";
        Err(Error::unsupported(what))
    }

    fn rewrite_locked(
        &self,
        node: &Node,
        object: &Object,
        blocks: std::ops::Range<u64>,
        how: Rewriting,
    ) -> Result<u64> {
        self.check_quota(node)?;
        let size = object.dnode.datablksz();
        let mut read = Vec::new();
        for blkid in blocks {
            if node.handle.pending(blkid).is_none() && object.is_stored(blkid)? {
                read.push((blkid, object.block(blkid)?));
            }
        }
        if read.is_empty() {
            return Ok(0);
        }
        let bytes = size.saturating_mul(u64::try_from(read.len()).unwrap_or(u64::MAX));
        let tx = self.begin_for(bytes, false)?;
        if node.handle.is_free() {
            return Err(Error::not_found("the file was removed"));
        }
        read.into_iter().try_for_each(|(blkid, bytes)| match how {
            Rewriting::Logical => node.handle.write_block(&tx, blkid, bytes),
            Rewriting::Physical => node.handle.move_block(&tx, blkid, bytes),
        })?;
        Ok(bytes)
    }
}
