//! Dedup tables of a pool that is being written: references that end.
//!
//! To free a block that is listed takes a reference from its entry; the last one frees its space. Entries change in
//! their ZAPs at once, within the pass that frees. Statistics are written, and a table without entries goes, when the
//! pass ends ([`Tables::sync`]).
//!
//! Differs from OpenZFS: nothing is put into a table's logs; what others left there is moved to the ZAPs before the
//! table's first change. New entries are never made: with `dedup=on`, too, blocks are written as without it, which
//! every reader understands. A block whose entry speaks of another place (it was pruned, and written anew) is freed
//! as any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::ddt::{
    DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_TRAD_SIZE, DDT_VERSION_FDT, DdtHistogram, DdtKey, DdtLogHeader, DdtPhys,
    DdtPhysFlat, compress_value, decode_value, decompress_value, encode_value,
};
use ondisk::names::{self, MOS_DIRECTORY_OBJECT, mos};
use ondisk::zap::ZapFlags;
use ondisk::{Blkptr, ChecksumType, ObjectType};
use parking_lot::Mutex;
use zcommon::features::Feature;

use super::{Class, Log, STORE_TYPE, stats};
use crate::dmu::Objset;
use crate::dmu::edit::{NewObject, Objects};
use crate::error::{Error, Kind, Result};
use crate::zap::{NewZap, Value, Zap, ZapEdit};

/// Block of a table's ZAP.
#[doc(alias = "ddt_zap_default_bs")]
const ZAP_BLOCK: u64 = 1 << 15;

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
    /// One use of a feature ends.
    fn feature_unused(&self, feature: Feature) -> Result<()>;
}

/// The dedup tables of a pool.
#[derive(Debug, Default)]
pub struct Tables {
    all: Mutex<BTreeMap<u8, Live>>,
    saved: AtomicU64,
}

/// What became of a reference.
#[derive(Debug, Default)]
pub struct Freed {
    /// The table had it.
    pub known: bool,
    /// Blocks that nothing refers to any more; they are in no dedup table.
    pub blocks: Vec<Blkptr>,
}

