//! The MOS within one transaction, and the pool operations that the DSL needs.

use std::sync::Arc;

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::{Blkptr, Byteswap, ObjectType};
use zcommon::features::Feature;

use super::limits::Limited;
use super::scan_state::DatasetMove;
use crate::dmu::edit::{self, Edit, Objects};
use crate::dmu::{Handle, LiveObjset, NewObject, Tx};
use crate::error::{Error, Result};
use crate::txg;
use crate::types::Bookmark;
use crate::zap::{Entry, KeyRef, NewZap, Value, Zap, ZapEdit};

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

/// Type of a dataset or directory that has become a ZAP, too.
#[doc(alias = "DMU_OTN_ZAP_METADATA")]
pub(super) const ZAPIFIED: ObjectType = ObjectType::newtype(Byteswap::Zap, true, false);

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
    /// Writes the changed objects of the MOS before their txg is complete, when there are many: they leave memory, and later passes write
    /// them in place. Called between two datasets that one task changes. A failure suspends the pool when the txg ends.
    fn relieve(&self, _: &Tx) {}
    /// Adds a line to the pool's history: operation, dataset (name, number), details.
    #[doc(alias = "spa_history_log_internal_ds")]
    fn log(&self, what: &str, name: &str, number: u64, details: &str, tx: &Tx) -> Result<()>;
}

/// The MOS, read as it is now.
#[derive(Debug, Clone, Copy)]
pub struct MosView<'a> {
    /// The MOS.
    pub mos: &'a Arc<LiveObjset>,
}

/// The MOS, open for change in one transaction.
#[derive(Debug, Clone, Copy)]
pub struct MosTx<'a> {
    view: MosView<'a>,
    /// The transaction, in syncing context.
    pub tx: &'a Tx,
    /// The pool.
    pub hooks: &'a dyn Hooks,
    /// The user for whom the change is made, if limits on numbers of datasets hold it; none: the pool's owner.
    pub(crate) limited: Option<&'a dyn Limited>,
}

impl<'a> std::ops::Deref for MosTx<'a> {
    type Target = MosView<'a>;

    fn deref(&self) -> &Self::Target {
        &self.view
    }
}

impl MosView<'_> {
    /// A handle on an object.
    pub fn handle(&self, number: u64) -> Result<Arc<Handle>> {
        self.mos.handle(number)
    }

    /// An entry's value.
    pub fn zap_get<'k>(&self, number: u64, key: impl Into<KeyRef<'k>>) -> Result<Option<Value>> {
        self.read_zap(number)?.get(key)
    }

    /// An entry's first word.
    pub fn zap_word<'k>(&self, number: u64, key: impl Into<KeyRef<'k>>) -> Result<Option<u64>> {
        Ok(self.zap_get(number, key)?.and_then(|v| v.first()))
    }

    /// All entries; none for object 0.
    pub fn zap_entries(&self, number: u64) -> Result<Vec<Entry>> {
        if number == 0 {
            return Ok(Vec::new());
        }
        self.read_zap(number)?.to_vec()
    }

    /// Number of entries; none for object 0.
    pub(crate) fn zap_count(&self, number: u64) -> Result<u64> {
        if number == 0 { Ok(0) } else { self.read_zap(number)?.count() }
    }

    /// The entry that a walk over a ZAP meets first.
    pub fn zap_first(&self, number: u64) -> Result<Option<Entry>> {
        self.read_zap(number)?.entries().next().transpose()
    }

    pub(super) fn read_zap(&self, number: u64) -> Result<Zap> {
        let view = self.mos.view();
        Zap::open(&self.mos.object(&view, number)?)
    }

    /// A directory.
    pub fn dir(&self, number: u64) -> Result<DslDir> {
        let dnode = self.handle(number)?.dnode();
        DslDir::from_bytes(dnode.bonus()).map_err(|e| super::super::malformed(number, &e))
    }

    /// A dataset.
    pub fn dataset(&self, number: u64) -> Result<DslDataset> {
        let dnode = self.handle(number)?.dnode();
        DslDataset::from_bytes(dnode.bonus()).map_err(|e| super::super::malformed(number, &e))
    }

    /// Whether a dataset or directory has entries of its own.
    #[doc(alias = "dsl_dir_is_zapified")]
    pub(crate) fn is_zapified(&self, number: u64) -> Result<bool> {
        Ok(self.handle(number)?.dnode().object_type == ZAPIFIED)
    }

    /// An entry of a dataset or directory that has become a ZAP.
    pub fn extra(&self, number: u64, name: &str) -> Result<Option<Value>> {
        if !self.is_zapified(number)? {
            return Ok(None);
        }
        self.zap_get(number, name)
    }

    /// An error about an object of the MOS.
    pub fn corrupt(&self, number: u64, what: &str) -> Error {
        Error::corrupt(what).at_block(Bookmark::new(0, number, 0, 0))
    }
    /// Bytes that a block takes, all copies together, as if nothing were lost to parity.
    #[doc(alias = "bp_get_dsize_sync")]
    pub fn dsize(&self, bp: &Blkptr) -> u64 {
        crate::zio::deflated(&self.mos.arc().zio().tree(), bp)
    }
}

impl<'a> MosTx<'a> {
    /// The MOS under change by `tx`.
    pub fn new(mos: &'a Arc<LiveObjset>, tx: &'a Tx, hooks: &'a dyn Hooks) -> Self {
        Self { view: MosView { mos }, tx, hooks, limited: None }
    }

    /// Whether the pool's version is at least this one.
    pub fn since(&self, version: u64) -> bool {
        self.hooks.version() >= version
    }

    /// Whether a feature is enabled.
    pub(crate) fn enabled(&self, feature: Feature) -> bool {
        self.hooks.feature(feature).is_some()
    }

