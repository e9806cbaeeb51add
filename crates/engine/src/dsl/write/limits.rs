//! Limits on numbers of file systems and snapshots, and the settings that are refused for lack of space.
//!
//! Counts are kept in directories from the first limit on that is set at or above them. A limit itself is a
//! property that is not inherited; all limits from a directory up to the root hold, for users other than the pool's
//! owner. A limit does not hold a user that may change it.

use std::collections::BTreeMap;

use ondisk::dsl::DslDir;
use ondisk::names::dsl_dir;
use zcommon::features::Feature;

use super::mos_tx::{MosTx, MosView};
use super::names::FoundDataset;
use super::props::{self, PropNeeds, SettingSource};
use super::{crypto, space};
use crate::dsl::MAX_NESTING;
use crate::dsl::props::PropValue;
use crate::error::{Error, Kind, Result};

/// No limit.
const NONE: u64 = u64::MAX;

#[doc(alias = "dsl_fs_ss_limit_check")]
fn check_count(at: &MosTx<'_>, dir: u64, stop: u64, (limit, count): (&str, &str), more: u64) -> Result<()> {
    let Some(user) = at.limited else { return Ok(()) };
    for step in at.ancestors(dir) {
        let (next, _) = step?;
        if next == stop {
            break;
        }
        let allowed = match props::own_number(at, next, limit)? {
            0 if !is_set(at, next, limit)? => NONE,
            number => number,
        };
        let now = at.extra(next, count)?.and_then(|v| v.first());
        if let Some(now) = now
            && allowed != NONE
            && now.saturating_add(more) > allowed
            && !user.may_change(at, next, limit)?
        {
            return Err(Error::new(Kind::Quota, format!("{limit} of a dataset above is {allowed}")));
        }
    }
    Ok(())
}

fn is_set(at: &MosView<'_>, dir: u64, name: &str) -> Result<bool> {
    Ok(at.zap_get(at.dir(dir)?.props_zapobj, name)?.is_some())
}

const FILESYSTEMS: (&str, &str) = ("filesystem_limit", dsl_dir::FILESYSTEM_COUNT);
const SNAPSHOTS: (&str, &str) = ("snapshot_limit", dsl_dir::SNAPSHOT_COUNT);

/// Whether `more` file systems may be made below a directory.
pub(super) fn check_filesystems(at: &MosTx<'_>, dir: u64, more: u64) -> Result<()> {
    check_count(at, dir, 0, FILESYSTEMS, more)
}

/// Whether each of the directories may get one more snapshot (one named twice gets two).
#[doc(alias = "dsl_dataset_snapshot_check")]
pub(super) fn check_snapshots(at: &MosTx<'_>, dirs: impl Iterator<Item = u64>) -> Result<()> {
    let mut more: BTreeMap<u64, u64> = BTreeMap::new();
    for dir in dirs {
        for step in at.ancestors(dir) {
            *more.entry(step?.0).or_default() += 1;
        }
    }
    more.into_iter().try_for_each(|(dir, more)| {
        let parent = at.dir(dir)?.parent_obj;
        check_count(at, dir, parent, SNAPSHOTS, more)
    })
}

/// Whether a directory may get more snapshots, limits above `common` aside.
pub(super) fn check_more_snapshots(at: &MosTx<'_>, dir: u64, common: u64, more: u64) -> Result<()> {
    check_count(at, dir, common, SNAPSHOTS, more)
}

/// Whether a directory with all below it may go below `parent`, when both are below `common`.
pub(super) fn check_move(at: &MosTx<'_>, dir: u64, parent: u64, common: u64) -> Result<()> {
    if !at.active(Feature::FilesystemLimits) {
        return Ok(());
    }
    let (filesystems, snapshots) = count(at, dir, 0, &mut |_, _| Ok(()))?;
    check_count(at, parent, common, FILESYSTEMS, filesystems.saturating_add(1))?;
    check_count(at, parent, common, SNAPSHOTS, snapshots)
}

