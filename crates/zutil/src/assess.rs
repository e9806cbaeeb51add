//! The state of each vdev as an import would find it.
//!
//! Leaves first: is the device there, is its label this vdev's, is it large enough. Then upwards: each
//! interior vdev from how many of its children work. Format source: `vdev_open`, `vdev_validate`,
//! `vdev_propagate_state` and each kind's `state_change`, OpenZFS 2.3.

use engine::vdev::least::{self, DRAID_REFLOW_RESERVE, usable};
use ondisk::label::{LABEL_END_SIZE, LABEL_SIZE, LABEL_START_SIZE, MIN_DEVICE_SIZE};
use zcommon::draid::ROW_HEIGHT;
use zcommon::vdev::{VdevAux, VdevKind, VdevState};

use crate::tree::VdevNode;
use zcommon::health::Health;

/// The device in a leaf's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Its device.
    Present {
        /// Bytes.
        size: u64,
        /// Bytes that the medium writes at once.
        physical_sector: u32,
    },
    /// Its device, or none: the pool is in use, and knows how it is.
    Known {
        /// How it is.
        health: Health,
        /// Bytes that the medium writes at once, if it is there.
        physical_sector: u32,
    },
    /// Nothing.
    Absent,
    /// A device with the label of another vdev.
    Foreign,
    /// A device without a usable label.
    Unlabelled,
}

/// Sets `health` throughout the tree; `locate` returns the device in a leaf's place.
pub fn assess(root: &mut VdevNode, locate: &dyn Fn(&VdevNode) -> Presence) {
    for top in &mut root.children {
        let metaslab = 1u64.checked_shl(u32::try_from(top.metaslab_shift).unwrap_or(64)).unwrap_or(1);
        let least = top.asize - top.asize % metaslab.max(1);
        descend(top, least, top.ashift, locate);
    }
    root.health = root_health(root);
}

/// Sets `health` of a spare or cache device, which stands outside the tree. A missing label counts as a wrong one there.
#[doc(alias = "vdev_validate_aux")]
pub fn assess_aux(vdev: &mut VdevNode, locate: &dyn Fn(&VdevNode) -> Presence) {
    descend(vdev, 0, 0, &|leaf| match locate(leaf) {
        Presence::Unlabelled => Presence::Foreign,
        found => found,
    });
}

fn descend(vdev: &mut VdevNode, least: u64, ashift: u64, locate: &dyn Fn(&VdevNode) -> Presence) {
    if vdev.is_virtual() || vdev.kind == VdevKind::DraidSpare {
        vdev.health = Health::ONLINE;
        return;
    }
    if vdev.is_leaf() {
        let presence = locate(vdev);
        vdev.health = leaf_health(vdev, presence, least);
        vdev.small_blocks = small_blocks(presence, ashift);
        return;
    }
    let share = child_share(vdev, least);
    vdev.children.iter_mut().for_each(|child| descend(child, share, ashift, locate));
    vdev.health = interior_health(vdev);
}

/// Bytes that each child of a vdev must offer when the vdev itself must offer `least`.
#[doc(alias = "vdev_op_min_asize")]
pub fn child_share(vdev: &VdevNode, least: u64) -> u64 {
    let children = u64::try_from(vdev.children.len()).unwrap_or(u64::MAX);
    let spares = vdev.draid.map(|(_, _, spares)| spares);
    least::child_share(vdev.kind, children, spares, least)
}

/// Usable bytes of a vdev as its devices are now, each taken as large as the smallest that is there; `None`
/// when none is, or when it isn't known.
#[doc(alias = "vdev_max_asize")]
pub fn usable_now(vdev: &VdevNode, locate: &dyn Fn(&VdevNode) -> Presence) -> Option<u64> {
    if vdev.is_leaf() {
        let Presence::Present { size, .. } = locate(vdev) else { return None };
        return (size - size % LABEL_SIZE).checked_sub(LABEL_START_SIZE + LABEL_END_SIZE);
    }
    let smallest = vdev.children.iter().filter_map(|child| usable_now(child, locate)).min()?;
    // The disk that an expansion adds counts when the expansion has ended.
    let width = u64::try_from(vdev.children.len()).ok()?.checked_sub(u64::from(vdev.expanding))?;
    match (vdev.kind, vdev.draid) {
        (VdevKind::Raidz, _) => smallest.checked_mul(width),
        (VdevKind::Draid, Some((data, children, spares))) => {
            let group = data.checked_add(vdev.nparity)?.checked_mul(ROW_HEIGHT)?;
            let rows = smallest.checked_sub(DRAID_REFLOW_RESERVE)? / ROW_HEIGHT * ROW_HEIGHT;
            let all = rows.checked_mul(children.checked_sub(spares)?)?;
            all.checked_sub(all.checked_rem(group)?)
        }
        _ => Some(smallest),
    }
}