#[derive(Debug)]
struct Live {
    checksum: ChecksumType,
    flat: bool,
    root: u64,
    objects: BTreeMap<Class, u64>,
    histograms: BTreeMap<Class, DdtHistogram>,
    logs: Vec<Log>,
    dirty: bool,
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
        let saved = AtomicU64::new(saved.ref_dsize.saturating_sub(saved.dsize));
        Ok(Self { all: Mutex::new(all), saved })
    }

    /// Bytes that the pool would need more without the tables.
    #[doc(alias = "ddt_get_dedup_dspace")]
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    /// A reference to a block ends (syncing context).
    #[doc(alias = "zio_ddt_free")]
    pub fn free(&self, host: &dyn Host, bp: &Blkptr) -> Result<Freed> {
        let mut all = self.all.lock();
        let table = bp.checksum().and_then(|checksum| all.get_mut(&checksum.raw()));
        table.map_or(Ok(Freed::default()), |table| table.free(host, bp))
    }

    /// Writes statistics of what changed, and removes tables without entries.
    #[doc(alias = "ddt_sync")]
    pub fn sync(&self, host: &dyn Host) -> Result<()> {
        let mut all = self.all.lock();
        let mut gone = Vec::new();
        let mut changed = false;
        for (raw, table) in all.iter_mut().filter(|(_, table)| table.dirty) {
            changed = true;
            table.dirty = false;
            if table.sync(host)? {
                gone.push(*raw);
            }
        }
        gone.iter().for_each(|raw| {
            all.remove(raw);
        });
        if changed {
            let saved = all.values().map(Live::saved).fold(0, u64::saturating_add);
            self.saved.store(saved, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Live {
    fn new(mos: &Arc<Objset>, table: super::Table, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<Self> {
        let known = table.version <= DDT_VERSION_FDT && table.flags & !(DDT_FLAG_FLAT | DDT_FLAG_LOG) == 0;
        if !known {
            let what = format!("dedup table of version {} with flags {:#x}", table.version, table.flags);
            return Err(Error::unsupported(what));
        }
        let root = Zap::open(&mos.object(table.root)?)?;
        let mut live = Self {
            checksum: table.checksum,
            flat: table.is_flat(),
            root: table.root,
            objects: BTreeMap::new(),
            histograms: BTreeMap::new(),
            logs: table.logs,
            dirty: false,
        };
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

    fn name(&self, class: Class) -> String {
        names::ddt(self.checksum.name(), STORE_TYPE, class.name())
    }

    fn count_store(&self, store: &super::Store, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<DdtHistogram> {
        let mut histogram = DdtHistogram::default();
        for entry in store.entries() {
            let entry = entry?;
            stats::tally(&mut histogram, (&entry.key, &entry.phys), self.checksum, dsize, false);
        }
        Ok(histogram)
    }

    fn saved(&self) -> u64 {
        let all = self.histograms.values().flat_map(|h| h.stat.iter());
        all.map(|stat| stat.ref_dsize.saturating_sub(stat.dsize)).fold(0, u64::saturating_add)
    }

    fn free(&mut self, host: &dyn Host, bp: &Blkptr) -> Result<Freed> {
        let mut freed = Freed::default();
        self.settle_logs(host, &mut freed.blocks)?;
        let key = DdtKey::of(bp);
        let Some((class, old)) = self.find(host, &key)? else { return Ok(freed) };
        let mut new = old.clone();
        let ours = |p: &&mut DdtPhys| {
            let [[w0, w1], ..] = p.dva_words;
            p.phys_birth == bp.physical_birth() && bp.words().first_chunk() == Some(&[w0, w1])
        };
        let Some(ours) = new.iter_mut().find(ours) else { return Ok(freed) };
        freed.known = true;
        // An entry that counted less than there are: what is in doubt is kept.
        if ours.refcnt > 0 {
            ours.refcnt -= 1;
            self.count(host, class, (&key, &old), true);
            self.put(host, &key, Some(class), new, &mut freed.blocks)?;
        }
        Ok(freed)
    }

    /// The entry of a key, and where it is.
    fn find(&self, host: &dyn Host, key: &DdtKey) -> Result<Option<(Class, Vec<DdtPhys>)>> {
        let bad = |e: ondisk::Malformed| Error::corrupt(e.to_string());
        let size = if self.flat { DdtPhysFlat::SIZE } else { DDT_TRAD_SIZE };
        for (class, object) in &self.objects {
            let mut edit = host.objects().edit(*object)?;
            let words = key.to_words();
            let Some(value) = ZapEdit::open(&mut *edit)?.lookup(words.as_slice())? else { continue };
            let value = decompress_value(&value.bytes(), size).map_err(bad)?;
            return Ok(Some((*class, decode_value(self.flat, &value).map_err(bad)?)));
        }
        Ok(None)
    }

    fn count(&mut self, host: &dyn Host, class: Class, entry: (&DdtKey, &[DdtPhys]), out: bool) {
        let histogram = self.histograms.entry(class).or_default();
        stats::tally(histogram, entry, self.checksum, &|bp| host.dsize(bp), out);
    }

    /// Stores an entry where its references say, and takes it from where it was. What has none goes to `freed`.
    #[doc(alias = "ddt_sync_flush_entry")]
    fn put(
        &mut self,
        host: &dyn Host,
        key: &DdtKey,
        from: Option<Class>,
        phys: Vec<DdtPhys>,
        freed: &mut Vec<Blkptr>,
    ) -> Result<()> {
        self.dirty = true;
        // Ditto copies, which old versions made, are not kept up.
        let (stay, gone): (Vec<_>, Vec<_>) = phys.into_iter().partition(|p| p.variant != 0 && p.refcnt > 0);
        freed.extend(gone.iter().filter(|p| p.phys_birth != 0).map(|p| {
            let mut bp = p.blkptr(key, self.checksum);
            bp.set_dedup(false);
            bp
        }));
        let references = stay.iter().map(|p| p.refcnt).fold(0, u64::saturating_add);
        let class = if references > 1 { Class::Duplicate } else { Class::Unique };
        let words = key.to_words();
        if let Some(object) = from.filter(|from| references == 0 || *from != class) {
            let object = self.objects.get(&object).copied().unwrap_or(0);
            ZapEdit::open(&mut *host.objects().edit(object)?)?.remove(words.as_slice())?;
        }
        if references == 0 {
            return Ok(());
        }
        let object = self.object(host, class)?;
        let value = compress_value(&encode_value(self.flat, &stay));
        ZapEdit::open(&mut *host.objects().edit(object)?)?.update(words.as_slice(), value.as_slice())?;
        self.count(host, class, (key, &stay), false);
        Ok(())
    }

    /// The ZAP of a class; made when it is not there.
    #[doc(alias = "ddt_object_create")]
    fn object(&mut self, host: &dyn Host, class: Class) -> Result<u64> {
        if let Some(object) = self.objects.get(&class) {
            return Ok(*object);
        }
        let objects = host.objects();
        let object = objects.create(&NewObject::plain(ObjectType::DDT_ZAP, ZAP_BLOCK))?;
        let hashed = if self.checksum.is_dedup_strong() { ZapFlags::PRE_HASHED_KEY.0 } else { 0 };
        let flags = ZapFlags(ZapFlags::HASH64.0 | ZapFlags::UINT64_KEY.0 | hashed);
        let new = NewZap { flags, salt: host.salt(), ..NewZap::default() };
        ZapEdit::create(&mut *objects.edit(object)?, &new)?;
        ZapEdit::open(&mut *objects.edit(self.root)?)?.insert(&self.name(class), object)?;
        self.objects.insert(class, object);
        Ok(object)
    }

    /// Moves what the logs hold to the ZAPs.
    #[doc(alias = "ddt_sync_flush_log")]
    fn settle_logs(&mut self, host: &dyn Host, freed: &mut Vec<Blkptr>) -> Result<()> {
        let mut newest = BTreeMap::new();
        // The one that is being flushed is the older.
        self.logs.sort_by_key(|log| log.header.flags() & DdtLogHeader::FLAG_FLUSHING == 0);
        for log in &mut self.logs {
            newest.append(&mut log.entries);
            if log.header.length > 0 {
                truncate(host, log)?;
            }
        }
        if newest.is_empty() {
            return Ok(());
        }
        for (key, entry) in newest {
            let from = self.find(host, &key)?.map(|(class, _)| class);
            self.put(host, &key, from, entry.phys, freed)?;
        }
        // What the statistics say of entries that a log had hidden, nobody knows.
        let view = host.view();
        for (class, object) in &self.objects {
            let store = super::store(&view, *class, self.name(*class), *object, self.flat, None)?;
            let histogram = self.count_store(&store, &|bp| host.dsize(bp))?;
            self.histograms.insert(*class, histogram);
        }
        Ok(())
    }

    /// Writes the statistics; true when there are no entries any more: then the table is gone.
    #[doc(alias = "ddt_sync_update_stats")]
    fn sync(&mut self, host: &dyn Host) -> Result<bool> {
        let objects = host.objects();
        let mut entries = 0;
        for object in self.objects.values() {
            entries += ZapEdit::open(&mut *objects.edit(*object)?)?.count()?;
        }
        let mut edit = objects.edit(MOS_DIRECTORY_OBJECT)?;
        let statistics = ZapEdit::open(&mut *edit)?.lookup(mos::DDT_STATS)?.and_then(|v| v.first());
        drop(edit);
        for (class, object) in &self.objects {
            let name = self.name(*class);
            let mut edit = statistics.map(|number| objects.edit(number)).transpose()?;
            let mut statistics = edit.as_mut().map(|edit| ZapEdit::open(&mut **edit)).transpose()?;
            if entries > 0 {
                let words = words(self.histograms.get(class).copied().unwrap_or_default());
                statistics.as_mut().map_or(Ok(()), |s| s.update(&name, words))?;
                continue;
            }
            statistics.as_mut().map_or(Ok(()), |s| may_be_absent(s.remove(&name)))?;
            ZapEdit::open(&mut *objects.edit(self.root)?)?.remove(&name)?;
            objects.free(*object)?;
        }
        if entries == 0 && self.root != MOS_DIRECTORY_OBJECT {
            self.logs.iter().try_for_each(|log| objects.free(log.object))?;
            let mut edit = objects.edit(MOS_DIRECTORY_OBJECT)?;
            ZapEdit::open(&mut *edit)?.remove(&names::ddt_directory(self.checksum.name()))?;
            objects.free(self.root)?;
            host.feature_unused(Feature::FastDedup)?;
        }
        Ok(entries == 0)
    }
}

/// Empties a log; it keeps its part in turns.
#[doc(alias = "ddt_log_truncate")]
fn truncate(host: &dyn Host, log: &mut Log) -> Result<()> {
    let mut edit = host.objects().edit(log.object)?;
    edit.free_from(0)?;
    log.header.length = 0;
    log.header.info &= !(u64::from(DdtLogHeader::FLAG_CHECKPOINT) << 8);
    log.header.checkpoint = DdtKey::default();
    edit.set_bonus(&log.header.to_bytes())
}

fn words(histogram: DdtHistogram) -> Value {
    let bytes = histogram.to_bytes();
    Value::from(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect::<Vec<_>>())
}

fn may_be_absent(result: Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() == Kind::NotFound => Ok(()),
        other => other,
    }
}
