//! Tasks of commands, by name: each looks names up, refuses impossible requests before it changes anything,
//! then makes the change. All run in syncing context, after the txg's datasets have been written.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ondisk::ObjsetType;
use ondisk::dsl::DslDataset;
use zcommon::features::Feature;

use super::batch::Batch;
use super::bookmarks::{self, BookmarkSource};
use super::crypto::{Encryption, NewKey};
use super::mos_tx::{Limited, MosTx};
use super::names::{self, FoundDataset};
use super::open_datasets::{DslPool, LiveDataset};
use super::tree::{CloneOrigin, use_feature};
use super::{crypto, destroy, limits, livelist, log, promote, props, readable, rename, space, swap, tree};
use crate::dmu::Tx;
use crate::dsl::RECEIVE_CHILD;
use crate::dsl::props::PropValue;
use crate::error::{Error, Kind, Result};

/// The datasets of a pool, under change by one transaction in syncing context.
#[derive(Debug, Clone, Copy)]
pub struct Tasks<'a> {
    /// The MOS.
    pub at: MosTx<'a>,
    /// Open datasets.
    pub datasets: &'a DslPool,
    /// The pool's name.
    pub pool: &'a str,
}

/// Result of a task that destroys a file system or volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestroyOutcome {
    /// It is gone.
    Destroyed,
    /// The dataset of that number is marked; its content must be freed first.
    Marked(u64),
}

/// Fills a new object set: the roots of a file system, or a volume's size.
pub(crate) type FillDataset<'f> = dyn FnMut(&Arc<LiveDataset>, &Tx) -> Result<()> + 'f;

fn invalid(what: &str, name: &str) -> Error {
    Error::new(Kind::Invalid, what).in_dataset(name)
}

impl<'a> Tasks<'a> {
    /// The same tasks, made for a user that limits hold; none: for the pool's owner.
    #[must_use]
    pub fn limiting(&self, user: Option<&'a dyn Limited>) -> Self {
        let mut at = self.at;
        at.limited = user;
        Self { at, ..*self }
    }
}

