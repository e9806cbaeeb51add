//! The metaslabs of a top-level vdev, one by one, and the free space in each.

use std::sync::Arc;

use ondisk::names::vdev_top;
use ondisk::space_map::SpaceMapPhys;
use stdx::RangeSet;

use super::log::MetaslabChange;
use crate::dmu::{Object, Objset};
use crate::error::{Error, Result};
use crate::vdev::config::{AllocBias, Kind, VdevConfig};
use crate::zap::Zap;

/// Metaslabs that one vdev may have: the array is read whole.
const MAX_METASLABS: u64 = 1 << 24;

/// A metaslab as the pool records it.
#[derive(Debug, Clone)]
pub struct MetaslabRecord {
    /// Its number in the vdev.
    pub id: u64,
    /// First byte on the vdev.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Its space map's object; 0: never written.
    pub space_map: u64,
    /// The map's head.
    pub head: Option<SpaceMapPhys>,
    /// The map has a histogram.
    pub has_histogram: bool,
    /// Changes since this txg are only in the logs; 0 without logs.
    pub unflushed_txg: u64,
}

impl MetaslabRecord {
    /// Bytes allocated, from its own map.
    pub fn allocated(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| u64::try_from(head.alloc).unwrap_or(0))
    }
}

/// The metaslabs of one top-level vdev.
#[derive(Debug)]
pub struct Metaslabs {
    /// The vdev's sector shift: the unit of its maps.
    pub shift: u32,
    /// Object with the unflushed txgs; 0: none.
    pub unflushed_object: u64,
    /// Each, or why it can't be read.
    pub all: Vec<Result<MetaslabRecord>>,
    mos: Arc<Objset>,
}

impl Metaslabs {
    /// Reads the heads of all metaslabs of the vdev; none for holes, removed and absent vdevs.
    pub fn load(mos: &Arc<Objset>, config: &VdevConfig) -> Result<Self> {
        let mut table =
            Self { shift: config.ashift, unflushed_object: 0, all: Vec::new(), mos: Arc::clone(mos) };
        if config.metaslab_array == 0 || matches!(config.kind, Kind::Indirect | Kind::Hole | Kind::Missing) {
            return Ok(table);
        }
        let count = config.asize.checked_shr(config.metaslab_shift).filter(|&n| n <= MAX_METASLABS);
        let count = count.ok_or_else(|| Error::corrupt("too many metaslabs"))?;
        let maps = words(&mos.object(config.metaslab_array)?, count)?;
        table.unflushed_object = unflushed_object(mos, config)?;
        let unflushed = match table.unflushed_object {
            0 => Vec::new(),
            number => words(&mos.object(number)?, count)?,
        };
        for (id, (at, space_map)) in (0..).zip(maps.into_iter().enumerate()) {
            let unflushed_txg = unflushed.get(at).copied().unwrap_or(0);
            table.all.push(one(mos, config, id, space_map, unflushed_txg));
        }
        Ok(table)
    }

    /// Free space of a metaslab: its own map, and the changes that the logs hold.
    pub fn free(&self, metaslab: &MetaslabRecord, change: Option<&MetaslabChange>) -> Result<RangeSet> {
        let mut free = RangeSet::new();
        free.insert(metaslab.start, metaslab.start.saturating_add(metaslab.size));
        if metaslab.space_map != 0 {
            let object = self.mos.object(metaslab.space_map)?;
            let allocated = super::load(&object, self.shift, metaslab.start, metaslab.size)?;
            allocated.iter().for_each(|(start, end)| {
                free.remove(start, end);
            });
        }
        for (start, end) in change.iter().flat_map(|c| c.allocated.iter()) {
            free.remove(start, end);
        }
        for (start, end) in change.iter().flat_map(|c| c.freed.iter()) {
            free.insert(start, end);
        }
        Ok(free)
    }
}

