//! The interface for changing a structure that is stored in an object (a ZAP, a space map, a block list).

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::ObjectType;
use ondisk::zap::MicroIndex;
use parking_lot::Mutex;
use stdx::{AlignedBuf, Buf};

use super::{Handle, NewObject};
use crate::error::{Error, Result};

/// Block 0 of an object.
#[derive(Debug)]
pub struct Head {
    /// Its bytes.
    pub(crate) block: Buf,
    /// The number of the content that it was read from; `None` where contents are not numbered.
    pub(crate) content: Option<u64>,
}

/// An object open for changes within one transaction. Reads see earlier writes of the same or an earlier
/// transaction.
pub trait Edit {
    /// Object number, for errors.
    fn number(&self) -> u64;
    /// Bytes of a data block.
    fn block_size(&self) -> u64;
    /// Changes the block size (a multiple of 512). Only while the object has at most one block: its bytes are kept,
    /// truncated or padded with zeros.
    fn set_block_size(&mut self, bytes: u64) -> Result<()>;
    /// Largest block number ever written; also 0 for an object without blocks.
    fn max_block(&self) -> u64;
    /// A block's bytes: `block_size` of them, zeros for a hole or past the end.
    fn read_block(&self, blkid: u64) -> Result<Buf>;
    /// Replaces a block; `bytes` has `block_size` bytes.
    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()>;
    /// Changes a block in place, or replaces it by a changed copy.
    fn patch_block(&mut self, blkid: u64, work: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.patch_block_if(blkid, &mut |block| {
            work(block);
            true
        })
    }
    /// As [`Edit::patch_block`]. `work` returns false when it has changed nothing: then the block need not be written.
    fn patch_block_if(&mut self, blkid: u64, work: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<()> {
        let mut block = self.read_block(blkid)?.into_owned();
        if work(&mut block) { self.write_block(blkid, block) } else { Ok(()) }
    }
    /// Block 0 with the number of its content.
    fn head(&self) -> Result<Head> {
        Ok(Head { block: self.read_block(0)?, content: None })
    }
    /// The object in memory that can keep an index of the names in block 0, if there is one.
    fn keeper(&self) -> Option<&Handle> {
        None
    }
    /// Changes block 0 after `head` was read from it, with a new block size, together with the index of its names. Returns
    /// false, and changes nothing, when it has changed since.
    fn patch_names(
        &mut self,
        head: Head,
        size: u64,
        work: &mut dyn FnMut(&mut [u8], Option<&mut MicroIndex>),
    ) -> Result<bool> {
        drop(head);
        patch_head(self, size, work)
    }
    /// Frees blocks `from..` up to the end.
    fn free_from(&mut self, blkid: u64) -> Result<()>;
    /// Frees `count` blocks from `blkid` on. An implementation without holes may write zeros.
    fn free_range(&mut self, blkid: u64, count: u64) -> Result<()> {
        let len = usize::try_from(self.block_size()).unwrap_or(0);
        (blkid..blkid.saturating_add(count)).try_for_each(|b| self.write_block(b, AlignedBuf::zeroed(len)))
    }
    /// Its blocks are placed as those of dedup tables from now on, as long as the object stays in memory.
    #[doc(alias = "dnode_set_storage_type")]
    fn place_with_tables(&self) {}
    /// Checks that `count` blocks from `blkid` on can be changed or freed, without changing them.
    ///
    /// # Errors
    /// The reason why they cannot.
    fn check_change(&self, _blkid: u64, _count: u64) -> Result<()> {
        Ok(())
    }
    /// Writes `bytes` at `offset`, block by block.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let size = self.block_size().max(1);
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let skip = usize::try_from(at % size).unwrap_or(0);
            let room = usize::try_from(size).unwrap_or(usize::MAX) - skip;
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            let mut block = self.read_block(at / size)?.into_owned();
            for (to, from) in block.iter_mut().skip(skip).zip(now) {
                *to = *from;
            }
            self.write_block(at / size, block)?;
            rest = later;
            at = at.saturating_add(u64::try_from(now.len()).unwrap_or(0));
        }
        Ok(())
    }
    /// `len` bytes from `offset`, zeros past the end.
    fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let size = self.block_size().max(1);
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = offset.saturating_add(u64::try_from(out.len()).unwrap_or(0));
            let block = self.read_block(at / size)?;
            let skip = usize::try_from(at % size).unwrap_or(0);
            let piece = block.slice(skip..skip.saturating_add(len - out.len()));
            if piece.is_empty() {
                return Err(Error::corrupt("data block is too short"));
            }
            out.extend_from_slice(&piece);
        }
        Ok(out)
    }
    /// The bonus buffer.
    fn bonus(&self) -> Vec<u8>;
    /// Replaces the bonus buffer; its length may change within the dnode's capacity.
    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Changes block 0, which gets `size` bytes, where no index is kept.
pub(crate) fn patch_head<E: Edit + ?Sized>(
    object: &mut E,
    size: u64,
    work: &mut dyn FnMut(&mut [u8], Option<&mut MicroIndex>),
) -> Result<bool> {
    if object.block_size() != size {
        object.set_block_size(size)?;
    }
    object.patch_block(0, &mut |block| work(block, None))?;
    Ok(true)
}

