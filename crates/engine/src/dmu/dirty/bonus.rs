//! The parts of a dirty object outside of its blocks: bonus buffer, spill block, and the fields of its dnode.

use std::sync::Arc;

use ondisk::ObjectType;
use stdx::Buf;

use super::change::{Spill, StoredBlock};
use super::handle::Handle;
use super::needs::Needs;
use crate::dmu::tx::Tx;
use crate::error::{Kind, Result};

impl Handle {
    /// The current spill block.
    pub fn spill(&self) -> Result<Option<Buf>> {
        let (synced, as_of) = {
            let state = self.state.read();
            for change in state.newest_first() {
                match &change.spill {
                    Spill::Same if change.wipe => return Ok(None),
                    Spill::Same => {}
                    Spill::Removed => return Ok(None),
                    Spill::Set(buf) => return Ok(Some(buf.clone())),
                    Spill::Stored(block) => return block.open().map(Some),
                }
            }
            (Arc::clone(&state.synced), state.synced.objset.moment())
        };
        match synced.spill_as_of(as_of) {
            // The block was freed and its space reused during the read.
            Err(e) if e.kind() == Kind::Checksum && !Arc::ptr_eq(&synced, &self.synced()) => self.spill(),
            other => other,
        }
    }

    /// Replaces the bonus buffer.
    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, bytes: &[u8]) -> Result<()> {
        self.change(tx, |dnode, _| dnode.set_bonus(bytes))
    }

    /// Changes the bonus buffer in place.
    pub fn patch_bonus(self: &Arc<Self>, tx: &Tx, work: impl FnOnce(&mut [u8])) -> Result<()> {
        self.change(tx, |dnode, _| work(dnode.bonus_mut()))
    }

    /// Replaces the bonus buffer by encrypted bytes, of which `len` are in use.
    pub(crate) fn set_sealed_bonus(self: &Arc<Self>, tx: &Tx, bytes: &[u8], len: usize) -> Result<()> {
        self.change(tx, |dnode, _| dnode.set_sealed_bonus(bytes, len))
    }

    /// Sets the height of the block tree and the last block to those of the sender of a raw stream.
    #[doc(alias("dmu_object_set_nlevels", "dmu_object_set_maxblkid"))]
    pub(crate) fn set_shape(self: &Arc<Self>, tx: &Tx, levels: u8, maxblkid: u64) -> Result<()> {
        self.change(tx, |dnode, _| {
            dnode.maxblkid = maxblkid;
            dnode.nlevels = dnode.nlevels.max(levels);
        })
    }

    /// Replaces the bonus buffer and sets its type.
    pub fn set_typed_bonus(self: &Arc<Self>, tx: &Tx, kind: ObjectType, bytes: &[u8]) -> Result<()> {
        self.change(tx, |dnode, _| {
            dnode.bonustype = kind;
            dnode.set_bonus(bytes);
        })
    }

    /// Writes or removes the spill block (512 bytes to 128 KiB, whole sectors).
    pub fn set_spill(self: &Arc<Self>, tx: &Tx, bytes: Option<Buf>) -> Result<()> {
        if let Some(bytes) = &bytes {
            let objset = self.objset()?;
            let copies = objset.policy.read().spill(&self.dnode()).copies;
            objset.needs(tx, Needs::block(u64::try_from(bytes.len()).unwrap_or(0), copies));
        }
        self.change(tx, |dnode, change| {
            match &bytes {
                // Its location becomes known when it is written; the flag and the space are needed now.
                Some(_) => dnode.set_spill(Some(dnode.spill().copied().unwrap_or_default())),
                None => dnode.set_spill(None),
            }
            change.spill = bytes.map_or(Spill::Removed, Spill::Set);
        })
    }

    /// Replaces the spill block by one of a send stream, which is written unchanged.
    pub(crate) fn set_stored_spill(self: &Arc<Self>, tx: &Tx, block: StoredBlock) -> Result<()> {
        let objset = self.objset()?;
        let copies = objset.policy.read().spill(&self.dnode()).copies;
        objset.needs(tx, Needs::block(u64::try_from(block.bytes.len()).unwrap_or(0), copies));
        self.change(tx, |dnode, change| {
            dnode.set_spill(Some(dnode.spill().copied().unwrap_or_default()));
            change.spill = Spill::Stored(block);
        })
    }

    /// Changes the type of the object's blocks.
    pub(crate) fn set_object_type(self: &Arc<Self>, tx: &Tx, kind: ObjectType) -> Result<()> {
        self.change(tx, |dnode, _| dnode.object_type = kind)
    }

    /// Changes checksum and compression of the object's blocks (raw numbers; 0 inherits).
    pub(crate) fn set_functions(self: &Arc<Self>, tx: &Tx, checksum: u8, compress: u8) -> Result<()> {
        self.change(tx, |dnode, _| (dnode.checksum, dnode.compress) = (checksum, compress))
    }
}
