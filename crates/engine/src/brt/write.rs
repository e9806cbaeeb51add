//! Clone tables of a pool that is being written: references that end.
//!
//! A block that has an entry is not freed: its entry loses a reference, and goes with the last additional one. A region's
//! counter tells without a read that no block in it has an entry. Entries change at once; counters and heads are
//! written, and tables without entries removed, when the pass ends ([`Tables::sync`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::Blkptr;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::BrtVdev;
use parking_lot::Mutex;
use zcommon::features::Feature;

use crate::ddt::write::Host;
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zap::{Value, Zap, ZapEdit};

/// Counters that a table may have: those of a vdev of many PiB.
const MAX_COUNTERS: u64 = 1 << 30;

/// The clone tables of a pool.
#[derive(Debug, Default)]
pub struct Tables {
    all: Mutex<BTreeMap<u64, Live>>,
    saved: AtomicU64,
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
}

impl Tables {
    /// The tables of an existing pool.
    pub fn load(view: &Arc<Objset>, words: bool) -> Result<Self> {
        let directory = Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?;
        let mut all = BTreeMap::new();
        for entry in directory.to_vec()? {
            let name = entry.name_lossy();
            let vdev = name.strip_prefix(mos::BRT_VDEV_PREFIX).and_then(|number| number.parse().ok());
            let Some((vdev, object)) = vdev.zip(entry.value.first().filter(|&n| n != 0)) else { continue };
            all.insert(vdev, Live::load(view, name, object, words)?);
        }
        let tables = Self { all: Mutex::new(all), saved: AtomicU64::new(0) };
        tables.count_saved(&tables.all.lock());
        Ok(tables)
    }

    /// Bytes that the pool would need more without clones.
    #[doc(alias = "brt_get_dspace")]
    pub fn saved(&self) -> u64 {
        self.saved.load(Ordering::Relaxed)
    }

    fn count_saved(&self, all: &BTreeMap<u64, Live>) {
        let saved = all.values().map(|table| table.head.savedspace).fold(0, u64::saturating_add);
        self.saved.store(saved, Ordering::Relaxed);
    }

    /// A reference to a block ends (syncing context). True when others are left.
    #[doc(alias = "brt_entry_decref")]
    pub fn release(&self, host: &dyn Host, bp: &Blkptr) -> Result<bool> {
        let mut all = self.all.lock();
        let Some(dva) = bp.dva(0).filter(|_| !all.is_empty()) else { return Ok(false) };
        match all.get_mut(&u64::from(dva.vdev)) {
            Some(table) => table.release(host, bp, dva.offset),
            None => Ok(false),
        }
    }

    /// Writes counters and heads of what changed, and removes tables without entries.
    #[doc(alias = "brt_sync")]
    pub fn sync(&self, host: &dyn Host) -> Result<()> {
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
            return Err(Error::corrupt(format!("the head of clone table {number} makes no sense")));
        }
        // Counters at the end that were never other than 0 may not be stored.
        let stored = (head.size * 2).min(object.max_offset());
        let bytes = object.read_vec(0, usize::try_from(stored).unwrap_or(usize::MAX))?;
        let counters = bytes.as_chunks::<2>().0.iter().map(|raw| head.counter(*raw)).collect();
        Ok(Self { name, object: number, head, counters, changed: BTreeSet::new(), dirty: false, words })
    }

    fn release(&mut self, host: &dyn Host, bp: &Blkptr, offset: u64) -> Result<bool> {
        let region = usize::try_from(offset / self.head.rangesize).unwrap_or(usize::MAX);
        let Some(counter) = self.counters.get_mut(region).filter(|counter| **counter > 0) else {
            return Ok(false);
        };
        let mut edit = host.objects().edit(self.head.mos_entries)?;
        let mut zap = ZapEdit::open(&mut *edit)?;
        let key: &[u64] = &[offset];
        let Some(stored) = zap.lookup(key)? else { return Ok(false) };
        let count = if self.words { stored.first() } else { self.head.refcount(&stored.bytes()) };
        let count = count.ok_or_else(|| Error::corrupt("clone table entry that makes no sense"))?;
        let Some(left) = count.checked_sub(1) else { return Ok(false) };
        let dsize = host.dsize(bp);
        self.head.savedspace = self.head.savedspace.saturating_sub(dsize);
        self.dirty = true;
        if left > 0 {
            let bytes = self.head.count_bytes(left);
            let value = if self.words { Value::from(left) } else { Value::from(bytes.as_slice()) };
            zap.update(key, value)?;
            return Ok(true);
        }
        zap.remove(key)?;
        self.head.usedspace = self.head.usedspace.saturating_sub(dsize);
        self.head.totalcount = self.head.totalcount.saturating_sub(1);
        *counter -= 1;
        self.changed.insert(region);
        Ok(true)
    }

    /// True when there are no entries any more: then the table is gone.
    fn sync(&mut self, host: &dyn Host) -> Result<bool> {
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
    fn destroy(&self, host: &dyn Host) -> Result<()> {
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
