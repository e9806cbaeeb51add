//! The heads of all file systems and volumes, internal ones included, as an import looks for them.
//!
//! They are found through their directories, so that the cost grows with the number of file systems and volumes, not of
//! snapshots. Where a directory cannot be read, all objects of the MOS are looked at instead: damage to a name must keep
//! neither a log from being claimed nor the other datasets from being used.

use std::collections::HashSet;
use std::sync::Arc;

use ondisk::ObjectType;
use ondisk::dsl::{DslDataset, DslDir};

use super::{Dsl, malformed};
use crate::dmu::Objset;
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;

impl Dsl {
    /// The object numbers and contents of all heads, as `mos` has them now.
    ///
    /// # Errors
    /// If neither the directories nor the objects of the MOS can be read.
    pub(crate) fn heads(&self, mos: &Arc<Objset>) -> Result<Vec<(u64, DslDataset)>> {
        by_directory(mos, self.root_dir).or_else(|_| by_number(mos))
    }
}

fn by_directory(mos: &Arc<Objset>, root: u64) -> Result<Vec<(u64, DslDataset)>> {
    let (mut found, mut seen, mut next) = (Vec::new(), HashSet::new(), vec![root]);
    while let Some(number) = next.pop() {
        if !seen.insert(number) {
            return Err(Error::new(Kind::Loop, format!("directory {number} contains itself")));
        }
        let object = mos.object(number)?;
        let dir = DslDir::from_bytes(object.dnode.bonus()).map_err(|e| malformed(number, &e))?;
        if dir.head_dataset_obj != 0 {
            let head = mos.object(dir.head_dataset_obj)?;
            let phys = DslDataset::from_bytes(head.dnode.bonus()).map_err(|e| malformed(head.number, &e))?;
            found.push((head.number, phys));
        }
        if dir.child_dir_zapobj != 0 {
            let children = Zap::open(&mos.object(dir.child_dir_zapobj)?)?.to_vec()?;
            next.extend(children.iter().filter_map(|child| child.value.first()));
        }
    }
    Ok(found)
}

fn by_number(mos: &Arc<Objset>) -> Result<Vec<(u64, DslDataset)>> {
    let mut found = Vec::new();
    for object in mos.objects() {
        let object = object?;
        if object.dnode.bonustype == ObjectType::DSL_DATASET {
            let phys =
                DslDataset::from_bytes(object.dnode.bonus()).map_err(|e| malformed(object.number, &e))?;
            if !phys.is_snapshot() {
                found.push((object.number, phys));
            }
        }
    }
    Ok(found)
}
