//! The size that each device must have at least: its share of the space that its top-level vdev hands out.
//!
//! Format source: `vdev_get_min_asize`, `vdev_open`, OpenZFS 2.4.

use std::collections::HashMap;
use std::sync::Arc;

use ondisk::label::{LABEL_END_SIZE, LABEL_SIZE, LABEL_START_SIZE};
use zcommon::draid::ROW_HEIGHT;
use zcommon::health::Health;
use zcommon::vdev::VdevAux;

use super::config::{Kind, VdevConfig};
use super::leaf::Leaf;

/// Bytes of each child of a draid that are kept back.
#[doc(alias = "VDEV_DRAID_REFLOW_RESERVE")]
pub const DRAID_REFLOW_RESERVE: u64 = 2 * ROW_HEIGHT;

/// Bytes that each of `children` must offer when their vdev must offer `least`; `spares` of a draid.
#[doc(alias("vdev_op_min_asize", "vdev_raidz_min_asize", "vdev_draid_min_asize"))]
pub fn child_share(kind: Kind, children: u64, spares: Option<u64>, least: u64) -> u64 {
    match (kind, spares) {
        (Kind::Raidz, _) => least.div_ceil(children.max(1)),
        (Kind::Draid, Some(spares)) => {
            let disks = children.saturating_sub(spares).max(1);
            least.div_ceil(disks).saturating_add(DRAID_REFLOW_RESERVE)
        }
        _ => least,
    }
}

/// Usable bytes of a device of `size` bytes: without its labels.
pub fn usable(size: u64) -> u64 {
    (size - size % LABEL_SIZE).saturating_sub(LABEL_START_SIZE + LABEL_END_SIZE)
}

/// Usable bytes that each leaf below `root` must have at least, by guid.
#[doc(alias = "vdev_set_min_asize")]
pub(super) fn least_sizes(root: &VdevConfig) -> HashMap<u64, u64> {
    let mut sizes = HashMap::new();
    let has_space = |top: &&VdevConfig| !matches!(top.kind, Kind::Hole | Kind::Missing | Kind::Indirect);
    for top in root.children.iter().filter(has_space) {
        let metaslab = 1_u64.checked_shl(top.metaslab_shift).unwrap_or(1);
        descend(top, top.asize - top.asize % metaslab, &mut sizes);
    }
    sizes
}

fn descend(vdev: &VdevConfig, least: u64, sizes: &mut HashMap<u64, u64>) {
    if vdev.kind.is_leaf() {
        sizes.insert(vdev.guid, least);
        return;
    }
    let children = u64::try_from(vdev.children.len()).unwrap_or(u64::MAX);
    let spares = vdev.draid.map(|draid| draid.spares);
    let share = child_share(vdev.kind, children, spares, least);
    vdev.children.iter().for_each(|child| descend(child, share, sizes));
}

/// Whether the leaf's device is there and offers less than `least` bytes.
pub(super) fn is_short(leaf: &Leaf, least: u64) -> bool {
    leaf.device().is_some_and(|device| usable(device.geometry().size) < least)
}

/// The leaf without its device, as if it had never been there: the place of its labels is not known.
pub(super) fn short_leaf(leaf: &Leaf) -> Arc<Leaf> {
    let absent = Leaf::new(leaf.guid, leaf.path.clone(), None);
    absent.set_health(Health::cant_open(VdevAux::BadLabel));
    absent
}
