//! The index of a micro ZAP's names that an object in memory keeps with its state, and changes of blocks in place.
//!
//! The content of an object has a number that every change of its blocks increases. An index belongs to one number: it is
//! built from the block read at that number ([`Handle::head`]), and any other change of the object's blocks drops it. A
//! change of names ([`Handle::patch_names`]) changes block and index together under the lock of the state. Writing a txg does
//! not change the content, so the index stays.
//!
//! Memory: all indexes together have a bounded number of bytes, the oldest goes first ([`crate::memory::objects`]).

use std::sync::{Arc, Weak};

use ondisk::zap::MicroIndex;
use parking_lot::{MappedRwLockReadGuard, RwLockReadGuard};
use stdx::{AlignedBuf, Buf};

use super::change::{DirtyRecord, Said, TxgChanges};
use super::{Handle, LiveObjset};
use crate::dmu::edit::Head;
use crate::dmu::tx::Tx;
use crate::error::{Error, Kind, Result};
use crate::memory::objects::KeepsIndexes;

/// Reads of block 0 until one is not overtaken by a change.
const ATTEMPTS: usize = 4;
/// A block that grows gets room for an eighth more names, up to a whole page of memory.
const ROOM_PART: usize = 8;
const ROOM_STEP: usize = 4096;
/// Searches of one content without an index: the next one builds it.
const SEARCHES: u8 = 1;

/// The index of an object's names, and the number of its content.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    content: u64,
    index: Option<Box<MicroIndex>>,
    searches: u8,
}

impl NameIndex {
    /// The content of blocks changed otherwise than in step with the index.
    pub(crate) fn content_changed(&mut self) {
        self.content += 1;
        self.index = None;
        self.searches = 0;
    }

    /// Bytes of the index.
    fn footprint(&self) -> usize {
        self.index.as_ref().map_or(0, |index| index.footprint())
    }
}

impl Handle {
    /// Block 0, and the number of the content that it belongs to; without a number when changes overtake the read.
    pub fn head(&self) -> Result<Head> {
        for _ in 0..ATTEMPTS {
            let content = {
                let state = self.state.read();
                if let Said::Bytes(block) = state.says(0) {
                    return Ok(Head { block, content: Some(state.names.content) });
                }
                state.names.content
            };
            let block = self.block(0)?;
            if self.state.read().names.content == content {
                return Ok(Head { block, content: Some(content) });
            }
        }
        Ok(Head { block: self.block(0)?, content: None })
    }

    /// The index of the names in this content, if there is one.
    pub(crate) fn names(&self, content: u64) -> Option<MappedRwLockReadGuard<'_, MicroIndex>> {
        RwLockReadGuard::try_map(self.state.read(), |state| {
            state.names.index.as_deref().filter(|_| state.names.content == content)
        })
        .ok()
    }

    /// Notes a search in this content; whether an index is worth its memory now.
    pub(crate) fn wants_names(&self, content: u64) -> bool {
        let names = &mut self.state.write().names;
        if names.content != content || names.searches >= SEARCHES {
            return names.content == content;
        }
        names.searches += 1;
        false
    }

    /// Keeps an index of the names in this content.
    pub(crate) fn keep_names(&self, content: u64, index: MicroIndex) {
        let bytes = index.footprint();
        {
            let names = &mut self.state.write().names;
            if names.content != content {
                return;
            }
            names.index = Some(Box::new(index));
        }
        self.counts_index(bytes);
    }

    /// Changes block 0 from `head` on, with `size` bytes from now on (at least as many as before), and its index with it: in
    /// place if the txg has the block already. Returns false, and changes nothing, when the content is not that of `head` any
    /// more.
    ///
    /// # Errors
    /// `Invalid` when an object with several blocks would grow.
    pub(crate) fn patch_names(
        self: &Arc<Self>,
        tx: &Tx,
        head: Head,
        size: u64,
        work: &mut dyn FnMut(&mut [u8], Option<&mut MicroIndex>),
    ) -> Result<bool> {
        let len = usize::try_from(size).unwrap_or(usize::MAX);
        self.check_way_to(tx, 0)?;
        let done = self.change_state(tx, |dnode, change, names| {
            if Some(names.content) != head.content {
                return Ok(None);
            }
            if dnode.datablksz() != size {
                if dnode.maxblkid > 0 {
                    let what = "the block size of an object with several blocks is fixed";
                    return Err(Error::new(Kind::Invalid, what));
                }
                dnode.datablkszsec = u16::try_from(size >> ondisk::MIN_BLOCK_SHIFT).unwrap_or(u16::MAX);
            }
            let before = names.footprint();
            let first = patch(change, head.block, len, &mut |block| work(block, names.index.as_deref_mut()));
            // The index was changed with the block.
            change.touched_content = false;
            names.content += 1;
            Ok(Some((first, names.footprint().saturating_sub(before))))
        })??;
        let Some((first, grown)) = done else { return Ok(false) };
        if grown > 0 {
            self.counts_index(grown);
        }
        if first {
            self.counts_block(tx, 0, len)?;
        }
        Ok(true)
    }

    /// Its index takes so many more bytes.
    fn counts_index(&self, bytes: usize) {
        if let Ok(objset) = self.objset() {
            let set: Weak<LiveObjset> = Weak::clone(&self.objset);
            objset.counted().keeps_index(set, self.number, bytes);
        }
    }

    /// Changes block `blkid`, in place if the txg has it already. `work` returns false when it has changed nothing.
    pub(crate) fn patch_block_if(
        self: &Arc<Self>,
        tx: &Tx,
        blkid: u64,
        work: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<()> {
        if self.change(tx, |_, change| change.patch(blkid, |block| work(block)))?.is_some() {
            return Ok(());
        }
        let mut block = self.block(blkid)?.into_owned();
        if work(&mut block) { self.write_block(tx, blkid, block.into()) } else { Ok(()) }
    }
}

/// Changes block 0, whose content is `block`, and which gets `len` bytes: in place if the txg has it already and no reader holds
/// it. Returns true if the txg did not have the block yet.
fn patch(change: &mut TxgChanges, block: Buf, len: usize, work: &mut dyn FnMut(&mut [u8])) -> bool {
    let Some(DirtyRecord::Data(own)) = change.blocks.get_mut(&0) else {
        let mut bytes = resized(&block, len);
        work(&mut bytes);
        return change.put(0, DirtyRecord::Data(bytes.into()));
    };
    drop(block);
    own.grow(len);
    if let Some(bytes) = own.get_mut().filter(|bytes| bytes.len() == len) {
        work(bytes);
    } else {
        let mut bytes = resized(own, len);
        work(&mut bytes);
        *own = bytes.into();
    }
    false
}

/// A copy with `len` bytes: cut off, or padded with zeros. One that is longer has room for more, as the next names make it longer
/// again, by a sector each time.
fn resized(block: &Buf, len: usize) -> AlignedBuf {
    if len <= block.len() {
        return AlignedBuf::copy_of(block.get(..len).unwrap_or(block));
    }
    let room = len.saturating_add(len / ROOM_PART).next_multiple_of(ROOM_STEP);
    let mut bytes = AlignedBuf::copy_with_room(block, room);
    bytes.grow(len);
    bytes
}

impl KeepsIndexes for LiveObjset {
    fn drop_index(&self, number: u64) {
        let handle = self.handles.lock().get(&number).cloned();
        if let Some(handle) = handle {
            let names = &mut handle.state.write().names;
            (names.index, names.searches) = (None, 0);
        }
    }
}