impl Tasks<'_> {
    fn find(&self, name: &str) -> Result<FoundDataset> {
        names::find(&self.at, self.pool, name)
    }

    fn head(&self, name: &str) -> Result<FoundDataset> {
        let found = names::find_head(&self.at, self.pool, name)?;
        readable::check_changed(&self.at, found.head).map_err(|e| e.in_dataset(name)).map(|()| found)
    }

    pub(super) fn log(&self, what: &str, name: &str, number: u64, details: &str) -> Result<()> {
        self.at.hooks.log(what, name, number, details, self.at.tx)
    }

    /// Creates a file system or volume, encrypted if its parent is, and writes it. Returns its number.
    pub fn create(
        &self,
        name: &str,
        kind: ObjsetType,
        flags: u64,
        fill: &mut FillDataset<'_>,
    ) -> Result<u64> {
        self.create_encrypted(name, kind, flags, Encryption::default(), fill)
    }

    /// Creates a file system or volume with the given encryption, and writes it. Returns its number.
    ///
    /// # Errors
    /// `KeyMissing` when the key that it inherits is not loaded; `Invalid` for a key without encryption and the
    /// other way round.
    #[doc(alias = "dmu_objset_create")]
    pub fn create_encrypted(
        &self,
        name: &str,
        kind: ObjsetType,
        flags: u64,
        encryption: Encryption,
        fill: &mut FillDataset<'_>,
    ) -> Result<u64> {
        space::check_room(&self.at, 5, false)?;
        let (parent, last) = names::split_new(&self.at, self.pool, name)?;
        limits::check_filesystems(&self.at, parent, 1)?;
        let head = self.at.dir(parent)?.head_dataset_obj;
        if head == 0 {
            return Err(invalid("nothing can be made below a hidden directory", name));
        }
        let keys = &self.datasets.keys;
        let plan = crypto::plan(&self.at, keys, Some(parent), encryption).map_err(|e| e.in_dataset(name))?;
        self.refuse_volume(parent, name)?;
        let (dir, number) = tree::create_dataset(&self.at, (parent, last), tree::origin(&self.at)?, flags)?;
        if let Some(plan) = plan {
            crypto::apply(&self.at, keys, (dir, number), plan)?;
        }
        let live = self.datasets.create_objset(&self.at, number, kind)?;
        fill(&live, self.at.tx)?;
        self.datasets.sync_dataset(&self.at, &live)?;
        self.log("create", name, number, " ")?;
        Ok(number)
    }

    /// Refuses a directory that nothing can be put below.
    fn refuse_volume(&self, parent: u64, name: &str) -> Result<()> {
        let head = self.at.dir(parent)?.head_dataset_obj;
        match head != 0 && self.is_volume(head)? {
            true => Err(invalid("parent is not a filesystem", name)),
            false => Ok(()),
        }
    }

    /// Refuses a dataset that is mounted, or a volume in use.
    fn refuse_used(&self, head: u64, name: &str) -> Result<()> {
        let has_log = self.datasets.opened(head).is_some_and(|live| live.objset.has_log());
        match has_log || self.datasets.long_holds.has(head) {
            true => Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(name)),
            false => Ok(()),
        }
    }

    /// Checks that these snapshots (no holds) and these file systems and volumes, which this task destroys
    /// later, are unused.
    pub fn check_unused(&self, all: &[&str]) -> Result<()> {
        for name in all {
            let found = self.find(name)?;
            match found.snapshot {
                None => self.refuse_used(found.head, name)?,
                Some(number) if destroy::holds(&self.at, &self.at.dataset(number)?)? > 0 => {
                    return Err(Error::new(Kind::Busy, destroy::HELD).in_dataset(name));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    pub(super) fn is_volume(&self, head: u64) -> Result<bool> {
        if let Some(live) = self.datasets.opened(head) {
            return Ok(live.objset.objset_type() == ObjsetType::Zvol);
        }
        let bp = self.at.dataset(head)?.bp;
        if bp.is_hole() {
            return Ok(false);
        }
        let objset = crate::dmu::Objset::open(self.at.mos.arc(), head, &bp, crate::zio::Form::NoKey)?;
        Ok(objset.phys.objset_type == ObjsetType::Zvol)
    }

    /// Creates a clone of a snapshot. Returns its number.
    #[doc(alias = "dmu_objset_clone")]
    pub fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<u64> {
        space::check_room(&self.at, 5, false)?;
        let (from, origin) = names::find_snapshot(&self.at, self.pool, snapshot)?;
        readable::check_changed(&self.at, from.head)?;
        let (parent, last) = names::split_new(&self.at, self.pool, name)?;
        self.refuse_volume(parent, name)?;
        limits::check_filesystems(&self.at, parent, 1)?;
        if self.at.dataset(origin)?.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            return Err(invalid("a snapshot of an unfinished receive can't be cloned", snapshot));
        }
        let origin = CloneOrigin { number: origin, head: from.head };
        let (dir, number) = tree::create_dataset(&self.at, (parent, last), Some(origin), 0)?;
        livelist::begin(&self.at, dir)?;
        // Its livelist must know of the root block that this may write.
        log::forget(&self.at, number)?;
        self.log("clone", name, number, &format!("origin={snapshot} ({})", origin.number))?;
        Ok(number)
    }

    /// Makes snapshots, all or none of them. With properties for each.
    ///
    /// # Errors
    /// `Again` when one of the datasets got a snapshot in this transaction group; `Busy` for a dataset whose receive is
    /// unfinished.
    #[doc(alias = "dsl_dataset_snapshot")]
    pub fn snapshot(&self, all: &[&str], settings: &[(&str, PropValue)]) -> Result<()> {
        space::check_room(&self.at, 3 * u64::try_from(all.len()).unwrap_or(1), false)?;
        if !settings.is_empty() {
            props::check_snapshots(&self.at)?;
        }
        let (mut found, mut named) = (Vec::new(), HashSet::new());
        let mut planned = space::Planned::default();
        for &name in all {
            let (dir, snap) = name.split_once('@').ok_or_else(|| invalid("no name of a snapshot", name))?;
            names::check_part(snap).map_err(|e| e.in_dataset(name))?;
            let head = self.head(dir)?;
            self.check_another_snapshot(head.head, snap, &mut planned)
                .and_then(|()| self.refuse_unfinished(head.head))
                .map_err(|e| e.in_dataset(name))?;
            if !named.insert((head.head, snap)) {
                return Err(Error::new(Kind::Exists, "named twice").in_dataset(name));
            }
            found.push((head, snap, name));
        }
        limits::check_snapshots(&self.at, found.iter().map(|(head, ..)| head.dir))?;
        for (head, snap, name) in found {
            let number = tree::create_snapshot(&self.at, head.head, snap)?;
            for (prop, value) in settings {
                props::set(&self.at, number, prop, Some(value), props::SettingSource::Local)?;
            }
            self.log("snapshot", name, number, " ")?;
            self.at.hooks.relieve(self.at.tx);
        }
        Ok(())
    }

    #[doc(alias = "dsl_dataset_snapshot_check_impl")]
    pub(super) fn check_new_snapshot(&self, head: u64, snap: &str) -> Result<()> {
        self.check_another_snapshot(head, snap, &mut space::Planned::default())
    }

    /// `planned`: the space that the task's snapshots checked before take.
    fn check_another_snapshot(&self, head: u64, snap: &str, planned: &mut space::Planned) -> Result<()> {
        let phys = self.at.dataset(head)?;
        if phys.prev_snap_txg >= self.at.creation_txg() {
            return Err(Error::new(Kind::Again, "the dataset got a snapshot in this transaction group"));
        }
        if names::snapshot(&self.at, head, snap)?.is_some() {
            return Err(Error::new(Kind::Exists, "snapshot already exists"));
        }
        let reserved = props::own_number(&self.at, phys.dir_obj, "refreservation")?;
        let needed = phys.unique_bytes.min(reserved);
        if needed > 0 && !planned.take(&self.at, phys.dir_obj, needed)? {
            return Err(Error::new(Kind::NoSpace, "the refreservation could not be kept"));
        }
        Ok(())
    }

    /// Refuses a head that a receive fills, or filled in part: its content is not what was sent.
    fn refuse_unfinished(&self, head: u64) -> Result<()> {
        match self.at.dataset(head)?.flags & DslDataset::FLAG_INCONSISTENT {
            0 => Ok(()),
            _ => Err(Error::new(Kind::Busy, "dataset is busy")),
        }
    }

    /// Destroys a file system, volume or snapshot. `defer`: a snapshot may go later.
    #[doc(alias("dsl_destroy_head", "dsl_destroy_snapshots_nvl"))]
    pub fn destroy(&self, name: &str, defer: bool) -> Result<()> {
        let found = self.find(name)?;
        if found.snapshot.is_some() {
            return self.destroy_snapshots(&[name], defer);
        }
        self.refuse_used(found.head, name)?;
        destroy::check_head(&self.at, found.head).map_err(|e| e.in_dataset(name))?;
        self.log("destroy", name, found.head, " ")?;
        self.datasets.close(found.head);
        let last = name.rsplit_once('/').map(|(_, last)| last);
        destroy::head(&self.at, found.head, last).map_err(|e| e.in_dataset(name))?;
        self.datasets.keys.remove(found.dir);
        self.at.hooks.relieve(self.at.tx);
        Ok(())
    }

    /// Destroys a file system or volume, or only marks it as inconsistent: a large one, in a pool that can't free its tree in
    /// later txgs. `PoolDatasets::free_contents` then frees its content, and the next call destroys it.
    #[doc(alias = "dsl_destroy_head_begin_sync")]
    pub fn begin_destroy(&self, name: &str) -> Result<DestroyOutcome> {
        let found = self.head(name)?;
        if let DestroyOutcome::Marked(part) = self.begin_destroy_received(&found, name)? {
            return Ok(DestroyOutcome::Marked(part));
        }
        let head = self.at.dataset(found.head)?;
        let marked = head.flags & DslDataset::FLAG_INCONSISTENT != 0;
        if marked || !destroy::is_emptied_first(&self.at, &head) {
            return self.destroy(name, false).map(|()| DestroyOutcome::Destroyed);
        }
        self.refuse_used(found.head, name)?;
        destroy::check_head(&self.at, found.head).map_err(|e| e.in_dataset(name))?;
        self.at.change_dataset(found.head, |head| head.flags |= DslDataset::FLAG_INCONSISTENT)?;
        self.log("destroy begin", name, found.head, " ")?;
        Ok(DestroyOutcome::Marked(found.head))
    }

    /// Destroys the state of an interrupted receive into a file system or volume that goes with it.
    #[doc(alias = "zfs_ioc_destroy")]
    fn begin_destroy_received(&self, found: &FoundDataset, name: &str) -> Result<DestroyOutcome> {
        let part = self.at.zap_word(self.at.dir(found.dir)?.child_dir_zapobj, RECEIVE_CHILD)?;
        if part.is_none() || name.ends_with(RECEIVE_CHILD) {
            return Ok(DestroyOutcome::Destroyed);
        }
        self.refuse_used(found.head, name)?;
        destroy::check_head_after(&self.at, found.head, 1).map_err(|e| e.in_dataset(name))?;
        self.begin_destroy(&format!("{name}/{RECEIVE_CHILD}"))
    }

    /// Destroys a head by its number: one that a rollback or a receive has replaced, emptied by now.
    pub(crate) fn destroy_replaced(&self, number: u64) -> Result<()> {
        let head = self.at.dataset(number)?;
        destroy::check_head(&self.at, number)?;
        self.datasets.close(number);
        destroy::head(&self.at, number, None)?;
        self.datasets.keys.remove(head.dir_obj);
        Ok(())
    }

    /// Destroys snapshots, all or none of them. Those that do not exist count as destroyed, as in OpenZFS: one that waited for
    /// its last clone goes with the clone, before a recursive destroy comes to it.
    #[doc(alias = "dsl_destroy_snapshots_nvl")]
    pub fn destroy_snapshots(&self, all: &[&str], defer: bool) -> Result<()> {
        let mut found = Vec::new();
        let (mut heads, mut readable) = (HashMap::new(), readable::Readable::new(&self.at));
        for &name in all {
            let (of, number) = match names::find_snapshot(&self.at, self.pool, name) {
                Err(e) if e.kind() == Kind::NotFound => continue,
                found => found?,
            };
            destroy::check_snapshot(&self.at, number, defer)
                .and_then(|()| readable.ended(&self.at, number))
                .map_err(|e| e.in_dataset(name))?;
            let turn = heads.len();
            let turn = *heads.entry(of.head).or_insert(turn);
            found.push((turn, Reverse(self.at.dataset(number)?.creation_txg), name, number));
        }
        found.sort_unstable();
        // Duplicate names count once.
        found.dedup();
        let mut batch = Batch::new(&self.at);
        for (_, _, name, number) in found {
            self.log(if defer { "defer_destroy" } else { "destroy" }, name, number, " ")?;
            let part = name.split_once('@').map(|(_, part)| part);
            destroy::snapshot_of(&mut batch, number, part, defer).map_err(|e| e.in_dataset(name))?;
            self.at.hooks.relieve(self.at.tx);
        }
        Ok(())
    }

    /// Renames a file system or volume.
    #[doc(alias = "dsl_dir_rename")]
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        space::check_room(&self.at, 1, true)?;
        let found = self.head(old)?;
        let (parent, last) = names::split_free(&self.at, self.pool, new)?;
        self.refuse_volume(parent, new)?;
        rename::check(&self.at, found.dir, parent).map_err(|e| e.in_dataset(new))?;
        if new.len() > old.len() {
            let below = rename::longest_below(&self.at, found.dir)?;
            names::check_length(new.len() + below).map_err(|e| e.in_dataset(new))?;
        }
        self.log("rename", old, found.head, &format!("-> {new}"))?;
        rename::dir(&self.at, found.dir, parent, last)?;
        self.datasets.refresh_below(found.dir, self.at.hooks)
    }

    /// Renames a snapshot (`new` is the part after the `@`).
    pub fn rename_snapshot(&self, old: &str, new: &str) -> Result<()> {
        self.rename_snapshots(&[old], new)
    }

    /// Renames snapshots, all or none of them (`new` is the part after the `@`).
    #[doc(alias = "dsl_dataset_rename_snapshot")]
    pub fn rename_snapshots(&self, all: &[&str], new: &str) -> Result<()> {
        space::check_room(&self.at, 1, true)?;
        names::check_part(new)?;
        let mut found = Vec::new();
        for &old in all {
            let (of, number) = names::find_snapshot(&self.at, self.pool, old)?;
            let dataset = old.split_once('@').map_or(old, |(dataset, _)| dataset);
            names::check_length(dataset.len() + 1 + new.len()).map_err(|e| e.in_dataset(old))?;
            if names::snapshot(&self.at, of.head, new)?.is_some() {
                return Err(Error::new(Kind::Exists, "snapshot already exists").in_dataset(dataset));
            }
            found.push((of, number, old));
        }
        for (of, number, old) in found {
            self.log("rename", old, number, &format!("-> @{new}"))?;
            let zap = self.at.dataset(of.head)?.snapnames_zapobj;
            let part = old.split_once('@').map(|(_, part)| part);
            self.at.zap_remove(zap, &names::given(&self.at, zap, number, part)?)?;
            self.at.zap_add(zap, new, number)?;
            tree::note_snapshots_changed(&self.at, of.dir)?;
        }
        Ok(())
    }

    /// Takes a head back to its last snapshot, which `to` names if given. It must be opened again afterwards.
    #[doc(alias = "dsl_dataset_rollback")]
    pub fn rollback(&self, name: &str, to: Option<&str>) -> Result<()> {
        space::check_room(&self.at, 1, true)?;
        let found = self.head(name)?;
        if let Some(to) = to {
            let (_, number) = names::find_snapshot(&self.at, self.pool, to)?;
            if self.at.dataset(found.head)?.prev_snap_obj != number {
                return Err(Error::new(Kind::Exists, "there are newer snapshots").in_dataset(name));
            }
        }
        self.refuse_used(found.head, name)?;
        swap::check_rollback(&self.at, found.head).map_err(|e| e.in_dataset(name))?;
        self.datasets.close(found.head);
        let replaced = swap::rollback(&self.at, found.head).map_err(|e| e.in_dataset(name))?;
        self.datasets.note_replaced(replaced);
        self.log("rollback", name, found.head, " ")
    }

    /// A clone and its origin change places.
    #[doc(alias = "dsl_dataset_promote")]
    pub fn promote(&self, name: &str) -> Result<()> {
        space::check_room(&self.at, 2, true)?;
        let found = self.head(name)?;
        let key = crypto::check_promote(&self.at, found.dir).map_err(|e| e.in_dataset(name))?;
        promote::promote(&self.at, found.head, name.len()).map_err(|e| e.in_dataset(name))?;
        if let Some(change) = key {
            crypto::hand_over(&self.at, &self.datasets.keys, &change)?;
        }
        self.log("promote", name, found.head, " ")?;
        self.datasets.refresh_policies(self.at.hooks)
    }

    /// Gives a dataset a key of its own, or (`None`) its parent's. Its keys must be loaded.
    #[doc(alias = "spa_keystore_change_key")]
    pub fn change_key(&self, name: &str, new: Option<NewKey>) -> Result<()> {
        space::check_room(&self.at, 15, true)?;
        let found = self.head(name)?;
        let (keys, of) = (&self.datasets.keys, (found.dir, found.head));
        crypto::change_key(&self.at, keys, of, new).map_err(|e| e.in_dataset(name))?;
        self.log("change-key", name, found.head, " ")
    }

    /// Whether the pool has room for a change of datasets that takes some blocks and may use a part of the reserve.
    ///
    /// # Errors
    /// `NoSpace` when it has none.
    pub fn check_room(&self, blocks: u64) -> Result<()> {
        space::check_room(&self.at, blocks, true)
    }

    /// Makes a bookmark (`tank/a#b`) of a snapshot (`tank/a@s`) or of another bookmark.
    #[doc(alias = "dsl_bookmark_create")]
    pub fn bookmark(&self, name: &str, from: &str) -> Result<()> {
        space::check_room(&self.at, 3, false)?;
        if !self.at.enabled(Feature::Bookmarks) {
            return Err(Error::unsupported("the feature bookmarks is not enabled").in_dataset(name));
        }
        let (dir, mark) = name.split_once('#').ok_or_else(|| invalid("no name of a bookmark", name))?;
        names::check_part(mark).map_err(|e| e.in_dataset(name))?;
        let head = self.head(dir)?;
        if bookmarks::find(&self.at, head.head, mark)?.is_some() {
            return Err(Error::new(Kind::Exists, "bookmark already exists").in_dataset(name));
        }
        let source = match from.split_once('#') {
            None => {
                let (of, number) = names::find_snapshot(&self.at, self.pool, from)?;
                let txg = self.at.dataset(number)?.creation_txg;
                self.check_before(head.head, of.head, txg).map_err(|e| e.in_dataset(name))?;
                BookmarkSource::Snapshot(number)
            }
            Some((dir, mark)) => {
                let of = self.head(dir)?;
                let missing = || Error::not_found("bookmark does not exist").in_dataset(from);
                let found = bookmarks::find(&self.at, of.head, mark)?.ok_or_else(missing)?;
                self.check_before(head.head, of.head, found.creation_txg).map_err(|e| e.in_dataset(name))?;
                BookmarkSource::Bookmark(found)
            }
        };
        let list = bookmarks::create(&self.at, head.head, mark, &source)?;
        let of = match &source {
            BookmarkSource::Snapshot(number) | BookmarkSource::Redacted(number, _) => {
                let txg = self.at.dataset(*number)?.creation_txg;
                format!("creation_txg={txg} target_snap={number} redact_obj={list}")
            }
            BookmarkSource::Bookmark(_) => format!("source={from}"),
        };
        self.log("bookmark", dir, head.head, &format!("name={mark} {of}"))
    }

    /// Checks that the state of dataset `of` at `txg` is in the past of `head`: they are one, or `head` is a
    /// clone that left it then or later, or a clone of such a one.
    #[doc(alias = "dsl_dataset_is_before")]
    pub(super) fn check_before(&self, head: u64, of: u64, txg: u64) -> Result<()> {
        let earlier = self.at.dataset(of)?.dir_obj;
        let mut dir = self.at.dataset(head)?.dir_obj;
        for _ in 0..1 << 20 {
            if dir == earlier {
                return Ok(());
            }
            let origin = self.at.dir(dir)?.origin_obj;
            if origin == 0 {
                break;
            }
            let origin = self.at.dataset(origin)?;
            if origin.creation_txg < txg {
                break;
            }
            dir = origin.dir_obj;
        }
        Err(Error::new(Kind::Invalid, "the source is not in the dataset's history"))
    }

    /// Removes a bookmark.
    ///
    /// # Errors
    /// `Busy` while its redaction list is filled or sent with; `NotFound`.
    #[doc(alias = "dsl_bookmark_destroy")]
    pub fn destroy_bookmark(&self, name: &str) -> Result<()> {
        let (dir, mark) = name.split_once('#').ok_or_else(|| invalid("no name of a bookmark", name))?;
        let head = self.head(dir)?;
        let list = bookmarks::find(&self.at, head.head, mark)?.map_or(0, |known| known.redaction_obj);
        if list != 0 && self.datasets.long_holds.has(list) {
            return Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(name));
        }
        let unneeded = bookmarks::destroy(&self.at, head.head, mark).map_err(|e| e.in_dataset(name))?;
        unneeded.map_or(Ok(()), |txg| destroy::remove_keys(&self.at, head.head, txg))?;
        self.log("remove bookmark", dir, head.head, &format!("name={mark}"))
    }

    /// Sets or unsets properties of a head or snapshot. Those that accounts depend on are checked and put there.
    #[doc(alias = "dsl_props_set")]
    pub fn set(
        &self,
        name: &str,
        settings: &[(&str, Option<PropValue>)],
        source: props::SettingSource,
    ) -> Result<()> {
        let found = self.settable(name, settings, source)?;
        self.put(name, &found, settings, source)?;
        // Nothing is written by user properties.
        match settings.iter().all(|(property, _)| property.contains(':')) {
            true => Ok(()),
            false => self.datasets.refresh_below(found.dir, self.at.hooks),
        }
    }

    /// The dataset, if it takes all of the settings. Nothing changes.
    pub(super) fn settable(
        &self,
        name: &str,
        settings: &[(&str, Option<PropValue>)],
        source: props::SettingSource,
    ) -> Result<FoundDataset> {
        space::check_room(&self.at, 2 * u64::try_from(settings.len()).unwrap_or(1), true)?;
        let found = self.find(name)?;
        let after = limits::Predicted::of(&self.at, &found, settings, source)?;
        for (prop, value) in settings {
            limits::check_setting(&self.at, &found, (prop, value.as_ref()), source, &after)
                .map_err(|e| e.in_dataset(name))?;
        }
        Ok(found)
    }

    /// Changes a dataset that takes the settings.
    pub(super) fn put(
        &self,
        name: &str,
        found: &FoundDataset,
        settings: &[(&str, Option<PropValue>)],
        source: props::SettingSource,
    ) -> Result<()> {
        let (at, number) = (&self.at, found.dataset());
        for (prop, value) in settings {
            let amount = value.as_ref().and_then(PropValue::number).unwrap_or(0);
            let limits = source == props::SettingSource::Local || source == props::SettingSource::Received;
            if matches!(*prop, "filesystem_limit" | "snapshot_limit") && limits && amount != u64::MAX {
                limits::begin_counting(at, found.dir)?;
            }
            props::set_accounted(at, number, (prop, value.as_ref(), amount), source)?;
            let needs = props::PropNeeds::of(prop, amount);
            if *prop == "compression" && needs == Some(props::PropNeeds::Feature(Feature::ZstdCompress)) {
                // Software that can't read the blocks must not import the pool: the feature counts as used
                // from now on.
                use_feature(at, number, Feature::ZstdCompress)?;
            }
            let what = if source == props::SettingSource::Local { "set" } else { "inherit" };
            let text = match value {
                Some(PropValue::Number(n)) => format!("{prop}={n}"),
                Some(PropValue::Text(text)) => format!("{prop}={text}"),
                None => (*prop).to_owned(),
            };
            self.log(what, name, number, &text)?;
        }
        Ok(())
    }
}
