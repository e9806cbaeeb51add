//! Open directories: a removed one keeps its attributes until its last handle is closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::FileHandle;
use parking_lot::Mutex;

/// By handle: the object, and a handle with its generation.
#[derive(Debug, Default)]
pub struct OpenDirs {
    open: Mutex<HashMap<u64, (u64, FileHandle)>>,
    next: AtomicU64,
}

impl OpenDirs {
    /// Registers an opened directory; returns its handle.
    pub fn opened(&self, object: u64, of: FileHandle) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, (object, of));
        FileHandle(handle)
    }

    /// Closes a handle; returns its directory.
    pub fn closed(&self, handle: FileHandle) -> Option<(u64, FileHandle)> {
        self.open.lock().remove(&handle.0)
    }
}
