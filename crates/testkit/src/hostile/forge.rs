//! The forger: changes a pool's blocks and makes everything above them consistent.
//!
//! A changed block is stored again, uncompressed and with the checksum `off`, near the end of its vdev; its pointer
//! is changed in the block above, and so on up to the object set, its dataset's entry in the MOS, the MOS and the
//! uberblock, whose own checksum is corrected. The previous contents at the new locations are lost, which is
//! acceptable. Pools of one disk or one mirror (and disks only, of which the last is used) can be forged.

use std::sync::Arc;

use blkdev::Device;
use engine::arc::ArcCache;
use engine::dmu::{Object, Objset};
use engine::dsl::Dataset;
use engine::env::Env;
use engine::spa::{FoundUberblock, ImportSource, OpenOptions, Pool};
use engine::types::Bookmark;
use engine::zio::Form;
use engine::{Error, Result};
use ondisk::label::{EckPhys, LABELS, label_offset, label_verifier, uberblock_offset, uberblock_shift};
use ondisk::{Blkptr, Eck, Endian, ObjectType, Uberblock};

use super::overlay::Overlay;
use crate::golden::Golden;

/// Bytes of a block pointer.
pub const POINTER: usize = 128;
/// Space for new blocks, before the labels at the end.
const ROOM: u64 = 24 << 20;
/// Offset of the object set's pointer in a dataset's entry in the MOS.
const DATASET_BP: usize = 128;
/// A change of a block's bytes.
type Edit<'a> = &'a mut dyn FnMut(&mut [u8]);
/// `ZIO_COMPRESS_OFF` and `ZIO_CHECKSUM_OFF`.
const OFF: u64 = 2;

/// A pool being changed.
#[derive(Debug)]
pub struct Forge {
    /// The original pool.
    pub pool: Arc<Pool>,
    /// Bytes of its first device's file name, for saving.
    pub disks: Vec<(String, Arc<Overlay>)>,
    source: ImportSource,
    targets: Vec<Arc<Overlay>>,
    top: u64,
    ashift: u32,
    uberblock: Uberblock,
    next: u64,
    end: u64,
}

impl Forge {
    /// Opens a golden pool for forging.
    pub fn new(golden: &Golden, env: &Env) -> Result<Self> {
        let candidates = zutil::import::candidates(std::slice::from_ref(&golden.dir));
        let mut source = zutil::import::source(&zutil::import::select(candidates, golden.pool_name())?);
        let mut disks = Vec::new();
        for device in source.devices.values_mut() {
            let overlay = Arc::new(Overlay::new(Arc::clone(device)));
            let file = overlay_name(&overlay);
            *device = Arc::clone(&overlay) as Device;
            disks.push((file, overlay));
        }
        let pool = engine::spa::open(env, source.clone(), OpenOptions::default())?;
        let tree = pool.tree();
        let usable = |top: &&engine::vdev::config::VdevConfig| {
            tree.top(top.id).is_some_and(|t| t.is_readable() && !t.is_removed())
        };
        let top = tree.config.children.iter().rfind(usable);
        let top = top.ok_or_else(|| Error::unsupported("no top-level vdev to forge on"))?;
        let leaves: Vec<u64> = top.walk().iter().filter(|v| v.kind.is_leaf()).map(|v| v.guid).collect();
        let name_of = |guid: &u64| source.devices.get(guid).map(|d| d.name().to_owned());
        let names: Vec<String> = leaves.iter().filter_map(name_of).collect();
        let of_top = disks.iter().filter(|(_, d)| names.iter().any(|n| n == blkdev::BlockDevice::name(&**d)));
        let targets: Vec<Arc<Overlay>> = of_top.map(|(_, d)| Arc::clone(d)).collect();
        let end = top.asize - top.asize % (1 << 20);
        let (top, ashift) = (top.id, top.ashift);
        let uberblock = Uberblock { txg: pool.uberblock.txg + 1, ..pool.uberblock };
        Ok(Self { source, pool, disks, targets, top, ashift, uberblock, next: end.saturating_sub(ROOM), end })
    }

    fn arc(&self) -> &Arc<ArcCache> {
        &self.pool.arc
    }

