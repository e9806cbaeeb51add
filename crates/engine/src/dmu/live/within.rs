//! An object set within one transaction: for structures that consist of several objects.

use ondisk::ObjectType;

use super::{Handle, LiveObjset, NewObject};
use crate::dmu::edit::{self, Edit, Objects};
use crate::dmu::tx::Tx;
use crate::error::Result;
use std::sync::Arc;
use stdx::{AlignedBuf, Buf};

/// Objects of `objset`, changed under `tx`.
#[derive(Debug, Clone, Copy)]
pub struct Within<'a> {
    /// The object set.
    pub objset: &'a LiveObjset,
    /// The transaction.
    pub tx: &'a Tx,
}

impl LiveObjset {
    /// Its objects, for change under `tx`.
    pub fn within<'a>(&'a self, tx: &'a Tx) -> Within<'a> {
        Within { objset: self, tx }
    }
}

impl Objects for Within<'_> {
    fn create(&self, new: &edit::NewObject) -> Result<u64> {
        let mut object = NewObject::with_bonus(new.kind, new.block_size, new.bonus_kind, new.bonus_len);
        if new.kind == ObjectType::SPACE_MAP {
            object.indirect_shift = SPACE_MAP_INDIRECT;
        }
        Ok(self.objset.create_object(self.tx, object)?.number)
    }

    fn free(&self, number: u64) -> Result<()> {
        self.objset.free_object(self.tx, number)
    }

    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>> {
        Ok(Box::new(OwnedEditor::new(self.objset.handle(number)?, self.tx)))
    }

    fn kind(&self, number: u64) -> Result<ObjectType> {
        Ok(self.objset.handle(number)?.dnode().object_type)
    }
}

/// Space maps are small and many: their indirect blocks are smaller than others'.
const SPACE_MAP_INDIRECT: u8 = 14;

/// An object under change that keeps its handle.
#[derive(Debug)]
pub struct OwnedEditor<'a> {
    handle: Arc<Handle>,
    tx: &'a Tx,
}

impl<'a> OwnedEditor<'a> {
    /// The object behind `handle`, for change under `tx`.
    pub fn new(handle: Arc<Handle>, tx: &'a Tx) -> Self {
        Self { handle, tx }
    }
}

impl Edit for OwnedEditor<'_> {
    fn number(&self) -> u64 {
        self.handle.number
    }

    fn block_size(&self) -> u64 {
        self.handle.edit(self.tx).block_size()
    }

    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        self.handle.set_block_size(self.tx, bytes)
    }

    fn max_block(&self) -> u64 {
        self.handle.edit(self.tx).max_block()
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

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.handle.write(self.tx, offset, bytes)
    }

    fn bonus(&self) -> Vec<u8> {
        self.handle.edit(self.tx).bonus()
    }

    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.handle.set_bonus(self.tx, bytes)
    }
}
