//! Clone tables: blocks with more than one reference without dedup; and the release of references ([`write`]).
//!
//! Each top-level vdev with cloned blocks has an object of 16-bit counters, one for each region of the vdev, and a
//! ZAP from a block's offset to the number of its additional references.
//!
//! Format source: brt.c, OpenZFS 2.3.

pub mod write;

use std::sync::Arc;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::BrtVdev;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zap::{Cursor, Key, Zap};

/// The table of one top-level vdev.
#[derive(Debug)]
pub struct Table {
    /// The vdev's number.
    pub vdev: u64,
    /// Its header: totals and the numbers of its objects.
    pub head: BrtVdev,
    zap: Option<Zap>,
}

/// An entry: a block and its additional references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Byte offset on the vdev.
    pub offset: u64,
    /// References beyond the first.
    pub refcnt: u64,
}

/// The table of top-level vdev `vdev`; `None` if it has none.
pub fn table(mos: &Arc<Objset>, vdev: u64) -> Result<Option<Table>> {
    let directory = Zap::open(&mos.object(MOS_DIRECTORY_OBJECT)?)?;
    let name = format!("{}{vdev}", mos::BRT_VDEV_PREFIX);
    let Some(number) = directory.u64(&name)?.filter(|&n| n != 0) else { return Ok(None) };
    let object = mos.object(number)?;
    let head = BrtVdev::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    let zap = match head.mos_entries {
        0 => None,
        entries => Some(Zap::open(&mos.object(entries)?)?),
    };
    Ok(Some(Table { vdev, head, zap }))
}

impl Table {
    /// Its entries, in the order of the ZAP.
    pub fn entries(&self) -> Entries {
        Entries { cursor: self.zap.as_ref().map(Zap::entries), head: self.head }
    }
}

/// Iterator over entries. A malformed one yields an error and is skipped.
#[derive(Debug)]
pub struct Entries {
    cursor: Option<Cursor>,
    head: BrtVdev,
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.cursor.as_mut()?.next()?;
        let head = self.head;
        Some(entry.and_then(|entry| {
            let bad = || Error::corrupt("clone table entry that makes no sense");
            let Key::Words(words) = &entry.key else { return Err(bad()) };
            let offset = words.first().copied().ok_or_else(bad)?;
            let stored = &entry.value;
            let refcnt = match stored.width {
                1 => head.refcount(&stored.bytes()),
                _ => stored.first(),
            };
            Ok(Entry { offset, refcnt: refcnt.ok_or_else(bad)? })
        }))
    }
}
