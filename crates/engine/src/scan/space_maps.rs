//! The allocated space according to the space maps: each metaslab's own map, plus the unflushed changes in the log
//! space maps, less the space that only a checkpoint holds.
//!
//! Damage is recorded per metaslab: its content is then unknown, and no conclusion is drawn from it.
//!
//! Format source: `metaslab_load`, `spa_ld_log_spacemaps`, `vdev_checkpoint_sm_object`, OpenZFS 2.3.

use std::collections::BTreeSet;

use ondisk::names;
use ondisk::space_map::{SpaceMapDecoder, SpaceMapEntry};

use crate::error::{Error, Result};
use crate::metaslab::log::SpaceMapLog;
use crate::metaslab::rebuild::has_metaslabs;
use crate::metaslab::{self, table};
use crate::spa::Pool;
use crate::vdev::config::{AllocBias, Kind, VdevConfig};
use crate::zap::Zap;

/// Maximum metaslabs of one vdev: OpenZFS aims at 200 and never makes more than this.
const MAX_METASLABS: u64 = 1 << 17;

/// Maximum plausible metaslab size, as a shift; OpenZFS stops at 16 GiB.
const MAX_METASLAB_SHIFT: u32 = 40;

/// A metaslab's space map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MetaslabMap {
    /// Its object, 0 if nothing was ever allocated.
    pub(crate) object: u64,
    /// Bytes allocated, by its own count.
    pub(crate) alloc: i64,
    /// Changes since this txg are in the log space maps.
    pub unflushed_txg: u64,
}

/// The metaslabs of a top-level vdev.
#[derive(Debug, Clone)]
pub(crate) struct TopSpace {
    /// The vdev.
    pub(crate) id: u64,
    /// Its allocation class.
    pub(crate) bias: AllocBias,
    /// Unit of allocation, as a shift.
    pub(crate) ashift: u32,
    /// Size of a metaslab, as a shift.
    pub(crate) ms_shift: u32,
    /// Metaslabs of a draid begin and end with a whole row of a group, of so many bytes; otherwise 1.
    pub(crate) row: u64,
    /// Its metaslabs in order; none for removed vdevs.
    pub(crate) metaslabs: Vec<MetaslabMap>,
    /// Space map of frees that a checkpoint still references, 0 for none.
    pub(crate) checkpoint: u64,
    /// It is being removed.
    pub(crate) removing: bool,
    /// Its mapping object, if it is being removed.
    pub(crate) mapping: u64,
}

impl TopSpace {
    /// Bytes from the first metaslab to the end of the last.
    pub(crate) fn size(&self) -> u64 {
        u64::try_from(self.metaslabs.len()).unwrap_or(0) << self.ms_shift
    }

    /// First byte and size of a metaslab.
    pub(crate) fn place(&self, ms: u64) -> (u64, u64) {
        table::place(self.ms_shift, self.row, ms)
    }

    /// Bytes that can be allocated.
    pub(crate) fn space(&self) -> u64 {
        (0..).zip(&self.metaslabs).map(|(ms, _)| self.place(ms).1).fold(0, u64::saturating_add)
    }
}

/// All metaslabs of a pool, and the errors found.
#[derive(Debug, Default)]
pub(crate) struct SpaceMaps {
    /// Top-level vdevs with metaslabs.
    pub(crate) tops: Vec<TopSpace>,
    /// The former capacity of removed vdevs in bytes.
    pub(crate) removed: u64,
    /// Space maps that could not be read.
    pub(crate) notes: Vec<Error>,
    /// Metaslabs `(vdev, number)` of unknown content.
    pub(crate) unknown: BTreeSet<(u64, u64)>,
    logs: Vec<SpaceMapLog>,
}

impl SpaceMaps {
    /// Reads the heads of all space maps.
    pub(crate) fn load(pool: &Pool) -> Self {
        let mut maps = Self::default();
        let tree = pool.tree();
        for config in &tree.config.children {
            if config.kind == Kind::Indirect {
                let count = config.asize.checked_shr(config.metaslab_shift).unwrap_or(0);
                maps.removed =
                    maps.removed.saturating_add(count.checked_shl(config.metaslab_shift).unwrap_or(0));
            }
            if matches!(config.kind, Kind::Hole | Kind::Missing | Kind::Indirect)
                || config.metaslab_array == 0
            {
                continue;
            }
            match maps.top(pool, config) {
                Ok(top) => maps.tops.push(top),
                Err(e) => maps.notes.push(e.on_vdev(&config.name())),
            }
        }
        match metaslab::log::logs(&pool.mos) {
            Ok(logs) => maps.logs = logs,
            Err(e) => maps.notes.push(e),
        }
        maps
    }

