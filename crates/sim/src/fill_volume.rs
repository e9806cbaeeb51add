//! Operations that fill a volume, one kind each. It is sparse: nothing is reserved for it.

use std::sync::Arc;

use engine::Result;
use engine::spa::Spa;
use ondisk::ObjsetType;
use stdx::rng::Rng;
use zvol::LiveVolume;

use crate::fill_ops::{Kind, bytes};

/// More than any of the pools holds.
const SIZE: u64 = 1 << 30;
/// Most bytes of a block of a volume without large blocks.
const LARGEST: u64 = 128 << 10;
/// Bytes of a discard at most.
const DISCARD: u64 = 1 << 20;

/// A volume below a file system, which is made when the first operation asks for it.
#[derive(Debug)]
pub struct Volume {
    name: String,
    block: u64,
    open: Option<Arc<LiveVolume>>,
    /// End of the part written in order.
    end: u64,
}

impl Volume {
    /// Nothing is made yet. `block`: bytes of its blocks, as far as a volume can have them.
    pub fn new(parent: &str, block: u64) -> Self {
        Self { name: format!("{parent}/volume"), block: block.clamp(512, LARGEST), open: None, end: 0 }
    }

    fn open(&mut self, spa: &Arc<Spa>, random: &mut Rng) -> Result<Arc<LiveVolume>> {
        if let Some(open) = &self.open {
            return Ok(Arc::clone(open));
        }
        let (name, block, seed) = (self.name.clone(), self.block, random.next_u64());
        spa.dsl_task(move |tasks| {
            tasks.create(&name, ObjsetType::Zvol, 0, &mut |live, tx| {
                zvol::create(&live.objset, tx, SIZE, block, seed)
            })
        })?;
        Ok(Arc::clone(self.open.insert(zvol::open(spa, &self.name)?)))
    }

    /// One operation.
    pub fn step(&mut self, spa: &Arc<Spa>, kind: Kind, random: &mut Rng) -> Result<()> {
        let volume = self.open(spa, random)?;
        let somewhere = random.below(SIZE / self.block) * self.block;
        match kind {
            Kind::VolumeDiscard => {
                let from = random.below(self.end.max(1));
                volume.discard(from, (random.below(DISCARD) + 1).min(SIZE - from))
            }
            // Part of a block, which is read for that.
            Kind::VolumeScatter => {
                let len = random.below(self.block) + 1;
                volume.write_at(somewhere, &bytes(random, len), false)
            }
            _ => {
                let len = if kind == Kind::VolumeSync { self.block } else { self.block.max(16 << 10) };
                volume.write_at(self.end, &bytes(random, len), kind == Kind::VolumeSync)?;
                self.end = (self.end + len) % (SIZE - DISCARD);
                Ok(())
            }
        }
    }

    /// Discards and destroys it.
    pub fn destroy(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let Some(volume) = self.open.take() else { return Ok(()) };
        volume.discard(0, SIZE / 2)?;
        volume.close()?;
        drop(volume);
        let name = self.name.clone();
        spa.dsl_task(move |tasks| tasks.destroy(&name, false))
    }
}
