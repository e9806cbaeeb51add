//! Space of a pool and of its top-level vdevs: how much there is, is allocated, and is fragmented.
//!
//! A top-level vdev is cut into metaslabs of equal size; what is left at its end is not used. Each metaslab
//! that was ever written has a space map whose head tells how much of it is allocated; with
//! `log_spacemap` the changes since its last flush stand in pool-wide logs, which are replayed here.
//!
//! *Deflated* space is what users see: sizes are divided by what a block of 128 KiB takes on the vdev, so
//! that a raidz shows about what it can hold. The pool keeps back some *slop* (1/32, within bounds) so that
//! a full pool can still be cleaned up.
//!
//! Differs from OpenZFS: space that a bigger device would add (`expandsize`) is not computed.

mod fragmentation;
mod logs;
mod totals;

use ondisk::space_map::SpaceMapPhys;
use zcommon::features::Feature;

use super::Pool;
use crate::dmu::Object;
use crate::error::{Error, Result};
use crate::vdev::config::{AllocBias, VdevConfig};
use crate::vdev::top::Top;
use logs::Unflushed;

pub use totals::{DedupTotals, PoolSpace};

/// Metaslabs that one vdev may have: the metaslab array is read whole.
const MAX_METASLABS: u64 = 1 << 20;
/// More metaslabs than this, and a normal vdev keeps one of them for the intent log.
#[doc(alias = "zfs_embedded_slog_min_ms")]
const EMBEDDED_LOG_MIN_METASLABS: usize = 64;

/// One metaslab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metaslab {
    /// First byte on the vdev.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Its space map's object; 0: never written.
    pub space_map: u64,
    /// Bytes allocated, logs included.
    pub allocated: u64,
    /// Fragmentation of its free space in percent; `None` when its map is too old to tell.
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
    pub metaslabs: Vec<Metaslab>,
    /// Sectors of 512 bytes that count for 512 sectors' worth of a 128 KiB block: see [`Top::deflate_ratio`].
    pub deflate_ratio: u64,
    /// Bytes that the pool's checkpoint holds here.
    pub checkpoint: u64,
}

impl VdevSpace {
    /// Bytes in metaslabs.
    pub fn size(&self) -> u64 {
        self.metaslabs.iter().map(|m| m.size).fold(0, u64::saturating_add)
    }

    /// Fragmentation of its free space in percent; `None` where its maps are too old to tell.
    pub fn fragmentation(&self) -> Option<u64> {
        fragmentation::of_vdev(self)
    }