    /// Whether a feature is in use.
    pub(crate) fn active(&self, feature: Feature) -> bool {
        self.hooks.feature(feature).is_some_and(|n| n > 0)
    }

    /// Counts a use of a feature.
    pub fn count(&self, feature: Feature, delta: i64) -> Result<()> {
        self.hooks.count_feature(feature, delta, self.tx)
    }

    /// The creation txg of a dataset that is created now: the first datasets of a new pool are older than all
    /// others.
    pub(crate) fn creation_txg(&self) -> u64 {
        if self.tx.txg() == txg::INITIAL { 1 } else { self.tx.txg() }
    }

    /// Makes an object of 512-byte blocks.
    pub fn create(&self, kind: ObjectType, bonus: ObjectType, bonus_len: usize) -> Result<u64> {
        self.create_object(NewObject::with_bonus(kind, 512, bonus, bonus_len))
    }

    /// Makes an object.
    pub fn create_object(&self, new: NewObject) -> Result<u64> {
        Ok(self.mos.create_object(self.tx, new)?.number)
    }

    /// Frees an object.
    pub fn free_object(&self, number: u64) -> Result<()> {
        self.mos.free_object(self.tx, number)
    }

    /// Makes a ZAP.
    pub fn create_zap(&self, kind: ObjectType) -> Result<u64> {
        self.create_zap_with(kind, ObjectType::NONE, 0, 0)
    }

    /// Makes a ZAP that has a bonus buffer, or whose names are normalised.
    pub(crate) fn create_zap_with(
        &self,
        kind: ObjectType,
        bonus: ObjectType,
        bonus_len: usize,
        normflags: u64,
    ) -> Result<u64> {
        let number = self.create(kind, bonus, bonus_len)?;
        let new = NewZap { normflags, salt: self.hooks.random(), ..NewZap::default() };
        ZapEdit::create(&mut self.handle(number)?.edit(self.tx), &new)?;
        Ok(number)
    }

    /// Does something with a ZAP.
    pub fn zap<T>(&self, number: u64, work: impl FnOnce(&mut ZapEdit<'_>) -> Result<T>) -> Result<T> {
        let handle = self.handle(number)?;
        let mut edit = handle.edit(self.tx);
        work(&mut ZapEdit::open(&mut edit)?)
    }

    /// Adds an entry to a ZAP.
    pub fn zap_add(&self, number: u64, name: &str, value: impl Into<Value>) -> Result<()> {
        self.zap(number, |zap| zap.insert(name, value))
    }

    /// Adds an entry to a ZAP or replaces its value.
    pub fn zap_set(&self, number: u64, name: &str, value: impl Into<Value>) -> Result<()> {
        self.zap(number, |zap| zap.update(name, value))
    }

    /// Removes an entry of a ZAP.
    pub fn zap_remove(&self, number: u64, name: &str) -> Result<()> {
        self.zap(number, |zap| zap.remove(name))
    }

    /// Changes a directory.
    pub fn change_dir<T>(&self, number: u64, work: impl FnOnce(&mut DslDir) -> T) -> Result<T> {
        let mut phys = self.dir(number)?;
        let result = work(&mut phys);
        self.handle(number)?.set_bonus(self.tx, &phys.to_bytes())?;
        Ok(result)
    }

    /// Changes a dataset.
    pub(crate) fn change_dataset<T>(
        &self,
        number: u64,
        work: impl FnOnce(&mut DslDataset) -> T,
    ) -> Result<T> {
        let mut phys = self.dataset(number)?;
        let result = work(&mut phys);
        self.handle(number)?.set_bonus(self.tx, &phys.to_bytes())?;
        Ok(result)
    }

    /// Makes a ZAP of a dataset or directory.
    #[doc(alias = "dmu_object_zapify")]
    pub(crate) fn zapify(&self, number: u64) -> Result<()> {
        if self.is_zapified(number)? {
            return Ok(());
        }
        let handle = self.handle(number)?;
        let new = NewZap { salt: self.hooks.random(), ..NewZap::default() };
        ZapEdit::create(&mut handle.edit(self.tx), &new)?;
        handle.set_object_type(self.tx, ZAPIFIED)?;
        self.count(Feature::ExtensibleDataset, 1)
    }

    /// Frees a dataset or directory object.
    #[doc(alias = "dmu_object_free_zapified")]
    pub(crate) fn free_zapified(&self, number: u64) -> Result<()> {
        if self.is_zapified(number)? {
            self.count(Feature::ExtensibleDataset, -1)?;
        }
        self.free_object(number)
    }

    /// Sets an entry of a dataset or directory, which becomes a ZAP for it.
    pub(crate) fn set_extra(&self, number: u64, name: &str, value: impl Into<Value>) -> Result<()> {
        self.zapify(number)?;
        self.zap_set(number, name, value)
    }

    /// A fsid that no dataset has: 56 bits, not 0.
    #[doc(alias = "unique_create")]
    pub(crate) fn fsid(&self) -> u64 {
        (self.hooks.random() & ((1 << 56) - 1)).max(1)
    }

    /// A guid, not 0.
    pub(crate) fn guid(&self) -> u64 {
        self.hooks.random().max(1)
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        self.hooks.now().0
    }
}

impl Objects for MosTx<'_> {
    fn create(&self, new: &edit::NewObject) -> Result<u64> {
        self.create_object(NewObject::with_bonus(new.kind, new.block_size, new.bonus_kind, new.bonus_len))
    }

    fn free(&self, number: u64) -> Result<()> {
        self.free_object(number)
    }

    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>> {
        Ok(Box::new(self.handle(number)?.edit(self.tx)))
    }

    fn kind(&self, number: u64) -> Result<ObjectType> {
        Ok(self.handle(number)?.dnode().object_type)
    }
}
