//! The size of an object's only block: it changes while there is no second one.

use std::sync::Arc;

use stdx::{AlignedBuf, Buf};

use super::Handle;
use super::change::DirtyRecord;
use crate::dmu::tx::Tx;
use crate::error::{Error, Kind, Result};

impl Handle {
    /// Changes the block size while there is at most one block.
    pub fn set_block_size(self: &Arc<Self>, tx: &Tx, bytes: u64) -> Result<()> {
        let (old, last, is_free) =
            self.with_dnode(|dnode| (dnode.datablksz(), dnode.maxblkid, dnode.is_free()));
        if old == bytes {
            return Ok(());
        }
        if last > 0 {
            return Err(Error::new(
                Kind::Invalid,
                "the block size of an object with several blocks is fixed",
            ));
        }
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let sectors = u16::try_from(bytes >> ondisk::MIN_BLOCK_SHIFT).unwrap_or(u16::MAX);
        // Without another reference to the block: then it can grow where it is.
        let grown = self.change(tx, |dnode, change| {
            let grown = change.grow(len);
            if grown {
                dnode.datablkszsec = sectors;
            }
            grown
        })?;
        if grown {
            return self.counts_growth(tx, old, bytes);
        }
        let stored = self.pending(0).unwrap_or_else(|| !is_free && self.stored_on_disk());
        let block = if stored { self.block(0)? } else { Buf::empty() };
        self.change(tx, |dnode, change| {
            dnode.datablkszsec = sectors;
            stored.then(|| change.put(0, DirtyRecord::Data(resized(&block, len).into())))
        })
        .and_then(|first| match first {
            None => Ok(()),
            Some(true) => self.counts_block(tx, 0, len),
            Some(false) => self.counts_growth(tx, old, bytes),
        })
    }

    /// Charges the bytes by which a block that the txg has already grows.
    fn counts_growth(self: &Arc<Self>, tx: &Tx, old: u64, new: u64) -> Result<()> {
        match usize::try_from(new.saturating_sub(old)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(more) => self.counts_block(tx, 0, more),
        }
    }
}

/// A block with another size, the end cut off or filled with zeros. A file that is written in small pieces grows again and
/// again: its block gets memory up to the next power of two.
fn resized(block: &[u8], len: usize) -> AlignedBuf {
    let mut new = AlignedBuf::copy_with_room(block.get(..len).unwrap_or(block), len.next_power_of_two());
    new.grow(len);
    new
}
