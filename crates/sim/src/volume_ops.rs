//! Random operations on volumes, and their effects on the model.

use std::sync::Arc;

use engine::{Kind, Result};
use ondisk::ObjsetType;
use ondisk::names::ZVOL_OBJECT;
use zvol::LiveVolume;

use crate::actor::{Actor, Mounted};
use crate::content::Content;
use crate::file_ops::{expected, overlay};
use crate::model::{Head, Tree, data_from, same_bytes};

/// Tested block sizes, and the maximum blocks of a volume.
const BLOCKS: [u64; 4] = [4 << 10, 8 << 10, 16 << 10, 64 << 10];
const MOST_BLOCKS: u64 = 24;

impl Actor {
    /// The volume of that name, in use.
    pub(crate) fn volume(&mut self, name: &str) -> Result<Arc<LiveVolume>> {
        if let Some(Mounted::Volume(volume)) = self.mounted.get(name) {
            return Ok(Arc::clone(volume));
        }
        let volume = zvol::open(&self.spa, name)?;
        if let Some(e) = volume.replayed.error.clone() {
            return Err(e);
        }
        self.mounted.insert(name.to_owned(), Mounted::Volume(Arc::clone(&volume)));
        Ok(volume)
    }

    fn change_volume(&mut self, name: &str, work: impl FnOnce(&mut Content)) {
        self.edit(name, |tree| tree.change(ZVOL_OBJECT, |item| work(Arc::make_mut(&mut item.bytes))));
    }

    /// One operation on a volume.
    pub(crate) fn volume_op(&mut self, name: &str) -> Result<()> {
        let volume = self.volume(name)?;
        let offset = self.random.below(volume.size());
        let len = self.random.below((volume.size() - offset).min(100 << 10)) + 1;
        let what = self.random.below(8);
        self.tell(format!("{name}: volume operation {what} at {offset}, {len}"));
        match what {
            0..4 => self.write_volume(name, &volume, (offset, len), false),
            4 => {
                if expected(volume.zero(offset, len), true, "zero")?.is_some() {
                    self.change_volume(name, |bytes| bytes.zero(offset, offset + len));
                }
                Ok(())
            }
            5 | 6 => {
                // Whole blocks of it are freed.
                let block = volume.block_size();
                let (start, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
                if expected(volume.discard(offset, len), true, "discard")?.is_some() {
                    self.change_volume(name, |bytes| bytes.zero(start, end));
                }
                Ok(())
            }
            _ => self.look(name),
        }
    }

    fn write_volume(
        &mut self,
        name: &str,
        volume: &LiveVolume,
        (offset, len): (u64, u64),
        durable: bool,
    ) -> Result<()> {
        let bytes = self.bytes(len);
        let done = expected(volume.write_at(offset, &bytes, durable), true, "write");
        // A write that could not be made durable was written nevertheless.
        if matches!(done, Ok(Some(()))) || (durable && done.is_err()) {
            self.edit(name, |tree| tree.change(ZVOL_OBJECT, |item| overlay(item, offset, &bytes)));
        }
        done.map(|_| ())
    }

    /// Makes all writes to a volume durable: by a flush, or by a synchronous write. That must lie in the txg of the
    /// step's mark.
    pub(crate) fn flush_volume(&mut self, name: &str, group: u64) -> Result<()> {
        let volume = self.volume(name)?;
        if self.random.below(2) == 0 || self.spa.txgs.open() != group {
            return volume.flush();
        }
        let offset = self.random.below(volume.size());
        let len = self.random.below((volume.size() - offset).min(40 << 10)) + 1;
        self.write_volume(name, &volume, (offset, len), true)?;
        // There may have been no space for it.
        volume.flush()
    }

    /// Compares a volume in use with the model.
    pub(crate) fn look_at_volume(&mut self, name: &str) -> Result<()> {
        let (volume, tree) = (self.volume(name)?, self.tree(name));
        let next = |at| data_from(volume.span(at, u64::MAX)?);
        let found = Content::read(volume.size(), next, |at, out| volume.read_at(at, out))?;
        let wanted = tree.items.get(&ZVOL_OBJECT).map(|item| Arc::clone(&item.bytes)).unwrap_or_default();
        same_bytes(&found, &wanted)
            .map_err(|why| engine::Error::new(Kind::Corrupt, format!("volume {name}: {why}")))
    }

    pub(crate) fn create_volume(&mut self, parent: &str) -> Result<()> {
        let name = format!("{parent}/{}", self.new_name('v'));
        let block = self.pick(&BLOCKS).unwrap_or(8 << 10);
        let size = block * (self.random.below(MOST_BLOCKS) + 1);
        let (task_name, seed) = (name.clone(), self.random.next_u64());
        let made = self.task(move |tasks| {
            tasks.create(&task_name, ObjsetType::Zvol, 0, &mut |live, tx| {
                zvol::create(&live.objset, tx, size, block, seed)
            })
        })?;
        if made.is_some() {
            let encrypted = self.model.heads.get(parent).is_some_and(|head| head.encrypted);
            let tree = Arc::new(Tree::volume(Content::zeros(size)));
            self.model.heads.insert(name, Head { tree, encrypted, ..Head::default() });
        }
        Ok(())
    }

    /// Resizes a volume. All is on disk on return.
    pub(crate) fn resize(&mut self) -> Result<()> {
        let volumes = self.model.heads.iter().filter(|(_, head)| head.tree.is_volume());
        let names: Vec<String> = volumes.map(|(name, _)| name.clone()).collect();
        let Some(name) = self.pick(&names) else { return self.spa.sync() };
        let volume = self.volume(&name)?;
        let size = volume.block_size() * (self.random.below(MOST_BLOCKS) + 1);
        self.tell(format!("{name}: from {} to {size} bytes", volume.size()));
        let done = expected(volume.resize(size), true, "resize");
        // In a pool that is suspended meanwhile it has the size that cannot be written.
        if matches!(done, Ok(Some(()))) || (done.is_err() && volume.size() == size) {
            self.change_volume(&name, |bytes| bytes.resize(size));
        }
        done?;
        self.spa.sync()
    }
}
