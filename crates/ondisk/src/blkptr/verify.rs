//! Whether a block pointer makes sense.

use super::{Dva, EMBEDDED_PAYLOAD_SIZE};
use crate::{Blkptr, MAX_BLOCK_SIZE, Malformed};

/// Facts of the pool that [`Blkptr::verify`] checks against.
#[derive(Clone, Copy, Debug)]
pub struct BlkptrLimits<'a> {
    /// Largest block the pool may hold, in bytes.
    pub max_block_size: u64,
    /// Allocatable bytes of each top-level vdev, 0 where unknown (missing); `None` before the
    /// configuration is trusted, when addresses are not checked.
    pub vdev_asize: Option<&'a [u64]>,
}

impl Default for BlkptrLimits<'_> {
    fn default() -> Self {
        Self { max_block_size: MAX_BLOCK_SIZE, vdev_asize: None }
    }
}

impl Blkptr {
    /// Checks that every field is one that OpenZFS could have written: known functions and type,
    /// sizes within limits, at least one copy, and copies within their vdevs.
    #[doc(alias = "zfs_blkptr_verify")]
    pub fn verify(&self, limits: &BlkptrLimits<'_>) -> Result<(), Malformed> {
        let bad = |detail: String| Err(Malformed::new("blkptr", detail));
        if !self.object_type().is_valid() {
            return bad(format!("unknown object type {}", self.object_type().raw()));
        }
        if self.compress().is_none() {
            return bad(format!("unknown compression {}", self.compress_raw()));
        }
        if self.lsize() > limits.max_block_size {
            return bad(format!("logical size {} above {}", self.lsize(), limits.max_block_size));
        }
        if self.is_embedded() {
            return self.verify_embedded();
        }
        if self.is_hole() {
            return Ok(());
        }
        if self.checksum().is_none() {
            return bad(format!("unknown checksum {}", self.checksum_raw()));
        }
        if self.psize() > limits.max_block_size {
            return bad(format!("physical size {} above {}", self.psize(), limits.max_block_size));
        }
        self.verify_dvas(limits)
    }

    fn verify_embedded(&self) -> Result<(), Malformed> {
        if self.embedded_type().is_none() {
            let raw = self.embedded_type_raw();
            return Err(Malformed::new("blkptr", format!("unknown embedded type {raw}")));
        }
        if self.embedded_psize() > EMBEDDED_PAYLOAD_SIZE as u64 {
            let size = self.embedded_psize();
            return Err(Malformed::new("blkptr", format!("embedded payload of {size} bytes")));
        }
        Ok(())
    }

    fn verify_dvas(&self, limits: &BlkptrLimits<'_>) -> Result<(), Malformed> {
        if !self.dva(0).is_some_and(Dva::is_valid) {
            return Err(Malformed::new("blkptr", "no valid DVA"));
        }
        let Some(vdevs) = limits.vdev_asize else { return Ok(()) };
        for dva in self.dvas() {
            let Some(&size) = vdevs.get(dva.vdev as usize) else {
                return Err(Malformed::new("blkptr", format!("no vdev {}", dva.vdev)));
            };
            // A gang's asize counts its members, which lie elsewhere.
            let here = if dva.gang { crate::MIN_BLOCK_SIZE } else { dva.asize };
            if size != 0 && dva.offset.checked_add(here).is_none_or(|end| end > size) {
                let Dva { vdev, offset, .. } = dva;
                return Err(Malformed::new("blkptr", format!("offset {offset:#x} past end of vdev {vdev}")));
            }
        }
        Ok(())
    }
}