/// Counts the datasets at and below a directory, where they haven't been counted yet.
#[doc(alias = "dsl_dir_activate_fs_ss_limit")]
pub(super) fn begin_counting(at: &MosTx<'_>, dir: u64) -> Result<()> {
    if at.extra(dir, dsl_dir::FILESYSTEM_COUNT)?.is_some() {
        return Ok(());
    }
    if !at.active(Feature::FilesystemLimits) {
        at.count(Feature::FilesystemLimits, 1)?;
    }
    counted(at, dir).map(drop)
}

/// The file systems and snapshots at and below a directory, its own head aside. They are noted where they haven't been yet.
#[doc(alias = "dsl_dir_init_fs_ss_count")]
pub(super) fn counted(at: &MosTx<'_>, dir: u64) -> Result<(u64, u64)> {
    count(at, dir, 0, &mut |dir, (filesystems, snapshots)| {
        at.set_extra(dir, dsl_dir::FILESYSTEM_COUNT, filesystems)?;
        at.set_extra(dir, dsl_dir::SNAPSHOT_COUNT, snapshots)
    })
}

/// Counts; `note` is given the counts of each directory that has none yet.
fn count(
    at: &MosTx<'_>,
    dir: u64,
    depth: usize,
    note: &mut dyn FnMut(u64, (u64, u64)) -> Result<()>,
) -> Result<(u64, u64)> {
    if depth > MAX_NESTING {
        return Err(Error::new(Kind::Loop, "the dataset tree contains itself"));
    }
    let known = |what: &str| -> Result<Option<u64>> { Ok(at.extra(dir, what)?.and_then(|v| v.first())) };
    if let (Some(fs), Some(snaps)) = (known(dsl_dir::FILESYSTEM_COUNT)?, known(dsl_dir::SNAPSHOT_COUNT)?) {
        return Ok((fs, snaps));
    }
    let phys = at.dir(dir)?;
    let (mut filesystems, mut snapshots) = (0, 0);
    for entry in at.zap_entries(phys.child_dir_zapobj)? {
        let name = entry.name_lossy();
        if name.starts_with('$') || name.starts_with('%') {
            continue;
        }
        let Some(child) = entry.value.first() else { continue };
        let (fs, snaps) = count(at, child, depth + 1, note)?;
        filesystems += fs + 1;
        snapshots += snaps;
    }
    if phys.head_dataset_obj != 0 {
        let names = at.zap_entries(at.dataset(phys.head_dataset_obj)?.snapnames_zapobj)?;
        let visible = names.iter().filter(|e| !e.name_lossy().starts_with('%')).count();
        snapshots += u64::try_from(visible).unwrap_or(u64::MAX);
    }
    note(dir, (filesystems, snapshots))?;
    Ok((filesystems, snapshots))
}

/// The quotas and reservations of a dataset after all settings of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Predicted {
    quota: u64,
    reserved: u64,
    refquota: u64,
    refreserved: u64,
    /// The space that the directory uses, with the unfilled part of the refreservation.
    used: u64,
}

impl Predicted {
    /// The values of `found` after `settings`, none of which has been made.
    pub(super) fn of(
        at: &MosTx<'_>,
        found: &FoundDataset,
        settings: &[(&str, Option<PropValue>)],
        source: SettingSource,
    ) -> Result<Self> {
        let (dir, unique) = (at.dir(found.dir)?, at.dataset(found.head)?.unique_bytes);
        let refreserved = props::own_number(at, found.dir, "refreservation")?;
        let refquota = props::own_number(at, found.dir, "refquota")?;
        let mut after =
            Self { quota: dir.quota, reserved: dir.reserved, refquota, refreserved, used: dir.used_bytes };
        for (prop, value) in settings {
            let place = match *prop {
                "quota" => &mut after.quota,
                "reservation" => &mut after.reserved,
                "refquota" => &mut after.refquota,
                "refreservation" => &mut after.refreserved,
                _ => continue,
            };
            let amount = value.as_ref().and_then(PropValue::number);
            *place = props::predicted(at, found.dir, prop, amount, source)?;
        }
        let unfilled = |reserved: u64| reserved.saturating_sub(unique);
        let others = after.used.saturating_sub(unfilled(refreserved));
        after.used = others.saturating_add(unfilled(after.refreserved));
        Ok(after)
    }

