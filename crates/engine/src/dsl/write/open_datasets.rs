//! Datasets that are open for writing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ondisk::names::dsl_dataset as field;
use ondisk::objset::ObjsetFlags;
use ondisk::{ChecksumType, CompressType, DnodeFlags, OLD_MAX_BLOCK_SIZE, ObjsetType};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::account::BlockAccount;
use super::hooks::Hooks;
use super::long_holds::LongHolds;
use super::mos_tx::{MosTx, MosView};
use super::received_key::RawKey;
use super::space;
use super::{crypto, names, props, readable};
use crate::dmu::dirty::IntentLog;
use crate::dmu::dirty::pending::PendingByDir;
use crate::dmu::dirty::policy::{Cached, Policy, RedundantMetadata};
use crate::dmu::{LiveObjset, SpecialObject, Tx};
use crate::dsl::Delta;
use crate::dsl::KeyStore;
use crate::dsl::props::PropValue;
use crate::dsl::props::inherit::inherited;
use crate::error::{Error, Kind, Result};
use crate::sa::usage;
use crate::txg;
use crate::zil::LogPolicy;
use crate::zio::Form;

/// First version with accounts by user, for which root blocks grew.
#[doc(alias = "SPA_VERSION_USERSPACE")]
const USERSPACE: u64 = 15;
/// Bit of the property `dedup`: blocks are compared.
#[doc(alias = "ZIO_CHECKSUM_VERIFY")]
const DEDUP_VERIFY: u64 = 1 << 8;
/// Accounting that features introduced, and the object set flags for its completion.
pub(crate) const BY_FEATURE: [(Feature, ObjsetFlags); 2] = [
    (Feature::UserobjAccounting, ObjsetFlags::USEROBJACCOUNTING_COMPLETE),
    (Feature::ProjectQuota, ObjsetFlags::PROJECTQUOTA_COMPLETE),
];
/// Bits of a compression setting that name the function; the level is above.
#[doc(alias = "SPA_COMPRESSBITS")]
const COMPRESS_BITS: u32 = 7;

/// A head dataset that is open for writing.
#[derive(Debug)]
pub struct LiveDataset {
    /// Its object number.
    pub number: u64,
    /// Its object set.
    pub objset: Arc<LiveObjset>,
    /// Features that it begins to use, by txg.
    features: Mutex<BTreeMap<u64, BTreeSet<Feature>>>,
    /// Flags that it gets, by txg.
    flags: Mutex<BTreeMap<u64, u64>>,
    /// Progress of a resumable receive for its token, by txg.
    resume: Mutex<BTreeMap<u64, [u64; 3]>>,
    /// Held while existing objects are counted in new accounts.
    pub(crate) counting: Mutex<()>,
    watcher: Mutex<Option<Watcher>>,
}

/// Called when properties may have changed.
struct Watcher(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

impl LiveDataset {
    fn new(number: u64, objset: Arc<LiveObjset>) -> Arc<Self> {
        let (features, flags) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            number,
            objset,
            features,
            flags,
            resume: Mutex::default(),
            counting: Mutex::default(),
            watcher: Mutex::default(),
        })
    }

    /// Its object set gets flags with this txg.
    pub(crate) fn add_flags(&self, flags: ObjsetFlags, tx: &Tx) -> Result<()> {
        *self.flags.lock().entry(tx.txg()).or_default() |= flags.0;
        self.objset.touch(tx)
    }

    /// Once the txg of `tx` is on disk, an interrupted receive is resumed at this object and offset, after so
    /// many bytes of the stream.
    #[doc(alias("ds_resume_object", "ds_resume_offset", "ds_resume_bytes"))]
    pub(crate) fn set_resume(&self, tx: &Tx, state: [u64; 3]) {
        self.resume.lock().insert(tx.txg(), state);
    }

    /// The dataset uses a feature from this txg on.
    #[doc(alias = "ds_feature_activation")]
    pub fn use_feature(&self, feature: Feature, tx: &Tx) {
        self.features.lock().entry(tx.txg()).or_default().insert(feature);
    }

    /// Whether a txg changed it that may not be on disk.
    fn is_changed(&self) -> bool {
        (0..txg::SIZE).any(|slot| self.objset.is_dirty(u64::try_from(slot).unwrap_or(0)))
    }

    /// Sets the callback for possible changes of properties, called in syncing context; `None`: none.
    pub fn watch(&self, told: Option<Arc<dyn Fn() + Send + Sync>>) {
        *self.watcher.lock() = told.map(Watcher);
    }
}

