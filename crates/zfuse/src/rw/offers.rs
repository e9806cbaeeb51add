//! Clones between mounts (`aquifer clone`).
//!
//! The kernel sends `copy_file_range` only for two files of one mount. So a program that has a file open for reading *offers* it
//! under a token, by a request on its descriptor, and asks the mount of another file to clone from that offer, by a request on
//! a descriptor that is open for writing. The kernel has checked the user's rights when it opened both files, so none are
//! checked here. A token is a random number that only the user knows; it ends when the offered descriptor is closed.
//!
//! Both are operations of the request in [`super::rewriting`].

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use engine::{Error, Kind, Result};
use parking_lot::Mutex;
use zpl::write::{CloneFrom, FsWriter};

use super::Live;
use super::fs_swap::BLIND;
use super::privileges::Setter;
use crate::node::{Node, What};
use crate::space::{Content, Slot};
use crate::wire::{FileHandle, INodeNo};

/// Offers at a time, of all users.
const MOST: usize = 4096;
/// Bytes that one request clones: an interrupt waits for its end.
const PIECE: u64 = 64 << 20;

/// The offers of all mounts of this process, by token.
static OFFERS: Mutex<BTreeMap<u64, Offer>> = Mutex::new(BTreeMap::new());

/// An offered file. It keeps neither its mount nor its pool in use.
#[derive(Debug)]
struct Offer {
    /// The mount, by the address of a value of its own, and the descriptor.
    of: (usize, INodeNo, FileHandle),
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    File(Weak<FsWriter>, u64),
    /// A file of a snapshot, by its object.
    Snapshot(Weak<Slot>, u64),
}

fn gone() -> Error {
    Error::not_found("the source is not on a mount of the same daemon, or was closed")
}

impl Source {
    fn is_there(&self) -> bool {
        match self {
            Self::File(files, _) => files.strong_count() > 0,
            Self::Snapshot(slot, _) => slot.strong_count() > 0,
        }
    }

    /// Clones from this file into file `to` of `files`: see [`zpl::write::Clones::clone_range`].
    fn clone_into(&self, files: &FsWriter, from: u64, to: (u64, u64), len: u64) -> Result<u64> {
        match self {
            Self::File(source, object) => {
                let source = source.upgrade().ok_or_else(gone)?;
                files.clones().clone_range((CloneFrom::File(&source, *object), from), to, len, true)
            }
            Self::Snapshot(slot, object) => {
                let slot = slot.upgrade().ok_or_else(gone)?;
                let Content::Filesystem(fs) = slot.content() else { return Err(gone()) };
                let inode = fs.inode(*object)?;
                let source = inode.stored().ok_or_else(gone)?;
                files.clones().clone_range(
                    (CloneFrom::Snapshot(source, inode.attr().size), from),
                    to,
                    len,
                    true,
                )
            }
        }
    }
}

impl Live {
    fn descriptor(&self, ino: INodeNo, handle: FileHandle) -> (usize, INodeNo, FileHandle) {
        (Arc::as_ptr(&self.notifier).addr(), ino, handle)
    }

    /// Offers a file that is open for reading under a token.
    ///
    /// # Errors
    /// `Denied` without permission to read; `Exists` for a token in use; `Busy` when too many are.
    pub(super) fn offer(&self, ino: INodeNo, handle: FileHandle, token: u64) -> Result<()> {
        let source = match self.object(ino.0) {
            Some(_) if handle.0 & BLIND != 0 => {
                return Err(Error::new(Kind::Denied, "the file is not open for reading"));
            }
            Some(object) => Source::File(Arc::downgrade(&self.files), object),
            None => {
                let node = Node::decode(ino.0);
                let What::Object(object) = node.what else { return Err(gone()) };
                Source::Snapshot(Arc::downgrade(&self.frozen.slot(node)?), object)
            }
        };
        let mut offers = OFFERS.lock();
        if offers.len() >= MOST {
            // A mount that was cut off never learned of its closes.
            offers.retain(|_, offer| offer.source.is_there());
        }
        if offers.len() >= MOST {
            return Err(Error::new(Kind::Busy, "too many files are being cloned"));
        }
        if offers.contains_key(&token) {
            return Err(Error::new(Kind::Exists, "the token is in use"));
        }
        offers.insert(token, Offer { of: self.descriptor(ino, handle), source });
        Ok(())
    }

    /// Ends the offers of a descriptor that is closed.
    pub(super) fn end_offers(&self, ino: INodeNo, handle: FileHandle) {
        let mut offers = OFFERS.lock();
        if !offers.is_empty() {
            let closed = self.descriptor(ino, handle);
            offers.retain(|_, offer| offer.of != closed);
        }
    }

    /// Clones `len` bytes from `from` on of the file that was offered under `token` to offset `to` of file `object`; returns how
    /// many.
    ///
    /// # Errors
    /// `NotFound` for an unknown token; otherwise as [`zpl::write::Clones::clone_range`].
    pub(super) fn clone_offered(
        &self,
        (token, from): (u64, u64),
        (object, to): (u64, u64),
        len: u64,
        setter: &Setter,
    ) -> Result<u64> {
        let source = OFFERS.lock().get(&token).map(|offer| offer.source.clone()).ok_or_else(gone)?;
        let setter = Some(setter).filter(|setter| !setter.is_privileged());
        self.drop_capabilities(object)?;
        self.dropping_set_ids(object, setter, || {
            source.clone_into(&self.files, from, (object, to), len.min(PIECE))
        })
    }
}