    /// The current meta object set.
    pub fn mos(&self) -> Result<Arc<Objset>> {
        Objset::open(self.arc(), 0, &self.uberblock.rootbp, Form::Logical)
    }

    /// The current object set: 0 is the MOS, others by their dataset's object.
    pub fn objset(&self, id: u64) -> Result<Arc<Objset>> {
        if id == 0 {
            return self.mos();
        }
        let dataset = self.mos()?.object(id)?;
        let bp = dataset.dnode.bonus().get(DATASET_BP..).and_then(Blkptr::from_bytes);
        let bp = bp.ok_or_else(|| Error::corrupt("no dataset"))?;
        Objset::open(self.arc(), id, &bp, Form::NoKey)
    }

    /// The current object; 0 is the array of dnodes.
    pub fn object(&self, id: u64, number: u64) -> Result<Object> {
        let objset = self.objset(id)?;
        match number {
            0 => objset.special(engine::dmu::SpecialObject::Meta).ok_or_else(|| Error::not_found("meta")),
            _ => objset.object(number),
        }
    }

    /// The dataset of this name in the original pool.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        self.pool.dsl.dataset(name)
    }

    /// Allocates `len` bytes; returns an offset in the form of DVAs.
    pub fn alloc(&mut self, len: usize) -> Result<u64> {
        let at = self.next;
        self.next = at.saturating_add(len as u64).next_multiple_of(4096);
        if self.next > self.end {
            return Err(Error::not_found("the forger's room is used up"));
        }
        Ok(at)
    }

    /// Changes bytes at a DVA's offset, on every side of the mirror.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = offset + ondisk::label::LABEL_START_SIZE;
        for target in &self.targets {
            target.write(at, bytes)?;
        }
        // The pool must not use blocks that it has read ahead.
        self.pool.tree().leaves().for_each(|leaf| leaf.changed(at, bytes.len() as u64));
        Ok(())
    }

    /// A pointer to `len` bytes at `offset` whose checksum is not verified.
    pub fn pointer(&self, offset: u64, len: usize, kind: ObjectType, level: u8) -> Blkptr {
        let sectors = len as u64 / 512;
        let mut words = [0; 16];
        words[0] = self.top << 32 | sectors;
        words[1] = offset / 512;
        let prop = (sectors - 1) | (sectors - 1) << 16 | OFF << 32 | OFF << 40;
        words[6] = prop | u64::from(kind.raw()) << 48 | u64::from(level) << 56 | 1 << 63;
        words[10] = self.uberblock.txg;
        words[11] = 1;
        Blkptr::from_words(words)
    }

    /// Stores a block somewhere.
    pub fn store(&mut self, bytes: &[u8], kind: ObjectType, level: u8) -> Result<Blkptr> {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().max(512).next_multiple_of(512), 0);
        let at = self.alloc(bytes.len())?;
        self.write(at, &bytes)?;
        Ok(self.pointer(at, bytes.len(), kind, level))
    }

    /// Replaces a block of an object; level 0 is data.
    pub fn put_block(&mut self, id: u64, number: u64, level: u8, blkid: u64, bytes: &[u8]) -> Result<()> {
        let kind = self.object(id, number)?.dnode.object_type;
        let bp = self.store(bytes, kind, level)?;
        self.put_pointer(id, number, level, blkid, &bp)
    }

    /// Replaces the pointer to a block of an object.
    pub fn put_pointer(&mut self, id: u64, number: u64, level: u8, blkid: u64, bp: &Blkptr) -> Result<()> {
        let object = self.object(id, number)?;
        if level + 1 == object.dnode.nlevels {
            let at = 64 + POINTER * usize::try_from(blkid).unwrap_or(0);
            return self.edit_dnode(id, number, &mut |dnode| set(dnode, at, &bp.to_bytes()));
        }
        let shift = object.dnode.blocks_per_indirect_shift();
        let parent = blkid >> shift;
        let above = object.blkptr(level + 1, parent)?;
        let mut block = match above {
            Some(above) => object.indirect(&above, level + 1, parent)?.to_vec(),
            None => vec![0; usize::try_from(object.dnode.indirect_size()).unwrap_or(0)],
        };
        let slot = usize::try_from(blkid & ((1 << shift) - 1)).unwrap_or(0);
        set(&mut block, slot * POINTER, &bp.to_bytes());
        self.put_block(id, number, level + 1, parent, &block)
    }

    /// Changes the bytes of a data block.
    pub fn edit_block(&mut self, id: u64, number: u64, blkid: u64, edit: Edit<'_>) -> Result<()> {
        let mut bytes = self.object(id, number)?.block(blkid)?.to_vec();
        edit(&mut bytes);
        self.put_block(id, number, 0, blkid, &bytes)
    }

    /// Changes the bytes of a dnode, from its head to the end of its slots.
    pub fn edit_dnode(&mut self, id: u64, number: u64, edit: Edit<'_>) -> Result<()> {
        if number == 0 {
            return self.edit_objset(id, &mut |block| edit(block.get_mut(..512).unwrap_or_default()));
        }
        let object = self.object(id, number)?;
        let per_block = self.object(id, 0)?.dnode.datablksz() / 512;
        let at = usize::try_from(number % per_block).unwrap_or(0) * 512;
        let size = object.dnode.size();
        self.edit_block(id, 0, number / per_block, &mut |block| {
            edit(block.get_mut(at..at + size).unwrap_or_default());
        })
    }

    /// Changes the bytes of a bonus buffer.
    pub fn edit_bonus(&mut self, id: u64, number: u64, edit: Edit<'_>) -> Result<()> {
        let start = 64 + POINTER * self.object(id, number)?.dnode.nblkptr();
        self.edit_dnode(id, number, &mut |dnode| edit(dnode.get_mut(start..).unwrap_or_default()))
    }

    /// Changes the root block of an object set.
    pub fn edit_objset(&mut self, id: u64, edit: Edit<'_>) -> Result<()> {
        let root = self.objset(id)?.rootbp;
        let mut block = self.arc().read(&root, Bookmark::root(id), Form::NoKey)?.to_vec();
        edit(&mut block);
        let bp = self.store(&block, ObjectType::OBJSET, 0)?;
        if id == 0 {
            self.uberblock.rootbp = bp;
            return Ok(());
        }
        self.edit_bonus(0, id, &mut |bonus| set(bonus, DATASET_BP, &bp.to_bytes()))
    }

    /// The uberblock, for direct changes.
    pub fn uberblock(&mut self) -> &mut Uberblock {
        &mut self.uberblock
    }

    /// Writes the uberblock to every label; returns the source of an import.
    pub fn finish(&mut self) -> Result<ImportSource> {
        let (shift, slot) = (uberblock_shift(self.ashift), uberblock_offset(self.ashift, self.uberblock.txg));
        for target in &self.targets {
            let size = blkdev::BlockDevice::geometry(&**target).size;
            for at in (0..LABELS).filter_map(|i| label_offset(size, i)) {
                let mut block = vec![0; 1 << shift];
                set(&mut block, 0, &self.uberblock.to_bytes());
                seal(&mut block, label_verifier(at + slot));
                target.write(at + slot, &block)?;
            }
        }
        let found = FoundUberblock { uberblock: self.uberblock, copies: LABELS };
        self.source.uberblocks.retain(|f| f.uberblock.txg < self.uberblock.txg);
        self.source.uberblocks.push(found);
        Ok(self.source.clone())
    }
}

fn overlay_name(overlay: &Overlay) -> String {
    let name = blkdev::BlockDevice::name(overlay);
    name.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Copies `bytes` to `at`, as far as there is room.
pub fn set(block: &mut [u8], at: usize, bytes: &[u8]) {
    let room = block.get_mut(at..).unwrap_or_default();
    room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// Puts a word at `at`.
pub fn set_word(block: &mut [u8], at: usize, word: u64) {
    set(block, at, &word.to_le_bytes());
}

/// Corrects the trailer of a block.
pub fn seal(block: &mut [u8], verifier: [u64; 4]) {
    let at = block.len().saturating_sub(EckPhys::SIZE);
    set(block, at, &Eck { endian: Endian::Little, cksum: verifier }.to_bytes());
    let cksum = checksum::digest(checksum::Algorithm::Sha256, block, None, false);
    set(block, at, &Eck { endian: Endian::Little, cksum }.to_bytes());
}
