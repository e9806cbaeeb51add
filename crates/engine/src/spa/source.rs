//! The sources that a pool is opened from.

use std::collections::HashMap;
use std::sync::Arc;

use nvpair::NvList;
use ondisk::Uberblock;

use crate::metaslab::DEFER;
use crate::vdev::config::AllocBias;
use crate::vdev::tree::{Devices, Tree};

/// An uberblock found in some label.
#[derive(Debug, Clone)]
pub struct FoundUberblock {
    /// Its content, its own checksum verified.
    pub uberblock: Uberblock,
    /// How many slots held it.
    pub copies: u32,
}

/// One pool found by a search of devices.
#[derive(Debug, Clone, Default)]
pub struct ImportSource {
    /// The pool's name as its labels give it.
    pub name: String,
    /// The pool's guid.
    pub guid: u64,
    /// The pool's config as labels give it, with a whole `vdev_tree`: top-level vdevs that no label
    /// described are `missing`.
    pub config: NvList,
    /// Devices by leaf guid.
    pub devices: Devices,
    /// Every uberblock found.
    pub uberblocks: Vec<FoundUberblock>,
    /// Reads the uberblocks again; `None`: they can't change.
    pub newest: Option<Newest>,
    /// The least txg in the labels of each leaf, by guid, where it is known.
    pub label_txgs: HashMap<u64, u64>,
}

impl ImportSource {
    /// The txg of a state newer than `newest`, the newest uberblock that was found, if all labels of a top-level vdev of
    /// `tree` have such a txg. Labels with the configuration of a txg are written before and after its uberblock, half of
    /// them each, so that uberblock was there. Logs do not count: a pool can do without them.
    ///
    /// Source: `vdev_validate`, which takes no label newer than the uberblock, OpenZFS 2.4.
    pub(super) fn lost_state(&self, tree: &Tree, newest: u64) -> Option<u64> {
        let tops = tree.tops().filter(|top| top.bias != AllocBias::Log);
        let least =
            tops.filter_map(|top| top.leaves().filter_map(|leaf| self.label_txgs.get(&leaf.guid)).min());
        least.copied().max().filter(|&txg| txg > newest)
    }
}

/// Reads uberblocks again.
#[derive(Clone)]
pub struct Newest(Arc<dyn Fn() -> Vec<Uberblock> + Send + Sync>);

impl Newest {
    /// By `read`.
    pub fn by(read: impl Fn() -> Vec<Uberblock> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the uberblocks that are on the devices now.
    pub(crate) fn read(&self) -> Vec<Uberblock> {
        (self.0)()
    }
}

impl std::fmt::Debug for Newest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Newest")
    }
}

/// The purpose for which a pool is opened. Writing needs more of it whole than reading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OpenPurpose {
    /// To be read.
    #[default]
    Read,
    /// To be written: devices that have become too short count as absent, the configuration in the MOS must be whole, and
    /// space maps must be readable.
    Write,
    /// As [`OpenPurpose::Write`], without the space maps: these are made anew.
    Rebuild,
}

/// How far an open may go back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Not at all.
    #[default]
    Newest,
    /// To states of which no block can be overwritten yet, because freed space is kept for some txgs.
    #[doc(alias = "ZPOOL_DO_REWIND")]
    Safe,
    /// As far as there are uberblocks. Blocks of such a state may be overwritten.
    #[doc(alias = "ZPOOL_EXTREME_REWIND")]
    Extreme,
}

impl Reach {
    /// Whether an older state is tried after that of `tried`; `newest`: the newest uberblock. OpenZFS asks this of the state that
    /// was tried last, so one state below the kept ones is tried, too.
    #[doc(alias = "safe_rewind_txg")]
    pub(super) fn goes_below(self, tried: u64, newest: u64) -> bool {
        match self {
            Self::Newest => false,
            Self::Safe => is_kept(tried, newest),
            Self::Extreme => true,
        }
    }
}

/// Whether no block of the state of `txg` can be overwritten yet.
pub(super) fn is_kept(txg: u64, newest: u64) -> bool {
    txg >= newest.saturating_sub(DEFER)
}

/// Which state of the pool to open.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// The newest state at or before this txg.
    pub txg: Option<u64>,
    /// Which older states are tried when the newest can't be opened.
    pub reach: Reach,
    /// The state at the pool's checkpoint.
    pub checkpoint: bool,
    /// Continue although a feature that reading needs is unknown, or the MOS config can't be read.
    pub force: bool,
    /// The source's config is that of a pool that is being split off: the MOS has that of the pool it is taken from.
    pub split: bool,
    /// The purpose. A rewind passes over states that are too damaged for that.
    pub purpose: OpenPurpose,
}