fn one(
    mos: &Arc<Objset>,
    config: &VdevConfig,
    id: u64,
    space_map: u64,
    unflushed_txg: u64,
) -> Result<MetaslabRecord> {
    let (start, size) = place(config.metaslab_shift, row(config), id);
    let mut metaslab =
        MetaslabRecord { id, start, size, space_map, head: None, has_histogram: false, unflushed_txg };
    if space_map != 0 {
        let object = mos.object(space_map)?;
        let bonus = object.dnode.bonus();
        metaslab.head = Some(SpaceMapPhys::from_bytes(bonus).map_err(|e| Error::corrupt(e.to_string()))?);
        metaslab.has_histogram = bonus.len() >= SpaceMapPhys::SIZE;
    }
    Ok(metaslab)
}

/// First byte and size of a metaslab of `1 << shift` bytes. In a draid it begins and ends at whole rows.
#[doc(alias = "vdev_draid_metaslab_init")]
pub(crate) fn place(shift: u32, row: u64, id: u64) -> (u64, u64) {
    let (size, row) = (1_u64.checked_shl(shift).unwrap_or(0), row.max(1));
    let start = id.saturating_mul(size);
    let first = start.div_ceil(row).saturating_mul(row);
    let left = size.saturating_sub(first.saturating_sub(start));
    (first, left / row * row)
}

/// Bytes of a row of a draid's group; 1 for other vdevs.
pub(crate) fn row(config: &VdevConfig) -> u64 {
    let width = config.draid.map(|draid| draid.data.saturating_add(draid.parity));
    width.and_then(|width| width.checked_shl(config.ashift)).filter(|&row| row > 0).unwrap_or(1)
}

/// Allocation class of a vdev. Labels name it; the MOS keeps it in the vdev's own ZAP.
pub fn bias(mos: &Arc<Objset>, config: &VdevConfig) -> Result<AllocBias> {
    if config.top_zap == 0 || config.bias == AllocBias::Log {
        return Ok(config.bias);
    }
    let zap = Zap::open(&mos.object(config.top_zap)?)?;
    let word = zap.lookup(vdev_top::ALLOCATION_BIAS.as_bytes())?;
    Ok(match word.map(|v| v.string()).as_deref() {
        Some("log") => AllocBias::Log,
        Some("special") => AllocBias::Special,
        Some("dedup") => AllocBias::Dedup,
        _ => config.bias,
    })
}

/// The space map of the space that a checkpoint keeps on the vdev.
pub fn checkpoint(mos: &Arc<Objset>, config: &VdevConfig) -> Result<Option<u64>> {
    if config.top_zap == 0 {
        return Ok(None);
    }
    let zap = Zap::open(&mos.object(config.top_zap)?)?;
    Ok(zap.u64(vdev_top::POOL_CHECKPOINT_SM)?.filter(|&number| number != 0))
}

/// The obsolete space map of a removed vdev.
pub(crate) fn obsolete(mos: &Arc<Objset>, config: &VdevConfig) -> Result<Option<u64>> {
    if config.top_zap == 0 {
        return Ok(None);
    }
    let zap = Zap::open(&mos.object(config.top_zap)?)?;
    Ok(zap.u64(vdev_top::INDIRECT_OBSOLETE_SM)?.filter(|&number| number != 0))
}

fn unflushed_object(mos: &Arc<Objset>, config: &VdevConfig) -> Result<u64> {
    if config.top_zap == 0 {
        return Ok(0);
    }
    let zap = Zap::open(&mos.object(config.top_zap)?)?;
    Ok(zap.u64(vdev_top::MS_UNFLUSHED_PHYS_TXGS)?.unwrap_or(0))
}

/// The first `count` words of an object.
fn words(object: &Object, count: u64) -> Result<Vec<u64>> {
    let bytes = usize::try_from(count.saturating_mul(8)).map_err(|_| Error::corrupt("array too long"))?;
    let bytes = object.read_vec(0, bytes)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
}