    /// The metaslabs of all vdevs, without their maps: each may be full.
    ///
    /// # Errors
    /// When a vdev's metaslabs are invalid, or its allocation class cannot be read.
    pub(crate) fn shape(pool: &Pool) -> Result<Self> {
        let mut shape = Self::default();
        for config in pool.tree().config.children.iter().filter(|config| has_metaslabs(config)) {
            let sane = (9..=16).contains(&config.ashift)
                && (config.ashift..=MAX_METASLAB_SHIFT).contains(&config.metaslab_shift);
            let count = metaslab::rebuild::count(config).ok().filter(|&n| sane && n <= MAX_METASLABS);
            let count =
                count.and_then(|n| usize::try_from(n).ok()).filter(|_| config.asize <= most(pool, config));
            let count = count
                .ok_or_else(|| Error::corrupt("the vdev's metaslabs are invalid").on_vdev(&config.name()))?;
            shape.tops.push(TopSpace {
                id: config.id,
                bias: table::bias(&pool.mos, config)?,
                row: table::row(config),
                ashift: config.ashift,
                ms_shift: config.metaslab_shift,
                metaslabs: vec![MetaslabMap { alloc: 1, ..MetaslabMap::default() }; count],
                checkpoint: table::checkpoint(&pool.mos, config)?.unwrap_or(0),
                removing: config.removing,
                mapping: config.indirect_object,
            });
        }
        Ok(shape)
    }

    fn top(&mut self, pool: &Pool, config: &VdevConfig) -> Result<TopSpace> {
        if config.asize > most(pool, config) {
            return Err(Error::corrupt("the vdev claims to be larger than its devices"));
        }
        let sane = (9..=16).contains(&config.ashift)
            && (config.ashift..=MAX_METASLAB_SHIFT).contains(&config.metaslab_shift);
        let count = config.asize.checked_shr(config.metaslab_shift).filter(|&n| sane && n <= MAX_METASLABS);
        let count = count.ok_or_else(|| Error::corrupt("the vdev's metaslabs are invalid"))?;
        let array = pool.mos.object(config.metaslab_array)?;
        let zap = match config.top_zap {
            0 => None,
            number => Some(Zap::open(&pool.mos.object(number)?)?),
        };
        let named = |name: &str| zap.as_ref().map_or(Ok(None), |z| z.u64(name)).map(|n| n.unwrap_or(0));
        let unflushed = match named(names::vdev_top::MS_UNFLUSHED_PHYS_TXGS)? {
            0 => None,
            number => Some(pool.mos.object(number)?),
        };
        let mut metaslabs = Vec::new();
        for ms in 0..count {
            let mut metaslab = MetaslabMap { object: word(&array, ms)?, ..MetaslabMap::default() };
            if let Some(unflushed) = &unflushed {
                metaslab.unflushed_txg = word(unflushed, ms)?;
            }
            if metaslab.object != 0 {
                match pool.mos.object(metaslab.object).and_then(|object| metaslab::head(&object)) {
                    Ok(head) => metaslab.alloc = head.alloc,
                    Err(e) => {
                        self.unknown.insert((config.id, ms));
                        self.notes.push(e.on_vdev(&config.name()));
                    }
                }
            }
            metaslabs.push(metaslab);
        }
        Ok(TopSpace {
            id: config.id,
            bias: table::bias(&pool.mos, config)?,
            row: table::row(config),
            ashift: config.ashift,
            ms_shift: config.metaslab_shift,
            metaslabs,
            checkpoint: named(names::vdev_top::POOL_CHECKPOINT_SM)?,
            removing: config.removing,
            mapping: config.indirect_object,
        })
    }

    /// The vdev of that number.
    pub(crate) fn find(&self, vdev: u64) -> Option<&TopSpace> {
        self.tops.iter().find(|t| t.id == vdev)
    }

