//! Where the devices of a pool of the cache file are now.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use nvpair::NvList;
use zcommon::vdev::VdevKind;
use zutil::PoolCandidate;
use zutil::tree::VdevNode;

use crate::devices::candidate_at;
use crate::imported::leaf_paths;

/// A pool of the cache file that could not be imported.
#[derive(Debug, Clone)]
pub struct Unavailable {
    /// The reason.
    pub why: String,
    /// The pool as the cache file describes it.
    pub(crate) config: NvList,
}

impl Unavailable {
    /// The pool as its devices are now.
    pub fn candidate(&self) -> PoolCandidate {
        located(&self.config).unwrap_or_else(|| PoolCandidate::absent(&self.config))
    }

    /// The vdevs as the cache file describes them: those of which no device was found, too, which labels of others do not describe.
    pub fn vdevs(&self) -> Option<VdevNode> {
        self.config.nvlist("vdev_tree").and_then(VdevNode::from_config)
    }
}

/// The pools of these guids on devices at `paths` and beside them.
pub(crate) fn found_near(mut places: Vec<PathBuf>, guids: &HashSet<u64>) -> Vec<PoolCandidate> {
    let mut folders: Vec<_> = places.iter().filter_map(|path| path.parent().map(Path::to_owned)).collect();
    folders.sort();
    folders.dedup();
    places.retain(|path| path.exists());
    places.extend(folders.into_iter().filter(|folder| folder.is_dir()));
    // Without a place, `discover` searches the standard folders.
    if places.is_empty() {
        return Vec::new();
    }
    let found = zutil::search(&zutil::discover(&places).devices);
    found.into_iter().filter(|pool| guids.contains(&pool.guid)).collect()
}

/// The pool of a cached configuration: where its devices were last or, if one is not there, anywhere beside them, because
/// the system may have renamed its disks.
pub(crate) fn located(config: &NvList) -> Option<PoolCandidate> {
    let guid = config.u64("pool_guid").unwrap_or(0);
    let paths = leaf_paths(config);
    let there = candidate_at(&paths, guid);
    let tree = config.nvlist("vdev_tree").and_then(VdevNode::from_config);
    let has_all = |pool: &PoolCandidate| {
        let mut leaves = tree.iter().flat_map(VdevNode::walk).filter(|vdev| vdev.is_leaf());
        leaves.all(|leaf| leaf.kind == VdevKind::DraidSpare || pool.members.contains_key(&leaf.guid))
    };
    if there.as_ref().is_some_and(has_all) {
        return there;
    }
    let near = found_near(paths, &HashSet::from([guid])).pop();
    let count = |pool: &Option<PoolCandidate>| pool.as_ref().map_or(0, |pool| pool.members.len());
    if count(&near) > count(&there) { near } else { there }
}
