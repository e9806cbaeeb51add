//! Clone tables: blocks with more than one reference without dedup; and the release of references ([`write`]).
//!
//! Each top-level vdev with cloned blocks has an object of 16-bit counters, one for each region of the vdev, and a
//! ZAP from a block's offset to the number of its additional references.
//!
//! Format source: brt.c, OpenZFS 2.3.

mod counts;
pub(crate) mod write;

use std::sync::Arc;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::BrtVdev;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zap::{Cursor, Zap, ZapKey};

/// Most bytes of counters that are read.
const MAX_COUNTER_BYTES: u64 = 1 << 31;

/// The table of one top-level vdev.
#[derive(Debug)]
pub struct BrtTable {
    /// The vdev's number.
    pub vdev: u64,
    /// Its header: totals and the numbers of its objects.
    pub head: BrtVdev,
    zap: Option<Zap>,
}

/// An entry: a block and its additional references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrtEntry {
    /// Byte offset on the vdev.
    pub offset: u64,
    /// References beyond the first.
    pub refcnt: u64,
}

/// The table of top-level vdev `vdev`; `None` if it has none.
pub fn table(mos: &Arc<Objset>, vdev: u64) -> Result<Option<BrtTable>> {
    let directory = Zap::open(&mos.object(MOS_DIRECTORY_OBJECT)?)?;
    let name = format!("{}{vdev}", mos::BRT_VDEV_PREFIX);
    let Some(number) = directory.u64(&name)?.filter(|&n| n != 0) else { return Ok(None) };
    let object = mos.object(number)?;
    let head = BrtVdev::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    let zap = match head.mos_entries {
        0 => None,
        entries => Some(Zap::open(&mos.object(entries)?)?),
    };
    Ok(Some(BrtTable { vdev, head, zap }))
}

/// Reads the tables of these top-level vdevs, so that the cache holds them as far as it can.
///
/// # Errors
/// The first entry that cannot be read.
#[doc(alias = "brt_prefetch_all")]
pub fn prefetch(mos: &Arc<Objset>, vdevs: impl Iterator<Item = u64>) -> Result<()> {
    for vdev in vdevs {
        let Some(table) = table(mos, vdev)? else { continue };
        table.entries().try_for_each(|entry| entry.map(drop))?;
    }
    Ok(())
}

/// The tables that the MOS directory names: the entry's name, and the object.
///
/// # Errors
/// When the MOS directory cannot be read.
pub fn named(mos: &Arc<Objset>) -> Result<Vec<(String, u64)>> {
    let directory = Zap::open(&mos.object(MOS_DIRECTORY_OBJECT)?)?;
    let mut all = Vec::new();
    for entry in directory.to_vec()? {
        let name = entry.name_lossy();
        if vdev_of(&name).is_some() {
            all.push((name, entry.value.first().unwrap_or(0)));
        }
    }
    Ok(all)
}

/// The vdev whose table has this name in the MOS directory.
pub(crate) fn vdev_of(name: &str) -> Option<u64> {
    name.strip_prefix(mos::BRT_VDEV_PREFIX)?.parse().ok()
}

/// Reads the counters of the table of top-level vdev `vdev`: bytes, two for each region.
///
/// # Errors
/// When the table or its counters cannot be read.
pub(crate) fn counters(mos: &Arc<Objset>, vdev: u64) -> Result<Vec<u8>> {
    let all = named(mos)?;
    let number = all.iter().find(|(name, _)| vdev_of(name) == Some(vdev)).map(|(_, number)| *number);
    let object = mos.object(number.ok_or_else(|| Error::not_found("no such clone table"))?)?;
    let head = BrtVdev::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    let stored = head.size.saturating_mul(2).min(object.max_offset()).min(MAX_COUNTER_BYTES);
    object.read_vec(0, usize::try_from(stored).unwrap_or(usize::MAX))
}

/// The object with the entries of the table in object `number`, if its head can be read.
pub fn entries_object(mos: &Arc<Objset>, number: u64) -> Option<u64> {
    let head = BrtVdev::from_bytes(mos.object(number).ok()?.dnode.bonus()).ok()?;
    Some(head.mos_entries).filter(|&entries| entries != 0)
}

impl BrtTable {
    /// Its entries, in the order of the ZAP.
    pub fn entries(&self) -> BrtEntries {
        BrtEntries { cursor: self.zap.as_ref().map(Zap::entries), head: self.head }
    }
}

/// Iterator over entries. A malformed one yields an error and is skipped.
#[derive(Debug)]
pub struct BrtEntries {
    cursor: Option<Cursor>,
    head: BrtVdev,
}

impl Iterator for BrtEntries {
    type Item = Result<BrtEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.cursor.as_mut()?.next()?;
        let head = self.head;
        Some(entry.and_then(|entry| {
            let bad = || Error::corrupt("invalid clone table entry");
            let ZapKey::Words(words) = &entry.key else { return Err(bad()) };
            let offset = words.first().copied().ok_or_else(bad)?;
            let stored = &entry.value;
            let refcnt = match stored.width {
                1 => head.refcount(&stored.bytes()),
                _ => stored.first(),
            };
            Ok(BrtEntry { offset, refcnt: refcnt.ok_or_else(bad)? })
        }))
    }
}
