//! Space of a pool and of its top-level vdevs: how much there is, is allocated, and is fragmented.
//!
//! A top-level vdev is cut into metaslabs of equal size; the rest at its end is not used. Each metaslab that
//! was ever written has a space map whose head has its allocated bytes; with `log_spacemap` the changes since
//! its last flush stand in pool-wide logs, which are replayed here.
//!
//! Users see *deflated* space: sizes are scaled by the allocated size of a 128 KiB block on the vdev, so that
//! a raidz shows about its usable capacity. The pool keeps back some *slop* (1/32, within bounds) so that a
//! full pool can still be cleaned up.
//!
//! Differs from OpenZFS: space that a bigger device would add (`expandsize`) is not computed.

mod fragmentation;
pub(crate) mod slop;
mod totals;

use std::collections::HashMap;

use stdx::RangeSet;
use zcommon::features::Feature;

use super::Pool;
use super::vdev_props::NON_ALLOCATING;
use crate::error::{Error, Result};
use crate::memory::Limit;
use crate::metaslab::log::{Unflushed, logs};
use crate::metaslab::table::{self, Metaslabs};
use crate::vdev::config::{AllocBias, Kind, VdevConfig};
use crate::vdev::top::Top;

pub use totals::{DedupTotals, PoolSpace};

/// Metaslabs that one vdev may have: the metaslab array is read whole.
const MAX_METASLABS: u64 = 1 << 20;

/// One metaslab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaslabSpace {
    /// First byte on the vdev.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Its space map's object; 0: never written.
    pub space_map: u64,
    /// Bytes allocated, logs included.
    pub(crate) allocated: u64,
    /// Fragmentation of its free space in percent; `None` when its map is too old for it.
    pub fragmentation: Option<u64>,
}

/// Space of one top-level vdev.
#[derive(Debug, Clone)]
pub struct VdevSpace {
    /// Its number.
    pub id: u64,
    /// Its class.
    pub bias: AllocBias,
    /// Size of a metaslab, as a shift.
    pub shift: u32,
    /// Its metaslabs; none where nothing can be allocated (holes, removed vdevs).
    pub metaslabs: Vec<MetaslabSpace>,
    /// Sectors of 512 bytes that count for 512 sectors' worth of a 128 KiB block: see [`Top::deflate_ratio`].
    pub(crate) deflate_ratio: u64,
    /// Bytes that the pool's checkpoint holds here.
    pub checkpoint: u64,
    /// Nothing is allocated here any more.
    pub(crate) closed: bool,
    /// Of more metaslabs than this, one is for the intent log.
    log_min: u64,
}

impl VdevSpace {
    /// Bytes in metaslabs.
    pub fn size(&self) -> u64 {
        self.metaslabs.iter().map(|m| m.size).fold(0, u64::saturating_add)
    }

    /// Fragmentation of its free space in percent; `None` where its maps are too old for it.
    pub fn fragmentation(&self) -> Option<u64> {
        fragmentation::of_vdev(self)
    }

    /// Bytes of the metaslab that serves the intent log; 0 on vdevs too small to spare one.
    pub(crate) fn embedded_log(&self) -> u64 {
        let count = u64::try_from(self.metaslabs.len()).unwrap_or(u64::MAX);
        let big = count > self.log_min && self.bias == AllocBias::Normal;
        self.metaslabs.first().filter(|_| big).map_or(0, |m| m.size)
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> u64 {
        self.metaslabs.iter().map(|m| m.allocated).fold(0, u64::saturating_add)
    }

    /// `bytes` of this vdev as users count them.
    #[doc(alias = "vdev_deflated_space")]
    pub fn deflated(&self, bytes: u64) -> u64 {
        (bytes >> ondisk::MIN_BLOCK_SHIFT).saturating_mul(self.deflate_ratio)
    }
}

/// How much of a vdev's space is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Sizes of metaslabs: enough to compute the space for datasets, and quick on any pool.
    Sizes,
    /// How much of each is allocated, too: reads every space map's head, and the logs.
    Allocation,
}

