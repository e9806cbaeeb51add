//! Clone tables of a pool that is being written: references that begin and end.
//!
//! The references of a txg are counted together ([`CloneTables::add`]) before anything that the txg frees. The first entry of
//! a vdev makes its table. A block that has an entry is not freed: its entry loses a reference, and goes with
//! the last additional one. A region's counter shows without a read that no block in it has an entry. Entries
//! change at once; counters and heads are written, and tables without entries removed, when the pass ends
//! ([`CloneTables::sync`]).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::BrtVdev;
use ondisk::zap::ZapFlags;
use ondisk::{Blkptr, Byteswap, ObjectType};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::counts::{BrtCounts, bump};
use crate::ddt;
use crate::dmu::edit::Edit;
use crate::dmu::{NewObject, Object, Objset};
use crate::error::{Error, Kind, Result};
use crate::zap::{NewZap, Value, Zap, ZapEdit};

/// Bytes of a region.
#[doc(alias = "BRT_RANGESIZE")]
const REGION: u64 = 16 << 20;
/// Bytes of a block of counters.
#[doc(alias = "BRT_BLOCKSIZE")]
const COUNTERS_BLOCK: u64 = 32 << 10;
/// Bytes of a block of entries.
#[doc(alias = "brt_zap_default_bs")]
const ENTRIES_BLOCK: u64 = 1 << 13;
/// Types of the entries and of the counters.
#[doc(alias("DMU_OTN_ZAP_METADATA", "DMU_OTN_UINT64_METADATA"))]
const TYPES: (ObjectType, ObjectType) =
    (ObjectType::newtype(Byteswap::Zap, true, false), ObjectType::newtype(Byteswap::Uint64, true, false));
/// Counters that a table may have: those of a vdev of many PiB.
const MAX_COUNTERS: u64 = 1 << 30;
/// Times that a table is read again because a txg reached the disk meanwhile.
const CHECKS: u32 = 16;

/// The pool operations that clone tables need, within one transaction.
pub(crate) trait BrtHost: ddt::host::DdtHost {
    /// How often a feature is in use; `None` if it is not enabled.
    fn feature(&self, feature: Feature) -> Option<u64>;
    /// Bytes of top-level vdev `vdev`, whole metaslabs.
    #[doc(alias = "vdev_get_min_asize")]
    fn vdev_bytes(&self, vdev: u64) -> Option<u64>;
}

/// A block that gets more references.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Added {
    /// The block.
    pub(crate) bp: Blkptr,
    /// Its new references.
    pub(crate) count: u64,
}

/// The clone tables of a pool.
#[derive(Debug, Default)]
pub(crate) struct CloneTables {
    all: Mutex<BTreeMap<u64, Live>>,
    saved: AtomicU64,
    pub(crate) counts: BrtCounts,
    /// The reason why the tables are unknown, while they are rebuilt.
    unknown: Mutex<Option<Error>>,
}

/// The entries of a table as a txg left them on disk.
struct OnDisk {
    object: Arc<Object>,
    zap: Option<Zap>,
    head: BrtVdev,
    words: bool,
}

impl OnDisk {
    /// Reads the entry of a block, if there is one.
    fn check(&mut self, offset: u64) -> Result<()> {
        let zap = match self.zap.take() {
            Some(zap) => zap,
            None => Zap::open(&*self.object)?,
        };
        let stored = self.zap.insert(zap).lookup_words(&[offset])?;
        stored.map_or(Ok(()), |stored| count_of(&self.head, self.words, &stored).map(drop))
    }
}

#[derive(Debug)]
struct Live {
    name: String,
    object: u64,
    head: BrtVdev,
    counters: Vec<u16>,
    /// Counters that are not as on disk.
    changed: BTreeSet<usize>,
    dirty: bool,
    /// Entries are words, not bytes in the writer's order (`block_cloning_endian`).
    words: bool,
    /// Why it changes no more: frees leak the blocks of the vdev, and none is cloned.
    damage: Option<Error>,
}

