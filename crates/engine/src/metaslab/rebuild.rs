//! An allocator built from a walk over all blocks instead of from space maps.
//!
//! Every metaslab starts loaded with the space that the walk left free, and without a map; the array of a
//! vdev's maps is empty. The first sync writes a new map for each metaslab that is not empty, before the
//! changes of that txg. The old maps and logs are ignored; the caller removes their objects in the same txg.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::space_map::SpaceMapPhys;
use parking_lot::RwLock;
use stdx::{RangeSet, SizedRanges};

use super::allocator::{SpaceAllocator, SpaceMapFeatures};
use super::append::Addition;
use super::log::MetaslabChange;
use super::record::{self, LastMetaslab, TopRecord};
use super::removed::Removed;
use super::store::SpaceMapSource;
use super::sync::MapSync;
use super::table;
use super::unit::{MapState, Metaslab};
use super::vdev::Vdev;
use crate::dmu::Objset;
use crate::error::Result;
use crate::vdev::config::{Kind, VdevConfig};
use crate::vdev::tree::Tree;

/// Allocated ranges of each metaslab of a top-level vdev, in order.
pub(crate) type DerivedSpace = BTreeMap<u64, Vec<RangeSet>>;

/// Whether a top-level vdev of this configuration has metaslabs.
pub(crate) fn has_metaslabs(config: &VdevConfig) -> bool {
    config.metaslab_shift != 0 && !matches!(config.kind, Kind::Hole | Kind::Missing | Kind::Indirect)
}

/// How many metaslabs a top-level vdev of this configuration has; 0 when it has none.
///
/// # Errors
/// When they are too many.
pub(crate) fn count(config: &VdevConfig) -> Result<u64> {
    if has_metaslabs(config) { record::metaslabs(config) } else { Ok(0) }
}

impl SpaceAllocator {
    /// The allocator of an existing pool in which `found` is allocated, and nothing else.
    ///
    /// # Errors
    /// When the mapping of a removed vdev, or a checkpoint's space map, can't be read: these are not derived.
    pub(crate) fn rebuilt(
        mos: &Arc<Objset>,
        tree: &Tree,
        forms: SpaceMapFeatures,
        source: Arc<dyn SpaceMapSource>,
        mut found: DerivedSpace,
    ) -> Result<Self> {
        let mut all = Self::new(forms, Some(source));
        all.obey(mos.arc().memory());
        all.removed = RwLock::new(Removed::load_all(mos, tree)?);
        for config in tree.config.children.iter().filter(|config| has_metaslabs(config)) {
            let Some(top) = tree.top(config.id) else { continue };
            let allocated = found.remove(&config.id).unwrap_or_default();
            let mut record = TopRecord::fresh(top, config)?;
            record.bias = table::bias(mos, config)?;
            if let Some(number) = table::checkpoint(mos, config)? {
                record.checkpoint = record::map(&mos.object(number)?)?;
            }
            for (metaslab, ranges) in record.metaslabs.iter_mut().zip(&allocated) {
                *metaslab = with_count(ranges.covered());
            }
            all.add_top(record)?;
            all.sync.lock().rearray.insert(config.id);
            let metaslabs = all.vdev(config.id).map(|vdev| vdev.metaslabs.clone()).unwrap_or_default();
            for (metaslab, ranges) in metaslabs.iter().zip(allocated) {
                metaslab.adopt(&ranges);
                if !ranges.is_empty() {
                    all.sync.lock().rewrite.insert((metaslab.vdev, metaslab.id));
                }
            }
        }
        Ok(all)
    }
}

/// A metaslab without a map, with `bytes` bytes allocated.
fn with_count(bytes: u64) -> LastMetaslab {
    let head = SpaceMapPhys { alloc: i64::try_from(bytes).unwrap_or(i64::MAX), ..SpaceMapPhys::default() };
    LastMetaslab { map: MapState { head, ..MapState::default() }, ..LastMetaslab::default() }
}

impl Metaslab {
    /// Makes the metaslab loaded: all but `allocated` is free.
    fn adopt(&self, allocated: &RangeSet) {
        let mut free = SizedRanges::new();
        free.insert(self.start, self.end());
        for (start, end) in allocated.iter() {
            free.clear(start, end);
        }
        let mut state = self.lock();
        state.map = MapState::default();
        state.free = Some(free);
        state.unwritten = !allocated.is_empty();
        self.reweigh(&mut state);
    }
}

impl MapSync<'_> {
    /// Writes a map for a metaslab that has none. Nothing of this txg is in it.
    pub(super) fn renew(&mut self, vdev: &Vdev, metaslab: &Metaslab) -> Result<()> {
        self.need_unflushed(vdev)?;
        let map = self.new_map(vdev, metaslab)?;
        let mut state = metaslab.lock();
        // Until the words are written the map does not describe the metaslab: it must stay loaded.
        state.unwritten = true;
        state.map = map;
        let mut addition = Addition::anew(map);
        state.whole(metaslab, &mut addition, self.stamp);
        addition.map.head.histogram = state.histogram(&RangeSet::new(), metaslab.ashift);
        state.map = addition.map;
        state.synced_length = addition.map.head.length;
        state.unflushed = MetaslabChange::default();
        state.flushing = MetaslabChange::default();
        if self.forms.log {
            self.bump(vdev, metaslab, &mut state, false);
        }
        drop(state);
        self.wrote = true;
        let head = addition.write(self.store, &SpaceMapPhys::default())?;
        let mut state = metaslab.lock();
        state.map.head = head;
        state.unwritten = false;
        drop(state);
        self.of.mark_dirty(metaslab, self.stamp.txg);
        Ok(())
    }
}