    /// Whether the space above the directory suffices for its reservation or refreservation.
    #[doc(alias = "dsl_dir_set_reservation_check")]
    fn has_room(&self, at: &MosTx<'_>, dir: &DslDir, prop: &str) -> Result<bool> {
        let above = match dir.parent_obj {
            0 => at.hooks.pool_space(false).saturating_sub(dir.used_bytes),
            parent => space::available(at, parent)?,
        };
        // Nothing is above the root directory that its reservation could be taken from.
        let more = match (dir.parent_obj, prop) {
            (0, "refreservation") => self.used.saturating_sub(dir.used_bytes),
            _ => self.used.max(self.reserved).saturating_sub(dir.used_bytes.max(dir.reserved)),
        };
        Ok(more <= above)
    }
}

/// Whether a setting may be made, before anything is. `after`: the state that it leads to with the other settings of its command,
/// whose order does not matter.
#[doc(alias("dsl_dir_set_quota_check", "dsl_dir_set_reservation_check", "dsl_dataset_set_refquota_check"))]
pub(super) fn check_setting(
    at: &MosTx<'_>,
    found: &FoundDataset,
    (prop, value): (&str, Option<&PropValue>),
    source: SettingSource,
    after: &Predicted,
) -> Result<()> {
    let accounts = matches!(
        prop,
        "quota" | "reservation" | "refquota" | "refreservation" | "filesystem_limit" | "snapshot_limit"
    );
    if found.snapshot.is_some() && accounts {
        return Err(Error::new(Kind::Invalid, format!("a snapshot has no {prop}")));
    }
    let needs_value = matches!(source, SettingSource::Local | SettingSource::Received);
    let amount = value.and_then(PropValue::number);
    if needs_value && (value.is_none() || (accounts && amount.is_none())) {
        return Err(Error::new(Kind::Invalid, format!("no usable value for '{prop}'")));
    }
    crypto::check_setting(at, found.dir, prop, value)?;
    let amount =
        if accounts { props::predicted(at, found.dir, prop, amount, source)? } else { amount.unwrap_or(0) };
    if needs_value && PropNeeds::of(prop, amount).is_some_and(|needs| !needs.is_met(at.hooks)) {
        let what = "pool and or dataset must be upgraded to set this property or value";
        return Err(Error::unsupported(what));
    }
    let (dir, head) = (at.dir(found.dir)?, at.dataset(found.head)?);
    let no_space = |what: &str| Error::new(Kind::NoSpace, what);
    match prop {
        "quota" if amount != 0 && (amount < after.reserved || amount < after.used) => {
            Err(no_space("size is less than current used or reserved space"))
        }
        "refquota" if amount != 0 && (amount < after.refreserved || amount < head.referenced_bytes) => {
            Err(no_space("size is less than current used or reserved space"))
        }
        "reservation" => {
            let more = dir.used_bytes.max(amount) > dir.used_bytes.max(dir.reserved);
            let beyond = after.quota != 0 && amount > after.quota;
            match more && (beyond || !after.has_room(at, &dir, prop)?) {
                true => Err(no_space("size is greater than available space")),
                false => Ok(()),
            }
        }
        "refreservation" => {
            let more = after.used > dir.used_bytes;
            let beyond = after.quota != 0 && after.used > after.quota;
            let more = more && (beyond || !after.has_room(at, &dir, prop)?);
            match more || (after.refquota != 0 && amount > after.refquota) {
                true => Err(no_space("size is greater than available space")),
                false => Ok(()),
            }
        }
        "filesystem_limit" | "snapshot_limit" if !at.enabled(Feature::FilesystemLimits) => {
            Err(Error::unsupported("the feature filesystem_limits is not enabled"))
        }
        _ => Ok(()),
    }
}