impl CloneTables {
    /// The tables of an existing pool.
    ///
    /// A table whose head or counters cannot be read is kept as damaged.
    pub(crate) fn load(view: &Arc<Objset>, words: bool) -> Result<Self> {
        let mut all = BTreeMap::new();
        for (name, object) in super::named(view)?.into_iter().filter(|(_, object)| *object != 0) {
            let Some(vdev) = super::vdev_of(&name) else { continue };
            let table = match Live::load(view, name, object, words) {
                Err(why) if is_damage(&why) => Live::damaged(why),
                loaded => loaded?,
            };
            all.insert(vdev, table);
        }
        let tables = Self { all: Mutex::new(all), ..Self::default() };
        tables.count_saved(&tables.all.lock());
        Ok(tables)
    }

    /// Tables with unknown content, until [`CloneTables::replace`]: freed blocks leak, and no block is cloned.
    pub(crate) fn unknown(why: &Error) -> Self {
        Self { unknown: Mutex::new(Some(why.clone())), ..Self::default() }
    }

    /// Makes tables with these entries (syncing context). The objects of the old tables, and their names, are gone.
    pub(crate) fn replace(&self, host: &dyn BrtHost, added: &[Added]) -> Result<()> {
        *self.unknown.lock() = None;
        self.all.lock().clear();
        self.add(host, added)
    }

    /// The tables that change no more, by vdev, and why.
    pub(crate) fn damaged(&self) -> Vec<(u64, Error)> {
        self.all.lock().iter().filter_map(|(vdev, table)| Some((*vdev, table.damage.clone()?))).collect()
    }

    /// Whether there is any table.
    pub(crate) fn is_used(&self) -> bool {
        !self.all.lock().is_empty()
    }

    /// Bytes that the pool would need more without clones.
    #[doc(alias = "brt_get_dspace")]
    pub(crate) fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    fn count_saved(&self, all: &BTreeMap<u64, Live>) {
        let saved = all.values().map(|table| table.head.savedspace).fold(0, u64::saturating_add);
        self.saved.store(saved, Ordering::Relaxed);
    }

    /// Blocks get more references (syncing context). Blocks are best sorted by vdev and offset.
    ///
    /// # Errors
    /// When a table cannot be read: a block whose references can't be counted must not get another one.
    #[doc(alias = "brt_pending_apply")]
    pub(crate) fn add(&self, host: &dyn BrtHost, added: &[Added]) -> Result<()> {
        let mut all = self.all.lock();
        let vdev_of = |one: &Added| one.bp.dva(0).map_or(u64::MAX, |dva| u64::from(dva.vdev));
        for group in added.chunk_by(|a, b| vdev_of(a) == vdev_of(b)) {
            let Some(vdev) = group.first().map(vdev_of) else { continue };
            let table = match all.entry(vdev) {
                Entry::Occupied(table) => table.into_mut(),
                Entry::Vacant(slot) => slot.insert(Live::create(host, vdev)?),
            };
            table.add(host, group, &self.counts)?;
        }
        Ok(())
    }

    /// A reference to a block ends (syncing context). Returns true when others are left, or when the table is
    /// damaged.
    #[doc(alias = "brt_entry_decref")]
    pub(crate) fn release(&self, host: &dyn BrtHost, bp: &Blkptr) -> Result<bool> {
        if self.unknown.lock().is_some() {
            return Ok(true);
        }
        let mut all = self.all.lock();
        let Some(dva) = bp.dva(0).filter(|_| !all.is_empty()) else { return Ok(false) };
        match all.get_mut(&u64::from(dva.vdev)) {
            Some(table) => match table.release(host, bp, dva.offset, &self.counts) {
                // Other references to the block may exist: it stays.
                Err(e) if is_damage(&e) => Ok(true),
                released => released,
            },
            None => Ok(false),
        }
    }

    /// Whether a block has more references than one; true when a damaged table does not tell. Changes nothing.
    pub(crate) fn refers(&self, host: &dyn BrtHost, bp: &Blkptr) -> Result<bool> {
        if self.unknown.lock().is_some() {
            return Ok(true);
        }
        let all = self.all.lock();
        let Some(dva) = bp.dva(0) else { return Ok(false) };
        let Some(table) = all.get(&u64::from(dva.vdev)) else { return Ok(false) };
        let region = usize::try_from(dva.offset / table.head.rangesize.max(1)).unwrap_or(usize::MAX);
        if table.damage.is_some() || table.counters.get(region).is_none_or(|counter| *counter == 0) {
            return Ok(table.damage.is_some());
        }
        let mut edit = entries_of(host, table.head.mos_entries)?;
        Ok(ZapEdit::open(&mut *edit)?.lookup([dva.offset].as_slice())?.is_some())
    }

