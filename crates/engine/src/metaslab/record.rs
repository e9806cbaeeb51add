//! The state of a top-level vdev that the allocator reads when the vdev is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use ondisk::space_map::SpaceMapPhys;
use parking_lot::Mutex;

use super::log::{MetaslabChange, Unflushed, logs};
use super::table::{self, Metaslabs};
use super::unit::{MapState, Metaslab, MetaslabState};
use super::vdev::{TopSlot, Vdev};
use crate::dmu::{Object, Objset};
use crate::error::{Error, Result};
use crate::vdev::config::{AllocBias, Kind, VdevConfig};
use crate::vdev::top::Top;
use crate::vdev::tree::Tree;

/// Most metaslabs of one vdev.
const MAX_METASLABS: u64 = 1 << 24;
/// Largest metaslab that makes sense, as a shift; OpenZFS stops at 16 GiB.
const MAX_METASLAB_SHIFT: u32 = 40;

/// A metaslab as it was left.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastMetaslab {
    /// Its map; object 0 when it was never written.
    pub(crate) map: MapState,
    /// Since when its changes are in logs; 0: it has never been in one.
    pub(crate) unflushed_txg: u64,
    /// Its changes in the logs.
    pub(crate) change: MetaslabChange,
}

/// A top-level vdev as it was left.
#[derive(Debug)]
pub struct TopRecord {
    /// The vdev.
    pub(crate) top: Arc<Top>,
    /// Its allocation class.
    pub(crate) bias: AllocBias,
    /// Bytes of a metaslab, as a shift.
    pub(crate) metaslab_shift: u32,
    /// Metaslabs of a draid begin and end with a whole row of a group, of so many bytes; else 1.
    pub(crate) row: u64,
    /// Object with the numbers of the space maps; 0: to be made.
    pub(crate) array: u64,
    /// Object with the unflushed txgs; 0: to be made when needed.
    pub(crate) unflushed_array: u64,
    /// The checkpoint's space map; object 0: none.
    pub(crate) checkpoint: MapState,
    /// The metaslabs, in order.
    pub(crate) metaslabs: Vec<LastMetaslab>,
}

impl TopRecord {
    /// A new vdev, all free. `asize` are its allocatable bytes.
    ///
    /// # Errors
    /// When that many metaslabs are too many.
    pub fn fresh(top: Arc<Top>, config: &VdevConfig) -> Result<Self> {
        let count = usize::try_from(metaslabs(config)?).unwrap_or(usize::MAX);
        Ok(Self {
            bias: config.bias,
            top,
            metaslab_shift: config.metaslab_shift,
            row: table::row(config),
            array: config.metaslab_array,
            unflushed_array: 0,
            checkpoint: MapState::default(),
            metaslabs: vec![LastMetaslab::default(); count],
        })
    }

    /// All vdevs of an existing pool that have metaslabs.
    ///
    /// # Errors
    /// When something of them can't be read.
    pub(crate) fn load_all(mos: &Arc<Objset>, tree: &Tree) -> Result<Vec<Self>> {
        let mut tables = Vec::new();
        for config in &tree.config.children {
            let table = Metaslabs::load(mos, config).map_err(|e| e.on_vdev(&config.name()))?;
            if let (Some(top), false) = (tree.top(config.id), table.all.is_empty()) {
                tables.push((config, top, table));
            }
        }
        let by_id = tables.iter().map(|(config, _, table)| (config.id, (config.metaslab_shift, table)));
        let unflushed = Unflushed::load(&logs(mos)?, &by_id.collect())?;
        let load = |(config, top, table): (&VdevConfig, Arc<Top>, Metaslabs)| {
            Self::load(mos, top, config, table, &unflushed).map_err(|e| e.on_vdev(&config.name()))
        };
        let mut all: Vec<Self> = tables.into_iter().map(load).collect::<Result<_>>()?;
        // A vdev that was never written to has no maps yet; all of its space is free.
        let holds = |kind| !matches!(kind, Kind::Hole | Kind::Indirect | Kind::Missing);
        let unused = |c: &&VdevConfig| c.metaslab_array == 0 && c.metaslab_shift != 0 && holds(c.kind);
        for config in tree.config.children.iter().filter(unused) {
            if let Some(top) = tree.top(config.id) {
                all.push(Self { bias: table::bias(mos, config)?, ..Self::fresh(top, config)? });
            }
        }
        all.sort_by_key(|record| record.top.id);
        Ok(all)
    }