/// The datasets of a pool that are open for writing.
#[derive(Debug)]
pub struct DslPool {
    mos: Arc<LiveObjset>,
    /// Keys of encrypted datasets.
    pub(crate) keys: Arc<KeyStore>,
    open: Mutex<BTreeMap<u64, Arc<LiveDataset>>>,
    /// Datasets that must stay as they are.
    pub(crate) long_holds: LongHolds,
    /// Pending blocks below directories with a quota.
    pub(super) pending: PendingByDir,
    /// Hidden heads, marked as inconsistent, that are emptied and destroyed after the task that replaced them.
    replaced: Mutex<Vec<u64>>,
}

impl DslPool {
    /// None is open yet.
    pub fn new(mos: &Arc<LiveObjset>, keys: &Arc<KeyStore>) -> Arc<Self> {
        Arc::new(Self {
            mos: Arc::clone(mos),
            keys: Arc::clone(keys),
            open: Mutex::default(),
            long_holds: LongHolds::default(),
            pending: PendingByDir::default(),
            replaced: Mutex::default(),
        })
    }

    /// Notes a head that `Spa::dsl_task` empties and destroys once the txg of the task is on disk.
    pub(crate) fn note_replaced(&self, number: Option<u64>) {
        self.replaced.lock().extend(number);
    }

    /// Returns the heads that were noted since the last call.
    pub(crate) fn take_replaced(&self) -> Vec<u64> {
        std::mem::take(&mut self.replaced.lock())
    }