    /// Reads the places of blocks in the tables: a reference whose place cannot be read could not be counted when it is
    /// written.
    ///
    /// The tables are read as they are on disk: a txg that is being written may have changed some blocks of a table and not
    /// yet the others. Such a txg has read all blocks that it has changed.
    ///
    /// # Errors
    /// The first error.
    pub(crate) fn check<'a>(&self, view: &Arc<Objset>, all: impl Iterator<Item = &'a Blkptr>) -> Result<()> {
        let mut open: BTreeMap<u32, Option<OnDisk>> = BTreeMap::new();
        for dva in all.filter_map(|bp| bp.dva(0)) {
            let mut tries = CHECKS;
            loop {
                let table = match open.entry(dva.vdev) {
                    Entry::Occupied(table) => table.into_mut(),
                    Entry::Vacant(slot) => slot.insert(self.on_disk(view, dva.vdev)?),
                };
                let Some(table) = table else { break };
                match table.check(dva.offset) {
                    Ok(()) => break,
                    // A txg reached the disk during the read, and another the space of a block that it gave up.
                    Err(_) if tries > 0 && !self.is_same(view, table, dva.vdev) => tries -= 1,
                    Err(e) => return Err(e),
                }
                open.remove(&dva.vdev);
            }
        }
        Ok(())
    }

    /// The table of a vdev as it is on disk; `None` if it has no entries there.
    fn on_disk(&self, view: &Arc<Objset>, vdev: u32) -> Result<Option<OnDisk>> {
        let entry_of = |table: &Live| (table.head, table.words);
        let Some((head, words)) = self.all.lock().get(&u64::from(vdev)).map(entry_of) else {
            return Ok(None);
        };
        let object = match view.object(head.mos_entries) {
            // The last entry is just being removed, or the first one added.
            Err(e) if e.kind() == Kind::NotFound => return Ok(None),
            object => object?,
        };
        let object = object.handle().map_or_else(|| Arc::new(object.clone()), |handle| handle.synced());
        Ok((!object.dnode.is_free()).then_some(OnDisk { object, zap: None, head, words }))
    }

    /// Whether a table on disk is still the newest.
    fn is_same(&self, view: &Arc<Objset>, table: &OnDisk, vdev: u32) -> bool {
        let now = self.on_disk(view, vdev);
        now.is_ok_and(|now| now.is_some_and(|now| Arc::ptr_eq(&now.object, &table.object)))
    }

    /// Writes changed counters and heads, and removes tables without entries.
    #[doc(alias = "brt_sync")]
    pub(crate) fn sync(&self, host: &dyn BrtHost) -> Result<()> {
        let mut all = self.all.lock();
        let mut gone = Vec::new();
        let mut changed = false;
        for (vdev, table) in all.iter_mut().filter(|(_, table)| table.dirty) {
            changed = true;
            table.dirty = false;
            if table.sync(host)? {
                gone.push(*vdev);
            }
        }
        gone.iter().for_each(|vdev| {
            all.remove(vdev);
        });
        if changed {
            self.count_saved(&all);
        }
        Ok(())
    }
}

impl Live {
    fn load(view: &Arc<Objset>, name: String, number: u64, words: bool) -> Result<Self> {
        let object = view.object(number)?;
        let head = BrtVdev::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
        if head.size > MAX_COUNTERS || head.rangesize == 0 || head.byteorder > 1 {
            return Err(Error::corrupt(format!("the head of clone table {number} is invalid")));
        }
        // Counters at the end that were never other than 0 may not be stored.
        let stored = (head.size * 2).min(object.max_offset());
        let bytes = object.read_vec(0, usize::try_from(stored).unwrap_or(usize::MAX))?;
        let counters = bytes.as_chunks::<2>().0.iter().map(|raw| head.counter(*raw)).collect();
        let changed = BTreeSet::new();
        Ok(Self { name, object: number, head, counters, changed, dirty: false, words, damage: None })
    }