    fn load(
        mos: &Arc<Objset>,
        top: Arc<Top>,
        config: &VdevConfig,
        table: Metaslabs,
        unflushed: &Unflushed,
    ) -> Result<Self> {
        let mut record = Self::fresh(top, config)?;
        record.bias = table::bias(mos, config)?;
        record.unflushed_array = table.unflushed_object;
        record.metaslabs.clear();
        for metaslab in table.all {
            let metaslab = metaslab?;
            let map = match metaslab.space_map {
                0 => MapState::default(),
                number => map(&mos.object(number)?)?,
            };
            let change = unflushed.change(config.id, metaslab.id).cloned().unwrap_or_default();
            record.metaslabs.push(LastMetaslab { map, unflushed_txg: metaslab.unflushed_txg, change });
        }
        if let Some(number) = table::checkpoint(mos, config)? {
            record.checkpoint = map(&mos.object(number)?)?;
        }
        Ok(record)
    }

    /// `log_min` as in [`Vdev::groups`].
    pub(super) fn into_vdev(self, log_min: usize) -> Result<Vdev> {
        let (top, shift) = (self.top, self.metaslab_shift);
        let sane = (9..=16).contains(&top.ashift) && (top.ashift..=MAX_METASLAB_SHIFT).contains(&shift);
        if !sane {
            return Err(Error::corrupt("the vdev's metaslabs are invalid").on_vdev(&top.name));
        }
        let mut metaslabs = Vec::new();
        for (id, record) in (0..).zip(self.metaslabs) {
            let place = table::place(shift, self.row, id);
            metaslabs.push(Arc::new(Metaslab::new(top.id, id, place, top.ashift, record.into_state())));
        }
        let (id, deflate_ratio, top) = (top.id, top.deflate_ratio(), TopSlot::new(top));
        Ok(Vdev {
            id,
            shift,
            groups: Vdev::groups(&top, self.bias, &metaslabs, log_min),
            metaslabs,
            array: AtomicU64::new(self.array),
            unflushed_array: AtomicU64::new(self.unflushed_array),
            checkpoint: Mutex::new(self.checkpoint),
            closed: AtomicBool::new(false),
            deflate_ratio,
            top,
        })
    }
}

impl LastMetaslab {
    fn into_state(self) -> MetaslabState {
        let Self { map, unflushed_txg, change } = self;
        let settled = u64::try_from(map.head.alloc).unwrap_or(0);
        let allocated =
            settled.saturating_add(change.allocated.covered()).saturating_sub(change.freed.covered());
        let mut state = MetaslabState::default();
        state.unflushed_dirty = !change.allocated.is_empty() || !change.freed.is_empty();
        state.unflushed = change;
        state.unflushed_txg = unflushed_txg;
        state.map = map;
        state.synced_length = map.head.length;
        state.allocated = allocated;
        state
    }
}

/// How many metaslabs a vdev of this configuration has.
///
/// # Errors
/// When they are too many.
pub(super) fn metaslabs(config: &VdevConfig) -> Result<u64> {
    let count = config.asize.checked_shr(config.metaslab_shift).filter(|&n| n <= MAX_METASLABS);
    count.ok_or_else(|| Error::corrupt("too many metaslabs"))
}

/// A space map as it stands on disk.
pub(super) fn map(object: &Object) -> Result<MapState> {
    let head = super::head(object)?;
    let has_histogram = object.dnode.bonus().len() >= SpaceMapPhys::SIZE;
    Ok(MapState { object: object.number, head, block_size: object.dnode.datablksz(), has_histogram })
}
