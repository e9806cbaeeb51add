//! References that end, and references that are added without a write.
//!
//! A free whose entry only a ZAP tells waits for others, until so many wait or the txg is stored: their entries are looked up
//! together ([`super::lookup`]). A block that no table lists is then freed as any other.

use ondisk::Blkptr;
use ondisk::ddt::DdtKey;

use super::host::DdtSource;
use super::live::is_damage;
use super::stored::is_of;
use super::write::Tables;
use crate::error::Result;

/// Frees that wait at most.
const WAITING: usize = 2048;

impl Tables {
    /// A reference to a block ends (syncing context). Returns blocks that no table lists, this one or earlier ones: they are
    /// freed as any other.
    ///
    /// # Errors
    /// When entries cannot be read, and not for damage: the blocks of damaged entries leak.
    #[doc(alias = "zio_ddt_free")]
    pub(crate) fn free(&self, source: &dyn DdtSource, bp: &Blkptr) -> Result<Vec<Blkptr>> {
        let Some(checksum) = bp.checksum().filter(|c| self.all.lock().contains_key(&c.raw())) else {
            return Ok(vec![*bp]);
        };
        if !self.ask(checksum, &DdtKey::of(bp)) {
            return Ok(if self.end(source, bp)? { Vec::new() } else { vec![*bp] });
        }
        let is_full = {
            let mut frees = self.frees.lock();
            frees.push(*bp);
            frees.len() >= WAITING
        };
        if is_full { self.settle_frees(source) } else { Ok(Vec::new()) }
    }

    /// Looks up the entries of the frees that wait, and ends their references (syncing context). Returns the blocks that no
    /// table lists.
    ///
    /// # Errors
    /// The errors of [`Tables::free`].
    pub(crate) fn settle_frees(&self, source: &dyn DdtSource) -> Result<Vec<Blkptr>> {
        let frees = std::mem::take(&mut *self.frees.lock());
        self.fetch_many(source, frees.iter().filter_map(|bp| Some((bp.checksum()?, DdtKey::of(bp)))));
        let mut unlisted = Vec::new();
        for bp in frees {
            if !self.end(source, &bp)? {
                unlisted.push(bp);
            }
        }
        Ok(unlisted)
    }

    /// Ends a reference; false when no table lists the block.
    fn end(&self, source: &dyn DdtSource, bp: &Blkptr) -> Result<bool> {
        let Some(checksum) = bp.checksum() else { return Ok(false) };
        let key = DdtKey::of(bp);
        match self.fetch(source, checksum, &key) {
            // The other references to the block are unknown, so it stays allocated.
            Err(e) if is_damage(&e) => return Ok(true),
            fetched => fetched?,
        }
        let mut all = self.all.lock();
        let entry = all.get_mut(&checksum.raw()).and_then(|table| table.pending.get_mut(&key));
        let Some(ours) = entry.and_then(|entry| entry.phys.iter_mut().find(|p| is_of(p, bp))) else {
            return Ok(false);
        };
        // The entry counted fewer references than exist: keep the block when in doubt.
        ours.refcnt = ours.refcnt.saturating_sub(1);
        Ok(true)
    }

    /// The entries of these blocks will be needed: they are looked up together.
    pub(crate) fn expect<'a>(&self, source: &dyn DdtSource, blocks: impl Iterator<Item = &'a Blkptr>) {
        let keys = blocks.filter_map(|bp| Some((bp.checksum()?, DdtKey::of(bp))));
        self.fetch_many(source, keys.filter(|(checksum, key)| self.ask(*checksum, key)));
    }

    /// A listed block gets `count` more references (syncing context). False when no table lists the block.
    #[doc(alias = "ddt_addref")]
    pub(crate) fn add_references(&self, source: &dyn DdtSource, bp: &Blkptr, count: u64) -> Result<bool> {
        let Some(checksum) = bp.checksum() else { return Ok(false) };
        if !self.all.lock().contains_key(&checksum.raw()) {
            return Ok(false);
        }
        let key = DdtKey::of(bp);
        match self.fetch(source, checksum, &key) {
            // A free asks this table first, and leaves the block where it is.
            Err(e) if is_damage(&e) => return Ok(false),
            fetched => fetched?,
        }
        let mut all = self.all.lock();
        let entry = all.get_mut(&checksum.raw()).and_then(|table| table.pending.get_mut(&key));
        let Some(ours) = entry.and_then(|entry| entry.phys.iter_mut().find(|p| is_of(p, bp))) else {
            return Ok(false);
        };
        if ours.refcnt == 0 {
            return Ok(false);
        }
        ours.refcnt = ours.refcnt.saturating_add(count);
        Ok(true)
    }
}
