//! Creates directories and datasets.

use ondisk::ObjectType;
use ondisk::dsl::{DslDataset, DslDir};
use ondisk::names::special_dir::ORIGIN;
use ondisk::names::{dsl_dataset, dsl_dir, mos};
use zcommon::features::Feature;

use super::hooks::version;
use super::mos_tx::MosTx;
use super::{bookmarks, crypto, lists, names, remap, space};
use crate::dsl::deadlist::DeadList;
use crate::error::{Kind, Result};
use crate::zap::TOUPPER;

/// A snapshot that a new dataset is a clone of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloneOrigin {
    /// Its object.
    pub(crate) number: u64,
    /// The head dataset of its directory.
    pub(crate) head: u64,
}

/// The snapshot that every dataset comes from.
pub(super) fn origin(at: &MosTx<'_>) -> Result<Option<CloneOrigin>> {
    if !at.since(version::ORIGIN) {
        return Ok(None);
    }
    let dir = match names::hidden_dir(at, ORIGIN) {
        Err(e) if e.kind() == Kind::NotFound => return Ok(None),
        other => other?,
    };
    let head = at.dir(dir)?.head_dataset_obj;
    Ok(Some(CloneOrigin { number: at.dataset(head)?.prev_snap_obj, head }))
}

/// Makes a directory: called `name` below `parent`, or the root.
#[doc(alias = "dsl_dir_create_sync")]
pub(crate) fn create_dir(at: &MosTx<'_>, parent: Option<(u64, &str)>) -> Result<u64> {
    let number = at.create(ObjectType::DSL_DIR, ObjectType::DSL_DIR, DslDir::SIZE)?;
    let mut phys = DslDir { creation_time: at.seconds(), ..DslDir::default() };
    match parent {
        Some((above, name)) => {
            at.zap_add(at.dir(above)?.child_dir_zapobj, name, number)?;
            phys.parent_obj = above;
            // Neither hidden directories nor those of a moment count.
            if !name.starts_with(['%', '$']) {
                count_up(at, above, dsl_dir::FILESYSTEM_COUNT, 1)?;
            }
        }
        None => at.zap_add(ondisk::names::MOS_DIRECTORY_OBJECT, mos::ROOT_DATASET, number)?,
    }
    phys.props_zapobj = at.create_zap(ObjectType::DSL_PROPS)?;
    phys.child_dir_zapobj = at.create_zap(ObjectType::DSL_DIR_CHILD_MAP)?;
    if at.since(version::USED_BREAKDOWN) {
        phys.flags |= DslDir::FLAG_USED_BREAKDOWN;
    }
    at.change_dir(number, |dir| *dir = phys)?;
    Ok(number)
}

/// Makes a directory with a head dataset: of nothing (`None`), or a clone.
#[doc(alias = "dsl_dataset_create_sync")]
pub(crate) fn create_dataset(
    at: &MosTx<'_>,
    parent: (u64, &str),
    origin: Option<CloneOrigin>,
    flags: u64,
) -> Result<(u64, u64)> {
    let dir = create_dir(at, Some(parent))?;
    let dataset = create_head(at, dir, origin, flags)?;
    // A new directory is a leaf: where counts are kept, its own are known.
    if at.active(Feature::FilesystemLimits) {
        at.set_extra(dir, dsl_dir::FILESYSTEM_COUNT, 0)?;
        at.set_extra(dir, dsl_dir::SNAPSHOT_COUNT, 0)?;
    }
    Ok((dir, dataset))
}

/// Makes the head dataset of a directory.
#[doc(alias = "dsl_dataset_create_sync_dd")]
pub(crate) fn create_head(at: &MosTx<'_>, dir: u64, origin: Option<CloneOrigin>, flags: u64) -> Result<u64> {
    let number = at.create(ObjectType::DSL_DATASET, ObjectType::DSL_DATASET, DslDataset::SIZE)?;
    let mut phys = DslDataset {
        dir_obj: dir,
        flags,
        fsid_guid: at.fsid(),
        guid: at.guid(),
        snapnames_zapobj: at.create_zap_with(ObjectType::DSL_DS_SNAP_MAP, ObjectType::NONE, 0, TOUPPER)?,
        creation_time: at.seconds(),
        creation_txg: at.creation_txg(),
        ..DslDataset::default()
    };
    match origin {
        None => phys.deadlist_obj = lists::alloc_deadlist(at)?,
        Some(origin) => descend(at, (dir, number), &mut phys, origin)?,
    }
    if at.since(version::UNIQUE_ACCURATE) {
        phys.flags |= DslDataset::FLAG_UNIQUE_ACCURATE;
    }
    at.change_dataset(number, |dataset| *dataset = phys)?;
    at.change_dir(dir, |dir| dir.head_dataset_obj = number)?;
    Ok(number)
}

