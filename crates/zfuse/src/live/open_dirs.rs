//! Which directories are open: one that is removed meanwhile keeps its attributes until the last handle is closed.

use std::collections::HashMap;

use crate::wire::FileHandle;
use parking_lot::Mutex;

/// By handle: the object, and a handle that says its generation.
#[derive(Debug, Default)]
pub struct OpenDirs(Mutex<HashMap<u64, (u64, FileHandle)>>);

impl OpenDirs {
    /// A directory was opened.
    pub fn opened(&self, handle: FileHandle, object: u64, of: FileHandle) {
        self.0.lock().insert(handle.0, (object, of));
    }

    /// It is closed; gives which it was.
    pub fn closed(&self, handle: FileHandle) -> Option<(u64, FileHandle)> {
        self.0.lock().remove(&handle.0)
    }
}
