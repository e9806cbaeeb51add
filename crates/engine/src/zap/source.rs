//! The source of a ZAP's blocks.

use std::sync::Arc;

use stdx::Buf;

use crate::dmu::edit::{Edit, Head};
use crate::dmu::{Handle, Object};
use crate::error::{Error, Result};
use crate::types::Bookmark;

/// An object from which a ZAP is read.
pub trait ZapSource {
    /// A data block, zeros for a hole.
    fn block(&self, blkid: u64) -> Result<Buf>;
    /// Data blocks, as [`ZapSource::block`] returns each; read at the same time where that is possible. Without
    /// `keep`, those that are not in memory do not stay there.
    fn blocks(&self, blkids: &[u64], _keep: bool) -> Vec<Result<Buf>> {
        blkids.iter().map(|blkid| self.block(*blkid)).collect()
    }
    /// The last block that may exist.
    fn last_block(&self) -> u64;
    /// Adds the block to an error.
    fn place(&self, error: Error, blkid: u64) -> Error;
    /// Block 0 with the number of its content.
    fn head(&self) -> Result<Head> {
        Ok(Head { block: self.block(0)?, content: None })
    }
    /// The object in memory that can keep an index of the names in block 0, if there is one.
    fn keeper(&self) -> Option<&Handle> {
        None
    }
}

impl ZapSource for Object {
    fn block(&self, blkid: u64) -> Result<Buf> {
        Object::block(self, blkid)
    }

    fn blocks(&self, blkids: &[u64], keep: bool) -> Vec<Result<Buf>> {
        Object::blocks(self, blkids, keep)
    }

    fn last_block(&self) -> u64 {
        self.dnode.maxblkid
    }

    fn place(&self, error: Error, blkid: u64) -> Error {
        error.at_block(Bookmark::new(self.objset.id, self.number, 0, blkid))
    }
}

/// The current content of an object that is being written.
impl ZapSource for &Arc<Handle> {
    fn block(&self, blkid: u64) -> Result<Buf> {
        Handle::block(self, blkid)
    }

    fn blocks(&self, blkids: &[u64], keep: bool) -> Vec<Result<Buf>> {
        Handle::blocks(self, blkids, keep)
    }

    fn last_block(&self) -> u64 {
        self.max_block()
    }

    fn place(&self, error: Error, blkid: u64) -> Error {
        error.at_block(self.synced().at(0, blkid))
    }

    fn head(&self) -> Result<Head> {
        Handle::head(self)
    }

    fn keeper(&self) -> Option<&Handle> {
        Some(self)
    }
}

impl ZapSource for &dyn Edit {
    fn block(&self, blkid: u64) -> Result<Buf> {
        self.read_block(blkid)
    }

    fn last_block(&self) -> u64 {
        self.max_block()
    }

    fn place(&self, error: Error, blkid: u64) -> Error {
        let what = format!("{} (object {}, block {blkid})", error.what(), self.number());
        Error::new(error.kind(), what)
    }

    fn head(&self) -> Result<Head> {
        Edit::head(*self)
    }

    fn keeper(&self) -> Option<&Handle> {
        Edit::keeper(*self)
    }
}
