//! Which directories are open: one that is removed meanwhile keeps its attributes until the last handle is closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::FileHandle;
use parking_lot::Mutex;

/// By handle: the object, and a handle that says its generation.
#[derive(Debug, Default)]
pub struct OpenDirs {
    open: Mutex<HashMap<u64, (u64, FileHandle)>>,
    next: AtomicU64,
}

impl OpenDirs {
    /// A directory is opened; gives its handle.
    pub fn opened(&self, object: u64, of: FileHandle) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, (object, of));
        FileHandle(handle)
    }

    /// It is closed; gives which it was.
    pub fn closed(&self, handle: FileHandle) -> Option<(u64, FileHandle)> {
        self.open.lock().remove(&handle.0)
    }
}
