//! The clone table (BRT) for a walk: whether a block legitimately has more than one reference.

use std::collections::HashMap;

use ondisk::pool::BrtVdev;
use ondisk::{Dva, names};

use crate::error::{Error, Result};
use crate::spa::Pool;
use crate::zap::Zap;

/// The tables of all top-level vdevs, opened on first use.
#[derive(Debug)]
pub(crate) struct Clones<'p> {
    pool: &'p Pool,
    active: bool,
    tables: HashMap<u32, Option<Zap>>,
}

impl<'p> Clones<'p> {
    /// The clone tables of a pool.
    pub(crate) fn new(pool: &'p Pool) -> Self {
        let guid = zcommon::features::Feature::BlockCloning.info().guid;
        Self { pool, active: pool.features.is_active(guid), tables: HashMap::new() }
    }

    /// References beyond the first; 0 if the block is not cloned or its table is unreadable.
    pub(crate) fn references(&mut self, dva: &Dva) -> u64 {
        if !self.active {
            return 0;
        }
        let pool = self.pool;
        let table = self.tables.entry(dva.vdev).or_insert_with(|| open(pool, dva.vdev).ok().flatten());
        let found = table.as_ref().and_then(|zap| zap.lookup_words(&[dva.offset]).ok().flatten());
        found.map_or(0, |value| value.bytes().first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b)))
    }
}

fn open(pool: &Pool, vdev: u32) -> Result<Option<Zap>> {
    let name = format!("{}{vdev}", names::mos::BRT_VDEV_PREFIX);
    let Some(number) = pool.directory()?.u64(&name)?.filter(|&n| n != 0) else { return Ok(None) };
    let object = pool.mos.object(number)?;
    let head = BrtVdev::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    Zap::open(&pool.mos.object(head.mos_entries)?).map(Some)
}
