//! An object as a structure in it is changed ([`Edit`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::zap::MicroIndex;
use stdx::{AlignedBuf, Buf};

use super::Handle;
use crate::dmu::edit::{self, Edit, Head};
use crate::dmu::tx::Tx;
use crate::error::Result;

/// An object under change in one transaction.
#[derive(Debug)]
pub struct Editor<'a> {
    handle: Arc<Handle>,
    tx: &'a Tx,
}

impl<'a> Editor<'a> {
    /// Changes `handle` under `tx`.
    pub(super) fn new(handle: Arc<Handle>, tx: &'a Tx) -> Self {
        Self { handle, tx }
    }
}

impl Edit for Editor<'_> {
    fn number(&self) -> u64 {
        self.handle.number
    }

    fn block_size(&self) -> u64 {
        self.handle.state.read().now.datablksz()
    }

    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        self.handle.set_block_size(self.tx, bytes)
    }

    fn max_block(&self) -> u64 {
        self.handle.state.read().now.maxblkid
    }

    fn read_block(&self, blkid: u64) -> Result<Buf> {
        self.handle.block(blkid)
    }

    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()> {
        self.handle.write_block(self.tx, blkid, bytes.into())
    }

    fn free_from(&mut self, blkid: u64) -> Result<()> {
        self.handle.free_blocks(self.tx, blkid, u64::MAX)
    }

    fn free_range(&mut self, blkid: u64, count: u64) -> Result<()> {
        self.handle.free_blocks(self.tx, blkid, blkid.saturating_add(count))
    }

    fn place_with_tables(&self) {
        self.handle.with_tables.store(true, Ordering::Relaxed);
    }

    fn check_change(&self, blkid: u64, count: u64) -> Result<()> {
        self.handle.check_change(self.tx, blkid, count)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.handle.write(self.tx, offset, bytes)
    }

    fn patch_block_if(&mut self, blkid: u64, work: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<()> {
        self.handle.patch_block_if(self.tx, blkid, work)
    }

    fn head(&self) -> Result<Head> {
        self.handle.head()
    }

    fn keeper(&self) -> Option<&Handle> {
        Some(&self.handle)
    }

    fn patch_names(
        &mut self,
        head: Head,
        size: u64,
        work: &mut dyn FnMut(&mut [u8], Option<&mut MicroIndex>),
    ) -> Result<bool> {
        if head.content.is_none() {
            // Others change the object at the same time.
            return edit::patch_head(self, size, work);
        }
        self.handle.patch_names(self.tx, head, size, work)
    }

    fn bonus(&self) -> Vec<u8> {
        self.handle.state.read().now.bonus().to_vec()
    }

    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.handle.set_bonus(self.tx, bytes)
    }
}
