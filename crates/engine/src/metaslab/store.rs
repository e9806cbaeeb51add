//! The operations on the pool's MOS that the allocator needs: hooks, set by the layer that owns the MOS.

use std::fmt::Debug;
use std::sync::Arc;

use crate::dmu::edit::Edit;
use crate::dmu::{Dense, Objset};
use crate::error::Result;

/// An object that the allocator keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceObject {
    /// A metaslab's own space map: type `DMU_OT_SPACE_MAP`, bonus `DMU_OT_SPACE_MAP_HEADER`. The allocator itself
    /// notes its number in the vdev's array.
    Map {
        /// Bytes of a data block.
        block_size: u64,
        /// Bytes of the bonus, zeros at first. When 320, the feature `spacemap_histogram` counts this object.
        head: usize,
    },
    /// The log space map of a txg: as [`SpaceObject::Map`]; the store notes it in the ZAP that
    /// `com.delphix:log_spacemap_zap` of the directory names (key: the txg in hex), creating that ZAP with the first
    /// log, from when on the feature `log_spacemap` is active.
    Log {
        /// The txg.
        txg: u64,
        /// As of a map.
        block_size: u64,
        /// As of a map.
        head: usize,
    },
    /// Freed space of a vdev that the pool's checkpoint keeps from reuse: as [`SpaceObject::Map`]; the store
    /// records it in the vdev's own ZAP as `com.delphix:pool_checkpoint_sm`.
    Checkpoint {
        /// The vdev.
        vdev: u64,
        /// As of a map.
        block_size: u64,
        /// As of a map.
        head: usize,
    },
    /// Obsolete space of a removed vdev: as [`SpaceObject::Map`]; the store records it in the vdev's own ZAP
    /// as `com.delphix:indirect_obsolete_sm`, and the feature `obsolete_counts` counts it.
    Obsolete {
        /// The vdev.
        vdev: u64,
        /// As of a map.
        block_size: u64,
        /// As of a map.
        head: usize,
    },
    /// Space map numbers of a vdev's metaslabs: type `DMU_OT_OBJECT_ARRAY`, no bonus; the store notes it in the vdev's
    /// config (`metaslab_array`), which is then dirty.
    Array {
        /// The vdev.
        vdev: u64,
    },
    /// Since which txg each metaslab's changes stand in logs: type `DMU_OTN_UINT64_METADATA`, blocks of 128 KiB, no
    /// bonus; the store notes it in the vdev's own ZAP as `com.delphix:ms_unflushed_phys_txgs`.
    UnflushedTxgs {
        /// The vdev.
        vdev: u64,
    },
}

/// Changes space maps in syncing context. Everything happens in the txg that is being synced.
pub trait SpaceMapStore {
    /// Creates an object, and records it at the place of `what`.
    fn create(&mut self, what: &SpaceObject) -> Result<u64>;
    /// Opens an object for change.
    fn open(&mut self, object: u64) -> Result<Box<dyn Edit + '_>>;
    /// Frees an object, and takes the note of it out.
    fn free(&mut self, what: &SpaceObject, object: u64) -> Result<()>;
}

/// Reads space maps of the open pool, at any time and from any thread.
pub trait SpaceMapSource: Send + Sync + Debug {
    /// Passes the first `length` bytes of an object to `each`, block by block, the last one truncated.
    ///
    /// # Errors
    /// Also errors of `each`.
    fn read(&self, object: u64, length: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

impl SpaceMapSource for Arc<Objset> {
    fn read(&self, object: u64, length: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let object = self.object(object)?;
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        for block in Dense::new(&object, length) {
            let block = block?;
            let used = left.min(block.len());
            left -= used;
            each(&block.slice(0..used))?;
        }
        Ok(())
    }
}
