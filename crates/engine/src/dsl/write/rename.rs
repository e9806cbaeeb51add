//! Renaming a directory, with everything below it.

use ondisk::dsl::DslDir;
use ondisk::names::dsl_dir;
use zcommon::features::Feature;

use super::mos_tx::{MosTx, MosView};
use super::space;
use super::{crypto, limits, names, tree};
use crate::dsl::Delta;
use crate::dsl::MAX_NESTING;
use crate::dsl::lookup;
use crate::error::{Error, Kind, Result};

/// Whether a directory may go below `parent`.
#[doc(alias = "dsl_dir_rename_check")]
pub(super) fn check(at: &MosTx<'_>, dir: u64, parent: u64) -> Result<()> {
    let phys = at.dir(dir)?;
    if phys.parent_obj == 0 {
        return Err(Error::new(Kind::Invalid, "the root of a pool can't be renamed"));
    }
    if at.dir(parent)?.head_dataset_obj == 0 {
        return Err(Error::new(Kind::Invalid, "nothing can be put below a hidden directory"));
    }
    for step in at.ancestors(parent) {
        if step?.0 == dir {
            return Err(Error::new(Kind::Invalid, "a dataset can't go below itself"));
        }
    }
    // Datasets below a limit that was higher may move as long as they get no deeper.
    let deep = depth(at, parent)?;
    if deep > depth(at, phys.parent_obj)? && deep + height(at, dir)? >= names::most_nested(at) {
        return Err(Error::new(Kind::TooLong, "names below would be nested too deeply"));
    }
    crypto::check_move(at, dir, parent)?;
    if phys.parent_obj == parent {
        return Ok(());
    }
    let moved = phys.used_bytes.max(phys.reserved);
    let common = lookup::common_ancestor(&**at, phys.parent_obj, parent)?;
    if !space::can_move(at, (phys.parent_obj, parent), moved)? {
        return Err(Error::new(Kind::NoSpace, "the new parent has no room for it"));
    }
    limits::check_move(at, dir, parent, common)
}

fn depth(at: &MosView<'_>, dir: u64) -> Result<usize> {
    at.ancestors(dir).try_fold(0, |count, step| step.map(|_| count + 1))
}

fn height(at: &MosView<'_>, dir: u64) -> Result<usize> {
    let (mut deepest, mut stack) = (0, vec![(dir, 0)]);
    while let Some((dir, depth)) = stack.pop() {
        if depth > MAX_NESTING {
            return Err(Error::new(Kind::Loop, "the dataset tree contains itself"));
        }
        deepest = deepest.max(depth);
        let children = at.zap_entries(at.dir(dir)?.child_dir_zapobj)?;
        stack.extend(children.iter().filter_map(|e| Some((e.value.first()?, depth + 1))));
    }
    Ok(deepest)
}

/// The length of the longest name below a directory, its snapshots among them, without the directory's own.
#[doc(alias = "dsl_valid_rename")]
pub(super) fn longest_below(at: &MosView<'_>, dir: u64) -> Result<usize> {
    let (mut longest, mut stack) = (0, vec![(dir, 0, 0)]);
    while let Some((dir, len, depth)) = stack.pop() {
        if depth > MAX_NESTING {
            return Err(Error::new(Kind::Loop, "the dataset tree contains itself"));
        }
        let phys = at.dir(dir)?;
        let mut snapshots = Vec::new();
        if phys.head_dataset_obj != 0 {
            snapshots = at.zap_entries(at.dataset(phys.head_dataset_obj)?.snapnames_zapobj)?;
        }
        longest = snapshots.iter().map(|e| len + 1 + e.name().len()).fold(longest.max(len), usize::max);
        for child in at.zap_entries(phys.child_dir_zapobj)? {
            let Some(number) = child.value.first() else { continue };
            stack.push((number, len + 1 + child.name().len(), depth + 1));
        }
    }
    Ok(longest)
}

/// Puts a directory below `parent`, called `name`.
#[doc(alias = "dsl_dir_rename_sync")]
pub(super) fn dir(at: &MosTx<'_>, number: u64, parent: u64, name: &str) -> Result<()> {
    let phys = at.dir(number)?;
    let old = at.dir(phys.parent_obj)?;
    let old_name = names::of_value(at, old.child_dir_zapobj, number)?;
    if phys.parent_obj != parent {
        if at.active(Feature::FilesystemLimits) {
            let (filesystems, snapshots) = limits::counted(at, number)?;
            let all = [
                (dsl_dir::FILESYSTEM_COUNT, filesystems.saturating_add(1)),
                (dsl_dir::SNAPSHOT_COUNT, snapshots),
            ];
            for (what, count) in all {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                tree::count_up(at, phys.parent_obj, what, -count)?;
                tree::count_up(at, parent, what, count)?;
            }
        }
        let used = Delta::of(phys.used_bytes, phys.compressed_bytes, phys.uncompressed_bytes);
        space::charge(at, phys.parent_obj, DslDir::USED_CHILD, used.negated())?;
        space::charge(at, parent, DslDir::USED_CHILD, used)?;
        let unused = Delta::of(phys.reserved.saturating_sub(phys.used_bytes), 0, 0);
        space::charge(at, phys.parent_obj, DslDir::USED_CHILD_RSRV, unused.negated())?;
        space::charge(at, parent, DslDir::USED_CHILD_RSRV, unused)?;
    }
    at.zap_remove(old.child_dir_zapobj, &old_name)?;
    at.change_dir(number, |dir| dir.parent_obj = parent)?;
    at.zap_add(at.dir(parent)?.child_dir_zapobj, name, number)
}
