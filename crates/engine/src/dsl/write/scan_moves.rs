//! Changes of datasets that a scan follows.

use std::collections::BTreeMap;

use ondisk::Bookmark;
use ondisk::pool::DslScan;

use crate::error::Result;

/// No dataset has this number: the place is between two datasets.
#[doc(alias = "ZB_DESTROYED_OBJSET")]
pub(crate) const BETWEEN: u64 = u64::MAX;
/// The dataset at hand is visited once more.
#[doc(alias = "DSF_VISIT_DS_AGAIN")]
pub(crate) const VISIT_AGAIN: u64 = 1 << 0;

/// A change of datasets that a scan follows: in the state on disk, and in that in memory, which is ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetMove {
    /// A dataset is about to be destroyed; of a snapshot, the dataset that follows it.
    #[doc(alias = "dsl_scan_ds_destroyed")]
    Destroyed(u64, Option<u64>),
    /// A head has a new snapshot, which owns its blocks from now on.
    #[doc(alias = "dsl_scan_ds_snapshotted")]
    Snapshotted(u64, u64),
    /// Two heads have changed contents.
    #[doc(alias = "dsl_scan_ds_clone_swapped")]
    Swapped(u64, u64),
}

/// A queue of datasets.
pub trait ScanQueue {
    /// Takes a dataset out; returns the txg after which its blocks count.
    fn take(&mut self, dataset: u64) -> Result<Option<u64>>;
    /// Puts a dataset in.
    fn put(&mut self, dataset: u64, after: u64) -> Result<()>;
}

impl ScanQueue for BTreeMap<u64, u64> {
    fn take(&mut self, dataset: u64) -> Result<Option<u64>> {
        Ok(self.remove(&dataset))
    }

    fn put(&mut self, dataset: u64, after: u64) -> Result<()> {
        self.insert(dataset, after);
        Ok(())
    }
}

impl DatasetMove {
    /// Takes the place of a scan along; returns whether it changed.
    pub fn place(self, scan: &mut DslScan) -> bool {
        let here = &mut scan.bookmark.objset;
        match self {
            // The surviving blocks of a snapshot belong to the next one, or to the head.
            Self::Destroyed(number, Some(next)) if *here == number => {
                *here = next;
                scan.flags |= VISIT_AGAIN;
            }
            Self::Destroyed(number, None) if *here == number => {
                scan.bookmark = Bookmark { objset: BETWEEN, object: 0, level: 0, blkid: 0 };
            }
            Self::Snapshotted(head, snapshot) if *here == head => *here = snapshot,
            Self::Swapped(a, b) if *here == a => *here = b,
            Self::Swapped(a, b) if *here == b => *here = a,
            _ => return false,
        }
        true
    }

    /// Takes the queue of a scan along.
    pub fn queue(self, queue: &mut dyn ScanQueue) -> Result<()> {
        match self {
            Self::Destroyed(from, to) => match (queue.take(from)?, to) {
                (Some(after), Some(to)) => queue.put(to, after),
                _ => Ok(()),
            },
            Self::Snapshotted(from, to) => match queue.take(from)? {
                Some(after) => queue.put(to, after),
                None => Ok(()),
            },
            Self::Swapped(a, b) => {
                let (of_a, of_b) = (queue.take(a)?, queue.take(b)?);
                of_a.map_or(Ok(()), |after| queue.put(b, after))?;
                of_b.map_or(Ok(()), |after| queue.put(a, after))
            }
        }
    }
}
