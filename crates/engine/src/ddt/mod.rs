//! Dedup tables: their list, their totals, and their entries; and their changes ([`write`]).
//!
//! A pool has a table for each checksum that dedup was used with. A table has up to three ZAPs by class
//! (ditto, duplicate, unique). Tables made with `fast_dedup` have a directory of their own and two logs:
//! new and changed entries go to one while the other is flushed to the ZAPs, so an entry in a log hides the
//! same key's entry in a ZAP.
//!
//! Format source: ddt.c, ddt_log.c, ddt_zap.c, OpenZFS 2.3.

mod counts;
mod entries;
mod fingerprints;
pub(crate) mod host;
pub(crate) mod index;
mod known;
mod live;
mod log;
mod log_sync;
mod lookup;
mod pace;
pub mod prune;
pub(crate) mod rebuild;
mod references;
mod stats;
mod stored;
mod table_sync;
pub(crate) mod write;

use std::collections::BTreeSet;
use std::sync::Arc;

use ondisk::ddt::{DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_VERSION_FDT, DDT_VERSION_LEGACY, DdtHistogram};
use ondisk::names::{self, MOS_DIRECTORY_OBJECT, mos};
use ondisk::{ChecksumType, names::ddt_dir};

pub(crate) use counts::Counted;
pub use entries::{DdtEntries, DdtEntry};
pub use log::{DdtLog, LogEntry};
pub use lookup::LookupCounts;
pub use pace::ENTRY_BYTES as LOG_ENTRY_BYTES;
pub use stats::{Totals, of_block};

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zap::Zap;

/// The only kind of storage that OpenZFS has.
const STORE_TYPE: &str = "zap";

/// Class of the entries of one ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DdtClass {
    /// Entries with extra copies, made by old versions.
    Ditto,
    /// Entries with more than one reference.
    Duplicate,
    /// Entries with one reference.
    Unique,
}

impl DdtClass {
    /// In their order on disk.
    pub(crate) const ALL: [DdtClass; 3] = [DdtClass::Ditto, DdtClass::Duplicate, DdtClass::Unique];

    /// The word in the tables' names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ditto => "ditto",
            Self::Duplicate => "duplicate",
            Self::Unique => "unique",
        }
    }
}

/// One ZAP of a table.
#[derive(Debug)]
pub struct DdtObject {
    /// Its class.
    pub class: DdtClass,
    /// Its name: `DDT-sha256-zap-duplicate`.
    pub name: String,
    /// Its object in the MOS.
    pub object: u64,
    /// Bytes that the object takes on disk, to the nearest sector.
    pub disk_bytes: u64,
    /// Bytes of its blocks, unpacked.
    pub memory_bytes: u64,
    /// Number of entries.
    pub count: u64,
    /// Statistics that the pool keeps of it, when they can be read.
    pub histogram: Option<DdtHistogram>,
    zap: Zap,
    flat: bool,
}

impl DdtObject {
    /// Its entries, in the order of the ZAP.
    pub fn entries(&self) -> DdtEntries {
        self.entries_from(0)
    }

    /// As [`DdtObject::entries`], from the `cursor` of an earlier entry on; 0 is the start.
    pub(crate) fn entries_from(&self, cursor: u64) -> DdtEntries {
        DdtEntries::new(&self.zap, self.flat, cursor)
    }
}

/// The table of one checksum.
#[derive(Debug)]
pub struct DdtTable {
    /// The checksum.
    pub checksum: ChecksumType,
    /// 0 for traditional tables, 1 with `fast_dedup`.
    pub version: u64,
    /// Bit 0: flat values; bit 1: there are logs.
    pub flags: u64,
    /// Directory that names the ZAPs: the MOS's own, or the table's.
    pub root: u64,
    /// Its ZAPs that have entries.
    pub stores: Vec<DdtObject>,
    /// Its logs.
    pub logs: Vec<DdtLog>,
}

impl DdtTable {
    /// Whether values are flat.
    pub fn is_flat(&self) -> bool {
        self.flags & DDT_FLAG_FLAT != 0
    }
}

/// Every table of the pool, in the order of their checksums' numbers. Tables that can't be read are skipped
/// and reported in `notes`.
pub fn tables(mos: &Arc<Objset>, notes: &mut Vec<Error>) -> Vec<DdtTable> {
    let each = match each_table(mos) {
        Ok(each) => each,
        Err(e) => {
            notes.push(e);
            return Vec::new();
        }
    };
    let mut all = Vec::new();
    for (_, table, lost) in each {
        all.extend(table);
        // Damaged statistics are a part of several tables.
        let known: BTreeSet<String> = notes.iter().map(Error::to_string).collect();
        notes.extend(lost.into_iter().filter(|e| !known.contains(&e.to_string())));
    }
    all
}

