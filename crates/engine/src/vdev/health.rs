//! Health of leaves: how a configuration records it, and whether a top-level vdev can do without a leaf.
//!
//! Recorded are `offline`, `faulted`, `degraded` and `removed`, with the reason in `aux_state`. Only a fault
//! that the administrator requested survives an export or restart; the cause of a diagnosed fault may be
//! gone.
//!
//! Format source: `vdev_alloc`, vdev.c; `vdev_config_generate`, vdev_label.c; OpenZFS 2.3.

use nvpair::NvList;
use zcommon::health::Health;
use zcommon::vdev::{VdevAux, VdevState};

use super::config::VdevConfig;
use super::leaf::Leaf;
use super::top::Top;

/// All keys of a state.
const KEYS: [&str; 5] = ["offline", "faulted", "degraded", "removed", "aux_state"];

/// The recorded state that a leaf must have when its pool is opened, if any. The device of a present leaf
/// that should be out of use is not opened.
pub(crate) fn recorded(config: &VdevConfig, is_there: bool) -> Option<Health> {
    let is_set = |key: &str| config.nvlist.u64(key).unwrap_or(0) != 0;
    let external = config.nvlist.str("aux_state") == Some("external");
    match () {
        () if is_set("faulted") && external => Some(Health::faulted(VdevAux::External)),
        () if config.offline => Some(Health::OFFLINE),
        () if is_there && is_set("degraded") => {
            Some(Health { state: VdevState::Degraded, aux: VdevAux::ErrorsExceeded })
        }
        () if !is_there && is_set("removed") => Some(Health::REMOVED),
        () => None,
    }
}

/// Writes a leaf's state into its configuration.
pub(crate) fn record(config: &mut NvList, health: Health) {
    KEYS.iter().for_each(|key| drop(config.remove(key)));
    if health.is_readable() {
        config.remove("not_present");
    }
    let key = match health.state {
        VdevState::Offline => "offline",
        VdevState::Faulted => "faulted",
        VdevState::Degraded => "degraded",
        VdevState::Removed => "removed",
        _ => return,
    };
    config.add(key, 1u64);
    match health.aux {
        VdevAux::ErrorsExceeded => drop(config.add("aux_state", "err_exceeded")),
        VdevAux::External => drop(config.add("aux_state", "external")),
        _ => {}
    }
}

impl Top {
    /// Whether it can do without the leaves that are out of use.
    pub(crate) fn is_usable(&self) -> bool {
        self.can_lose(&|leaf| leaf.is_out())
    }

    /// Whether some data can only be read with this leaf. DTLs of the other leaves are taken into account.
    #[doc(alias = "vdev_dtl_required")]
    pub(crate) fn requires(&self, leaf: &Leaf) -> bool {
        self.requires_without(leaf, &|_| false)
    }

    /// The same if leaves for which `doubted` returns true are not relied on.
    pub(crate) fn requires_without(&self, leaf: &Leaf, doubted: &dyn Fn(&Leaf) -> bool) -> bool {
        let lacks = |other: &Leaf, txg: u64| other.dtl.read().contains(txg);
        let is_out = |other: &Leaf| other.guid == leaf.guid || other.is_out() || doubted(other);
        // The set of lacking leaves only grows at the start of some leaf's DTL range, so checking the starts
        // is enough.
        let starts = self
            .leaves_and_spares()
            .flat_map(|leaf| leaf.dtl.read().ranges().iter().map(|&(start, _)| start).collect::<Vec<_>>());
        !self.can_lose(&is_out)
            || starts.into_iter().any(|txg| !self.can_lose(&|leaf| is_out(leaf) || lacks(leaf, txg)))
    }
}
