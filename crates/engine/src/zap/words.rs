//! Reading a whole ZAP of single 64-bit integers without an allocation for each entry.

use std::collections::HashSet;

use ondisk::zap::{FatHeader, Leaf, MicroZap};

use super::cursor::span_of;
use super::{Shape, Zap, ZapSource, corrupt};
use crate::error::Result;

/// Room for a name: an integer key has 16 hexadecimal digits at most.
const NAME: usize = 64;

impl<S: ZapSource + Clone> Zap<S> {
    /// Calls `visit` with the name and the value of each entry, in no order.
    ///
    /// # Errors
    /// `Corrupt` for a damaged leaf, a name of more than 63 bytes, and a value that is not one 64-bit
    /// integer; errors of `visit`.
    pub(crate) fn visit_words(&self, visit: &mut dyn FnMut(&[u8], u64) -> Result<()>) -> Result<()> {
        match &self.shape {
            Shape::Micro(block, _) => {
                let micro = MicroZap::from_bytes(block).map_err(|e| corrupt(&self.object, 0, &e))?;
                micro.entries().try_for_each(|entry| visit(entry.name, entry.value))
            }
            Shape::Fat(header, _) => self.visit_leaves(header, visit),
        }
    }

    fn visit_leaves(
        &self,
        header: &FatHeader,
        visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let (mut slot, mut visited) = (0, HashSet::new());
        while slot < header.ptrtbl_len() {
            let blkid = self.leaf_of(header, slot)?;
            let block = self.object.block(blkid)?;
            let leaf = Leaf::from_bytes(&block).map_err(|e| corrupt(&self.object, blkid, &e))?;
            let span = span_of(&leaf, slot, header.ptrtbl.shift).filter(|_| visited.insert(blkid));
            let span = span
                .ok_or_else(|| corrupt(&self.object, blkid, &"a ZAP leaf stands where it does not belong"))?;
            self.visit_leaf(&leaf, blkid, visit)?;
            slot += (span - (slot & (span - 1))).max(1);
        }
        Ok(())
    }

    fn visit_leaf(
        &self,
        leaf: &Leaf<'_>,
        blkid: u64,
        visit: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let bad = |e| corrupt(&self.object, blkid, &e);
        for entry in leaf.entries() {
            let entry = entry.map_err(bad)?;
            if !leaf.covers(entry.hash) {
                return Err(corrupt(&self.object, blkid, &"an entry stands in the wrong ZAP leaf"));
            }
            let mut room = [0; NAME];
            visit(leaf.short_name(&entry, &mut room).map_err(bad)?, leaf.word(&entry).map_err(bad)?)?;
        }
        Ok(())
    }
}
