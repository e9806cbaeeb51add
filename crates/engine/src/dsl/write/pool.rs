//! The DSL of a new pool.

use ondisk::ObjectType;
use ondisk::dsl::DslDir;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos, special_dir};

use super::hooks::version;
use super::lists;
use super::mos_tx::MosTx;
use super::tree::{CloneOrigin, add_clone, create_dataset, create_dir, create_head, create_snapshot};
use crate::dmu::NewObject;
use crate::dsl::lookup::ReadNames;
use crate::error::{Error, Result};

/// Bytes of the head of a block list that can have others below it.
const SUBLISTS_BONUS: usize = 48;

/// Datasets that are followed at most.
const MAX_DATASETS: usize = 1 << 20;

/// The objects of a new pool's DSL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Created {
    /// The root directory.
    pub(crate) root_dir: u64,
    /// `$MOS`: the MOS' own space.
    pub(crate) mos_dir: u64,
    /// `$FREE`: space that is being freed; 0 before version 26.
    pub(crate) free_dir: u64,
    /// The list of blocks to be freed; 0 before version 26.
    pub(crate) free_bpobj: u64,
    /// The snapshot that every dataset comes from; 0 before version 11.
    pub(crate) origin_snapshot: u64,
    /// The root's head dataset, whose object set the caller makes.
    pub(crate) root_dataset: u64,
}

/// Makes directories, the origin and the root dataset. The directory of the MOS (object 1) must be there.
/// `features` is called when the ZAPs of features are to be made, which the root dataset may need.
#[doc(alias = "dsl_pool_create")]
pub(crate) fn create(at: &MosTx<'_>, features: &mut dyn FnMut() -> Result<()>) -> Result<Created> {
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
        origin = Some(CloneOrigin { number, head });
    }
    if at.since(version::FEATURES) {
        features()?;
    }
    let root_dataset = create_head(at, root_dir, origin, 0)?;
    let origin_snapshot = origin.map_or(0, |o| o.number);
    Ok(Created { root_dir, mos_dir, free_dir, free_bpobj, origin_snapshot, root_dataset })
}

/// Upgrades a pool to version 11: adds the snapshot that every dataset originates from, and lists of clones
/// at their origins.
#[doc(alias("dsl_pool_create_origin", "dsl_pool_upgrade_clones"))]
pub(crate) fn upgrade_origin(at: &MosTx<'_>) -> Result<()> {
    let root = at.root_dir()?;
    // Before `$ORIGIN` is one of them.
    let dirs = all_dirs(at, root)?;
    let (_, head) = create_dataset(at, (root, special_dir::ORIGIN), None, 0)?;
    let origin = create_snapshot(at, head, special_dir::ORIGIN)?;
    for head in dirs.into_iter().map(|(_, dir)| dir.head_dataset_obj).filter(|head| *head != 0) {
        let (first, previous) = first_of(at, head)?;
        let previous = match previous {
            0 => {
                let txg = at.dataset(origin)?.creation_txg;
                at.change_dataset(first, |ds| (ds.prev_snap_obj, ds.prev_snap_txg) = (origin, txg))?;
                at.change_dir(at.dataset(first)?.dir_obj, |dir| dir.origin_obj = origin)?;
                at.change_dataset(origin, |origin| origin.num_children += 1)?;
                origin
            }
            known => known,
        };
        let list = match at.dataset(previous)?.next_clones_obj {
            0 => at.create_zap(ObjectType::NEXT_CLONES)?,
            list => list,
        };
        at.change_dataset(previous, |origin| origin.next_clones_obj = list)?;
        at.zap(list, |zap| zap.add_int(first))?;
    }
    Ok(())
}

/// The oldest dataset of a head's directory, and its origin; 0: none.
fn first_of(at: &MosTx<'_>, head: u64) -> Result<(u64, u64)> {
    let mut number = head;
    for _ in 0..MAX_DATASETS {
        let previous = at.dataset(number)?.prev_snap_obj;
        if previous == 0 || at.dataset(previous)?.next_snap_obj != number {
            return Ok((number, previous));
        }
        number = previous;
    }
    Err(Error::corrupt("a dataset has too many snapshots"))
}

/// A directory and all below it.
fn all_dirs(at: &MosTx<'_>, root: u64) -> Result<Vec<(u64, DslDir)>> {
    let (mut dirs, mut found) = (vec![root], Vec::new());
    while let Some(number) = dirs.pop() {
        if found.len() > MAX_DATASETS {
            return Err(Error::corrupt("there are too many datasets"));
        }
        let dir = at.dir(number)?;
        dirs.extend(at.zap_entries(dir.child_dir_zapobj)?.iter().filter_map(|child| child.value.first()));
        found.push((number, dir));
    }
    Ok(found)
}

/// Upgrades a pool to version 26: adds the directory for space that is being freed, and lists of clones.
#[doc(alias = "dsl_pool_upgrade_dir_clones")]
pub(crate) fn upgrade_dir_clones(at: &MosTx<'_>) -> Result<()> {
    let root = at.root_dir()?;
    create_dir(at, Some((root, special_dir::FREE)))?;
    // Of the new form, although the version is still the old one.
    let new = NewObject::with_bonus(ObjectType::BPOBJ, lists::BLOCK, ObjectType::BPOBJ_HDR, SUBLISTS_BONUS);
    let free = at.create_object(new)?;
    at.zap_add(MOS_DIRECTORY_OBJECT, mos::FREE_BPOBJ, free)?;
    for (_, dir) in all_dirs(at, root)? {
        if dir.origin_obj == 0 || dir.head_dataset_obj == 0 {
            continue;
        }
        add_clone(at, at.dataset(dir.origin_obj)?.dir_obj, dir.head_dataset_obj)?;
    }
    Ok(())
}
