//! The files of a dataset of an imported pool, mounted or not, and the blocks of a volume, read from the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clikit::interrupt::Interrupt;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::Failure;
use engine::dmu::Object;
use engine::dsl::write::{LiveDataset, LongHold};
use engine::spa::Spa;
use ondisk::names::ZVOL_OBJECT;
use ondisk::{Blkptr, ObjectType, ObjsetType};

use super::files::{Inventory, Listed, Origin};

/// An open dataset.
#[derive(Debug)]
pub struct Stored {
    spa: Arc<Spa>,
    dataset: Arc<LiveDataset>,
    /// Nothing destroys or replaces it meanwhile.
    _hold: LongHold,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.dataset.objset.forget_unused();
    }
}

impl Stored {
    /// Opens a file system or volume; changes so far are written.
    pub fn open(target: &Target) -> Result<Self, Failure> {
        let cannot = |e: engine::Error| Failure::cannot("advise on", &target.name, why(&e));
        if target.name.contains(['@', '#']) {
            return Err(Failure::cannot("advise on", &target.name, "snapshots do not change"));
        }
        let number = target.dataset()?.number;
        let spa = Arc::clone(target.pool.spa()?);
        let hold = spa.datasets.hold_long(number).map_err(cannot)?;
        let dataset = spa.datasets.open(&*spa, number).map_err(cannot)?;
        spa.sync().map_err(cannot)?;
        Ok(Self { spa, dataset, _hold: hold })
    }

    fn object(&self, number: u64) -> Option<Object> {
        self.dataset.objset.view().object(number).ok()
    }

    fn has_data(&self, object: &Object) -> bool {
        match self.dataset.objset.objset_type() {
            ObjsetType::Zvol => object.number == ZVOL_OBJECT,
            _ => object.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS,
        }
    }

    /// Lists its files, those for which the time suffices.
    pub fn list(self, time: Duration, interrupt: &Interrupt) -> Inventory {
        let started = Instant::now();
        let (mut files, mut bytes, mut is_whole) = (Vec::new(), 0_u64, true);
        for object in self.dataset.objset.view().objects() {
            if started.elapsed() > time || interrupt.is_set() {
                is_whole = false;
                break;
            }
            // A scrub reports blocks that cannot be read.
            let Ok(object) = object else { continue };
            let size = object.max_offset();
            let is_stored = object.dnode.blkptrs().iter().any(|bp| !bp.is_hole());
            if !self.has_data(&object) || !is_stored {
                continue;
            }
            bytes = bytes.saturating_add(size);
            let name = Origin::Object(object.number);
            files.push(Listed { name, end: bytes, size, block: object.dnode.datablksz() });
        }
        Inventory { files, bytes, is_whole, stored: Some(self) }
    }

    /// Bytes of a file.
    pub fn read(&self, number: u64, from: u64, len: usize) -> Option<Vec<u8>> {
        self.object(number)?.read_vec(from, len).ok()
    }

    /// The pointer to a block on disk; `None` for a hole and for bytes in the pointer itself.
    pub fn pointer(&self, number: u64, blkid: u64) -> Option<Blkptr> {
        self.object(number)?.blkptr(0, blkid).ok().flatten().filter(|bp| !bp.is_embedded())
    }

    /// Whether each block has other references that are counted: clones, or those of a dedup table.
    pub fn are_shared(&self, all: &[Blkptr]) -> Vec<bool> {
        // The counts of a damaged table are unknown, and such blocks cannot be shared anew.
        let cloned = self.spa.sharing().are_cloned(all).unwrap_or_else(|_| vec![true; all.len()]);
        all.iter().zip(cloned).map(|(bp, cloned)| cloned || bp.dedup()).collect()
    }
}
