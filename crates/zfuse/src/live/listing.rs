//! Listings of open directories: made when they are read from the begin, so that one listing is of one moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::FileHandle;
use engine::Result;
use parking_lot::Mutex;

use crate::dir::Item;

/// All of them.
#[derive(Debug, Default)]
pub struct Listings {
    open: Mutex<HashMap<u64, Arc<Vec<Item>>>>,
    next: AtomicU64,
}

impl Listings {
    /// A handle of its own for whoever opens a directory.
    pub fn open(&self) -> FileHandle {
        FileHandle(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The directory is closed.
    pub fn close(&self, handle: FileHandle) {
        self.open.lock().remove(&handle.0);
    }

    /// All are made anew: what they say is no more.
    pub fn forget(&self) {
        self.open.lock().clear();
    }

    /// The listing that the handle is reading.
    pub fn get(
        &self,
        handle: FileHandle,
        offset: u64,
        make: impl FnOnce() -> Result<Vec<Item>>,
    ) -> Result<Arc<Vec<Item>>> {
        let known = self.open.lock().get(&handle.0).cloned().filter(|_| offset > 0);
        match known {
            Some(known) => Ok(known),
            None => {
                let fresh = Arc::new(make()?);
                self.open.lock().insert(handle.0, Arc::clone(&fresh));
                Ok(fresh)
            }
        }
    }
}

/// Entries from `offset` on, each with the offset of the next.
pub fn rest(items: &[Item], offset: u64) -> impl Iterator<Item = (u64, &Item)> {
    (1..).zip(items).skip(usize::try_from(offset).unwrap_or(usize::MAX))
}
