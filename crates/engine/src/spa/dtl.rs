//! DTLs of leaves, written to the MOS in the txg whose writes they missed.
//!
//! Each leaf with a DTL has a space map whose "offsets" are txgs; its number stands in the leaf's
//! configuration. The map is short and is written anew whenever it changes. Writes of the map may be missed
//! by the same leaf, but only in the same txg, so this comes to an end.
//!
//! Format source: `vdev_dtl_sync`, vdev.c, OpenZFS 2.3.

use std::sync::atomic::Ordering;

use ondisk::space_map::SpaceMapPhys;
use stdx::RangeSet;
use zcommon::features::Feature;

use super::Spa;
use super::layout::config::{edit, find};
use super::space_store::{SpaceStore, set};
use super::subjects::VdevTree;
use crate::dmu::Tx;
use crate::error::Result;
use crate::metaslab::{self, MapState, SpaceMapStore, SpaceObject};

/// Bytes of a map's block.
#[doc(alias = "zfs_vdev_dtl_sm_blksz")]
const BLOCK: u64 = 4096;

impl VdevTree<'_> {
    /// Writes the DTLs that changed.
    #[doc(alias = "vdev_dtl_sync")]
    pub(super) fn sync_dtls(self, tx: &Tx) -> Result<()> {
        for (guid, ranges) in self.spa.pool.zio.tree().dirty_dtls() {
            let mut set = RangeSet::new();
            for (start, end) in ranges {
                set.insert(start, end);
            }
            sync_dtl(self.spa, guid, &set, tx)?;
        }
        Ok(())
    }

    /// Frees a leaf's map (syncing context).
    pub(super) fn free_space_map(self, number: u64, tx: &Tx) -> Result<()> {
        let salt = self.spa.pool.env.guid();
        let mut store = SpaceStore {
            mos: &self.spa.mos,
            tx,
            features: &self.spa.features,
            config: &self.spa.config,
            salt,
        };
        let head = self.spa.mos.view().object(number)?.dnode.bonus().len();
        store.free(&SpaceObject::Map { block_size: BLOCK, head }, number)
    }
}

fn sync_dtl(spa: &Spa, guid: u64, lacks: &RangeSet, tx: &Tx) -> Result<()> {
    let salt = spa.pool.env.guid();
    let (mos, features, config) = (&spa.mos, &spa.features, &spa.config);
    let mut store = SpaceStore { mos, tx, features, config, salt };
    let recorded = find(config.lock().root(), guid).and_then(|leaf| leaf.u64("DTL")).filter(|&n| n != 0);
    let map = match recorded {
        Some(object) => {
            let object = mos.view().object(object)?;
            let has_histogram = object.dnode.bonus().len() >= SpaceMapPhys::SIZE;
            MapState {
                object: object.number,
                head: metaslab::head(&object)?,
                block_size: u64::from(object.dnode.datablkszsec) << ondisk::MIN_BLOCK_SHIFT,
                has_histogram,
            }
        }
        None => {
            let has_histogram = features.is_enabled(Feature::SpacemapHistogram);
            let head = if has_histogram { SpaceMapPhys::SIZE } else { SpaceMapPhys::MIN_SIZE };
            let object = store.create(&SpaceObject::Map { block_size: BLOCK, head })?;
            config.lock().change_root(|root| {
                edit(root, guid, &mut |leaf| set(leaf, "DTL", object));
            });
            MapState { object, block_size: BLOCK, has_histogram, ..MapState::default() }
        }
    };
    let two_words = features.is_enabled(Feature::SpacemapV2);
    metaslab::rewrite(&mut store, map, lacks, (tx.txg(), spa.pass.load(Ordering::Relaxed)), two_words)
}
