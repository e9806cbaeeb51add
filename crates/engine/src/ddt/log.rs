//! A table's logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::ddt::{DdtKey, DdtLogHeader, DdtPhys, log_entries};
use ondisk::{ChecksumType, names};

use super::DdtClass;
use super::pace::ENTRY_BYTES;
use crate::dmu::{Object, Objset};
use crate::error::{Error, Kind, Result};
use crate::memory::{Limit, Limits};
use crate::zap::Zap;

/// Entries of a log that any machine can hold.
const FEW_ENTRIES: u64 = 1 << 22;
/// Share of the memory that a log may take when it is read, as a multiple of `zfs_dedup_log_mem_max`. That is a hundredth of
/// the memory by default, half of which OpenZFS fills before it flushes.
const MOST: u64 = 25;

/// An entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The class of the ZAP that has an older entry of the key, if any.
    pub(crate) class: Option<DdtClass>,
    /// Its variants.
    pub phys: Vec<DdtPhys>,
}

/// One of a table's two logs.
#[derive(Debug)]
pub struct DdtLog {
    /// 0 or 1.
    pub number: u32,
    /// Its object in the MOS.
    pub object: u64,
    /// Its header.
    pub header: DdtLogHeader,
    /// The newest entry of each key, without those already flushed.
    pub entries: BTreeMap<DdtKey, LogEntry>,
}

impl DdtLog {
    /// Whether entries up to the checkpoint are flushed.
    pub fn has_checkpoint(&self) -> bool {
        self.header.flags() & DdtLogHeader::FLAG_CHECKPOINT != 0
    }
}

/// Both logs of a table whose directory is `zap`.
pub(super) fn load(
    mos: &Arc<Objset>,
    zap: &Zap,
    checksum: ChecksumType,
    flat: bool,
    notes: &mut Vec<Error>,
) -> Vec<DdtLog> {
    let (mut all, most) = (Vec::new(), most_entries(&mos.arc().memory().limits));
    for number in 0..2 {
        let object = zap.u64(&names::ddt_log(checksum.name(), number));
        let log = match object {
            Ok(Some(object)) => mos.object(object).and_then(|o| one(&o, number, (flat, most), notes)),
            Ok(None) => continue,
            Err(e) => Err(e),
        };
        match log {
            Ok(log) => all.push(log),
            Err(e) => notes.push(e),
        }
    }
    hide(&mut all);
    all
}

/// The log that takes entries hides the same keys in the one that is being flushed.
fn hide(logs: &mut [DdtLog]) {
    let [one, two] = logs else { return };
    let is_flushing = one.header.flags() & DdtLogHeader::FLAG_FLUSHING != 0;
    let (active, flushing) = if is_flushing { (two, one) } else { (one, two) };
    flushing.entries.retain(|key, _| !active.entries.contains_key(key));
}

/// Entries of a log that this machine reads.
fn most_entries(limits: &Limits) -> usize {
    let most = limits.get(Limit::DedupLogMemMax).saturating_mul(MOST) / ENTRY_BYTES;
    usize::try_from(most.max(FEW_ENTRIES)).unwrap_or(usize::MAX)
}

fn one(object: &Object, number: u32, form: (bool, usize), notes: &mut Vec<Error>) -> Result<DdtLog> {
    let header = DdtLogHeader::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    let mut log = DdtLog { number, object: object.number, header, entries: BTreeMap::new() };
    if header.length > object.stored_prefix() {
        return Err(Error::corrupt(format!("dedup log of {} bytes", header.length)));
    }
    let size = object.dnode.datablksz().max(1);
    for blkid in 0..header.length.div_ceil(size) {
        if let Err(e) = block(object, blkid, form, &mut log) {
            if e.kind() == Kind::Limit {
                return Err(e);
            }
            notes.push(e);
        }
    }
    Ok(log)
}

fn block(object: &Object, blkid: u64, (flat, most): (bool, usize), log: &mut DdtLog) -> Result<()> {
    let flushed = log.has_checkpoint().then_some(log.header.checkpoint);
    for entry in log_entries(flat, &object.block(blkid)?) {
        let entry = entry.map_err(|e| Error::corrupt(format!("dedup log {}: {e}", object.number)))?;
        if flushed.is_some_and(|checkpoint| entry.key <= checkpoint) {
            continue;
        }
        if log.entries.len() >= most {
            let what = format!("dedup log {} is too long for this machine's memory", object.number);
            return Err(Error::new(Kind::Limit, what));
        }
        let class = DdtClass::ALL.get(usize::from(entry.class)).copied();
        log.entries.insert(entry.key, LogEntry { class, phys: entry.phys });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine reads the logs that OpenZFS keeps on one of the same size: a side takes half a hundredth of the memory, 144
    /// bytes an entry.
    #[test]
    fn logs_of_large_machines_are_read() {
        for memory in [1_u64 << 30, 1 << 38, 1 << 40] {
            let limits = Limits::default();
            limits.set(Limit::DedupLogMemMax, memory / 100).unwrap();
            let (most, theirs) = (most_entries(&limits) as u64, memory / 200 / 144);
            assert!(most > 2 * theirs, "{memory}: {most} of {theirs}");
            assert!(most * ENTRY_BYTES <= (memory / 4).max(FEW_ENTRIES * ENTRY_BYTES));
        }
    }
}