    /// Bytes of the metaslab that serves the intent log; 0 on vdevs too small to spare one.
    pub fn embedded_log(&self) -> u64 {
        let big = self.metaslabs.len() > EMBEDDED_LOG_MIN_METASLABS && self.bias == AllocBias::Normal;
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
    /// How big metaslabs are: enough to know what datasets may use, and quick on any pool.
    Sizes,
    /// How much of each is allocated, too: reads every space map's head, and the logs.
    Allocation,
}

/// Space of every top-level vdev. A metaslab that can't be read counts as full and is named in the notes.
pub fn vdevs(pool: &Pool, detail: Detail, notes: &mut Vec<Error>) -> Vec<VdevSpace> {
    let tree = pool.tree();
    let unflushed = match detail {
        Detail::Sizes => Ok(Unflushed::default()),
        Detail::Allocation => Unflushed::load(pool, &tree.config.children),
    };
    let unflushed = unflushed.unwrap_or_else(|e| {
        notes.push(e);
        Unflushed::default()
    });
    let mut room = MAX_METASLABS;
    let mut all = Vec::new();
    for config in &tree.config.children {
        let Some(top) = tree.top(config.id) else { continue };
        let space = vdev(pool, config, &top, detail, room, &unflushed, notes).unwrap_or_else(|e| {
            notes.push(e.on_vdev(&config.name()));
            empty(config, &top)
        });
        room = room.saturating_sub(u64::try_from(space.metaslabs.len()).unwrap_or(u64::MAX));
        all.push(space);
    }
    all
}

fn empty(config: &VdevConfig, top: &Top) -> VdevSpace {
    VdevSpace {
        id: config.id,
        bias: config.bias,
        shift: config.metaslab_shift,
        metaslabs: Vec::new(),
        deflate_ratio: top.deflate_ratio(),
        checkpoint: 0,
    }
}

fn vdev(
    pool: &Pool,
    config: &VdevConfig,
    top: &Top,
    detail: Detail,
    room: u64,
    unflushed: &Unflushed,
    notes: &mut Vec<Error>,
) -> Result<VdevSpace> {
    let mut space = empty(config, top);
    space.bias = bias(pool, config)?;
    if config.metaslab_array == 0 || top.is_removed() {
        return Ok(space);
    }
    let count = config.asize.checked_shr(config.metaslab_shift).filter(|&n| n <= room);
    let count = count.ok_or_else(|| Error::corrupt("too many metaslabs"))?;
    let numbers = match detail {
        Detail::Sizes => Vec::new(),
        Detail::Allocation => words(&pool.mos.object(config.metaslab_array)?, count)?,
    };
    for index in 0..count {
        let (start, size) = extent(config, index);
        let whole = Metaslab { start, size, space_map: 0, allocated: size, fragmentation: None };
        let number = usize::try_from(index).ok().and_then(|i| numbers.get(i));
        let read =
            number.map(|&n| metaslab(pool, n, config.ashift, unflushed.delta(config.id, index), whole));
        space.metaslabs.push(read.unwrap_or(Ok(whole)).unwrap_or_else(|e| {
            notes.push(e.on_vdev(&config.name()));
            whole
        }));
    }
    space.checkpoint = checkpoint(pool, config)?;
    Ok(space)
}

/// Start and size of a metaslab. Of a draid it begins and ends at whole rows of a group.
#[doc(alias = "vdev_draid_metaslab_init")]
fn extent(config: &VdevConfig, index: u64) -> (u64, u64) {
    let size = 1_u64.checked_shl(config.metaslab_shift).unwrap_or(0);
    let start = index.saturating_mul(size);
    let Some(draid) = config.draid else { return (start, size) };
    let width = u64::from(draid.ndata) + u64::from(config.nparity);
    let row = width.checked_shl(config.ashift).unwrap_or(0).max(1);
    let first = start.div_ceil(row).saturating_mul(row);
    let left = size.saturating_sub(first - start);
    (first, left - left % row)
}

/// What the space map `number` and the logs say of a metaslab.
fn metaslab(pool: &Pool, number: u64, ashift: u32, delta: i64, whole: Metaslab) -> Result<Metaslab> {
    if number == 0 {
        let allocated = u64::try_from(delta).unwrap_or(0);
        let fragmentation = keeps_histograms(pool).then_some(0);
        return Ok(Metaslab { allocated, fragmentation, ..whole });
    }
    let object = pool.mos.object(number)?;
    let phys = head(&object)?;
    let allocated = u64::try_from(phys.alloc.saturating_add(delta)).unwrap_or(0);
    let has_histogram = keeps_histograms(pool) && object.dnode.bonus().len() >= SpaceMapPhys::SIZE;
    let fragmentation = has_histogram.then(|| fragmentation::of_metaslab(&phys.histogram, ashift));
    Ok(Metaslab { space_map: number, allocated, fragmentation, ..whole })
}

fn keeps_histograms(pool: &Pool) -> bool {
    pool.features.count(Feature::SpacemapHistogram.info().guid).is_some()
}

fn head(object: &Object) -> Result<SpaceMapPhys> {
    SpaceMapPhys::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))
}

/// A vdev's class. Labels name it; the MOS keeps it in the vdev's own ZAP.
pub fn bias(pool: &Pool, config: &VdevConfig) -> Result<AllocBias> {
    let zap = pool.dsl.zap(config.top_zap)?;
    let word = zap.map(|zap| zap.lookup(ondisk::names::vdev_top::ALLOCATION_BIAS.as_bytes())).transpose()?;
    Ok(match word.flatten().map(|v| v.string()).as_deref() {
        Some("log") => AllocBias::Log,
        Some("special") => AllocBias::Special,
        Some("dedup") => AllocBias::Dedup,
        _ => config.bias,
    })
}

/// Bytes that the checkpoint keeps on a vdev from being used again.
fn checkpoint(pool: &Pool, config: &VdevConfig) -> Result<u64> {
    let Some(zap) = pool.dsl.zap(config.top_zap)? else { return Ok(0) };
    let Some(number) = zap.u64(ondisk::names::vdev_top::POOL_CHECKPOINT_SM)? else { return Ok(0) };
    // What the checkpoint holds is recorded as freed: a negative allocation.
    Ok(u64::try_from(head(&pool.mos.object(number)?)?.alloc.saturating_neg()).unwrap_or(0))
}

/// The first `count` words of an object.
fn words(object: &Object, count: u64) -> Result<Vec<u64>> {
    let bytes = usize::try_from(count.saturating_mul(8)).map_err(|_| Error::corrupt("array too long"))?;
    let bytes = object.read_vec(0, bytes)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
}
