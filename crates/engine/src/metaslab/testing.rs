//! A store in memory, and vdevs without devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::space_map::{SpaceMapDecoder, SpaceMapPhys};
use parking_lot::Mutex;

use super::log::MetaslabChange;
use super::record::LastMetaslab;
use super::{
    MapState, SpaceAllocator, SpaceMapFeatures, SpaceMapSource, SpaceMapStore, SpaceObject, TopRecord,
};
use crate::dmu::edit::{Edit, MemObject};
use crate::error::{Error, Result};
use crate::vdev::config::AllocBias;
use crate::vdev::draid::DraidGeometry;
use crate::vdev::raidz::RaidzGeometry;
use crate::vdev::top::{Top, VdevLayout};
use zcommon::draid::DraidConfig;

/// The space maps of a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct TestObjects {
    objects: BTreeMap<u64, MemObject>,
    next: u64,
    pub(crate) arrays: BTreeMap<u64, u64>,
    pub(crate) unflushed: BTreeMap<u64, u64>,
    pub(crate) checkpoints: BTreeMap<u64, u64>,
    pub(crate) logs: BTreeMap<u64, u64>,
    /// Bytes of blocks written; an object once written in a block keeps it.
    pub(crate) writes: u64,
}

struct Counted<'a>(&'a mut MemObject, &'a mut u64);

impl Edit for Counted<'_> {
    fn number(&self) -> u64 {
        self.0.number()
    }
    fn block_size(&self) -> u64 {
        self.0.block_size()
    }
    fn set_block_size(&mut self, bytes: u64) -> Result<()> {
        self.0.set_block_size(bytes)
    }
    fn max_block(&self) -> u64 {
        self.0.max_block()
    }
    fn read_block(&self, blkid: u64) -> Result<stdx::Buf> {
        self.0.read_block(blkid)
    }
    fn write_block(&mut self, blkid: u64, bytes: stdx::AlignedBuf) -> Result<()> {
        *self.1 += 1;
        self.0.write_block(blkid, bytes)
    }
    fn free_from(&mut self, blkid: u64) -> Result<()> {
        self.0.free_from(blkid)
    }
    fn bonus(&self) -> Vec<u8> {
        self.0.bonus()
    }
    fn set_bonus(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.set_bonus(bytes)
    }
}

impl SpaceMapStore for TestObjects {
    fn create(&mut self, what: &SpaceObject) -> Result<u64> {
        self.next += 1;
        let (block_size, head) = match *what {
            SpaceObject::Map { block_size, head }
            | SpaceObject::Log { block_size, head, .. }
            | SpaceObject::Checkpoint { block_size, head, .. }
            | SpaceObject::Obsolete { block_size, head, .. } => (block_size, head),
            SpaceObject::Array { .. } => (512, 0),
            SpaceObject::UnflushedTxgs { .. } => (128 << 10, 0),
        };
        let mut object = MemObject::new(self.next, block_size);
        object.set_bonus(&vec![0; head])?;
        self.objects.insert(self.next, object);
        let noted = match *what {
            SpaceObject::Map { .. } | SpaceObject::Obsolete { .. } => None,
            SpaceObject::Log { txg, .. } => self.logs.insert(txg, self.next),
            SpaceObject::Checkpoint { vdev, .. } => self.checkpoints.insert(vdev, self.next),
            SpaceObject::Array { vdev } => self.arrays.insert(vdev, self.next),
            SpaceObject::UnflushedTxgs { vdev } => self.unflushed.insert(vdev, self.next),
        };
        assert!(noted.is_none(), "{what:?} is there already");
        Ok(self.next)
    }

    fn open(&mut self, object: u64) -> Result<Box<dyn Edit + '_>> {
        Ok(Box::new(Counted(self.objects.get_mut(&object).unwrap(), &mut self.writes)))
    }

    fn free(&mut self, what: &SpaceObject, object: u64) -> Result<()> {
        assert!(self.objects.remove(&object).is_some(), "object {object} is not there");
        if let SpaceObject::Log { txg, .. } = what {
            assert_eq!(self.logs.remove(txg), Some(object));
        }
        Ok(())
    }
}

impl TestObjects {
    pub(crate) fn head(&self, object: u64) -> SpaceMapPhys {
        SpaceMapPhys::from_bytes(&self.objects[&object].bonus()).unwrap()
    }

    fn map(&self, object: u64) -> MapState {
        if object == 0 {
            return MapState::default();
        }
        let mem = &self.objects[&object];
        let has_histogram = mem.bonus().len() == SpaceMapPhys::SIZE;
        MapState { object, head: self.head(object), block_size: mem.block_size(), has_histogram }
    }

    pub(crate) fn word(&self, object: u64, index: u64) -> u64 {
        let Some(mem) = self.objects.get(&object) else { return 0 };
        let block = mem.read_block(index * 8 / mem.block_size()).unwrap();
        let at = (index * 8 % mem.block_size()) as usize;
        u64::from_le_bytes(block[at..at + 8].try_into().unwrap())
    }

