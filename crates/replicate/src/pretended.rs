//! The snapshot that a dry run does not take: its plan has the steps of the run that does.

use std::collections::BTreeMap;

use crate::look::{Snapshot, Tree};
use crate::plan::{Act, Step};
use crate::time::now;

/// A snapshot that is not there, and the bytes that each dataset's stream would have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pretended {
    name: String,
    written: BTreeMap<String, u64>,
}

impl Pretended {
    /// Adds the snapshot to all datasets of a tree.
    pub fn take(tree: &mut Tree, name: &str) -> Self {
        let mut written = BTreeMap::new();
        // No snapshot of the target has such a guid.
        for ((relative, dataset), guid) in tree.datasets.iter_mut().zip((0..u64::MAX).rev()) {
            written.insert(relative.clone(), dataset.written);
            let snapshot =
                Snapshot { name: name.to_owned(), guid, createtxg: u64::MAX, creation: now(), userrefs: 0 };
            dataset.snapshots.push(snapshot);
        }
        Self { name: name.to_owned(), written }
    }

    /// The bytes of a step that sends it: those written since the newest snapshot that exists.
    pub fn estimate(&self, step: &Step) -> Option<u64> {
        let Act::Send { to, .. } = &step.act else { return None };
        if *to == self.name { self.written.get(&step.dataset).copied() } else { None }
    }
}
