//! Removed files and directories that the kernel refers to without having them open: by `O_PATH`, or as a working directory.
//! Their objects are free; their attributes are kept until the kernel forgets them, which it does at once where nothing refers
//! to them.

use std::collections::HashMap;

use crate::wire::{FileAttr, FopenFlags, Generation, INodeNo, OpenFlags, ReplyOpen};
use engine::{Error, Kind, Result};
use parking_lot::Mutex;

use super::Live;
use super::files::{Entry, NAMES};
use super::fs_swap::handle_of;
use crate::attr::errno;
use crate::wire::FileType;

/// Their last attributes.
#[derive(Debug, Default)]
pub struct Removed(Mutex<HashMap<u64, FileAttr>>);

impl Removed {
    /// The kernel does not refer to it any more.
    pub fn forget(&self, ino: INodeNo) {
        self.0.lock().remove(&ino.0);
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    fn get(&self, ino: u64) -> Option<FileAttr> {
        self.0.lock().get(&ino).copied()
    }
}

impl Live {
    /// Removes a file's name.
    pub(super) fn remove_file(&self, dir: u64, name: &[u8]) -> Result<()> {
        if let Some((object, attr)) = self.files.dirs().unlink_and_look(dir, name)? {
            self.keep_removed(self.file_attr(object, &attr)?);
        }
        Ok(())
    }

    /// Removes a directory.
    pub(super) fn remove_dir(&self, dir: u64, name: &[u8]) -> Result<()> {
        self.removing(dir, name, || self.files.dirs().rmdir(dir, name))
    }

    /// Runs `work`, after which a name is gone or names another file.
    pub(super) fn removing(&self, dir: u64, name: &[u8], work: impl FnOnce() -> Result<()>) -> Result<()> {
        let found = self.files.dirs().lookup(dir, name).ok().flatten();
        let before = found.and_then(|found| self.entry(found.object).ok()).map(|entry| entry.attr);
        let last = before.filter(|attr| attr.kind == FileType::Directory || attr.nlink <= 1);
        work()?;
        if let Some(attr) = last {
            self.keep_removed(attr);
        }
        Ok(())
    }

    /// While the file is open its object answers; after that these attributes do.
    fn keep_removed(&self, attr: FileAttr) {
        self.removed.0.lock().insert(attr.ino.0, FileAttr { nlink: 0, ..attr });
    }

    /// Attributes of a file, which may be removed.
    pub(super) fn entry_or_removed(&self, ino: INodeNo, object: u64) -> Result<Entry> {
        self.entry(object).or_else(|e| {
            let attr = self.removed.get(ino.0).filter(|_| e.kind() == Kind::NotFound).ok_or(e)?;
            Ok(Entry { attr, generation: Generation(0), keep: NAMES, keep_attr: NAMES })
        })
    }

    /// Opens a directory that is removed: it has no names.
    pub(super) fn open_removed(&self, ino: INodeNo, flags: OpenFlags, e: &Error, reply: ReplyOpen) {
        match (self.removed.get(ino.0), self.object(ino.0)) {
            (Some(_), Some(object)) if e.kind() == Kind::NotFound => {
                let handle = self.open_dirs.opened(object, handle_of(0, flags));
                reply.opened(handle, FopenFlags::empty());
            }
            _ => reply.error(errno(e)),
        }
    }
}
