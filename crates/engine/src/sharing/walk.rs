//! Walks over the data blocks of datasets that are in use.
//!
//! Objects and blocks are read through the handles that writers change, so a walk never follows a freed
//! indirect block: a block that waits to be written is skipped, and one that changes during the walk is
//! visited in its old or new state.

use ondisk::{Blkptr, ObjectType, ObjsetType};

use super::{PassStep, SharingRun, Target};
use crate::dmu::Object;
use crate::dmu::dirty::CloneSource;
use crate::error::{Error, Kind, Result};

/// Bytes of blocks between progress reports.
const TOLD: u64 = 16 << 20;
/// Blocks between progress reports.
const TOLD_BLOCKS: u64 = 1024;

/// A data block.
#[derive(Debug)]
pub(crate) struct Spot<'a> {
    /// Its dataset, among the targets.
    pub(crate) target: usize,
    /// Its object.
    pub(crate) object: &'a Object,
    /// Its number.
    pub(crate) blkid: u64,
    /// Its pointer.
    pub(crate) bp: Blkptr,
}

/// Whether an object has data of users: a file, or the blocks of a volume.
fn has_data(target: &Target, object: &Object) -> bool {
    match target.dataset.objset.objset_type() {
        ObjsetType::Zvol => object.number == ondisk::names::ZVOL_OBJECT,
        _ => object.dnode.object_type == ObjectType::PLAIN_FILE_CONTENTS,
    }
}

/// Work on a block.
pub(super) type VisitSpot<'v, 'r> = &'v mut dyn FnMut(&mut SharingRun<'r>, Spot<'_>) -> Result<()>;

impl<'r> SharingRun<'r> {
    /// Meets the data blocks of all targets that are on disk.
    ///
    /// # Errors
    /// `Interrupted`, and those of `visit`. The first walk counts blocks that cannot be read.
    pub(super) fn each(&mut self, step: PassStep, visit: VisitSpot<'_, 'r>) -> Result<()> {
        let mut met = Met { step, bytes: 0, blocks: 0, told: (0, 0) };
        let targets = self.targets;
        for (at, target) in targets.iter().enumerate() {
            let view = target.dataset.objset.view();
            for object in view.objects() {
                match object {
                    Ok(object) if has_data(target, &object) => self.object(at, &object, &mut met, visit)?,
                    Ok(_) => {}
                    Err(e) => self.unreadable(at, step, e)?,
                }
            }
            target.dataset.objset.forget_unused();
        }
        met.tell(self)
    }

    fn unreadable(&mut self, target: usize, step: PassStep, e: Error) -> Result<()> {
        if matches!(e.kind(), Kind::Suspended | Kind::Interrupted) {
            return Err(e);
        }
        if step == PassStep::Find && self.out.passes == 0 {
            self.found(target, |found| found.unreadable = found.unreadable.saturating_add(1));
        }
        Ok(())
    }

    fn object(
        &mut self,
        target: usize,
        object: &Object,
        met: &mut Met,
        visit: VisitSpot<'_, 'r>,
    ) -> Result<()> {
        let mut next = Some(0);
        while let Some(from) = next {
            let blkid = match object.next_block(from) {
                Ok(Some(blkid)) => blkid,
                Ok(None) => return Ok(()),
                Err((past, e)) => {
                    next = past.filter(|past| *past > from);
                    self.unreadable(target, met.step, e)?;
                    continue;
                }
            };
            next = blkid.checked_add(1);
            match object.clone_source(blkid, self.spa.txgs.synced()) {
                Ok(CloneSource::Block(bp)) if !bp.is_embedded() => {
                    met.add(self, &bp)?;
                    visit(self, Spot { target, object, blkid, bp })?;
                }
                Ok(_) => {}
                Err(e) => self.unreadable(target, met.step, e)?,
            }
        }
        Ok(())
    }
}

/// Progress of a walk.
struct Met {
    step: PassStep,
    bytes: u64,
    blocks: u64,
    /// Bytes and blocks at the last progress report.
    told: (u64, u64),
}

impl Met {
    fn add(&mut self, run: &mut SharingRun<'_>, bp: &Blkptr) -> Result<()> {
        self.bytes = self.bytes.saturating_add(run.bytes(bp));
        self.blocks = self.blocks.saturating_add(1);
        let is_due = self.bytes - self.told.0 >= TOLD || self.blocks - self.told.1 >= TOLD_BLOCKS;
        if is_due { self.tell(run) } else { Ok(()) }
    }

    fn tell(&mut self, run: &mut SharingRun<'_>) -> Result<()> {
        self.told = (self.bytes, self.blocks);
        match run.watch.goes_on(run.out.passes, self.step, self.bytes) {
            true => Ok(()),
            false => Err(Error::new(Kind::Interrupted, "the run was interrupted")),
        }
    }
}
