//! The promises of durability that a workload got, and their check.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actor::{Change, Ended};
use crate::content::Content;
use crate::model::{Item, Tree};

/// A promise.
#[derive(Debug, Clone)]
pub enum Promise {
    /// Everything up to this step.
    Step(u64),
    /// Files in the state after a step.
    Files {
        /// The step.
        step: u64,
        /// File system, file, content.
        files: Vec<(String, u64, Arc<Item>)>,
        /// The number of earlier changes of files.
        changes: usize,
    },
}

/// All promises of a workload, in order.
#[derive(Debug, Default)]
pub struct Promises(Vec<Promise>);

impl Promises {
    /// Records the end of a step; returns the number of promises, if there is a new one.
    pub fn note(&mut self, step: u64, ended: Ended, changes: usize) -> Option<u64> {
        match ended {
            Ended::Open => return None,
            Ended::Synced => self.0.push(Promise::Step(step)),
            Ended::Committed(files) => self.0.push(Promise::Files { step, files, changes }),
        }
        Some(self.0.len() as u64)
    }

    fn first(&self, count: u64) -> &[Promise] {
        self.0.get(..usize::try_from(count).unwrap_or(0)).unwrap_or(&self.0)
    }

    /// The step that must be present after the first `count` promises.
    pub fn step(&self, count: u64) -> u64 {
        let steps = self.first(count).iter().rev();
        let mut steps = steps.filter_map(|p| if let Promise::Step(step) = p { Some(*step) } else { None });
        steps.next().unwrap_or(0)
    }

    /// Files that were committed after `step`, with the latest promise for each: content, and the number of earlier
    /// changes.
    pub fn files(&self, count: u64, step: u64) -> BTreeMap<(&str, u64), (&Arc<Item>, usize)> {
        let mut last = BTreeMap::new();
        for promise in self.first(count) {
            if let Promise::Files { step: of, files, changes } = promise
                && *of > step
            {
                last.extend(files.iter().map(|(d, n, item)| ((d.as_str(), *n), (item, *changes))));
            }
        }
        last
    }
}

/// Whether a file has the promised state, a later one, or one in between: a record of the log holds the content at
/// the time it was written out, so it may include later changes.
pub fn is_kept(tree: &Tree, number: u64, promised: &Arc<Item>, later: &[&Change]) -> Result<(), String> {
    let found = tree.items.get(&number);
    let mut forms = vec![promised];
    forms.extend(later.iter().filter_map(|change| change.item.as_ref()));
    match found {
        None if later.iter().any(|change| change.item.is_none()) => return Ok(()),
        Some(found) if forms.contains(&found) || is_among(found, &forms) => return Ok(()),
        _ => {}
    }
    let has = found.map_or("it is gone".to_owned(), |found| {
        let bytes = crate::model::same_bytes(&found.bytes, &promised.bytes).err();
        let of = |item: &Item| format!("{:?} {:o} with {} links", item.kind, item.perm, item.links);
        format!("{} instead of {}: {bytes:?}", of(found), of(promised))
    });
    Err(format!("object {number} was committed, {} changes came later, and {has}", later.len()))
}

/// Whether each byte of a file equals that of one of its states; names and attributes may be of any.
fn is_among(found: &Item, forms: &[&Arc<Item>]) -> bool {
    let lens = || forms.iter().map(|form| form.bytes.len());
    let (short, long) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
    let is_of_one = |at: u64| forms.iter().any(|form| form.bytes.byte(at) == found.bytes.byte(at));
    // Bytes equal to the first state need no further comparison.
    let differing = forms.first().into_iter().flat_map(|form| form.bytes.differing(&found.bytes));
    (short..=long).contains(&found.bytes.len())
        && differing.flat_map(Content::offsets).take_while(|at| *at < found.bytes.len()).all(is_of_one)
}
