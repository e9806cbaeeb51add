//! An object set within one transaction: for structures that consist of several objects.

use ondisk::ObjectType;

use super::LiveObjset;
use crate::dmu::NewObject;
use crate::dmu::edit::{Edit, Objects};
use crate::dmu::tx::Tx;
use crate::error::Result;

/// Objects of `objset`, changed under `tx`.
#[derive(Debug, Clone, Copy)]
pub struct Within<'a> {
    /// The object set.
    pub(crate) objset: &'a LiveObjset,
    /// The transaction.
    pub(crate) tx: &'a Tx,
}

impl LiveObjset {
    /// Its objects, for changes under `tx`.
    pub fn within<'a>(&'a self, tx: &'a Tx) -> Within<'a> {
        Within { objset: self, tx }
    }
}

impl Objects for Within<'_> {
    fn create(&self, new: &NewObject) -> Result<u64> {
        let mut new = *new;
        if new.object_type == ObjectType::SPACE_MAP {
            new.indirect_shift = SPACE_MAP_INDIRECT;
        }
        Ok(self.objset.create_object(self.tx, new)?.number)
    }

    fn free(&self, number: u64) -> Result<()> {
        self.objset.free_object(self.tx, number)
    }

    fn edit(&self, number: u64) -> Result<Box<dyn Edit + '_>> {
        Ok(Box::new(self.objset.handle(number)?.edit(self.tx)))
    }

    fn kind(&self, number: u64) -> Result<ObjectType> {
        Ok(self.objset.handle(number)?.dnode().object_type)
    }
}

/// Space maps are small and many: their indirect blocks are smaller than those of other objects.
const SPACE_MAP_INDIRECT: u8 = 14;