    /// The MOS as it is now.
    pub fn view(&self) -> MosView<'_> {
        MosView { mos: &self.mos }
    }

    /// The MOS within a transaction.
    pub fn at<'a>(&'a self, tx: &'a Tx, hooks: &'a dyn Hooks) -> MosTx<'a> {
        MosTx::new(&self.mos, tx, hooks)
    }

    /// Opens head `number` for writing; further calls return the same dataset.
    ///
    /// # Errors
    /// `KeyMissing` when it is encrypted and its key is not loaded, `Busy` while it must stay as it is.
    pub fn open(&self, hooks: &dyn Hooks, number: u64) -> Result<Arc<LiveDataset>> {
        let mut open = self.open.lock();
        if let Some(dataset) = open.get(&number) {
            return Ok(Arc::clone(dataset));
        }
        if self.long_holds.is_owned(number) {
            return Err(Error::new(Kind::Busy, "dataset is busy"));
        }
        let phys = self.view().dataset(number)?;
        if phys.is_snapshot() {
            return Err(Error::new(Kind::ReadOnly, "a snapshot can't be changed"));
        }
        self.keys.open_for_writing(number)?;
        readable::check_written(&self.view(), number)?;
        let policy = policy(&self.view(), hooks, phys.dir_obj)?;
        let objset = LiveObjset::open(self.mos.arc(), number, &phys.bp, Form::Logical, policy)?;
        let dataset = LiveDataset::new(number, objset);
        open.insert(number, Arc::clone(&dataset));
        Ok(dataset)
    }

    /// Opens head `number`, which a stream fills (syncing context). With a key the stream is raw: no key is needed here.
    ///
    /// # Errors
    /// As [`DslPool::open`].
    pub(crate) fn open_received(
        &self,
        at: &MosTx<'_>,
        number: u64,
        key: Option<&RawKey>,
    ) -> Result<Arc<LiveDataset>> {
        let Some(key) = key else { return self.open(at.hooks, number) };
        let phys = at.dataset(number)?;
        let policy = policy(at, at.hooks, phys.dir_obj)?;
        let objset = LiveObjset::open(self.mos.arc(), number, &phys.bp, Form::NoKey, policy)?;
        let meta = objset.special(SpecialObject::Meta)?;
        let (levels, last) = (key.meta.nlevels, meta.dnode().maxblkid.max(key.meta.maxblkid));
        meta.set_shape(at.tx, levels, last)?;
        let live = self.insert_raw(number, objset, key);
        self.sync_dataset(at, &live)?;
        Ok(live)
    }

    /// Makes the object set of a dataset that a raw stream fills.
    #[doc(alias = "dmu_objset_create_impl_dnstats")]
    pub(crate) fn create_raw_objset(
        &self,
        at: &MosTx<'_>,
        number: u64,
        kind: ObjsetType,
        key: &RawKey,
    ) -> Result<Arc<LiveDataset>> {
        let policy = policy(at, at.hooks, at.dataset(number)?.dir_obj)?;
        let (arc, new) = (self.mos.arc(), (kind, key.meta.clone()));
        let objset = LiveObjset::create_with(arc, number, new, 4096, Form::NoKey, policy);
        objset.change_root(at.tx, |_| ())?;
        Ok(self.insert_raw(number, objset, key))
    }

    fn insert_raw(&self, number: u64, objset: Arc<LiveObjset>, key: &RawKey) -> Arc<LiveDataset> {
        objset.set_raw(key.portable_mac);
        let dataset = LiveDataset::new(number, objset);
        self.open.lock().insert(number, Arc::clone(&dataset));
        dataset
    }

    /// Makes the object set of a new dataset (syncing context); [`DslPool::sync_dataset`] writes it.
    #[doc(alias = "dmu_objset_create_impl")]
    pub(crate) fn create_objset(
        &self,
        at: &MosTx<'_>,
        number: u64,
        kind: ObjsetType,
    ) -> Result<Arc<LiveDataset>> {
        let phys = at.dataset(number)?;
        self.keys.open_for_writing(number)?;
        let policy = policy(at, at.hooks, phys.dir_obj)?;
        let size = if at.since(USERSPACE) { 4096 } else { 1024 };
        let objset = LiveObjset::create(self.mos.arc(), number, kind, size, Form::Logical, policy);
        let dataset = LiveDataset::new(number, objset);
        let mut flags = 0;
        if at.since(USERSPACE) && kind == ObjsetType::Zfs {
            flags |= ObjsetFlags::USERACCOUNTING_COMPLETE.0;
            for (feature, flag) in BY_FEATURE.into_iter().filter(|(feature, _)| at.enabled(*feature)) {
                flags |= flag.0;
                dataset.use_feature(feature, at.tx);
            }
        }
        dataset.objset.change_root(at.tx, |phys| phys.flags = ObjsetFlags(flags))?;
        self.open.lock().insert(number, Arc::clone(&dataset));
        Ok(dataset)
    }

    /// Forgets an open dataset: it was destroyed or rolled back, or is unused.
    pub(crate) fn close(&self, number: u64) {
        self.open.lock().remove(&number);
    }

    /// Forgets the key of an encryption root (a directory's number), and closes the datasets that it opened.
    ///
    /// # Errors
    /// `Busy` while one of them is in use, or was changed in a txg that is not on disk; `KeyMissing` when the
    /// key is not loaded.
    #[doc(alias = "spa_keystore_unload_wkey")]
    pub fn unload_key(&self, root: u64) -> Result<()> {
        let mut open = self.open.lock();
        let view = self.view();
        let mut below = Vec::new();
        for (&number, dataset) in &*open {
            if crypto::root_of(&view, view.dataset(number)?.dir_obj)? != Some(root) {
                continue;
            }
            let used = Arc::strong_count(dataset) > 1 || Arc::strong_count(&dataset.objset) > 1;
            if used || dataset.is_changed() {
                return Err(Error::new(Kind::Busy, "the key is in use"));
            }
            below.push(number);
        }
        for number in self.long_holds.keyed() {
            // One that is gone meanwhile needs no key.
            let dir = view.dataset(number).map(|phys| phys.dir_obj);
            if let Ok(dir) = dir
                && crypto::root_of(&view, dir)? == Some(root)
            {
                return Err(Error::new(Kind::Busy, "the key is in use"));
            }
        }
        self.keys.unload(root)?;
        open.retain(|number, _| !below.contains(number));
        self.mos.arc().forget_all();
        Ok(())
    }

    /// Whether head `number` is open, or was changed in a txg that is not on disk.
    pub(crate) fn is_used(&self, number: u64) -> bool {
        let open = self.open.lock();
        open.get(&number).is_some_and(|dataset| {
            let held = Arc::strong_count(dataset) > 1 || Arc::strong_count(&dataset.objset) > 1;
            held || dataset.objset.has_log() || dataset.is_changed()
        })
    }

    /// Whether a txg changed a dataset.
    pub(crate) fn is_dirty(&self, txg: u64) -> bool {
        self.open.lock().values().any(|dataset| dataset.objset.is_dirty(txg))
    }

    /// Writes all datasets that the txg changed.
    #[doc(alias = "dsl_pool_sync")]
    pub fn sync(&self, hooks: &dyn Hooks, tx: &Tx) -> Result<()> {
        self.close_unused();
        let dirty = |dataset: &&Arc<LiveDataset>| dataset.objset.is_dirty(tx.txg());
        let all: Vec<_> = self.open.lock().values().filter(dirty).cloned().collect();
        let at = self.at(tx, hooks);
        for dataset in all {
            self.sync_dataset(&at, &dataset)?;
        }
        Ok(())
    }

    /// Closes unused datasets without unsynced changes, such as those that were created and not mounted.
    /// Called when the txg before is on disk, so that they are read in their present state.
    fn close_unused(&self) {
        let used = |dataset: &Arc<LiveDataset>| {
            let held = Arc::strong_count(dataset) > 1 || Arc::strong_count(&dataset.objset) > 1;
            held || dataset.objset.has_log() || dataset.is_changed()
        };
        self.open.lock().retain(|_, dataset| used(dataset));
    }

    /// Pointers that `txg` cloned in all datasets, one for each new reference.
    pub(crate) fn cloned(&self, txg: u64) -> Vec<ondisk::Blkptr> {
        let open: Vec<_> = self.open.lock().values().cloned().collect();
        open.iter().flat_map(|dataset| dataset.objset.cloned(txg)).collect()
    }

    /// Writes one dataset and puts its accounts in order.
    #[doc(alias = "dsl_dataset_sync")]
    pub(crate) fn sync_dataset(&self, at: &MosTx<'_>, dataset: &LiveDataset) -> Result<()> {
        let account = BlockAccount::open(*at, dataset.number)?;
        for feature in dataset.features.lock().remove(&at.tx.txg()).unwrap_or_default() {
            account.use_feature(feature);
        }
        if let Some(state) = dataset.resume.lock().remove(&at.tx.txg()) {
            let names = [field::RESUME_OBJECT, field::RESUME_OFFSET, field::RESUME_BYTES];
            names.iter().zip(state).try_for_each(|(name, word)| at.set_extra(dataset.number, name, word))?;
        }
        let objset = &dataset.objset;
        objset.add_flags(ObjsetFlags(dataset.flags.lock().remove(&at.tx.txg()).unwrap_or_default()));
        let changed = objset.sync_objects(at.tx, &account)?;
        if changed.iter().any(|c| c.after.dnode.size() > ondisk::dnode::DNODE_MIN_SIZE) {
            account.use_feature(Feature::LargeDnode);
        }
        // OpenZFS counts the first large block that is no hole; a raw stream that it makes before that cuts the block size.
        if changed.iter().any(|c| c.after.dnode.datablksz() > OLD_MAX_BLOCK_SIZE) {
            account.use_feature(Feature::LargeBlocks);
        }
        if objset.objset_type() == ObjsetType::Zfs && at.since(USERSPACE) && !objset.is_raw() {
            let projects = at.enabled(Feature::ProjectQuota);
            objset.grow_root(projects);
            usage::account(objset, &changed, projects, at.tx, at.hooks.random())?;
            objset.sync_objects(at.tx, &account)?;
        }
        let root = objset.sync_root(at.tx, &account)?;
        account.close(root)
    }

    /// Accounts the change of the MOS' own blocks since the last call.
    #[doc(alias = "dsl_pool_mos_diduse_space")]
    pub(crate) fn mos_used(
        &self,
        hooks: &dyn Hooks,
        [used, compressed, uncompressed]: [i64; 3],
        tx: &Tx,
    ) -> Result<()> {
        let at = self.at(tx, hooks);
        let delta = Delta { used, compressed, uncompressed };
        space::charge(&at, names::mos_dir(&at)?, ondisk::dsl::DslDir::USED_HEAD, delta)
    }

    /// Recomputes the policies of all open datasets, after a change of features or of the pool version.
    pub fn refresh_policies(&self, hooks: &dyn Hooks) -> Result<()> {
        self.refresh_those(hooks, |_| Ok(true))
    }

    /// Recomputes the policies of open datasets at and below a directory, after a change of properties.
    pub(crate) fn refresh_below(&self, dir: u64, hooks: &dyn Hooks) -> Result<()> {
        self.refresh_those(hooks, |of| {
            for above in self.view().ancestors(of) {
                if above?.0 == dir {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Refreshes open datasets of the directories that `is_concerned` selects.
    fn refresh_those(&self, hooks: &dyn Hooks, is_concerned: impl Fn(u64) -> Result<bool>) -> Result<()> {
        let all: Vec<_> = self.open.lock().values().cloned().collect();
        for dataset in all {
            let dir = self.view().dataset(dataset.number)?.dir_obj;
            if !is_concerned(dir)? {
                continue;
            }
            dataset.objset.set_policy(policy(&self.view(), hooks, dir)?);
            let told = dataset.watcher.lock().as_ref().map(|watcher| Arc::clone(&watcher.0));
            if let Some(told) = told {
                told();
            }
        }
        Ok(())
    }

    /// Intent logs in use.
    pub(crate) fn logs(&self) -> Vec<Arc<dyn IntentLog>> {
        self.open.lock().values().filter_map(|dataset| dataset.objset.log()).collect()
    }

    /// Open datasets whose intent logs are in use: mounted file systems, and volumes in use.
    pub fn logged(&self) -> Vec<Arc<LiveDataset>> {
        self.open.lock().values().filter(|dataset| dataset.objset.log().is_some()).map(Arc::clone).collect()
    }

    /// The open dataset of that number.
    pub(crate) fn opened(&self, number: u64) -> Option<Arc<LiveDataset>> {
        self.open.lock().get(&number).cloned()
    }
}

impl DslPool {
    /// A number property in force on head `number`; `None`: the default holds.
    pub fn number_property(&self, number: u64, name: &str) -> Result<Option<u64>> {
        let dir = self.view().dataset(number)?.dir_obj;
        Ok(inherited(&self.view(), dir, name)?.as_ref().and_then(PropValue::number))
    }

    /// How head `number`'s intent log is written.
    pub fn log_policy(&self, number: u64) -> Result<LogPolicy> {
        let value = |name| self.number_property(number, name).map(Option::unwrap_or_default);
        Ok(LogPolicy::of(value("sync")?, value("logbias")?))
    }
}

/// Accounting that file systems of the pool support, as flags of their object sets.
#[doc(alias(
    "dmu_objset_userused_enabled",
    "dmu_objset_userobjused_enabled",
    "dmu_objset_projectquota_enabled"
))]
pub(crate) fn countable(hooks: &dyn Hooks) -> ObjsetFlags {
    if hooks.version() < USERSPACE {
        return ObjsetFlags::default();
    }
    let enabled = |(feature, _): &(Feature, ObjsetFlags)| hooks.feature(*feature).is_some();
    let more = BY_FEATURE.iter().filter(|pair| enabled(pair));
    more.fold(ObjsetFlags::USERACCOUNTING_COMPLETE, |all, (_, flag)| ObjsetFlags(all.0 | flag.0))
}

/// The flags of objects that the accounts of users have counted.
fn accounted(hooks: &dyn Hooks) -> DnodeFlags {
    let bytes = if hooks.version() >= USERSPACE { DnodeFlags::USERUSED_ACCOUNTED.0 } else { 0 };
    let objects = hooks.feature(Feature::UserobjAccounting).is_some();
    DnodeFlags(bytes | if objects { DnodeFlags::USEROBJUSED_ACCOUNTED.0 } else { 0 })
}

/// Parses a value of the property `dedup`: the checksum, and whether blocks are compared.
#[doc(alias = "zio_checksum_dedup_select")]
fn dedup_of(value: Option<u64>) -> Option<(ChecksumType, bool)> {
    let value = value?;
    let verify = value & DEDUP_VERIFY != 0;
    match ChecksumType::from_raw(u8::try_from(value & 0xff).unwrap_or(0))? {
        ChecksumType::On => Some((ChecksumType::Sha256, verify)),
        own if own.is_dedup_strong() => Some((own, verify)),
        // Blocks are always compared.
        ChecksumType::Edonr => Some((ChecksumType::Edonr, true)),
        // Off, and checksums that have no tables.
        _ => None,
    }
}

/// How the blocks of a directory's head are written. The default takes the place of a value that the pool's version and
/// features do not have: such a value is refused when it is set, but a pool may hold it nevertheless.
pub(crate) fn policy(at: &MosView<'_>, hooks: &dyn Hooks, dir: u64) -> Result<Policy> {
    let number = |name: &str| -> Result<Option<u64>> {
        let value = inherited(at, dir, name)?.as_ref().and_then(PropValue::number);
        Ok(value.filter(|value| props::PropNeeds::of(name, *value).is_none_or(|needs| needs.is_met(hooks))))
    };
    let enabled = |feature| hooks.feature(feature).is_some();
    let compression = number("compression")?.unwrap_or(u64::from(CompressType::On.raw()));
    let raw = |value: u64| u8::try_from(value).unwrap_or(u8::MAX);
    let checksum = number("checksum")?.map(raw).and_then(ChecksumType::from_raw);
    let checksum = checksum.unwrap_or(ChecksumType::On);
    let compress = CompressType::from_raw(raw(compression & ((1 << COMPRESS_BITS) - 1)));
    let compress = compress.unwrap_or(CompressType::On);
    let redundant = match number("redundant_metadata")?.unwrap_or(0) {
        0 => RedundantMetadata::All,
        1 => RedundantMetadata::Most,
        2 => RedundantMetadata::Some,
        _ => RedundantMetadata::None,
    };
    let lz4 = hooks.feature(Feature::Lz4Compress).is_some_and(|n| n > 0);
    Ok(Policy {
        checksum,
        compress,
        level: raw(compression >> COMPRESS_BITS),
        copies: raw(number("copies")?.unwrap_or(1).clamp(1, 3)),
        redundant,
        special_small: number("special_small_blocks")?.unwrap_or(0),
        cached: Cached::from_number(number("primarycache")?.unwrap_or(u64::MAX)),
        meta: false,
        meta_compress: if lz4 { CompressType::Lz4 } else { CompressType::Lzjb },
        embed: enabled(Feature::EmbeddedData),
        hole_birth: enabled(Feature::HoleBirth),
        dedup: dedup_of(number("dedup")?),
        encrypt: crypto::key_object(at, dir)?.is_some(),
        nopwrite: checksum.is_nopwrite_strong() && compress != CompressType::Off,
        accounted: accounted(hooks),
    })
}