    /// Calls `tell` with every change of the metaslabs selected by `wanted`, in an order in which they can be
    /// applied: `(vdev, start, end, allocated)`.
    pub(crate) fn replay(
        &mut self,
        pool: &Pool,
        wanted: &dyn Fn(u64, u64) -> bool,
        tell: &mut dyn FnMut(u64, u64, u64, bool),
    ) {
        for top in &self.tops {
            for (ms, metaslab) in (0_u64..).zip(&top.metaslabs) {
                if metaslab.object == 0 || !wanted(top.id, ms) || self.unknown.contains(&(top.id, ms)) {
                    continue;
                }
                let (start, size) = top.place(ms);
                let decoder = SpaceMapDecoder::new(top.ashift, start, size);
                let mut entry = |e: SpaceMapEntry| tell(top.id, e.offset, e.offset + e.run, !e.free);
                let read = pool.mos.object(metaslab.object);
                if let Err(e) = read.and_then(|object| metaslab::replay(&object, decoder, &mut entry)) {
                    self.unknown.insert((top.id, ms));
                    self.notes.push(e);
                }
            }
        }
        self.replay_logs(wanted, tell);
    }

    fn replay_logs(&mut self, wanted: &dyn Fn(u64, u64) -> bool, tell: &mut dyn FnMut(u64, u64, u64, bool)) {
        let mut failed = Vec::new();
        for SpaceMapLog { txg, object } in &self.logs {
            let mut entry = |e: SpaceMapEntry| {
                let vdev = u64::from(e.vdev.unwrap_or(u32::MAX));
                let Some(top) = self.find(vdev) else { return };
                let ms = e.offset >> top.ms_shift;
                let metaslab = usize::try_from(ms).ok().and_then(|ms| top.metaslabs.get(ms));
                if metaslab.is_some_and(|metaslab| *txg >= metaslab.unflushed_txg) && wanted(vdev, ms) {
                    tell(vdev, e.offset, e.offset.saturating_add(e.run), !e.free);
                }
            };
            let read = metaslab::replay(object, SpaceMapDecoder::for_log(), &mut entry);
            failed.extend(read.err());
        }
        if !failed.is_empty() {
            // Any metaslab may have changed.
            for top in &self.tops {
                self.unknown.extend((0_u64..).zip(&top.metaslabs).map(|(ms, _)| (top.id, ms)));
            }
            self.notes.append(&mut failed);
        }
    }

    /// Bytes that changes in the log space maps add to the metaslabs' counts.
    pub(crate) fn unflushed(&mut self) -> i64 {
        let mut sum = 0_i64;
        self.replay_logs(&|_, _| true, &mut |_, start, end, on| {
            let run = i64::try_from(end - start).unwrap_or(i64::MAX);
            sum = sum.saturating_add(if on { run } else { -run });
        });
        sum
    }

    /// Calls `tell` with the space that only a checkpoint holds: `(vdev, start, end)`.
    pub(crate) fn checkpointed(&mut self, pool: &Pool, tell: &mut dyn FnMut(u64, u64, u64)) {
        for top in self.tops.iter().filter(|t| t.checkpoint != 0) {
            let decoder = SpaceMapDecoder::new(top.ashift, 0, top.size());
            let mut entry = |e: SpaceMapEntry| tell(top.id, e.offset, e.offset.saturating_add(e.run));
            let read = pool.mos.object(top.checkpoint);
            if let Err(e) = read.and_then(|object| metaslab::replay(&object, decoder, &mut entry)) {
                self.notes.push(e);
            }
        }
    }
}

/// The maximum capacity of a vdev, by its present devices; unlimited without any.
fn most(pool: &Pool, config: &VdevConfig) -> u64 {
    let tree = pool.tree();
    let leaves: Vec<&VdevConfig> = config.walk().into_iter().filter(|v| v.kind.is_leaf()).collect();
    let size = |v: &&VdevConfig| Some(tree.leaf(v.guid)?.device()?.geometry().size);
    let largest = leaves.iter().filter_map(size).max();
    largest.map_or(u64::MAX, |size| size.saturating_mul(u64::try_from(leaves.len()).unwrap_or(u64::MAX)))
}

/// Word `i` of an object that is an array of words; 0 past its end.
fn word(object: &crate::dmu::Object, i: u64) -> Result<u64> {
    let mut raw = [0; 8];
    object.read_at(i.saturating_mul(8), &mut raw)?;
    Ok(u64::from_le_bytes(raw))
}
