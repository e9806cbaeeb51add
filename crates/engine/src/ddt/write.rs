//! Dedup tables of a pool that is being written.
//!
//! A write or a free of a listed block first fetches the block's entry into its table's pending entries ([`Pending`]) and
//! changes it there. [`Tables::sync`], once in each sync pass, stores the pending entries ([`super::table_sync`]), frees
//! blocks without references, and writes statistics. So an entry changes on disk once a txg, however often it is used.
//!
//! States of a pending entry: fetched → (being written → fetched)* → stored. While a new block is being written, others
//! with the same key wait for it: each block gets one copy.
//!
//! Crash argument: entries are objects of the MOS, so they reach the disk with the pointers that they count.
//!
//! Locks: `all` is held for changes of memory only while writes are under way; tables are read without it. The sync holds
//! it while it stores entries: then no write is under way. Nothing else is locked inside.
//!
//! Tables of `fast_dedup` have a log before their ZAPs ([`super::log_sync`]).
//!
//! Differs from OpenZFS: a free whose entry cannot be read leaks the block, where OpenZFS panics.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondisk::ddt::{
    DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_TRAD_SIZE, DDT_VERSION_FDT, DdtHistogram, DdtKey, DdtPhys, DdtPhysFlat,
    decode_value, decompress_value,
};
use ondisk::names::{self, MOS_DIRECTORY_OBJECT};
use ondisk::{Blkptr, ChecksumType};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::log_sync::Sides;
use super::{Class, STORE_TYPE, stats};
use crate::dmu::Objset;
use crate::dmu::edit::Objects;
use crate::error::{Error, Kind, Result};
use crate::zap::{Value, Zap};
use crate::zio::dedup::{Again, Claim, Want};

/// The variant of a flat value.
const FLAT: u8 = 4;

/// What tables of shared blocks ask of the pool, within one transaction.
pub trait Host {
    /// The MOS, for change.
    fn objects(&self) -> &dyn Objects;
    /// The MOS, read as it is now.
    fn view(&self) -> Arc<Objset>;
    /// Bytes that a block takes, all copies together, as users count them.
    fn dsize(&self, bp: &Blkptr) -> u64;
    /// Any number.
    fn salt(&self) -> u64;
    /// The txg that is being written, and its sync pass.
    fn txg(&self) -> (u64, u64);
    /// Seconds since 1970.
    fn now(&self) -> u64;
    /// Changes how often a feature is in use.
    fn count_feature(&self, feature: Feature, delta: i64) -> Result<()>;
}

/// What a look-up of an entry asks of the pool.
pub trait Source {
    /// The MOS, read as it is now.
    fn view(&self) -> Result<Arc<Objset>>;
    /// New tables have the form of `fast_dedup`.
    fn makes_fast(&self) -> bool;
}

/// The dedup tables of a pool.
#[derive(Debug, Default)]
pub struct Tables {
    all: Mutex<BTreeMap<u8, Live>>,
    saved: AtomicU64,
    /// Bytes on disk of all tables.
    size: AtomicU64,
    /// No entries are made.
    is_full: AtomicBool,
    /// Entries in logs.
    logged: AtomicU64,
}

/// One table.
#[derive(Debug)]
pub(super) struct Live {
    pub checksum: ChecksumType,
    pub flat: bool,
    /// Directory that names the ZAPs; 0: it is made with the first entry.
    pub root: u64,
    pub objects: BTreeMap<Class, u64>,
    pub histograms: BTreeMap<Class, DdtHistogram>,
    /// Changes go to a log first.
    pub has_log: bool,
    /// The log; `None` until it is made.
    pub sides: Option<Sides>,
    /// Statistics of the log's entries.
    pub logged: DdtHistogram,
    pub pending: BTreeMap<DdtKey, Pending>,
    /// ZAPs open for reading until the next sync.
    opened: BTreeMap<Class, Zap>,
    pub dirty: bool,
}

