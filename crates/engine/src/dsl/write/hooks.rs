//! The pool operations that the DSL needs, and the pool versions that it distinguishes.

use ondisk::Blkptr;
use zcommon::features::Feature;

use super::scan_moves::DatasetMove;
use crate::dmu::Tx;
use crate::error::Result;

/// Pool versions that brought something to the DSL.
#[doc(alias = "SPA_VERSION_*")]
pub mod version {
    /// Block lists count bytes before redundancy and compression.
    pub(crate) const BPOBJ_ACCOUNT: u64 = 3;
    /// `refreservation`; `unique_bytes` of heads is right.
    pub(crate) const UNIQUE_ACCURATE: u64 = 9;
    /// Every dataset is a clone of `$ORIGIN`; clones are listed at their origin.
    pub(crate) const ORIGIN: u64 = 11;
    /// Snapshots have properties.
    pub(crate) const SNAP_PROPS: u64 = 12;
    /// Directories have a breakdown of their used space.
    pub(crate) const USED_BREAKDOWN: u64 = 13;
    /// Holds.
    pub(crate) const USERREFS: u64 = 18;
    /// Received properties.
    pub(crate) const RECVD_PROPS: u64 = 22;
    /// Deadlists by txg, `$FREE`, lists of clones of a directory.
    pub(crate) const DEADLISTS: u64 = 26;
    /// Feature flags.
    pub const FEATURES: u64 = zcommon::version::SPA_VERSION_FEATURES;
}

/// The pool operations that the DSL needs.
pub trait Hooks: std::fmt::Debug + Send + Sync {
    /// The pool's version.
    fn version(&self) -> u64;
    /// How often a feature is in use; `None`: it is not enabled.
    fn feature(&self, feature: Feature) -> Option<u64>;
    /// Changes how often a feature is in use.
    #[doc(alias("spa_feature_incr", "spa_feature_decr"))]
    fn count_feature(&self, feature: Feature, delta: i64, tx: &Tx) -> Result<()>;
    /// Frees a block that nothing refers to any more.
    fn free(&self, bp: &Blkptr, tx: &Tx) -> Result<()>;
    /// A dataset was destroyed: its number may come again.
    fn dataset_gone(&self, number: u64);
    /// Datasets have changed that a scan follows; the state on disk follows already.
    fn scan_moved(&self, _: DatasetMove) -> Result<()> {
        Ok(())
    }
    /// A file system or volume was destroyed: its list of errors goes.
    fn forget_errors(&self, _head: u64, _: &Tx) -> Result<()> {
        Ok(())
    }
    /// A promotion gave the snapshots with the blocks born until a txg from one head to another.
    fn errors_moved(&self, _from_to: (u64, u64), _until: u64, _: &Tx) -> Result<()> {
        Ok(())
    }
    /// A place of a removed vdev, the first of the pointer's, is no longer needed there; its bytes still are.
    #[doc(alias = "spa_vdev_indirect_mark_obsolete")]
    fn mark_obsolete(&self, bp: &Blkptr, tx: &Tx) -> Result<()>;
    /// Whether work in memory needs the dataset of that number as it is.
    #[doc(alias = "dsl_dataset_long_held")]
    fn is_held(&self, _number: u64) -> bool {
        false
    }
    /// Any number: guids, seeds of hashes.
    fn random(&self) -> u64;
    /// Time of day: seconds since 1970, nanoseconds.
    fn now(&self) -> (u64, u64);
    /// Capacity of the whole pool, without its slop space; `netfree`: for operations that free space in the
    /// end, which may use part of the slop.
    #[doc(alias = "dsl_pool_adjustedsize")]
    fn pool_space(&self, netfree: bool) -> u64;
    /// Writes the changed objects of the MOS before their txg is complete, when there are many: they leave memory, and later
    /// passes write them in place. Called between two datasets that one task changes. A failure suspends the pool when the txg
    /// ends.
    fn relieve(&self, _: &Tx) {}
    /// Adds a line to the pool's history: operation, dataset (name, number), details.
    #[doc(alias = "spa_history_log_internal_ds")]
    fn log(&self, what: &str, name: &str, number: u64, details: &str, tx: &Tx) -> Result<()>;
}
