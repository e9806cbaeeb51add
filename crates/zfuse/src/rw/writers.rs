//! Files that are open for writing.

use std::collections::HashMap;

use crate::wire::FileHandle;
use parking_lot::Mutex;

use super::fs_swap::WRITES;

/// The number of such handles by object. It counts handles, not files: a number that has another file after a rollback keeps the
/// handles of the former file until they are closed.
#[derive(Debug, Default)]
pub struct Writers(Mutex<HashMap<u64, u64>>);

impl Writers {
    /// Counts a handle of a file, if it is open for writing.
    pub fn opened(&self, object: u64, handle: FileHandle) {
        if handle.0 & WRITES != 0 {
            *self.0.lock().entry(object).or_default() += 1;
        }
    }

    /// A handle is closed.
    pub fn closed(&self, object: u64, handle: FileHandle) {
        let mut all = self.0.lock();
        if handle.0 & WRITES != 0
            && let Some(count) = all.get_mut(&object)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                all.remove(&object);
            }
        }
    }

    /// Whether a file is open for writing. The kernel closes a handle after the last mapping of it has ended, and writes the
    /// changed pages of a mapping when it ends.
    pub fn has(&self, object: u64) -> bool {
        self.0.lock().contains_key(&object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_for_writing_are_counted_until_they_are_closed() {
        let (writers, [read, write]) = (Writers::default(), [7, WRITES | 7].map(FileHandle));
        [read, write, write].into_iter().for_each(|handle| writers.opened(3, handle));
        writers.closed(3, write);
        writers.closed(3, read);
        assert!(writers.has(3) && !writers.has(4));
        writers.closed(3, write);
        writers.closed(3, write);
        assert!(!writers.has(3) && writers.0.lock().is_empty());
    }
}