/// An entry in use since the last sync pass.
#[derive(Default)]
pub(super) struct Pending {
    /// As the table has it.
    pub stored: Option<Stored>,
    /// As it is now.
    pub phys: Vec<DdtPhys>,
    /// A new copy is being written.
    writing: bool,
    /// Writes of the same block.
    waiting: Vec<Again>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { stored, phys, writing, waiting } = self;
        write!(f, "Pending({stored:?} -> {phys:?}, writing {writing}, {} wait)", waiting.len())
    }
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// Class of the ZAP that has the key.
    pub class: Option<Class>,
    /// The newest variants.
    pub phys: Vec<DdtPhys>,
    /// They are in the log.
    pub logged: bool,
}

/// An entry that changed: its key, as it is stored, as it is now.
pub(super) type Changed = (DdtKey, Option<Stored>, Vec<DdtPhys>);

/// Where an entry may be.
struct Places {
    flat: bool,
    logged: Option<Stored>,
    zaps: Vec<(Class, u64, Option<Zap>)>,
}

impl Tables {
    /// The tables of an existing pool.
    ///
    /// # Errors
    /// When something of them can't be read, or has a form that this build doesn't know: such a pool can't be written.
    pub fn load(mos: &Arc<Objset>, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<Self> {
        let mut notes = Vec::new();
        let tables = super::tables(mos, &mut notes);
        if let Some(why) = notes.into_iter().next() {
            return Err(why);
        }
        let saved = stats::Totals::of(&tables, dsize).all();
        let mut all = BTreeMap::new();
        for table in tables {
            all.insert(table.checksum.raw(), Live::new(mos, table, dsize)?);
        }
        let tables = Self::default();
        tables.saved.store(saved.ref_dsize.saturating_sub(saved.dsize), Ordering::Relaxed);
        *tables.all.lock() = all;
        tables.count_logged(&tables.all.lock());
        tables.measure(&tables.all.lock(), mos);
        Ok(tables)
    }

    /// Whether logs have entries that are not in their tables.
    pub fn has_logged(&self) -> bool {
        self.logged.load(Ordering::Relaxed) > 0
    }

    /// Bytes that the tables take on disk, as of the last txg that changed them.
    #[doc(alias = "ddt_get_ddt_dsize")]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// While a table is full, blocks that it does not have are written without dedup.
    #[doc(alias = "ddt_over_quota")]
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn measure(&self, all: &BTreeMap<u8, Live>, view: &Arc<Objset>) {
        let bytes = |number: u64| view.object(number).map_or(0, |object| object.dnode.used_bytes());
        let numbers = all.values().flat_map(|table| {
            let logs = table.sides.iter().flat_map(|sides| sides.objects().map(|log| log.object));
            table.objects.values().copied().chain(logs)
        });
        self.size.store(numbers.map(bytes).fold(0, u64::saturating_add), Ordering::Relaxed);
    }

    fn count_logged(&self, all: &BTreeMap<u8, Live>) {
        let logged = all.values().filter_map(|table| table.sides.as_ref()).map(Sides::len).sum::<usize>();
        self.logged.store(u64::try_from(logged).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Bytes that the pool would need more without the tables.
    #[doc(alias = "ddt_get_dedup_dspace")]
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    /// Looks a block up that is to be written: see [`crate::zio::dedup::DedupTables::claim`].
    #[doc(alias = "zio_ddt_write")]
    pub fn claim(
        &self,
        source: &dyn Source,
        bp: &Blkptr,
        want: &Want,
        again: &mut Option<Again>,
    ) -> Result<Claim> {
        let Some(checksum) = bp.checksum() else { return Ok(Claim::Refused) };
        let key = DdtKey::of(bp);
        self.fetch(source, checksum, &key)?;
        let mut all = self.all.lock();
        let Some(table) = all.get_mut(&checksum.raw()) else { return Ok(Claim::Refused) };
        let variant = table.variant(want.copies);
        let Some(entry) = table.pending.get_mut(&key) else { return Ok(Claim::Refused) };
        let is_new = entry.stored.is_none() && entry.phys.is_empty() && !entry.writing;
        if is_new && self.is_full.load(Ordering::Relaxed) {
            return Ok(Claim::Refused);
        }
        if entry.writing {
            entry.waiting.extend(again.take());
            return Ok(Claim::InFlight);
        }
        if let Some(first) = entry.phys.iter().find(|p| want.verify && p.variant != 0 && p.phys_birth != 0) {
            let stored = filled(bp, first, want.txg);
            if !want.equal.is_some_and(|equal| equal.same_block(&stored)) {
                return Ok(Claim::Compare(stored));
            }
        }
        let (mut have, mut is_gang) = (0, false);
        if let Some(phys) = entry.phys.iter_mut().find(|p| p.variant == variant) {
            have = u8::try_from(phys.dvas(key.crypt()).count()).unwrap_or(u8::MAX);
            if have >= want.copies {
                phys.refcnt += 1;
                return Ok(Claim::Shared(filled(bp, phys, want.txg)));
            }
            is_gang = phys.dvas(key.crypt()).any(|dva| dva.gang);
        }
        if is_gang {
            return Ok(Claim::Refused);
        }
        entry.writing = true;
        Ok(Claim::Write { copies: want.copies - have, extends: have > 0 })
    }

    /// Takes the copies that a claim had written: see [`crate::zio::dedup::DedupTables::written`].
    #[doc(alias = "zio_ddt_child_write_done")]
    pub fn written(&self, bp: &Blkptr, want: &Want, written: Option<&Blkptr>) -> Option<Blkptr> {
        let key = DdtKey::of(bp);
        let mut all = self.all.lock();
        let table = all.get_mut(&bp.checksum()?.raw())?;
        let variant = table.variant(want.copies);
        let entry = table.pending.get_mut(&key)?;
        entry.writing = false;
        let waiting = std::mem::take(&mut entry.waiting);
        let whole = written.map(|written| {
            if !entry.phys.iter().any(|p| p.variant == variant) {
                entry.phys.push(unused(variant));
                entry.phys.sort_by_key(|p| p.variant);
            }
            let phys = entry.phys.iter_mut().find(|p| p.variant == variant);
            phys.map(|phys| {
                extend(phys, written);
                phys.refcnt += 1;
                filled(bp, phys, want.txg)
            })
        });
        drop(all);
        waiting.into_iter().for_each(|again| again());
        whole.flatten()
    }

    /// A reference to a block ends (syncing context). False when no table lists the block: then it is freed as any other.
    #[doc(alias = "zio_ddt_free")]
    pub fn free(&self, source: &dyn Source, bp: &Blkptr) -> Result<bool> {
        let Some(checksum) = bp.checksum() else { return Ok(false) };
        if !self.all.lock().contains_key(&checksum.raw()) {
            return Ok(false);
        }
        let key = DdtKey::of(bp);
        match self.fetch(source, checksum, &key) {
            // Who else refers to the block is unknown: it stays.
            Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Checksum) => return Ok(true),
            fetched => fetched?,
        }
        let mut all = self.all.lock();
        let entry = all.get_mut(&checksum.raw()).and_then(|table| table.pending.get_mut(&key));
        let ours = |p: &&mut DdtPhys| {
            let [[w0, w1], ..] = p.dva_words;
            p.phys_birth == bp.physical_birth() && bp.words().first_chunk() == Some(&[w0, w1])
        };
        let Some(ours) = entry.and_then(|entry| entry.phys.iter_mut().find(ours)) else { return Ok(false) };
        // An entry that counted less than there are: what is in doubt is kept.
        ours.refcnt = ours.refcnt.saturating_sub(1);
        Ok(true)
    }

    /// Puts the entry of `key` among the pending ones.
    #[doc(alias = "ddt_lookup")]
    fn fetch(&self, source: &dyn Source, checksum: ChecksumType, key: &DdtKey) -> Result<()> {
        let places = match self.all.lock().get(&checksum.raw()) {
            Some(table) if table.pending.contains_key(key) => return Ok(()),
            Some(table) => table.places(key),
            None => Places { flat: false, logged: None, zaps: Vec::new() },
        };
        let mut opened = Vec::new();
        let stored = places.find(source, key, &mut opened)?;
        let mut all = self.all.lock();
        let table = all.entry(checksum.raw()).or_insert_with(|| Live::fresh(checksum, source.makes_fast()));
        table.opened.extend(opened);
        if let Slot::Vacant(slot) = table.pending.entry(*key) {
            let phys = stored.as_ref().map(|stored| stored.phys.clone()).unwrap_or_default();
            slot.insert(Pending { stored, phys, ..Pending::default() });
        }
        Ok(())
    }

    /// Changes a table, if there is one of that checksum.
    pub(super) fn with_table(&self, checksum: u8, work: impl FnOnce(&mut Live) -> Result<()>) -> Result<()> {
        self.all.lock().get_mut(&checksum).map_or(Ok(()), work)
    }

    /// Stores pending entries and statistics, and removes tables without entries. Returns the blocks that nothing refers to
    /// any more; they are in no dedup table.
    #[doc(alias = "ddt_sync")]
    pub fn sync(&self, host: &dyn Host) -> Result<Vec<Blkptr>> {
        let mut all = self.all.lock();
        let (mut freed, mut gone, mut changed) = (Vec::new(), Vec::new(), false);
        for (raw, table) in &mut *all {
            table.store_pending(host, &mut freed)?;
            if host.txg().1 == 1 {
                table.flush_log(host, &mut freed)?;
            }
            if std::mem::take(&mut table.dirty) {
                changed = true;
                if table.sync(host)? {
                    gone.push(*raw);
                }
            }
        }
        gone.iter().for_each(|raw| {
            all.remove(raw);
        });
        if changed {
            let saved = all.values().map(Live::saved).fold(0, u64::saturating_add);
            self.saved.store(saved, Ordering::Relaxed);
            self.measure(&all, &host.view());
        }
        self.count_logged(&all);
        Ok(freed)
    }
}

impl Live {
    /// A table without entries.
    #[doc(alias = "ddt_configure")]
    fn fresh(checksum: ChecksumType, fast: bool) -> Self {
        Self {
            checksum,
            flat: fast,
            root: if fast { 0 } else { MOS_DIRECTORY_OBJECT },
            objects: BTreeMap::new(),
            histograms: BTreeMap::new(),
            has_log: fast,
            sides: None,
            logged: DdtHistogram::default(),
            pending: BTreeMap::new(),
            opened: BTreeMap::new(),
            dirty: false,
        }
    }

    fn new(mos: &Arc<Objset>, table: super::Table, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<Self> {
        let known = table.version <= DDT_VERSION_FDT && table.flags & !(DDT_FLAG_FLAT | DDT_FLAG_LOG) == 0;
        if !known {
            let what = format!("dedup table of version {} with flags {:#x}", table.version, table.flags);
            return Err(Error::unsupported(what));
        }
        let root = Zap::open(&mos.object(table.root)?)?;
        let mut live = Self::fresh(table.checksum, table.is_flat());
        live.root = table.root;
        live.has_log = table.flags & DDT_FLAG_LOG != 0;
        if !table.logs.is_empty() {
            let sides = Sides::of(table.logs);
            let sides = sides.ok_or_else(|| Error::corrupt("a dedup log without its other side"))?;
            for (key, entry) in sides.entries() {
                stats::tally(&mut live.logged, (key, &entry.phys), live.checksum, dsize, false);
            }
            live.sides = Some(sides);
        }
        for class in Class::ALL {
            if let Some(object) = root.u64(&live.name(class))? {
                live.objects.insert(class, object);
            }
        }
        for store in table.stores {
            let histogram = match store.histogram {
                Some(histogram) => histogram,
                None => live.count_store(&store, dsize)?,
            };
            live.histograms.insert(store.class, histogram);
        }
        Ok(live)
    }

    pub(super) fn name(&self, class: Class) -> String {
        names::ddt(self.checksum.name(), STORE_TYPE, class.name())
    }

    /// The variant that a block with so many copies uses.
    #[doc(alias = "DDT_PHYS_FOR_COPIES")]
    fn variant(&self, copies: u8) -> u8 {
        if self.flat { FLAT } else { copies }
    }

    pub(super) fn count_store(
        &self,
        store: &super::Store,
        dsize: &dyn Fn(&Blkptr) -> u64,
    ) -> Result<DdtHistogram> {
        let mut histogram = DdtHistogram::default();
        for entry in store.entries() {
            let entry = entry?;
            stats::tally(&mut histogram, (&entry.key, &entry.phys), self.checksum, dsize, false);
        }
        Ok(histogram)
    }

    fn saved(&self) -> u64 {
        let all = self.histograms.values().chain([&self.logged]).flat_map(|h| h.stat.iter());
        all.map(|stat| stat.ref_dsize.saturating_sub(stat.dsize)).fold(0, u64::saturating_add)
    }

    fn places(&self, key: &DdtKey) -> Places {
        let logged = self.sides.as_ref().and_then(|sides| sides.find(key));
        let logged = logged.map(|e| Stored { class: e.class, phys: e.phys.clone(), logged: true });
        let zap = |(&class, &object): (&Class, &u64)| (class, object, self.opened.get(&class).cloned());
        Places { flat: self.flat, logged, zaps: self.objects.iter().map(zap).collect() }
    }

    /// The ZAPs change: those open for reading are no longer true.
    pub(super) fn close(&mut self) {
        self.opened.clear();
    }
}

impl Places {
    /// The entry of a key, and its class; ZAPs that had to be opened go to `opened`.
    fn find(
        self,
        source: &dyn Source,
        key: &DdtKey,
        opened: &mut Vec<(Class, Zap)>,
    ) -> Result<Option<Stored>> {
        if self.logged.is_some() {
            return Ok(self.logged);
        }
        for (class, object, zap) in self.zaps {
            let zap = match zap {
                Some(zap) => zap,
                None => {
                    let zap = Zap::open(&source.view()?.object(object)?)?;
                    opened.push((class, zap.clone()));
                    zap
                }
            };
            if let Some(value) = zap.lookup_words(&key.to_words())? {
                let phys = decode(self.flat, &value)?;
                return Ok(Some(Stored { class: Some(class), phys, logged: false }));
            }
        }
        Ok(None)
    }
}

/// The variants that a stored value has.
pub(super) fn decode(flat: bool, value: &Value) -> Result<Vec<DdtPhys>> {
    let bad = |e: ondisk::Malformed| Error::corrupt(e.to_string());
    let size = if flat { DdtPhysFlat::SIZE } else { DDT_TRAD_SIZE };
    let value = decompress_value(&value.bytes(), size).map_err(bad)?;
    decode_value(flat, &value).map_err(bad)
}

/// An entry of a log that says that its key has none.
pub(super) fn no_copies() -> DdtPhys {
    unused(FLAT)
}

fn unused(variant: u8) -> DdtPhys {
    let class_start = (variant == FLAT).then_some(0);
    DdtPhys { variant, dva_words: [[0; 2]; 3], refcnt: 0, phys_birth: 0, class_start }
}

/// Adds the copies of a new block.
#[doc(alias = "ddt_phys_extend")]
fn extend(phys: &mut DdtPhys, new: &Blkptr) {
    let most = if new.is_encrypted() { 2 } else { 3 };
    let mut dvas = new.dvas();
    for slot in phys.dva_words.iter_mut().take(most).filter(|words| **words == [0; 2]) {
        let Some(dva) = dvas.next() else { break };
        *slot = dva.to_words();
    }
    if new.is_encrypted()
        && let (Some(slot), [_, _, _, _, w4, w5, ..]) = (phys.dva_words.get_mut(2), *new.words())
    {
        *slot = [w4, w5];
    }
    if phys.phys_birth == 0 {
        phys.phys_birth = new.physical_birth();
    }
}

/// A pointer to a stored copy, born in `txg`.
#[doc(alias = "ddt_bp_fill")]
fn filled(bp: &Blkptr, phys: &DdtPhys, txg: u64) -> Blkptr {
    let mut bp = *bp;
    phys.dva_words.iter().flatten().enumerate().for_each(|(i, word)| bp.set_word(i, *word));
    bp.set_births(txg, phys.phys_birth);
    bp
}