    pub(crate) fn bytes(
        &self,
        object: u64,
        length: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mem = self.objects.get(&object).ok_or_else(|| Error::not_found("object"))?;
        let mut left = length as usize;
        for blkid in 0..length.div_ceil(mem.block_size()) {
            let block = mem.read_block(blkid).unwrap();
            let used = left.min(block.len());
            left -= used;
            each(&block[..used])?;
        }
        Ok(())
    }
}

/// The store of a pool, read and changed.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedObjects(pub Arc<Mutex<TestObjects>>);

impl SpaceMapSource for SharedObjects {
    fn read(&self, object: u64, length: u64, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.lock().bytes(object, length, each)
    }
}

/// How a vdev of a test looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(crate) ashift: u32,
    /// Raidz parity and width; 0: a disk.
    pub(crate) raidz: (u32, u32),
    pub(crate) bias: AllocBias,
    pub(crate) metaslab_shift: u32,
    pub(crate) metaslabs: u64,
    /// Data columns of a draid1; 0: no draid.
    pub(crate) draid: u64,
}

impl Shape {
    pub(crate) fn disk(ashift: u32, metaslab_shift: u32, metaslabs: u64) -> Self {
        Self { ashift, raidz: (0, 1), bias: AllocBias::Normal, metaslab_shift, metaslabs, draid: 0 }
    }

    /// Bytes that a metaslab's ends are multiples of.
    pub(crate) fn row(&self) -> u64 {
        if self.draid == 0 { 1 } else { (self.draid + 1) << self.ashift }
    }

    pub(crate) fn top(&self, id: u64) -> Arc<Top> {
        let layout = match self.raidz {
            _ if self.draid != 0 => {
                let config = DraidConfig { parity: 1, data: self.draid, spares: 1, children: self.draid + 3 };
                let groups = config.groups().unwrap();
                VdevLayout::Draid(DraidGeometry::new(self.ashift, config, groups).unwrap())
            }
            (0, _) => VdevLayout::Mirror,
            (parity, width) => {
                VdevLayout::Raidz(RaidzGeometry::new(self.ashift, width, parity, &[], None).unwrap())
            }
        };
        Top::of_parts(id, "vdev", self.bias, self.ashift, layout, vec![Vec::new(); self.raidz.1 as usize])
    }

    fn record(&self, id: u64) -> TopRecord {
        TopRecord {
            top: self.top(id),
            bias: self.bias,
            metaslab_shift: self.metaslab_shift,
            row: self.row(),
            array: 0,
            unflushed_array: 0,
            checkpoint: MapState::default(),
            metaslabs: vec![LastMetaslab::default(); self.metaslabs as usize],
        }
    }
}

/// The allocator of a new pool.
pub(super) fn create(shapes: &[Shape], forms: SpaceMapFeatures, store: &SharedObjects) -> SpaceAllocator {
    let all = SpaceAllocator::new(forms, Some(Arc::new(store.clone())));
    for (id, shape) in (0..).zip(shapes) {
        all.add_top(shape.record(id)).unwrap();
    }
    all
}

/// The allocator of a pool, from its maps.
pub(super) fn reload(shapes: &[Shape], forms: SpaceMapFeatures, store: &SharedObjects) -> SpaceAllocator {
    let all = SpaceAllocator::new(forms, Some(Arc::new(store.clone())));
    let objects = store.0.lock().clone();
    for (id, shape) in (0_u64..).zip(shapes) {
        let mut record = shape.record(id);
        record.array = objects.arrays.get(&id).copied().unwrap_or(0);
        record.unflushed_array = objects.unflushed.get(&id).copied().unwrap_or(0);
        record.checkpoint = objects.map(objects.checkpoints.get(&id).copied().unwrap_or(0));
        for (ms, metaslab) in (0..).zip(&mut record.metaslabs) {
            metaslab.map = objects.map(objects.word(record.array, ms));
            metaslab.unflushed_txg = objects.word(record.unflushed_array, ms);
        }
        replay(&objects, id, shape, &mut record);
        all.add_top(record).unwrap();
    }
    for (&txg, &object) in &objects.logs {
        all.add_log(txg, objects.map(object));
    }
    all
}

fn replay(objects: &TestObjects, id: u64, shape: &Shape, record: &mut TopRecord) {
    for (&txg, &object) in &objects.logs {
        let mut decoder = SpaceMapDecoder::for_log();
        let mut each = |block: &[u8]| {
            for entry in decoder.entries(block) {
                let entry = entry.unwrap();
                let metaslab = &mut record.metaslabs[..];
                let at = (entry.offset >> shape.metaslab_shift) as usize;
                if entry.vdev == Some(id as u32) && txg >= metaslab[at].unflushed_txg {
                    let change: &mut MetaslabChange = &mut metaslab[at].change;
                    change.apply(entry.offset, entry.offset + entry.run, entry.free);
                }
            }
            Ok(())
        };
        objects.bytes(object, objects.head(object).length, &mut each).unwrap();
    }
}
