//! Faults of blocks, named by their position in the pool's objects.

use std::sync::Arc;

use ondisk::{Blkptr, Dva, ObjectType};

use super::{Action, FaultError, Handler, Handlers};
use crate::types::Bookmark;

/// The blocks that a handler matches, and the result of their reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockFault {
    /// Object set; 0 is the MOS.
    pub objset: u64,
    /// Object; 0 of the MOS: every block of the MOS of the type `kind`.
    pub object: u64,
    /// Object type; `None`: any.
    pub kind: Option<ObjectType>,
    /// Level.
    pub level: i64,
    /// First block.
    pub start: u64,
    /// Last block.
    pub end: u64,
    /// One bit for each DVA that is to fail; 0: all.
    pub dvas: u32,
    /// The injected error.
    pub error: FaultError,
}

impl BlockFault {
    #[doc(alias = "zio_match_handler")]
    fn matches(&self, at: Bookmark, kind: ObjectType) -> bool {
        if at.objset == 0 && self.objset == 0 && self.object == 0 {
            return self.kind.is_none_or(|wanted| wanted == kind);
        }
        (at.objset, at.object, at.level) == (self.objset, self.object, self.level)
            && (self.start..=self.end).contains(&at.blkid)
    }
}

/// The handlers of the blocks of a pool.
#[derive(Debug, Default)]
pub struct BlockFaults(Handlers);

impl BlockFaults {
    /// Adds a handler.
    pub(crate) fn add(&self, handler: Arc<Handler>) {
        self.0.add(handler);
    }

    /// Removes a handler; whether it was there.
    pub(crate) fn remove(&self, id: u64) -> bool {
        self.0.remove(id)
    }

    /// The handlers, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Handler>> {
        self.0.list()
    }

    /// The error of the copy of a block at a DVA: [`FaultError::Checksum`], [`FaultError::Io`] or none. A handler decides
    /// once for each copy.
    #[doc(alias = "zio_handle_fault_injection")]
    pub(crate) fn of_copy(&self, bp: &Blkptr, at: Bookmark, dva: &Dva) -> Option<FaultError> {
        if !self.0.any() {
            return None;
        }
        let index = bp.dvas().position(|known| known == *dva);
        let bit = index.and_then(|index| 1_u32.checked_shl(u32::try_from(index).ok()?)).unwrap_or(0);
        self.first(bp, at, |fault| {
            matches!(fault.error, FaultError::Checksum | FaultError::Io)
                && (fault.dvas == 0 || fault.dvas & bit != 0)
        })
    }

    /// The error of the transformation of a good block: [`FaultError::Decrypt`] if it is protected,
    /// [`FaultError::Decompress`] if it is compressed, or none.
    #[doc(alias = "zio_handle_decrypt_injection")]
    pub(crate) fn of_transform(&self, bp: &Blkptr, at: Bookmark) -> Option<FaultError> {
        if !self.0.any() {
            return None;
        }
        let is_compressed = bp.compress() != Some(ondisk::CompressType::Off);
        self.first(bp, at, |fault| match fault.error {
            FaultError::Decrypt => bp.is_protected(),
            FaultError::Decompress => is_compressed,
            _ => false,
        })
    }

    fn first(
        &self,
        bp: &Blkptr,
        at: Bookmark,
        is_wanted: impl Fn(&BlockFault) -> bool,
    ) -> Option<FaultError> {
        let all = self.0.all.read();
        all.iter().find_map(|handler| match &handler.action {
            Action::Block(fault)
                if is_wanted(fault) && fault.matches(at, bp.object_type()) && handler.triggers() =>
            {
                Some(fault.error)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(objset: u64, object: u64) -> BlockFault {
        let error = FaultError::Checksum;
        BlockFault { objset, object, kind: None, level: 0, start: 2, end: 5, dvas: 0, error }
    }

    #[test]
    fn a_range_of_one_level_of_one_object_matches() {
        let fault = fault(54, 2);
        let plain = ObjectType::PLAIN_FILE_CONTENTS;
        let matches =
            |objset, object, level, blkid| fault.matches(Bookmark::new(objset, object, level, blkid), plain);
        assert!(matches(54, 2, 0, 2) && matches(54, 2, 0, 5));
        assert!(!matches(54, 2, 0, 1) && !matches(54, 2, 0, 6) && !matches(54, 2, 1, 3));
        assert!(!matches(54, 3, 0, 3) && !matches(55, 2, 0, 3));
    }

    #[test]
    fn the_whole_mos_matches_by_type_and_no_dataset_does() {
        let of = |kind| BlockFault { kind, ..fault(0, 0) };
        let at = Bookmark::new(0, 61, 1, 9);
        assert!(of(None).matches(at, ObjectType::SPACE_MAP));
        assert!(of(Some(ObjectType::SPACE_MAP)).matches(at, ObjectType::SPACE_MAP));
        assert!(!of(Some(ObjectType::ERROR_LOG)).matches(at, ObjectType::SPACE_MAP));
        assert!(!of(None).matches(Bookmark::new(54, 0, 1, 9), ObjectType::SPACE_MAP));
    }
}