fn leaf_health(vdev: &VdevNode, presence: Presence, least: u64) -> Health {
    match presence {
        Presence::Known { health, .. } => health,
        _ if vdev.faulted => Health::faulted(VdevAux::External),
        _ if vdev.offline => Health::OFFLINE,
        Presence::Absent => Health::cant_open(VdevAux::OpenFailed),
        Presence::Foreign => Health::cant_open(VdevAux::CorruptData),
        Presence::Unlabelled => Health::cant_open(VdevAux::BadLabel),
        Presence::Present { size, .. } => {
            match (size - size % LABEL_SIZE < MIN_DEVICE_SIZE, usable(size) < least) {
                (true, _) => Health::cant_open(VdevAux::TooSmall),
                (_, true) => Health::cant_open(VdevAux::BadLabel),
                _ => Health::ONLINE,
            }
        }
    }
}

fn small_blocks(presence: Presence, ashift: u64) -> Option<(u64, u64)> {
    let (Presence::Present { physical_sector, .. } | Presence::Known { physical_sector, .. }) = presence
    else {
        return None;
    };
    let physical = u64::from(physical_sector.max(1).ilog2().clamp(9, 16));
    (ashift != 0 && physical > ashift).then_some((ashift, physical))
}

/// Children that don't work, and children that work with less redundancy than they should have.
fn count(vdev: &VdevNode) -> (u64, u64) {
    let concrete = vdev.children.iter().filter(|child| !child.is_virtual());
    concrete.fold((0, 0), |(faulted, degraded), child| match child.health.state {
        VdevState::Healthy => (faulted, degraded),
        VdevState::Degraded => (faulted, degraded + 1),
        _ => (faulted + 1, degraded),
    })
}

fn interior_health(vdev: &VdevNode) -> Health {
    let (faulted, degraded) = count(vdev);
    let width = u64::try_from(vdev.children.len()).unwrap_or(u64::MAX);
    let is_parity = matches!(vdev.kind, VdevKind::Raidz | VdevKind::Draid);
    let survives = match is_parity {
        true => faulted <= vdev.nparity,
        false => faulted < width,
    };
    if survives {
        return degraded_if(faulted + degraded > 0);
    }
    let all_offline = vdev.children.iter().all(|child| child.health.state == VdevState::Offline);
    Health::cant_open(if all_offline && !is_parity { VdevAux::ChildrenOffline } else { VdevAux::NoReplicas })
}

fn degraded_if(degraded: bool) -> Health {
    if degraded { Health::DEGRADED } else { Health::ONLINE }
}

/// The pool needs every top-level vdev but the logs, without which it is only degraded.
fn root_health(root: &VdevNode) -> Health {
    let tops = || root.children.iter().filter(|top| !top.is_virtual());
    let broken = || tops().filter(|top| !top.health.is_readable());
    if broken().any(|top| !top.is_log) {
        let corrupt = tops().any(|top| top.health.aux == VdevAux::CorruptData);
        return Health::cant_open(if corrupt { VdevAux::CorruptData } else { VdevAux::NoReplicas });
    }
    degraded_if(tops().any(|top| top.health.state != VdevState::Healthy))
}

#[cfg(test)]
mod tests {
    use nvpair::NvList;

    use super::*;

    #[test]
    fn blocks_that_are_smaller_than_those_of_the_device_are_known() {
        let mut top = NvList::new();
        top.add("type", "file").add("path", "/a").add("guid", 7u64).add("ashift", 9u64);
        let mut root = NvList::new();
        root.add("type", "root").add("guid", 1u64).add("children", vec![top]);
        let mut root = VdevNode::from_config(&root).unwrap();
        let blocks = |root: &mut VdevNode, physical_sector| {
            assess(root, &|_| Presence::Present { size: 1 << 30, physical_sector });
            root.children.first().and_then(|top| top.small_blocks)
        };
        assert_eq!([4096, 512].map(|sector| blocks(&mut root, sector)), [Some((9, 12)), None]);
    }
}
