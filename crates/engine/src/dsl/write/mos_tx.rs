//! The MOS within one transaction.

use std::fmt;
use std::sync::Arc;

use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::{Blkptr, Byteswap, ObjectType};
use zcommon::features::Feature;

use super::hooks::Hooks;
use crate::dmu::edit::{Edit, Objects};
use crate::dmu::{Handle, LiveObjset, NewObject, Tx};
use crate::dsl::Delta;
use crate::dsl::lookup::ReadNames;
use crate::error::{Error, Result};
use crate::txg;
use crate::types::Bookmark;
use crate::zap::{KeyRef, NewZap, Value, Zap, ZapEdit, ZapEntry};

/// Type of a dataset or directory that has become a ZAP, too.
#[doc(alias = "DMU_OTN_ZAP_METADATA")]
pub(super) const ZAPIFIED: ObjectType = ObjectType::newtype(Byteswap::Zap, true, false);

/// A user that limits hold.
#[doc(alias = "dsl_enforce_ds_ss_limits")]
pub trait Limited: fmt::Debug + Send + Sync {
    /// Whether the user may change the property `limit` of a directory.
    fn may_change(&self, at: &MosView<'_>, dir: u64, limit: &str) -> Result<bool>;
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
    pub fn zap_entries(&self, number: u64) -> Result<Vec<ZapEntry>> {
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
    pub fn zap_first(&self, number: u64) -> Result<Option<ZapEntry>> {
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

    /// A directory and those above it, the root last.
    pub fn ancestors(&self, dir: u64) -> impl Iterator<Item = Result<(u64, DslDir)>> {
        ReadNames::ancestors(self, dir)
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

    /// A block's size in all three ways.
    pub(super) fn sizes(&self, bp: &Blkptr) -> Delta {
        Delta::of(self.dsize(bp), bp.psize(), bp.ucsize())
    }

    /// The txg of a clone's origin; 0 for a directory that is no clone's.
    pub(super) fn origin_txg(&self, dir: &DslDir) -> Result<u64> {
        match dir.origin_obj {
            0 => Ok(0),
            origin => Ok(self.dataset(origin)?.creation_txg),
        }
    }
}

impl ReadNames for MosView<'_> {
    fn root_dir(&self) -> Result<u64> {
        let root = self.zap_word(MOS_DIRECTORY_OBJECT, mos::ROOT_DATASET)?;
        root.ok_or_else(|| Error::corrupt("the pool has no root dataset"))
    }

    fn dir_phys(&self, number: u64) -> Result<DslDir> {
        self.dir(number)
    }

    fn dataset_phys(&self, number: u64) -> Result<DslDataset> {
        self.dataset(number)
    }

    fn open_zap(&self, number: u64) -> Result<Option<Zap>> {
        if number == 0 { Ok(None) } else { self.read_zap(number).map(Some) }
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

    /// Frees a block that nothing refers to any more, if it takes space at all.
    pub(super) fn free_block(&self, bp: &Blkptr) -> Result<()> {
        if bp.is_embedded() || bp.is_hole() { Ok(()) } else { self.hooks.free(bp, self.tx) }
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
    fn create(&self, new: &NewObject) -> Result<u64> {
        self.create_object(*new)
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
