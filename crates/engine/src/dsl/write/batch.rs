//! State that a task which destroys many snapshots keeps between two of them: deadlists and bookmarks, read
//! once.

use std::collections::BTreeMap;

use ondisk::dsl::DslDataset;

use super::bookmarks::Marks;
use super::mos_tx::MosTx;
use crate::dsl::deadlist::DeadList;
use crate::error::{Error, Result};

/// Deadlists that are kept: those of a head, of the snapshot that stays, and of some clones.
const MAX_LISTS: usize = 64;

/// Snapshots that are destroyed in one task. While it is in use, deadlists change through it alone.
pub(super) struct Batch<'a> {
    pub(crate) at: &'a MosTx<'a>,
    lists: BTreeMap<u64, DeadList<'a>>,
    /// Bookmarks of the head whose snapshots go.
    marks: Option<Marks>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(at: &'a MosTx<'a>) -> Self {
        Self { at, lists: BTreeMap::new(), marks: None }
    }

    /// A deadlist.
    pub(super) fn list(&mut self, number: u64) -> Result<&DeadList<'a>> {
        if !self.lists.contains_key(&number) {
            if self.lists.len() >= MAX_LISTS {
                self.lists.clear();
            }
            self.lists.insert(number, DeadList::open(self.at, number)?);
        }
        self.lists.get(&number).ok_or_else(|| Error::corrupt("a deadlist is not kept"))
    }

    /// A deadlist that goes.
    pub(super) fn take(&mut self, number: u64) -> Result<DeadList<'a>> {
        self.lists.remove(&number).map_or_else(|| DeadList::open(self.at, number), Ok)
    }

    /// Updates the bookmarks of a head for a destroyed snapshot. Returns whether one of them needs the
    /// snapshot's deadlist key.
    pub(crate) fn note_in_bookmarks(&mut self, head: u64, number: u64, snap: &DslDataset) -> Result<bool> {
        if self.marks.as_ref().is_none_or(|marks| marks.head != head) {
            self.marks = Some(Marks::read(self.at, head)?);
        }
        let Some(mut marks) = self.marks.take() else { return Ok(false) };
        if !marks.is_empty() {
            marks.snapshot_destroyed(self, number, snap)?;
        }
        let stands = marks.stand_at(snap.creation_txg);
        self.marks = Some(marks);
        Ok(stands)
    }
}