/// Reads all tables, so that the cache holds them as far as it can.
///
/// # Errors
/// The first part that cannot be read.
#[doc(alias = "ddt_prefetch_all")]
pub fn prefetch(mos: &Arc<Objset>) -> Result<()> {
    let mut notes = Vec::new();
    for store in tables(mos, &mut notes).into_iter().flat_map(|table| table.stores) {
        let object = mos.object(store.object)?;
        (0..=object.dnode.maxblkid).try_for_each(|blkid| object.block(blkid).map(drop))?;
    }
    notes.into_iter().next().map_or(Ok(()), Err)
}

/// The statistics of all tables, if they are readable as a whole.
fn statistics(mos: &Arc<Objset>, directory: &Zap) -> Result<Option<Zap>> {
    let Some(number) = directory.u64(mos::DDT_STATS)?.filter(|&number| number != 0) else { return Ok(None) };
    let zap = Zap::open(&mos.object(number)?)?;
    zap.to_vec()?;
    Ok(Some(zap))
}

/// Each checksum that may have a table, its table if it has one, and the errors of its unreadable parts. Damaged statistics are
/// a part of each table, also of those still to be made, because all of them write there.
fn each_table(
    mos: &Arc<Objset>,
) -> Result<impl Iterator<Item = (ChecksumType, Option<DdtTable>, Vec<Error>)>> {
    let directory = mos.object(MOS_DIRECTORY_OBJECT).and_then(|object| Zap::open(&object))?;
    let checksums = (0..=u8::MAX).filter_map(ChecksumType::from_raw);
    let (statistics, damage) = match statistics(mos, &directory) {
        Ok(statistics) => (statistics, None),
        Err(e) => (None, Some(e)),
    };
    Ok(checksums.map(move |checksum| {
        let mut notes: Vec<Error> = damage.iter().cloned().collect();
        let table = table(mos, (&directory, statistics.as_ref()), checksum, &mut notes).unwrap_or_else(|e| {
            notes.push(e);
            None
        });
        (checksum, table, notes)
    }))
}

fn table(
    mos: &Arc<Objset>,
    (directory, statistics): (&Zap, Option<&Zap>),
    checksum: ChecksumType,
    notes: &mut Vec<Error>,
) -> Result<Option<DdtTable>> {
    let own = directory.u64(&names::ddt_directory(checksum.name()))?;
    let mut table = DdtTable {
        checksum,
        version: DDT_VERSION_LEGACY,
        flags: 0,
        root: own.unwrap_or(MOS_DIRECTORY_OBJECT),
        stores: Vec::new(),
        logs: Vec::new(),
    };
    let zap = match own {
        None => directory.clone(),
        Some(number) => {
            let zap = Zap::open(&mos.object(number)?)?;
            table.version = zap.u64(ddt_dir::VERSION)?.unwrap_or(DDT_VERSION_FDT);
            table.flags = zap.u64(ddt_dir::FLAGS)?.unwrap_or(0);
            zap
        }
    };
    let mut named = own.is_some();
    for class in DdtClass::ALL {
        let name = names::ddt(checksum.name(), STORE_TYPE, class.name());
        let Some(number) = zap.u64(&name)? else { continue };
        named = true;
        match store(mos, class, name, number, table.is_flat(), statistics) {
            Ok(store) if store.count == 0 => {}
            Ok(store) => table.stores.push(store),
            Err(e) => notes.push(e),
        }
    }
    if table.flags & DDT_FLAG_LOG != 0 {
        table.logs = log::load(mos, &zap, checksum, table.is_flat(), notes);
    }
    Ok(named.then_some(table))
}

fn store(
    mos: &Arc<Objset>,
    class: DdtClass,
    name: String,
    number: u64,
    flat: bool,
    statistics: Option<&Zap>,
) -> Result<DdtObject> {
    let object = mos.object(number)?;
    let zap = Zap::open(&object)?;
    let header = zap.fat_header().ok_or_else(|| Error::corrupt(format!("{name} is no fat ZAP")))?;
    let count = header.num_entries;
    let histogram = statistics.and_then(|s| s.lookup(name.as_bytes()).ok().flatten());
    let histogram = histogram.and_then(|v| DdtHistogram::from_words(&v.ints).ok());
    let fill: u64 = object.dnode.blkptrs().iter().map(|bp| bp.fill()).fold(0, u64::saturating_add);
    Ok(DdtObject {
        class,
        name,
        object: number,
        disk_bytes: (object.dnode.used_bytes().saturating_add(256) >> 9) << 9,
        memory_bytes: fill.saturating_mul(object.dnode.datablksz()),
        count,
        histogram,
        zap,
        flat,
    })
}
