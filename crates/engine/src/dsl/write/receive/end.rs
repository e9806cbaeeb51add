//! The end of a receive: creates the snapshot, or destroys the received part, or keeps it for a resume.
//!
//! Source: `dmu_recv_end_check`, `dmu_recv_end_sync`, `dmu_recv_cleanup_ds`, dmu_recv.c, OpenZFS 2.3.

use ondisk::dsl::DslDataset;
use ondisk::names::dsl_dataset as field;

use super::super::props::{self, SettingSource};
use super::super::tasks::Tasks;
use super::super::{crypto, destroy, names, received_key, space, swap, tree};
use super::resume::has_resume_state;
use super::{BegunReceive, is_modified, modified};
use crate::dsl::RECEIVE_CHILD;
use crate::dsl::props::PropValue;
use crate::error::{Error, Kind, Result};

fn gone() -> Error {
    Error::not_found("the dataset that was received is gone")
}

impl Tasks<'_> {
    /// Ends a receive whose last record has come: creates the snapshot and returns its object number.
    #[doc(alias("dmu_recv_end_check", "dmu_recv_end_sync"))]
    pub(crate) fn end_receive(&self, begun: &BegunReceive) -> Result<u64> {
        let (at, wish) = (&self.at, &begun.wish);
        space::check_room(at, 3, true)?;
        self.check_received(begun.number, begun.guid).map_err(|e| e.in_dataset(&wish.target))?;
        let found = names::find_head(at, self.pool, &wish.target)?;
        let head = if begun.is_new { begun.number } else { found.head };
        if begun.is_new && found.head != begun.number {
            return Err(gone().in_dataset(&wish.target));
        }
        self.check_new_snapshot(head, &wish.snapshot).map_err(|e| e.in_dataset(&wish.target))?;
        if !begun.is_new {
            self.take_over(begun, found)?;
        }
        let number = tree::create_snapshot(at, head, &wish.snapshot)?;
        at.change_dataset(number, |snapshot| {
            snapshot.creation_time = wish.creation_time;
            snapshot.guid = wish.to_guid;
            snapshot.flags &= !DslDataset::FLAG_INCONSISTENT;
        })?;
        at.change_dataset(head, |head| head.flags &= !DslDataset::FLAG_INCONSISTENT)?;
        if let Some(key) = &wish.key {
            at.set_extra(number, field::IVSET_GUID, key.to_ivset_guid)?;
        }
        self.forget_resume_state(head)?;
        self.log("finish receiving", &wish.target, head, &format!("snap={}", wish.snapshot))?;
        self.datasets.close(begun.number);
        Ok(number)
    }

    /// The target gets the clone's content.
    fn take_over(&self, begun: &BegunReceive, found: names::FoundDataset) -> Result<()> {
        let (at, wish, head) = (&self.at, &begun.wish, found.head);
        self.refuse_mounted(head, &wish.target)?;
        let newer = self.newer_than_base(begun, found).map_err(|e| e.in_dataset(&wish.target))?;
        if !wish.force {
            let since = at.dataset(head)?.prev_snap_obj;
            if !newer.is_empty() || since != 0 && is_modified(at, head, since)? {
                return Err(modified(&wish.target));
            }
        }
        // All checks come before the first change: what a failed task has changed stays.
        newer.iter().try_for_each(|&number| destroy::check_snapshot(at, number, false))?;
        swap::check(at, begun.number, head).map_err(|e| e.in_dataset(&wish.target))?;
        for &number in &newer {
            destroy::snapshot(at, number, None, false)?;
        }
        if let Some(key) = &wish.key {
            received_key::replace_key(at, &self.datasets.keys, (found.dir, wish.roots_follow), key)?;
        }
        self.datasets.close(head);
        self.datasets.close(begun.number);
        swap::swap(at, begun.number, head)?;
        self.datasets.note_replaced(destroy::replaced(at, begun.number, RECEIVE_CHILD)?);
        self.datasets.keys.forget(head);
        Ok(())
    }

    /// The head's snapshots after the one that the received clone builds on, newest first.
    ///
    /// # Errors
    /// `Invalid` when the target is not the dataset that the receive began in, or no longer has that snapshot: it was renamed or
    /// promoted meanwhile.
    #[doc(alias = "dsl_dataset_clone_swap_check_impl")]
    fn newer_than_base(&self, begun: &BegunReceive, found: names::FoundDataset) -> Result<Vec<u64>> {
        let at = &self.at;
        let other = || Error::new(Kind::Invalid, "the dataset was renamed or promoted during the receive");
        let clone = at.dataset(begun.number)?;
        if at.dir(clone.dir_obj)?.parent_obj != found.dir {
            return Err(other());
        }
        let mut newer = Vec::new();
        let mut next = at.dataset(found.head)?.prev_snap_obj;
        while next != clone.prev_snap_obj {
            if next == 0 {
                return Err(other());
            }
            let snapshot = at.dataset(next)?;
            if snapshot.dir_obj != found.dir {
                return Err(other());
            }
            newer.push(next);
            next = snapshot.prev_snap_obj;
        }
        Ok(newer)
    }

    /// Whether a number still is the dataset that a receive began to fill.
    fn check_received(&self, number: u64, guid: u64) -> Result<()> {
        let phys = self.at.dataset(number).map_err(|_| gone())?;
        match phys.guid == guid && phys.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    /// Refuses a target that is mounted, a volume in use, or a head that is held: its content would change under it.
    fn refuse_mounted(&self, head: u64, name: &str) -> Result<()> {
        let has_log = self.datasets.opened(head).is_some_and(|live| live.objset.has_log());
        match has_log || self.datasets.long_holds.has(head) {
            true => Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(name)),
            false => Ok(()),
        }
    }

    /// Whether a value needs a version or a feature that the pool lacks.
    pub fn needs_upgrade(&self, prop: &str, value: &PropValue) -> bool {
        let needs = props::PropNeeds::of(prop, value.number().unwrap_or(0));
        needs.is_some_and(|needs| !needs.is_met(self.at.hooks))
    }

    /// Sets the received properties of a dataset or snapshot. Properties received earlier that are not in `all` are removed
    /// if `clears` returns true for them.
    #[doc(alias("zfs_ioc_recv_impl", "dsl_prop_set_hasrecvd"))]
    pub fn set_received(
        &self,
        name: &str,
        all: &[(String, PropValue)],
        clears: &dyn Fn(&str) -> bool,
    ) -> Result<()> {
        const RECEIVED: &str = "$recvd";
        let found = names::find(&self.at, self.pool, name)?;
        let phys = self.at.dataset(found.dataset())?;
        let zap = match found.snapshot {
            Some(_) => phys.props_obj,
            None => self.at.dir(phys.dir_obj)?.props_zapobj,
        };
        let mut is_cleared = false;
        for entry in self.at.zap_entries(zap)? {
            let entry = entry.name_lossy();
            let is_outdated = |name: &str| all.iter().all(|(n, _)| n != name) && clears(name);
            if let Some(name) = entry.strip_suffix(RECEIVED).filter(|name| is_outdated(name)) {
                match found.snapshot {
                    Some(number) => props::set(&self.at, number, name, None, SettingSource::NotReceived)?,
                    // A quota or reservation leaves the accounts with its setting, which takes no space.
                    None => {
                        props::set_accounted(
                            &self.at,
                            found.head,
                            (name, None, 0),
                            SettingSource::NotReceived,
                        )?;
                    }
                }
                is_cleared = true;
            }
        }
        if found.snapshot.is_none() {
            props::set(&self.at, found.head, "$hasrecvd", Some(&PropValue::Number(0)), SettingSource::Local)?;
        }
        // A refquota that was exceeded slightly could not be set again; values that stay are not.
        let mut settings = Vec::new();
        for (name, value) in all {
            // A snapshot without properties has no ZAP for them.
            let have = match zap {
                0 => None,
                zap => self.at.zap_get(zap, format!("{name}{RECEIVED}").as_str())?,
            };
            if have.as_ref().map(PropValue::from_zap).as_ref() != Some(value) {
                settings.push((name.as_str(), Some(value.clone())));
            }
        }
        match (settings.is_empty(), is_cleared) {
            (false, _) => self.set(name, &settings, SettingSource::Received),
            (true, true) => self.datasets.refresh_below(found.dir, self.at.hooks),
            (true, false) => Ok(()),
        }
    }

    /// Makes a dataset that was received raw an encryption root, as it is on the sending side, or not. No key is needed.
    ///
    /// # Errors
    /// `Invalid` for a dataset that is not encrypted, is a root already, or whose parent is not encrypted.
    #[doc(alias = "recv_fix_encryption_hierarchy")]
    pub fn set_encryption_root(&self, name: &str, is_root: bool) -> Result<()> {
        space::check_room(&self.at, 15, true)?;
        let found = names::find_head(&self.at, self.pool, name)?;
        let of = (found.dir, found.head);
        let done = match is_root {
            true => crypto::root_as_wrapped(&self.at, of),
            false => crypto::inherit_as_wrapped(&self.at, &self.datasets.keys, of),
        };
        done.map_err(|e| e.in_dataset(name))?;
        self.log("change-key", name, found.head, " ")
    }

    /// Whether a dataset has a setting of its own for a property, which hides a received one.
    pub fn is_set_locally(&self, name: &str, prop: &str) -> Result<bool> {
        let found = names::find_head(&self.at, self.pool, name)?;
        Ok(self.at.zap_get(self.at.dir(found.dir)?.props_zapobj, prop)?.is_some())
    }

    /// Ends a receive that failed: the received part is destroyed, unless it can be resumed. `guid` is that of the dataset
    /// `number`.
    ///
    /// # Errors
    /// `Busy` while a receive fills it or when it has snapshots, `Exists` when it has children, `NotFound` when it is gone or
    /// complete. The received part stays then.
    #[doc(alias = "dmu_recv_cleanup_ds")]
    pub fn abort_receive(&self, (number, guid): (u64, u64), target: &str, keep: bool) -> Result<()> {
        self.check_received(number, guid).map_err(|e| e.in_dataset(target))?;
        self.refuse_mounted(number, target)?;
        if keep && has_resume_state(&self.at, number)? {
            return Ok(());
        }
        // Datasets may have been created below it meanwhile.
        destroy::check_head(&self.at, number).map_err(|e| e.in_dataset(target))?;
        let dir = self.at.dir(self.at.dataset(number)?.dir_obj)?;
        let last = match dir.parent_obj {
            0 => return Err(Error::corrupt("a pool's own dataset is being received")),
            above => names::of_value(
                &self.at,
                self.at.dir(above)?.child_dir_zapobj,
                self.at.dataset(number)?.dir_obj,
            )?,
        };
        self.datasets.close(number);
        let key_dir = self.at.dataset(number)?.dir_obj;
        self.log("destroy", target, number, " ")?;
        if destroy::is_emptied_first(&self.at, &self.at.dataset(number)?) {
            self.datasets.note_replaced(Some(number));
            return Ok(());
        }
        destroy::head(&self.at, number, Some(&last))?;
        self.datasets.keys.remove(key_dir);
        Ok(())
    }
}
