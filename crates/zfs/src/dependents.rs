//! Dependents of a dataset in the order in which `zfs destroy` lists them.

use std::collections::HashMap;

use super::destroy::Step;

/// The snapshots and children of each dataset among the steps of a destroy.
#[derive(Default)]
pub(super) struct Dependents<'a> {
    snapshots: HashMap<&'a str, Vec<&'a str>>,
    children: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Dependents<'a> {
    pub(super) fn of(steps: &'a [Step]) -> Self {
        let mut all = Self::default();
        for step in steps {
            let (owners, owner) = match step {
                Step::Snapshot(name) => (&mut all.snapshots, name.split_once('@')),
                Step::Head(name) => (&mut all.children, name.rsplit_once('/')),
            };
            if let Some((owner, _)) = owner {
                owners.entry(owner).or_default().push(step.name());
            }
        }
        all
    }

    /// Lists the dependents of a dataset: its snapshots, the oldest first, then each child after its own dependents.
    #[doc(alias = "zfs_iter_dependents")]
    pub(super) fn list(&self, dataset: &str, names: &mut Vec<&'a str>) {
        names.extend(self.snapshots.get(dataset).into_iter().flatten().rev());
        for child in self.children.get(dataset).into_iter().flatten() {
            self.list(child, names);
            names.push(child);
        }
    }
}