/// Space of every top-level vdev. A metaslab that can't be read counts as full and is named in the notes.
pub fn vdevs(pool: &Pool, detail: Detail, notes: &mut Vec<Error>) -> Vec<VdevSpace> {
    let tree = pool.tree();
    let mut room = MAX_METASLABS;
    let mut vdevs = Vec::new();
    // In a pool that is being written, the configuration includes vdevs and objects newer than its tree.
    let newer = pool.config.nvlist("vdev_tree").and_then(|list| VdevConfig::parse(list).ok());
    let newer = newer.map(|root| root.children).unwrap_or_default();
    for config in &tree.config.children {
        let known = newer.iter().find(|c| c.id == config.id && c.guid == config.guid);
        let closed = known.unwrap_or(config).nvlist.u64(NON_ALLOCATING).unwrap_or(0) != 0;
        let config = known.filter(|known| known.metaslab_array != config.metaslab_array).unwrap_or(config);
        let Some(top) = tree.top(config.id) else { continue };
        let mut space = VdevSpace { closed, ..empty(pool, config, &top) };
        let count = sizes(pool, config, room, &mut space).and_then(|()| match detail {
            Detail::Sizes => Ok(None),
            Detail::Allocation if config.metaslab_array == 0 => Ok(None),
            Detail::Allocation => Metaslabs::load(&pool.mos, config).map(Some),
        });
        let table = count.unwrap_or_else(|e| {
            notes.push(e.on_vdev(&config.name()));
            space = empty(pool, config, &top);
            None
        });
        room = room.saturating_sub(u64::try_from(space.metaslabs.len()).unwrap_or(u64::MAX));
        vdevs.push((config, space, table));
    }
    let unflushed = unflushed(pool, &vdevs).unwrap_or_else(|e| {
        notes.push(e);
        Unflushed::default()
    });
    let finish = |(config, mut space, table): (&VdevConfig, VdevSpace, Option<Metaslabs>)| {
        for (read, whole) in table.into_iter().flat_map(|t| t.all).zip(&mut space.metaslabs) {
            match read {
                Ok(read) => *whole = metaslab(pool, config, &read, &unflushed, *whole),
                Err(e) => notes.push(e.on_vdev(&config.name())),
            }
        }
        space
    };
    vdevs.into_iter().map(finish).collect()
}

/// Changes in the logs; nothing without heads to add them to.
fn unflushed(pool: &Pool, vdevs: &[(&VdevConfig, VdevSpace, Option<Metaslabs>)]) -> Result<Unflushed> {
    let known = vdevs.iter().filter_map(|(config, _, table)| Some((config, table.as_ref()?)));
    let by_id: HashMap<_, _> = known.map(|(c, table)| (c.id, (c.metaslab_shift, table))).collect();
    match by_id.is_empty() {
        true => Ok(Unflushed::default()),
        false => Unflushed::load(&logs(&pool.mos)?, &by_id),
    }
}

fn empty(pool: &Pool, config: &VdevConfig, top: &Top) -> VdevSpace {
    VdevSpace {
        id: config.id,
        bias: config.bias,
        shift: config.metaslab_shift,
        metaslabs: Vec::new(),
        deflate_ratio: top.deflate_ratio(),
        checkpoint: 0,
        closed: false,
        log_min: pool.env.memory.limits.get(Limit::EmbeddedLogMin),
    }
}

/// Its class, its metaslabs as if all were full, and the bytes that a checkpoint keeps.
fn sizes(pool: &Pool, config: &VdevConfig, room: u64, space: &mut VdevSpace) -> Result<()> {
    space.bias = table::bias(&pool.mos, config)?;
    if config.metaslab_shift == 0 || matches!(config.kind, Kind::Indirect | Kind::Hole | Kind::Missing) {
        return Ok(());
    }
    // Nothing was ever written there.
    let unused = config.metaslab_array == 0;
    let count = config.asize.checked_shr(config.metaslab_shift).filter(|&n| n <= room);
    let count = count.ok_or_else(|| Error::corrupt("too many metaslabs"))?;
    let row = table::row(config);
    for id in 0..count {
        let (start, size) = table::place(config.metaslab_shift, row, id);
        let allocated = if unused { 0 } else { size };
        let fragmentation = (unused && keeps_histograms(pool)).then_some(0);
        space.metaslabs.push(MetaslabSpace { start, size, space_map: 0, allocated, fragmentation });
    }
    space.checkpoint = checkpoint(pool, config)?;
    Ok(())
}

/// Adds a metaslab from its space map and the logs.
fn metaslab(
    pool: &Pool,
    config: &VdevConfig,
    read: &table::MetaslabRecord,
    unflushed: &Unflushed,
    whole: MetaslabSpace,
) -> MetaslabSpace {
    let signed = |set: &RangeSet| i64::try_from(set.covered()).unwrap_or(i64::MAX);
    let change = unflushed.change(config.id, read.id);
    let delta = change.map_or(0, |change| signed(&change.allocated).saturating_sub(signed(&change.freed)));
    let settled = read.head.as_ref().map_or(0, |head| head.alloc);
    let allocated = u64::try_from(settled.saturating_add(delta)).unwrap_or(0);
    let fragmentation = match &read.head {
        None => keeps_histograms(pool).then_some(0),
        Some(head) => (keeps_histograms(pool) && read.has_histogram)
            .then(|| fragmentation::of_metaslab(&head.histogram, config.ashift)),
    };
    MetaslabSpace { space_map: read.space_map, allocated, fragmentation, ..whole }
}

fn keeps_histograms(pool: &Pool) -> bool {
    pool.features.count(Feature::SpacemapHistogram.info().guid).is_some()
}

/// Bytes that the checkpoint keeps on a vdev from being used again.
fn checkpoint(pool: &Pool, config: &VdevConfig) -> Result<u64> {
    let Some(number) = table::checkpoint(&pool.mos, config)? else { return Ok(0) };
    // Space held by the checkpoint is recorded as freed: a negative allocation.
    let head = crate::metaslab::head(&pool.mos.object(number)?)?;
    Ok(u64::try_from(head.alloc.saturating_neg()).unwrap_or(0))
}
