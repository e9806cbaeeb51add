//! Properties of a pool: set by the administrator, or computed by the pool.
//!
//! Printing of values is elsewhere. Properties that only an imported pool has (`load_guid`, `altroot`,
//! `cachefile`) are not here.

use std::collections::BTreeMap;

use ondisk::names::{mos, special_dir};

use super::Pool;
use super::space::PoolSpace;
use crate::dsl::props::{PropValue, names};
use crate::error::Result;

/// Statistics of a pool.
#[derive(Debug, Clone)]
pub struct PoolStats {
    /// Bytes of vdevs that keep data.
    pub size: u64,
    /// Bytes allocated of that.
    pub allocated: u64,
    /// Percent; `None` where space maps are too old for it.
    pub fragmentation: Option<u64>,
    /// Bytes that only the checkpoint uses.
    pub checkpoint: u64,
    /// Hundredths.
    pub dedupratio: u64,
    /// Bytes that dedup tables take.
    pub dedup_table_size: u64,
    /// Bytes of blocks that are cloned.
    pub bcloneused: u64,
    /// Bytes that cloning saves.
    pub bclonesaved: u64,
    /// Hundredths.
    pub bcloneratio: u64,
    /// Bytes of destroyed datasets that are still to be freed.
    pub freeing: u64,
    /// Bytes of destroyed datasets that could not be freed.
    pub leaked: u64,
    /// Txg up to which the last scrub went.
    pub last_scrubbed_txg: u64,
}

impl PoolStats {
    /// Computes them from the pool's space; unreadable values count as 0.
    #[doc(alias = "spa_prop_get_config")]
    pub fn of(pool: &Pool, space: &PoolSpace) -> Self {
        let dedup = space.dedup;
        let hundredths = |with: u64, without: u64| {
            let ratio = (u128::from(with) * 100).checked_div(u128::from(without));
            ratio.and_then(|r| u64::try_from(r).ok()).unwrap_or(100)
        };
        let last_scrubbed = pool.directory().and_then(|d| d.u64(mos::LAST_SCRUBBED_TXG));
        Self {
            size: space.size(),
            allocated: space.allocated(),
            fragmentation: space.fragmentation(),
            checkpoint: space.checkpoint(),
            dedupratio: hundredths(dedup.ref_dsize, dedup.dsize),
            dedup_table_size: dedup_table_size(pool).unwrap_or(0),
            bcloneused: space.cloned,
            bclonesaved: space.clones_saved,
            bcloneratio: hundredths(space.cloned.saturating_add(space.clones_saved), space.cloned),
            freeing: freeing(pool),
            leaked: special_dir_used(pool, special_dir::LEAK).unwrap_or(0),
            last_scrubbed_txg: last_scrubbed.ok().flatten().unwrap_or(0),
        }
    }
}

/// Values that were set, by property name. `bootfs` is the dataset's name.
pub fn settings(pool: &Pool) -> Result<BTreeMap<String, PropValue>> {
    let mut all = BTreeMap::new();
    let number = pool.directory()?.u64(mos::PROPS)?;
    let Some(zap) = pool.dsl.zap(number.unwrap_or(0))? else { return Ok(all) };
    for entry in zap.to_vec()? {
        let name = entry.name_lossy();
        let value = match (name.as_str(), PropValue::from_zap(&entry.value)) {
            ("bootfs", PropValue::Number(0)) => continue,
            // Software that does not clear it may have destroyed the dataset.
            ("bootfs", PropValue::Number(n)) => match names::dataset_name(&pool.dsl, n) {
                Ok(name) => PropValue::Text(name),
                Err(_) => continue,
            },
            (_, value) => value,
        };
        all.insert(name, value);
    }
    Ok(all)
}

/// Bytes of destroyed datasets that are still to be freed.
pub fn freeing(pool: &Pool) -> u64 {
    special_dir_used(pool, special_dir::FREE).unwrap_or(0)
}

/// Bytes that one of the pool's own directories holds.
fn special_dir_used(pool: &Pool, name: &str) -> Result<u64> {
    Ok(pool.dsl.root()?.child(name)?.map_or(0, |dir| dir.phys.used_bytes))
}

/// Bytes of all objects of all dedup tables.
#[doc(alias = "ddt_get_ddt_dsize")]
fn dedup_table_size(pool: &Pool) -> Result<u64> {
    let mut total = 0_u64;
    let mut count = |number: u64| {
        let bytes = pool.mos.object(number).map_or(0, |object| object.dnode.used_bytes());
        total = total.saturating_add(bytes.saturating_add(256) >> 9 << 9);
    };
    for entry in pool.directory()?.to_vec()? {
        let name = entry.name_lossy();
        let Some(number) = entry.value.first().filter(|_| name.starts_with("DDT-")) else { continue };
        // A table's name includes the form of its entries; a name without it is a table's own directory.
        if name.contains("-zap-") {
            count(number);
        } else if name != mos::DDT_STATS
            && let Some(table) = pool.dsl.zap(number)?
        {
            let inner = table.to_vec()?;
            inner
                .iter()
                .filter(|e| e.name().starts_with(b"DDT-"))
                .filter_map(|e| e.value.first())
                .for_each(&mut count);
        }
    }
    Ok(total)
}
