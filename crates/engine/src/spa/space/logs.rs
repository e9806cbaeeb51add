//! Log space maps: allocations and frees since each metaslab was last flushed, pool-wide.

use std::collections::{BTreeMap, HashMap};

use ondisk::names::{mos, vdev_top};
use ondisk::space_map::SpaceMapDecoder;

use super::{MAX_METASLABS, head, words};
use crate::dmu::{Dense, Object};
use crate::error::{Error, Result};
use crate::spa::Pool;
use crate::vdev::config::VdevConfig;

/// Bytes of one log that are read.
const MAX_LOG: u64 = 1 << 30;

/// What the logs add to each metaslab's allocation.
#[derive(Debug, Default)]
pub(super) struct Unflushed(HashMap<(u64, u64), i64>);

/// What is needed of a vdev to tell which metaslab an offset lies in, and since when its changes are
/// only in logs.
struct Known {
    shift: u32,
    flushed: Vec<u64>,
}

impl Unflushed {
    /// Replays every log that the pool names.
    pub(super) fn load(pool: &Pool, vdevs: &[VdevConfig]) -> Result<Self> {
        let number = pool.directory()?.u64(mos::LOG_SPACEMAP_ZAP)?;
        let Some(zap) = pool.dsl.zap(number.unwrap_or(0))? else { return Ok(Self::default()) };
        let mut known = HashMap::new();
        for config in vdevs {
            known.insert(config.id, Known { shift: config.metaslab_shift, flushed: flushed(pool, config)? });
        }
        let mut logs = BTreeMap::new();
        for entry in zap.to_vec()? {
            let txg = u64::from_str_radix(&entry.name_lossy(), 16);
            let txg = txg.map_err(|_| Error::corrupt("log space map without a txg"))?;
            logs.insert(txg, entry.value.first().unwrap_or(0));
        }
        let mut deltas = Self::default();
        for (txg, number) in logs {
            deltas.replay(txg, &pool.mos.object(number)?, &known)?;
        }
        Ok(deltas)
    }

    /// Bytes to add to what the metaslab's own map says.
    pub(super) fn delta(&self, vdev: u64, metaslab: u64) -> i64 {
        self.0.get(&(vdev, metaslab)).copied().unwrap_or(0)
    }

    fn replay(&mut self, txg: u64, log: &Object, known: &HashMap<u64, Known>) -> Result<()> {
        let length = head(log)?.length;
        if length > MAX_LOG || length > log.max_offset() {
            return Err(Error::corrupt(format!("log space map of {length} bytes")));
        }
        let mut decoder = SpaceMapDecoder::for_log();
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        for block in Dense::new(log, length) {
            let block = block?;
            let used = left.min(block.len());
            left -= used;
            for entry in decoder.entries(&block.slice(0..used)) {
                let entry = entry.map_err(|e| Error::corrupt(e.to_string()))?;
                let vdev = u64::from(entry.vdev.unwrap_or(0));
                let Some(top) = known.get(&vdev) else { continue };
                let metaslab = entry.offset.checked_shr(top.shift).unwrap_or(0);
                let since = usize::try_from(metaslab).ok().and_then(|m| top.flushed.get(m));
                if since.is_some_and(|&since| txg >= since) {
                    let bytes = i64::try_from(entry.run).unwrap_or(i64::MAX);
                    let delta = self.0.entry((vdev, metaslab)).or_default();
                    *delta = delta.saturating_add(if entry.free { -bytes } else { bytes });
                }
            }
        }
        Ok(())
    }
}

/// Since which txg each metaslab's changes are only in logs.
fn flushed(pool: &Pool, config: &VdevConfig) -> Result<Vec<u64>> {
    let Some(zap) = pool.dsl.zap(config.top_zap)? else { return Ok(Vec::new()) };
    let Some(number) = zap.u64(vdev_top::MS_UNFLUSHED_PHYS_TXGS)? else { return Ok(Vec::new()) };
    let count = config.asize.checked_shr(config.metaslab_shift).unwrap_or(0).min(MAX_METASLABS);
    words(&pool.mos.object(number)?, count)
}
