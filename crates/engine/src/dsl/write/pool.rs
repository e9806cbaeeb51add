//! The DSL of a new pool.

use ondisk::ObjectType;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, special_dir};

use super::at::{MosAt, version};
use super::lists;
use super::tree::{Origin, add_clone, create_dataset, create_dir, create_head, create_snapshot};
use crate::dmu::NewObject;
use crate::error::{Error, Result};

/// Bytes of the head of a block list that can have others below it.
const SUBLISTS_BONUS: usize = 48;

/// What a new pool's DSL consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The root directory.
    pub root_dir: u64,
    /// `$MOS`: the MOS' own space.
    pub mos_dir: u64,
    /// `$FREE`: space that is being freed; 0 before version 26.
    pub free_dir: u64,
    /// The list of blocks to be freed; 0 before version 26.
    pub free_bpobj: u64,
    /// The snapshot that every dataset comes from; 0 before version 11.
    pub origin_snapshot: u64,
    /// The root's head dataset, whose object set the caller makes.
    pub root_dataset: u64,
}

/// Makes directories, the origin and the root dataset. The directory of the MOS (object 1) must be there.
/// `features` is called when the ZAPs of features are to be made, which the root dataset may need.
#[doc(alias = "dsl_pool_create")]
pub fn create(at: &MosAt<'_>, features: &mut dyn FnMut() -> Result<()>) -> Result<Created> {
    let root_dir = create_dir(at, None)?;
    let mos_dir = create_dir(at, Some((root_dir, special_dir::MOS)))?;
    let (mut free_dir, mut free_bpobj) = (0, 0);
    if at.since(version::DEADLISTS) {
        free_dir = create_dir(at, Some((root_dir, special_dir::FREE)))?;
        free_bpobj = lists::alloc(at, lists::BLOCK)?;
        at.zap_add(MOS_DIRECTORY_OBJECT, mos::FREE_BPOBJ, free_bpobj)?;
    }
    let mut origin = None;
    if at.since(version::ORIGIN) {
        let (_, head) = create_dataset(at, (root_dir, special_dir::ORIGIN), None, 0)?;
        let number = create_snapshot(at, head, special_dir::ORIGIN)?;
        origin = Some(Origin { number, head });
    }
    if at.since(version::FEATURES) {
        features()?;
    }
    let root_dataset = create_head(at, root_dir, origin, 0)?;
    let origin_snapshot = origin.map_or(0, |o| o.number);
    Ok(Created { root_dir, mos_dir, free_dir, free_bpobj, origin_snapshot, root_dataset })
}

/// What version 26 brought, for a pool that is upgraded: a place for space that is being freed, and lists of clones.
#[doc(alias = "dsl_pool_upgrade_dir_clones")]
pub fn upgrade_dir_clones(at: &MosAt<'_>) -> Result<()> {
    let root = at.zap_word(MOS_DIRECTORY_OBJECT, mos::ROOT_DATASET)?;
    let root = root.ok_or_else(|| Error::corrupt("the pool has no root dataset"))?;
    create_dir(at, Some((root, special_dir::FREE)))?;
    // Of the new form, whatever the version still says.
    let new = NewObject::with_bonus(ObjectType::BPOBJ, lists::BLOCK, ObjectType::BPOBJ_HDR, SUBLISTS_BONUS);
    let free = at.create_object(new)?;
    at.zap_add(MOS_DIRECTORY_OBJECT, mos::FREE_BPOBJ, free)?;
    let mut dirs = vec![root];
    while let Some(number) = dirs.pop() {
        let dir = at.dir(number)?;
        dirs.extend(at.zap_entries(dir.child_dir_zapobj)?.iter().filter_map(|child| child.value.first()));
        if dir.origin_obj == 0 || dir.head_dataset_obj == 0 {
            continue;
        }
        add_clone(at, at.dataset(dir.origin_obj)?.dir_obj, dir.head_dataset_obj)?;
    }
    Ok(())
}
