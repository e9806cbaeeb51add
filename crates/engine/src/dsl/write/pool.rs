//! The DSL of a new pool.

use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, special_dir};

use super::at::{MosAt, version};
use super::lists;
use super::tree::{Origin, create_dataset, create_dir, create_head, create_snapshot};
use crate::error::Result;

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
