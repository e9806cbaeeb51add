//! Log space maps: the changes of all metaslabs since each was last flushed.
//!
//! Every txg appends one map with entries of all vdevs. A metaslab that is flushed writes its changes to
//! its own map and notes the txg; entries of earlier logs are then obsolete for it.

use std::collections::HashMap;
use std::sync::Arc;

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::space_map::SpaceMapDecoder;
use stdx::RangeSet;

use super::replay;
use super::table::Metaslabs;
use crate::dmu::{Object, Objset};
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;

/// Ranges that all logs together may leave; OpenZFS flushes at a few hundred thousand.
const MAX_UNFLUSHED_RANGES: usize = 1 << 23;
/// How often they are counted, in entries.
const CHECK_EVERY: u64 = 1 << 18;

/// One log.
#[derive(Debug, Clone)]
pub struct SpaceMapLog {
    /// Its txg.
    pub txg: u64,
    /// Its object.
    pub object: Object,
}

/// Changes of one metaslab in the logs; no place is in both sets.
#[derive(Debug, Clone, Default)]
pub struct MetaslabChange {
    /// Allocated since the metaslab's map was written.
    pub allocated: RangeSet,
    /// Freed since.
    pub freed: RangeSet,
}

/// How many entries of a log still count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that the metaslabs' own maps lack.
    pub valid: u64,
    /// All entries.
    pub total: u64,
}

/// The pool's logs, oldest first.
pub fn logs(mos: &Arc<Objset>) -> Result<Vec<SpaceMapLog>> {
    let directory = Zap::open(&mos.object(MOS_DIRECTORY_OBJECT)?)?;
    let Some(number) = directory.u64(mos::LOG_SPACEMAP_ZAP)?.filter(|&n| n != 0) else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for entry in Zap::open(&mos.object(number)?)?.to_vec()? {
        let txg = u64::from_str_radix(&entry.name_lossy(), 16);
        let txg = txg.map_err(|_| Error::corrupt("log space map without a txg"))?;
        all.push(SpaceMapLog { txg, object: mos.object(entry.value.first().unwrap_or(0))? });
    }
    all.sort_by_key(|log| log.txg);
    Ok(all)
}

/// Changes by vdev and metaslab.
#[derive(Debug, Default)]
pub struct Unflushed {
    changes: HashMap<(u64, u64), MetaslabChange>,
    /// For each log: its txg and its entries.
    pub counts: Vec<(u64, Counts)>,
}

impl Unflushed {
    /// Replays `logs` for the vdevs in `tables`, which are by vdev number.
    pub fn load(logs: &[SpaceMapLog], tables: &HashMap<u64, (u32, &Metaslabs)>) -> Result<Self> {
        let mut unflushed = Self::default();
        for log in logs {
            unflushed.add(log, tables)?;
        }
        Ok(unflushed)
    }

    /// Changes of a metaslab in the logs.
    pub fn change(&self, vdev: u64, metaslab: u64) -> Option<&MetaslabChange> {
        self.changes.get(&(vdev, metaslab))
    }

    fn add(&mut self, log: &SpaceMapLog, tables: &HashMap<u64, (u32, &Metaslabs)>) -> Result<()> {
        let (mut counts, mut many) = (Counts::default(), false);
        let changes = &mut self.changes;
        replay(&log.object, SpaceMapDecoder::for_log(), &mut |entry| {
            counts.total += 1;
            let vdev = u64::from(entry.vdev.unwrap_or(0));
            let Some((shift, table)) = tables.get(&vdev) else { return };
            let id = entry.offset.checked_shr(*shift).unwrap_or(0);
            let metaslab = usize::try_from(id).ok().and_then(|i| table.all.get(i)?.as_ref().ok());
            if metaslab.is_none_or(|m| log.txg < m.unflushed_txg) {
                return;
            }
            counts.valid += 1;
            if many {
                return;
            }
            let change = changes.entry((vdev, id)).or_default();
            let end = entry.offset.saturating_add(entry.run);
            change.apply(entry.offset, end, entry.free);
            if counts.valid % CHECK_EVERY == 0 {
                let ranges = changes.values().map(|c| c.allocated.len() + c.freed.len());
                many = ranges.sum::<usize>() > MAX_UNFLUSHED_RANGES;
            }
        })?;
        if many {
            return Err(Error::new(Kind::Limit, "the log space maps have too many ranges"));
        }
        self.counts.push((log.txg, counts));
        Ok(())
    }
}

impl MetaslabChange {
    /// Notes an allocation or a free of `[start, end)` that happens after all the others.
    pub(crate) fn apply(&mut self, start: u64, end: u64, free: bool) {
        let (to, from) = if free {
            (&mut self.freed, &mut self.allocated)
        } else {
            (&mut self.allocated, &mut self.freed)
        };
        // Changes that were undone since the flush cancel out: only the rest is a change.
        let mut rest = RangeSet::new();
        rest.insert(start, end);
        let undone: Vec<(u64, u64)> = from.within(start, end).collect();
        for (s, e) in undone {
            rest.remove(s, e);
            from.remove(s, e);
        }
        rest.iter().for_each(|(s, e)| {
            to.insert(s, e);
        });
    }
}