/// Makes a new dataset the clone of a snapshot.
fn descend(
    at: &MosTx<'_>,
    (dir, number): (u64, u64),
    phys: &mut DslDataset,
    from: CloneOrigin,
) -> Result<()> {
    let origin = at.dataset(from.number)?;
    phys.prev_snap_obj = from.number;
    phys.prev_snap_txg = origin.creation_txg;
    phys.referenced_bytes = origin.referenced_bytes;
    phys.compressed_bytes = origin.compressed_bytes;
    phys.uncompressed_bytes = origin.uncompressed_bytes;
    phys.bp = origin.bp;
    phys.flags |= origin.flags & (DslDataset::FLAG_INCONSISTENT | DslDataset::FLAG_CI_DATASET);
    copy_features(at, from.number, number)?;
    let deadlist = at.dataset(from.head)?.deadlist_obj;
    phys.deadlist_obj = lists::clone_deadlist(at, deadlist, origin.creation_txg, from.number)?;
    if at.since(version::ORIGIN) {
        let list = match origin.next_clones_obj {
            0 => at.create_zap(ObjectType::NEXT_CLONES)?,
            list => list,
        };
        at.zap(list, |zap| zap.add_int(number))?;
        at.change_dataset(from.number, |origin| origin.next_clones_obj = list)?;
    }
    at.change_dataset(from.number, |origin| origin.num_children += 1)?;
    at.change_dir(dir, |dir| dir.origin_obj = from.number)?;
    crypto::share(at, origin.dir_obj, dir)?;
    if at.since(version::DEADLISTS) {
        add_clone(at, origin.dir_obj, number)?;
    }
    Ok(())
}

/// Lists a clone at its origin's directory.
pub(super) fn add_clone(at: &MosTx<'_>, origin_dir: u64, clone: u64) -> Result<()> {
    let list = match at.dir(origin_dir)?.clones {
        0 => at.create_zap(ObjectType::DSL_CLONES)?,
        list => list,
    };
    at.change_dir(origin_dir, |dir| dir.clones = list)?;
    at.zap(list, |zap| zap.add_int(clone))
}

/// Features that datasets use one by one and that are recorded at each of them.
pub(super) fn dataset_features() -> impl Iterator<Item = Feature> {
    use zcommon::features::{FEATURES, FeatureFlags};
    FEATURES.iter().copied().filter(|f| f.info().flags.contains(FeatureFlags::PER_DATASET))
}

/// Records at `to` the features that `from` uses.
pub(super) fn copy_features(at: &MosTx<'_>, from: u64, to: u64) -> Result<()> {
    for feature in dataset_features() {
        if let Some(value) = at.extra(from, feature.info().guid)? {
            at.set_extra(to, feature.info().guid, value)?;
            at.count(feature, 1)?;
        }
    }
    Ok(())
}

/// Records that a dataset uses a feature.
#[doc(alias = "dsl_dataset_activate_feature")]
pub(super) fn use_feature(at: &MosTx<'_>, dataset: u64, feature: Feature) -> Result<()> {
    let guid = feature.info().guid;
    if at.extra(dataset, guid)?.is_some() {
        return Ok(());
    }
    at.set_extra(dataset, guid, 0)?;
    at.count(feature, 1)
}

/// Drops the feature uses of a dataset that is destroyed.
pub(super) fn drop_features(at: &MosTx<'_>, dataset: u64) -> Result<()> {
    for feature in dataset_features() {
        if at.extra(dataset, feature.info().guid)?.is_some() {
            at.count(feature, -1)?;
        }
    }
    Ok(())
}