/// An object set whose objects can be changed within one transaction: for structures that consist of several
/// objects.
pub trait Objects {
    /// Creates an object and returns its number.
    #[doc(alias = "dmu_object_alloc")]
    fn create(&self, new: &NewObject) -> Result<u64>;
    /// Frees an object with all its blocks.
    #[doc(alias = "dmu_object_free")]
    fn free(&self, number: u64) -> Result<()>;
    /// Opens an object for changes.
    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>>;
    /// The type of its blocks.
    fn kind(&self, number: u64) -> Result<ObjectType>;
}

/// An object set in memory.
#[derive(Debug, Default)]
pub struct MemObjects {
    objects: Mutex<BTreeMap<u64, (ObjectType, Arc<Mutex<MemObject>>)>>,
}

impl MemObjects {
    /// Numbers of all objects.
    pub fn numbers(&self) -> Vec<u64> {
        self.objects.lock().keys().copied().collect()
    }

    /// Inserts an object under its own number.
    pub fn insert(&self, kind: ObjectType, object: MemObject) {
        self.objects.lock().insert(object.number, (kind, Arc::new(Mutex::new(object))));
    }

    fn get(&self, number: u64) -> Result<(ObjectType, Arc<Mutex<MemObject>>)> {
        let found = self.objects.lock().get(&number).cloned();
        found.ok_or_else(|| Error::not_found(format!("no object {number}")))
    }
}

impl Objects for MemObjects {
    fn create(&self, new: &NewObject) -> Result<u64> {
        let mut objects = self.objects.lock();
        let number = objects.keys().next_back().map_or(1, |last| last + 1);
        let mut object = MemObject::new(number, new.block_size);
        object.bonus = vec![0; new.bonus_len];
        objects.insert(number, (new.object_type, Arc::new(Mutex::new(object))));
        Ok(number)
    }

    fn free(&self, number: u64) -> Result<()> {
        let absent = || Error::not_found(format!("no object {number}"));
        self.objects.lock().remove(&number).map(drop).ok_or_else(absent)
    }

    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>> {
        Ok(Box::new(SharedObject(self.get(number)?.1)))
    }

    fn kind(&self, number: u64) -> Result<ObjectType> {
        Ok(self.get(number)?.0)
    }
}

/// One of [`MemObjects`], open.
struct SharedObject(Arc<Mutex<MemObject>>);

impl Edit for SharedObject {
    fn number(&self) -> u64 {
        self.0.lock().number()
    }

    fn block_size(&self) -> u64 {
        self.0.lock().block_size()
    }

    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        self.0.lock().set_block_size(bytes)
    }

    fn max_block(&self) -> u64 {
        self.0.lock().max_block()
    }

    fn read_block(&self, blkid: u64) -> Result<Buf> {
        self.0.lock().read_block(blkid)
    }

    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()> {
        self.0.lock().write_block(blkid, bytes)
    }

    fn free_from(&mut self, blkid: u64) -> Result<()> {
        self.0.lock().free_from(blkid)
    }

    fn bonus(&self) -> Vec<u8> {
        self.0.lock().bonus()
    }

    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.lock().set_bonus(bytes)
    }
}

/// An object in memory: for structures that are tested without a pool.
#[derive(Debug, Clone, Default)]
pub struct MemObject {
    /// Its number.
    pub(crate) number: u64,
    block_size: u64,
    blocks: BTreeMap<u64, Buf>,
    bonus: Vec<u8>,
}

impl MemObject {
    /// An empty object.
    pub fn new(number: u64, block_size: u64) -> Self {
        Self { number, block_size, ..Self::default() }
    }
}

impl Edit for MemObject {
    fn number(&self) -> u64 {
        self.number
    }

    fn block_size(&self) -> u64 {
        self.block_size
    }

    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        assert!(self.max_block() == 0, "the block size of an object with several blocks is fixed");
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(old) = self.blocks.remove(&0) {
            let mut new = AlignedBuf::zeroed(len);
            for (to, from) in new.iter_mut().zip(old.iter()) {
                *to = *from;
            }
            self.blocks.insert(0, new.into());
        }
        self.block_size = bytes;
        Ok(())
    }

    fn max_block(&self) -> u64 {
        self.blocks.keys().next_back().copied().unwrap_or(0)
    }

    fn read_block(&self, blkid: u64) -> Result<Buf> {
        let len = usize::try_from(self.block_size).unwrap_or(usize::MAX);
        Ok(self.blocks.get(&blkid).cloned().unwrap_or_else(|| AlignedBuf::zeroed(len).into()))
    }

    fn write_block(&mut self, blkid: u64, bytes: AlignedBuf) -> Result<()> {
        assert!(u64::try_from(bytes.len()) == Ok(self.block_size), "a block is written whole");
        self.blocks.insert(blkid, bytes.into());
        Ok(())
    }

    fn patch_block_if(&mut self, blkid: u64, work: &mut dyn FnMut(&mut [u8]) -> bool) -> Result<()> {
        if let Some(bytes) = self.blocks.get_mut(&blkid).and_then(Buf::get_mut) {
            work(bytes);
            return Ok(());
        }
        let mut block = self.read_block(blkid)?.into_owned();
        if work(&mut block) { self.write_block(blkid, block) } else { Ok(()) }
    }

    fn free_from(&mut self, blkid: u64) -> Result<()> {
        drop(self.blocks.split_off(&blkid));
        Ok(())
    }

    fn bonus(&self) -> Vec<u8> {
        self.bonus.clone()
    }

    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.bonus = bytes.to_vec();
        Ok(())
    }
}