    fn damaged(why: Error) -> Self {
        let (name, head, counters, changed) =
            (String::new(), BrtVdev::default(), Vec::new(), BTreeSet::new());
        Self { name, object: 0, head, counters, changed, dirty: false, words: false, damage: Some(why) }
    }

    #[doc(alias = "brt_vdev_create")]
    fn create(host: &dyn BrtHost, vdev: u64) -> Result<Self> {
        let bytes = host.vdev_bytes(vdev).filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("a cloned block lies on vdev {vdev}")))?;
        let size = bytes.div_ceil(REGION);
        let objects = host.objects();
        let mos_entries = objects.create(&NewObject::plain(TYPES.0, ENTRIES_BLOCK))?;
        let flags = ZapFlags(ZapFlags::HASH64.0 | ZapFlags::UINT64_KEY.0);
        let new = NewZap { flags, salt: host.salt(), ..NewZap::default() };
        ZapEdit::create(&mut *entries_of(host, mos_entries)?, &new)?;
        let head = BrtVdev { mos_entries, size, rangesize: REGION, ..BrtVdev::default() };
        let counters = NewObject::with_bonus(TYPES.1, COUNTERS_BLOCK, TYPES.1, BrtVdev::SIZE);
        let object = objects.create(&counters)?;
        let name = format!("{}{vdev}", mos::BRT_VDEV_PREFIX);
        ZapEdit::open(&mut *objects.edit(MOS_DIRECTORY_OBJECT)?)?.insert(&name, object)?;
        // All tables of a pool have entries of one form.
        let first = host.feature(Feature::BlockCloning).unwrap_or(0) == 0;
        let words = host.feature(Feature::BlockCloningEndian).is_some_and(|count| first || count > 0);
        if words {
            host.count_feature(Feature::BlockCloningEndian, 1)?;
        }
        host.count_feature(Feature::BlockCloning, 1)?;
        let counters = vec![0; usize::try_from(size).unwrap_or(0)];
        let changed = (0..counters.len()).collect();
        Ok(Self { name, object, head, counters, changed, dirty: true, words, damage: None })
    }

    #[doc(alias = "brt_vdev_addref")]
    fn add(&mut self, host: &dyn BrtHost, added: &[Added], counts: &BrtCounts) -> Result<()> {
        if let Some(why) = &self.damage {
            return Err(why.clone());
        }
        let mut edit = entries_of(host, self.head.mos_entries)?;
        let mut zap = ZapEdit::open(&mut *edit)?;
        for Added { bp, count } in added {
            let Some(offset) = bp.dva(0).map(|dva| dva.offset) else { continue };
            let region = offset / self.head.rangesize;
            self.reach(region)?;
            let at = usize::try_from(region).unwrap_or(usize::MAX);
            let known = self.counters.get(at).is_some_and(|counter| *counter > 0);
            let stored = if known { zap.lookup([offset].as_slice())? } else { None };
            let [on_disk, not_on_disk] = &counts.added;
            if known {
                bump(if stored.is_some() { on_disk } else { not_on_disk });
            }
            let before = stored.as_ref().map_or(Ok(0), |stored| self.count(stored))?;
            let dsize = host.dsize(bp);
            self.head.savedspace = self.head.savedspace.saturating_add(dsize.saturating_mul(*count));
            self.dirty = true;
            zap.update([offset].as_slice(), self.value(before.saturating_add(*count)))?;
            if before == 0 {
                self.head.usedspace = self.head.usedspace.saturating_add(dsize);
                self.head.totalcount = self.head.totalcount.saturating_add(1);
                if let Some(counter) = self.counters.get_mut(at) {
                    *counter = counter.saturating_add(1);
                    self.changed.insert(at);
                }
            }
        }
        Ok(())
    }

    /// Makes the counters reach a region: the vdev may have grown.
    #[doc(alias = "brt_vdev_realloc")]
    fn reach(&mut self, region: u64) -> Result<()> {
        if region < self.head.size && usize::try_from(region).is_ok_and(|at| at < self.counters.len()) {
            return Ok(());
        }
        if region >= MAX_COUNTERS {
            return Err(Error::corrupt(format!("a cloned block lies in region {region} of its vdev")));
        }
        self.head.size = self.head.size.max(region.saturating_add(1));
        let (from, to) = (self.counters.len(), usize::try_from(self.head.size).unwrap_or(0));
        self.counters.resize(to, 0);
        self.changed.extend(from..to);
        Ok(())
    }

    fn count(&self, stored: &Value) -> Result<u64> {
        count_of(&self.head, self.words, stored)
    }

    fn value(&self, count: u64) -> Value {
        if self.words { Value::from(count) } else { Value::from(self.head.count_bytes(count).as_slice()) }
    }

    fn release(&mut self, host: &dyn BrtHost, bp: &Blkptr, offset: u64, counts: &BrtCounts) -> Result<bool> {
        if let Some(why) = &self.damage {
            return Err(why.clone());
        }
        let region = usize::try_from(offset / self.head.rangesize).unwrap_or(usize::MAX);
        if self.counters.get(region).is_none_or(|counter| *counter == 0) {
            return Ok(false);
        }
        let mut edit = entries_of(host, self.head.mos_entries)?;
        let mut zap = ZapEdit::open(&mut *edit)?;
        let key: &[u64] = &[offset];
        let stored = zap.lookup(key)?;
        let left =
            stored.map(|stored| self.count(&stored)).transpose()?.and_then(|count| count.checked_sub(1));
        let [kept, last, none] = &counts.ended;
        bump(match left {
            None => none,
            Some(0) => last,
            Some(_) => kept,
        });
        let Some(left) = left else { return Ok(false) };
        let dsize = host.dsize(bp);
        self.head.savedspace = self.head.savedspace.saturating_sub(dsize);
        self.dirty = true;
        if left > 0 {
            zap.update(key, self.value(left))?;
            return Ok(true);
        }
        zap.remove(key)?;
        self.head.usedspace = self.head.usedspace.saturating_sub(dsize);
        self.head.totalcount = self.head.totalcount.saturating_sub(1);
        if let Some(counter) = self.counters.get_mut(region) {
            *counter -= 1;
            self.changed.insert(region);
        }
        Ok(true)
    }

    /// True when there are no entries any more: then the table is gone.
    fn sync(&mut self, host: &dyn BrtHost) -> Result<bool> {
        let objects = host.objects();
        let entries = ZapEdit::open(&mut *objects.edit(self.head.mos_entries)?)?.count()?;
        if entries == 0 {
            self.destroy(host)?;
            return Ok(true);
        }
        let mut edit = objects.edit(self.object)?;
        for region in std::mem::take(&mut self.changed) {
            let counter = self.counters.get(region).copied().unwrap_or(0);
            let at = u64::try_from(region).unwrap_or(0) * 2;
            edit.write_at(at, &self.head.counter_bytes(counter))?;
        }
        edit.set_bonus(&self.head.to_bytes())?;
        Ok(false)
    }

    #[doc(alias = "brt_vdev_destroy")]
    fn destroy(&self, host: &dyn BrtHost) -> Result<()> {
        let objects = host.objects();
        objects.free(self.head.mos_entries)?;
        objects.free(self.object)?;
        ZapEdit::open(&mut *objects.edit(MOS_DIRECTORY_OBJECT)?)?.remove(&self.name)?;
        host.count_feature(Feature::BlockCloning, -1)?;
        if self.words {
            host.count_feature(Feature::BlockCloningEndian, -1)?;
        }
        Ok(())
    }
}

/// The entries of a table, for changes.
fn entries_of(host: &dyn BrtHost, number: u64) -> Result<Box<dyn Edit + '_>> {
    let entries = host.objects().edit(number)?;
    entries.place_with_tables();
    Ok(entries)
}

/// References that an entry counts.
fn count_of(head: &BrtVdev, words: bool, stored: &Value) -> Result<u64> {
    let count = if words { stored.first() } else { head.refcount(&stored.bytes()) };
    count.ok_or_else(|| Error::corrupt("invalid clone table entry"))
}

/// Whether an error means that bytes are lost for good, not that a device is absent.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind(), Kind::Corrupt | Kind::Checksum | Kind::NotFound | Kind::Loop)
}