/// Changes the counts of file systems or snapshots of a directory and its ancestors, as far as they are kept.
#[doc(alias = "dsl_fs_ss_count_adjust")]
pub(super) fn count_up(at: &MosTx<'_>, dir: u64, what: &str, delta: i64) -> Result<()> {
    for step in at.ancestors(dir) {
        let (dir, _) = step?;
        let Some(count) = at.extra(dir, what)?.and_then(|v| v.first()) else { return Ok(()) };
        at.zap_set(dir, what, count.saturating_add_signed(delta))?;
    }
    Ok(())
}

/// Creates a snapshot of a head called `name`; returns its number.
#[doc(alias = "dsl_dataset_snapshot_sync_impl")]
pub(crate) fn create_snapshot(at: &MosTx<'_>, head_number: u64, name: &str) -> Result<u64> {
    let head = at.dataset(head_number)?;
    count_up(at, head.dir_obj, dsl_dir::SNAPSHOT_COUNT, 1)?;
    let number = at.create(ObjectType::DSL_DATASET, ObjectType::DSL_DATASET, DslDataset::SIZE)?;
    // The origin snapshot of all datasets is older than all, whenever it is created.
    let txg = if name == ORIGIN { 1 } else { at.creation_txg() };
    let snapshot = DslDataset {
        next_snap_obj: head_number,
        snapnames_zapobj: 0,
        num_children: 1,
        creation_time: at.seconds(),
        creation_txg: txg,
        unique_bytes: 0,
        fsid_guid: at.fsid(),
        guid: at.guid(),
        next_clones_obj: 0,
        props_obj: 0,
        userrefs_obj: 0,
        pad: [0; 5],
        ..head
    };
    at.change_dataset(number, |dataset| *dataset = snapshot)?;
    copy_features(at, head_number, number)?;
    if crypto::key_object(at, head.dir_obj)?.is_some() && at.enabled(Feature::BookmarkV2) {
        // Distinguishes the IVs of this snapshot from those of another that was received in its place.
        at.set_extra(number, dsl_dataset::IVSET_GUID, at.fsid())?;
    }
    relink_previous(at, &head, head_number, number)?;
    space::charge_refreservation(at, &head)?;
    let deadlist = lists::clone_deadlist(at, head.deadlist_obj, u64::MAX, head.prev_snap_obj)?;
    DeadList::open(at, deadlist)?.add_key(head.prev_snap_txg)?;
    bookmarks::snapshotted(at, head_number, deadlist, head.prev_snap_txg)?;
    remap::snapshotted(at, head_number, number)?;
    at.change_dataset(head_number, |head| {
        head.deadlist_obj = deadlist;
        head.prev_snap_obj = number;
        head.prev_snap_txg = txg;
        head.unique_bytes = 0;
    })?;
    if at.since(version::UNIQUE_ACCURATE) {
        at.change_dataset(head_number, |head| head.flags |= DslDataset::FLAG_UNIQUE_ACCURATE)?;
    }
    at.zap_add(head.snapnames_zapobj, name, number)?;
    super::scan_state::snapshotted(at, head_number, number)?;
    note_snapshots_changed(at, head.dir_obj)?;
    Ok(number)
}

/// The snapshot before a new one, or the list of clones of a clone's origin, names the new one now.
fn relink_previous(at: &MosTx<'_>, head: &DslDataset, head_number: u64, number: u64) -> Result<()> {
    if head.prev_snap_obj == 0 {
        return Ok(());
    }
    let previous = at.dataset(head.prev_snap_obj)?;
    if previous.next_snap_obj == head_number {
        return at.change_dataset(head.prev_snap_obj, |previous| previous.next_snap_obj = number);
    }
    if previous.next_clones_obj != 0 {
        at.zap(previous.next_clones_obj, |zap| {
            zap.remove_int(head_number)?;
            zap.add_int(number)
        })?;
    }
    Ok(())
}

/// Records when a directory's snapshots changed last.
#[doc(alias = "dsl_dir_snap_cmtime_update")]
pub(super) fn note_snapshots_changed(at: &MosTx<'_>, dir: u64) -> Result<()> {
    if !at.enabled(Feature::ExtensibleDataset) {
        return Ok(());
    }
    let (seconds, nanos) = at.hooks.now();
    at.set_extra(dir, dsl_dir::SNAPSHOTS_CHANGED, vec![seconds, nanos])
}
