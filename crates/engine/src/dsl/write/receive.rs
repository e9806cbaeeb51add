//! What a received stream does to datasets: before its first record, and after its last.
//!
//! ```text
//!  begin ─ new dataset, or clone `%recv` below the target: marked inconsistent ─▶ filled by `engine::recv`
//!  end   ─ (newer snapshots give way) clone and target change contents ─▶ snapshot with the sender's guid ─▶ consistent
//! ```
//!
//! Crash argument: until the end task's group is on disk the target is as it was; what has been filled is marked, and is
//! destroyed at the next import unless it can be resumed.
//!
//! Source: `dmu_recv_begin_check`, `dmu_recv_begin_sync`, `dmu_recv_end_sync`, dmu_recv.c, OpenZFS 2.3.

use std::sync::Arc;

use ondisk::drr::{begin_flag, stream_feature};
use ondisk::dsl::DslDataset;
use ondisk::names::dsl_dataset as field;
use ondisk::objset::ZilHeader;
use ondisk::{Dnode, ObjsetType};
use zcommon::features::Feature;

use super::crypto::Encryption;
use super::mos_tx::MosView;
use super::open_datasets::LiveDataset;
use super::props::Source;
use super::received_key::{self, RawKey};
use super::tasks::Tasks;
use super::tree::{self, Origin};
use super::{crypto, destroy, limits, names, space, swap};
use crate::dmu::{Objset, Tx};
use crate::dsl::props::PropValue;
use crate::error::{Error, Kind, Result};
use crate::zap::Value;
use crate::zio::Form;

/// Name of the hidden child that a receive into an existing dataset fills.
#[doc(alias = "recv_clone_name")]
pub const RECEIVE_CHILD: &str = "%recv";

/// What a stream wants to become, and where.
#[derive(Debug, Clone)]
pub struct Wish {
    /// File system or volume.
    pub target: String,
    /// The snapshot's name, behind the `@`.
    pub snapshot: String,
    /// What the stream holds.
    pub kind: ObjsetType,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot that it builds on; 0: none.
    pub from_guid: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// See [`begin_flag`].
    pub flags: u32,
    /// See [`stream_feature`].
    pub features: u64,
    /// The snapshot's name in the stream.
    pub to_name: String,
    /// Changes and snapshots since the one that the stream builds on give way.
    pub force: bool,
    /// What arrived is kept when the stream breaks off.
    pub resumable: bool,
    /// The snapshot that a new dataset is a clone of.
    pub origin: Option<String>,
    /// Guids of the snapshots by which the stream was redacted.
    pub redacted: Option<Vec<u64>>,
    /// Guids of the redaction snapshots of the bookmark that the stream builds on.
    pub from_redacted: Option<Vec<u64>>,
    /// How a new dataset is encrypted, unless the stream is raw.
    pub encryption: Encryption,
    /// A raw stream's key.
    pub key: Option<RawKey>,
    /// Where a stream that goes on does so: object and offset.
    pub resumes: Option<(u64, u64)>,
}

impl Wish {
    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    fn is_raw(&self) -> bool {
        self.has(stream_feature::RAW)
    }
}

/// A receive that has begun.
#[derive(Debug, Clone)]
pub struct Begun {
    /// The dataset that is filled.
    pub number: u64,
    /// The target was not there before.
    pub is_new: bool,
    /// It is filled over the content of another snapshot.
    pub is_clone: bool,
    /// The snapshot that an existing target goes back to; 0: none.
    from: u64,
    /// What was wished for.
    pub wish: Wish,
    /// Bytes of the stream that came before it broke off.
    pub bytes: u64,
}

fn refuse(kind: Kind, what: impl Into<String>) -> Error {
    Error::new(kind, what)
}

fn upgrade() -> Error {
    refuse(Kind::Unsupported, "pool must be upgraded to receive this stream.")
}

/// Keeps others from mounting, destroying or receiving into the dataset.
#[derive(Debug)]
struct Owner;

impl crate::dmu::dirty::IntentLog for Owner {
    fn sync(&self, _: &Tx, _: &mut ZilHeader) -> Result<()> {
        Ok(())
    }

    fn suspend(&self) -> Result<()> {
        Ok(())
    }

    fn resume(&self) {}
}

/// Whether a head is not what it was at one of its snapshots.
#[doc(alias = "dsl_dataset_modified_since_snap")]
fn is_modified(at: &MosView<'_>, head: u64, snapshot: u64) -> Result<bool> {
    let (phys, snap) = (at.dataset(head)?, at.dataset(snapshot)?);
    if phys.bp.logical_birth() <= snap.creation_txg {
        return Ok(false);
    }
    let meta = |number, bp| -> Result<Dnode> {
        Ok(Objset::open(at.mos.arc(), number, bp, Form::NoKey)?.phys.meta_dnode.clone())
    };
    Ok(meta(head, &phys.bp)? != meta(snapshot, &snap.bp)?)
}

/// Whether a dataset keeps what an interrupted receive left.
#[doc(alias = "dsl_dataset_has_resume_receive_state")]
fn has_resume_state(at: &MosView<'_>, dataset: u64) -> Result<bool> {
    Ok(at.extra(dataset, field::RESUME_TOGUID)?.is_some())
}

impl Tasks<'_> {
    /// Makes what a stream is received into. Nothing has changed when it is refused, and the error says what OpenZFS says.
    #[doc(alias("dmu_recv_begin_check", "dmu_recv_begin_sync"))]
    pub fn begin_receive(&self, wish: Wish) -> Result<Begun> {
        self.check_features(&wish)?;
        let begun = match names::find_head(&self.at, self.pool, &wish.target) {
            Ok(found) if wish.resumes.is_some() => self.resume(wish, found)?,
            Ok(found) => self.begin_into(wish, found)?,
            Err(e) if e.kind() == Kind::NotFound && wish.resumes.is_none() => self.begin_new(wish)?,
            Err(e) => return Err(e),
        };
        self.log("receive", &begun.wish.target, begun.number, " ")?;
        Ok(begun)
    }

    /// What the stream needs of the pool.
    #[doc(alias = "recv_begin_check_feature_flags_impl")]
    fn check_features(&self, wish: &Wish) -> Result<()> {
        use stream_feature as of;
        const SA: u64 = 24;
        let needs = [
            (of::EMBED_DATA, Feature::EmbeddedData),
            (of::LZ4, Feature::Lz4Compress),
            (of::LARGE_BLOCKS, Feature::LargeBlocks),
            (of::LARGE_DNODE, Feature::LargeDnode),
            (of::LARGE_MICROZAP, Feature::LargeMicrozap),
            (of::LONGNAME, Feature::Longname),
            (of::ZSTD, Feature::ZstdCompress),
            (of::REDACTED, Feature::RedactedDatasets),
            (of::RAW, Feature::Encryption),
        ];
        let lacks = |feature| !self.at.enabled(feature);
        let missing = needs.iter().any(|(bit, feature)| wish.has(*bit) && lacks(*feature));
        let old = wish.has(of::SA_SPILL) && !self.at.since(SA);
        if missing || old || (wish.resumable && lacks(Feature::ExtensibleDataset)) {
            return Err(upgrade());
        }
        if wish.flags & begin_flag::CLONE != 0 && wish.origin.is_none() {
            return Err(refuse(Kind::Invalid, "the stream makes a clone, and no origin is given"));
        }
        Ok(())
    }

    /// A new file system or volume.
    fn begin_new(&self, wish: Wish) -> Result<Begun> {
        if wish.from_guid != 0 && wish.origin.is_none() {
            return Err(Error::not_found("dataset does not exist").in_dataset(&wish.target));
        }
        if wish.from_guid == 0 && wish.origin.is_some() && wish.flags & begin_flag::FREERECORDS == 0 {
            return Err(refuse(Kind::Invalid, "the stream lacks the records that a clone needs"));
        }
        space::check_room(&self.at, 5, false)?;
        let (parent, last) = names::split_new(&self.at, self.pool, &wish.target)?;
        limits::check_filesystems(&self.at, parent, 1)?;
        limits::check_snapshots(&self.at, std::iter::once(parent))?;
        let above = self.at.dir(parent)?.head_dataset_obj;
        if above == 0 || self.is_volume(above)? {
            return Err(refuse(Kind::Invalid, "parent is not a filesystem"));
        }
        let origin = wish.origin.as_deref().map(|name| self.origin_of(name, &wish)).transpose()?;
        let plan = match (&origin, wish.is_raw()) {
            (None, false) => {
                crypto::plan(&self.at, &self.datasets.keys, Some(parent), wish.encryption.clone())?
            }
            _ => None,
        };
        if plan.is_some() && wish.has(stream_feature::EMBED_DATA) {
            return Err(embedded());
        }
        let flags = self.new_flags(&wish);
        let from = origin.map_or_else(|| self.origin(), |origin| Ok(Some(origin)))?;
        let (dir, number) = tree::create_dataset(&self.at, (parent, last), from, flags)?;
        if let Some(plan) = plan {
            crypto::apply(&self.at, &self.datasets.keys, (dir, number), plan)?;
        }
        if let (Some(key), None) = (&wish.key, &origin) {
            received_key::receive_key(&self.at, (dir, number), key)?;
        }
        self.fill_from(Begun { number, is_new: true, is_clone: origin.is_some(), from: 0, wish, bytes: 0 })
    }

    /// The snapshot that a new dataset is a clone of.
    fn origin_of(&self, name: &str, wish: &Wish) -> Result<Origin> {
        let (of, number) = names::find_snapshot(&self.at, self.pool, name)?;
        let snapshot = self.at.dataset(number)?;
        if wish.from_guid != 0 && snapshot.guid != wish.from_guid {
            return Err(mismatch(&wish.target));
        }
        if snapshot.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            return Err(refuse(Kind::Invalid, "the origin is inconsistent"));
        }
        self.check_redaction(number, wish)?;
        let encrypted = crypto::key_object(&self.at, of.dir)?.is_some();
        if encrypted != wish.is_raw() && (wish.is_raw() || wish.has(stream_feature::EMBED_DATA)) {
            return Err(if wish.is_raw() {
                refuse(Kind::Invalid, "the origin is not encrypted")
            } else {
                embedded()
            });
        }
        if let (Some(key), true) = (&wish.key, encrypted) {
            received_key::check_received(&self.at, of.dir, (number, wish.from_guid), key)?;
        }
        Ok(Origin { number, head: of.head })
    }

    /// What was redacted of a snapshot must not be needed by the stream.
    #[doc(alias = "redact_check")]
    fn check_redaction(&self, snapshot: u64, wish: &Wish) -> Result<()> {
        let Some(by) = self.at.extra(snapshot, Feature::RedactedDatasets.info().guid)? else { return Ok(()) };
        let within =
            wish.from_redacted.as_ref().is_some_and(|all| all.iter().all(|guid| by.ints.contains(guid)));
        match within || by.ints.contains(&wish.to_guid) {
            true => Ok(()),
            false => {
                Err(refuse(Kind::Invalid, "the destination was redacted by other snapshots than the stream"))
            }
        }
    }

    fn new_flags(&self, wish: &Wish) -> u64 {
        if wish.flags & begin_flag::CI_DATA != 0 { DslDataset::FLAG_CI_DATASET } else { 0 }
    }

    /// A clone below an existing target.
    #[doc(alias = "recv_begin_check_existing_impl")]
    fn begin_into(&self, wish: Wish, found: names::Found) -> Result<Begun> {
        let target = &wish.target;
        if wish.flags & begin_flag::CLONE != 0 || wish.origin.is_some() {
            return Err(refuse(Kind::Invalid, "a clone can't be received into an existing dataset"));
        }
        let dir = self.at.dir(found.dir)?;
        let partial = || {
            let what =
                format!("destination {target} contains partially-complete state from \"zfs receive -s\".");
            refuse(Kind::Busy, what)
        };
        if self.at.zap_word(dir.child_dir_zapobj, RECEIVE_CHILD)?.is_some()
            || has_resume_state(&self.at, found.head)?
        {
            return Err(partial());
        }
        let head = self.at.dataset(found.head)?;
        if head.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            return Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(target));
        }
        if self.at.zap_word(head.snapnames_zapobj, wish.snapshot.as_str())?.is_some() {
            return Err(refuse(Kind::Exists, "destination already exists"));
        }
        if wish.kind == ObjsetType::Zvol && self.has_children(dir.child_dir_zapobj)? {
            return Err(refuse(Kind::Invalid, "a volume can't have children"));
        }
        limits::check_snapshots(&self.at, std::iter::once(found.dir))?;
        space::check_room(&self.at, 5, false)?;
        let encrypted = crypto::key_object(&self.at, found.dir)?.is_some();
        let from = match wish.from_guid {
            0 => self.check_full(&wish, encrypted)?,
            guid => self.check_incremental(&wish, (found, &head), guid)?,
        };
        if encrypted && !wish.is_raw() && wish.has(stream_feature::EMBED_DATA) {
            return Err(embedded());
        }
        if let Some(key) = &wish.key {
            received_key::check_received(&self.at, found.dir, (from, wish.from_guid), key)?;
        } else if encrypted {
            self.datasets.keys.open_for_writing(found.head)?;
        }
        let origin = if from == 0 { self.origin()? } else { Some(Origin { number: from, head: found.head }) };
        let flags = self.new_flags(&wish);
        let clone_dir = tree::create_dir(&self.at, Some((found.dir, RECEIVE_CHILD)))?;
        let number = tree::create_head(&self.at, clone_dir, origin, flags)?;
        self.fill_from(Begun { number, is_new: false, is_clone: from != 0, from, wish, bytes: 0 })
    }

    fn has_children(&self, zap: u64) -> Result<bool> {
        Ok(self.at.zap_entries(zap)?.iter().any(|entry| !entry.name_lossy().starts_with(['%', '$'])))
    }

    fn check_full(&self, wish: &Wish, encrypted: bool) -> Result<u64> {
        if !wish.force {
            return Err(refuse(Kind::Exists, "destination already exists"));
        }
        if encrypted || wish.is_raw() {
            let what = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one \
                        with an encrypted one";
            return Err(refuse(Kind::Invalid, what));
        }
        Ok(0)
    }

    /// The snapshot that an incremental stream builds on.
    fn check_incremental(
        &self,
        wish: &Wish,
        (found, head): (names::Found, &DslDataset),
        guid: u64,
    ) -> Result<u64> {
        let mut number = head.prev_snap_obj;
        loop {
            if number == 0 {
                return Err(mismatch(&wish.target));
            }
            let snapshot = self.at.dataset(number)?;
            if snapshot.dir_obj != found.dir {
                return Err(mismatch(&wish.target));
            }
            if snapshot.guid == guid {
                break;
            }
            number = snapshot.prev_snap_obj;
        }
        let newer = number != head.prev_snap_obj || is_modified(&self.at, found.head, number)?;
        if newer && !wish.force {
            return Err(modified(&wish.target));
        }
        self.check_redaction(number, wish)?;
        Ok(number)
    }

    /// Marks a dataset that is about to be filled, and opens it.
    fn fill_from(&self, begun: Begun) -> Result<Begun> {
        let (at, wish, number) = (&self.at, &begun.wish, begun.number);
        at.change_dataset(number, |phys| phys.flags |= DslDataset::FLAG_INCONSISTENT)?;
        if wish.resumable {
            self.note_resumable(number, wish)?;
        }
        if wish.has(stream_feature::REDACTED) {
            let guids = wish.redacted.clone().unwrap_or_default();
            if at.extra(number, Feature::RedactedDatasets.info().guid)?.is_none() {
                at.count(Feature::RedactedDatasets, 1)?;
            }
            at.set_extra(number, Feature::RedactedDatasets.info().guid, Value::from(guids))?;
        }
        for (bit, feature) in [
            (stream_feature::LONGNAME, Feature::Longname),
            (stream_feature::LARGE_MICROZAP, Feature::LargeMicrozap),
        ] {
            if wish.has(bit) {
                tree::use_feature(at, number, feature)?;
            }
        }
        let live = match (begun.is_clone, &wish.key) {
            (true, key) => {
                super::log::forget(at, number)?;
                self.datasets.open_received(at, number, key.as_ref())?
            }
            (false, None) => {
                // An existing dataset's key is what its clone has.
                let live = self.datasets.create_objset(at, number, wish.kind)?;
                self.datasets.sync_dataset(at, &live)?;
                live
            }
            (false, Some(key)) => {
                let live = self.datasets.create_raw_objset(at, number, wish.kind, key)?;
                self.datasets.sync_dataset(at, &live)?;
                live
            }
        };
        own(&live)?;
        Ok(begun)
    }

    /// Notes what a token says.
    fn note_resumable(&self, number: u64, wish: &Wish) -> Result<()> {
        let set = |name: &str, value: Value| self.at.set_extra(number, name, value);
        if wish.from_guid != 0 {
            set(field::RESUME_FROMGUID, wish.from_guid.into())?;
        }
        set(field::RESUME_TOGUID, wish.to_guid.into())?;
        set(field::RESUME_TONAME, wish.to_name.as_str().into())?;
        // The first object that a stream may begin with.
        set(field::RESUME_OBJECT, 1.into())?;
        set(field::RESUME_OFFSET, 0.into())?;
        set(field::RESUME_BYTES, 0.into())?;
        for (bit, name) in [
            (stream_feature::LARGE_BLOCKS, field::RESUME_LARGEBLOCK),
            (stream_feature::EMBED_DATA, field::RESUME_EMBEDOK),
            (stream_feature::COMPRESSED, field::RESUME_COMPRESSOK),
            (stream_feature::RAW, field::RESUME_RAWOK),
        ] {
            if wish.has(bit) {
                set(name, 1.into())?;
            }
        }
        match &wish.from_redacted {
            Some(guids) => set(field::RESUME_REDACT_BOOKMARK_SNAPS, Value::from(guids.clone())),
            None => Ok(()),
        }
    }

    /// Goes on where an interrupted receive stopped.
    #[doc(alias("dmu_recv_resume_begin_check", "dmu_recv_resume_begin_sync"))]
    fn resume(&self, wish: Wish, found: names::Found) -> Result<Begun> {
        let child = self.at.zap_word(self.at.dir(found.dir)?.child_dir_zapobj, RECEIVE_CHILD)?;
        let (number, is_new) = match child {
            Some(dir) => (self.at.dir(dir)?.head_dataset_obj, false),
            None => (found.head, true),
        };
        let phys = self.at.dataset(number)?;
        let none = || refuse(Kind::Invalid, "the destination has no resumable receive state");
        if phys.flags & DslDataset::FLAG_INCONSISTENT == 0 || !has_resume_state(&self.at, number)? {
            return Err(none());
        }
        if self.datasets.opened(number).is_some_and(|live| live.objset.has_log()) {
            return Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(&wish.target));
        }
        let word =
            |name| -> Result<u64> { Ok(self.at.extra(number, name)?.and_then(|v| v.first()).unwrap_or(0)) };
        let is = (word(field::RESUME_OBJECT)?, word(field::RESUME_OFFSET)?);
        let guids = (word(field::RESUME_TOGUID)?, word(field::RESUME_FROMGUID)?);
        let raw = self.at.extra(number, field::RESUME_RAWOK)?.is_some();
        if wish.resumes != Some(is) || guids != (wish.to_guid, wish.from_guid) || raw != wish.is_raw() {
            return Err(refuse(Kind::Invalid, "the stream does not go on where the receive was interrupted"));
        }
        let guid_of =
            |number| -> Result<u64> { if number == 0 { Ok(0) } else { Ok(self.at.dataset(number)?.guid) } };
        if wish.from_guid != 0 && guid_of(phys.prev_snap_obj)? != wish.from_guid {
            return Err(mismatch(&wish.target));
        }
        let is_clone = wish.from_guid != 0 || wish.origin.is_some();
        let from = if is_new || wish.from_guid == 0 { 0 } else { phys.prev_snap_obj };
        if let Some(key) = &wish.key {
            received_key::check_received(&self.at, phys.dir_obj, (from, wish.from_guid), key)?;
        }
        self.datasets.close(number);
        let live = self.datasets.open_received(&self.at, number, wish.key.as_ref())?;
        own(&live)?;
        let bytes = word(field::RESUME_BYTES)?;
        Ok(Begun { number, is_new, is_clone, from, wish: Wish { resumable: true, ..wish }, bytes })
    }

    /// Ends a receive whose last record has come: the snapshot is there from now on. Gives its number.
    #[doc(alias("dmu_recv_end_check", "dmu_recv_end_sync"))]
    pub fn end_receive(&self, begun: &Begun) -> Result<u64> {
        let (at, wish) = (&self.at, &begun.wish);
        space::check_room(at, 3, true)?;
        let found = names::find_head(at, self.pool, &wish.target)?;
        let head = if begun.is_new { begun.number } else { found.head };
        if begun.is_new && found.head != begun.number {
            return Err(Error::not_found("the dataset that was received is gone").in_dataset(&wish.target));
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
    fn take_over(&self, begun: &Begun, found: names::Found) -> Result<()> {
        let (at, wish, head) = (&self.at, &begun.wish, found.head);
        self.refuse_mounted(head, &wish.target)?;
        let mut newer = Vec::new();
        let mut next = at.dataset(head)?.prev_snap_obj;
        while next != 0 && next != begun.from {
            let snapshot = at.dataset(next)?;
            if snapshot.dir_obj != found.dir {
                break;
            }
            newer.push(next);
            next = snapshot.prev_snap_obj;
        }
        if !wish.force {
            let since = at.dataset(head)?.prev_snap_obj;
            if !newer.is_empty() || since != 0 && is_modified(at, head, since)? {
                return Err(modified(&wish.target));
            }
        }
        newer.iter().try_for_each(|&number| destroy::check_snapshot(at, number, false))?;
        for &number in &newer {
            destroy::snapshot(at, number, None, false)?;
        }
        swap::check(at, begun.number, head).map_err(|e| e.in_dataset(&wish.target))?;
        if let Some(key) = &wish.key {
            received_key::replace_key(at, found.dir, key)?;
        }
        self.datasets.close(head);
        self.datasets.close(begun.number);
        swap::swap(at, begun.number, head)?;
        self.datasets.note_replaced(destroy::replaced(at, begun.number, RECEIVE_CHILD)?);
        self.datasets.keys.forget(head);
        Ok(())
    }

    /// Refuses a target that is mounted, or a volume in use: its content would change under it.
    fn refuse_mounted(&self, head: u64, name: &str) -> Result<()> {
        match self.datasets.opened(head).is_some_and(|live| live.objset.has_log()) {
            true => Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(name)),
            false => Ok(()),
        }
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
        for entry in self.at.zap_entries(zap)? {
            let entry = entry.name_lossy();
            let is_outdated = |name: &str| all.iter().all(|(n, _)| n != name) && clears(name);
            let outdated = entry.strip_suffix(RECEIVED).is_some_and(is_outdated);
            if outdated {
                self.at.zap_remove(zap, &entry)?;
            }
        }
        if found.snapshot.is_none() {
            super::props::set(&self.at, found.head, "$hasrecvd", Some(&PropValue::Number(0)), Source::Local)?;
        }
        let settings: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), Some(value.clone()))).collect();
        if settings.is_empty() { Ok(()) } else { self.set(name, &settings, Source::Received) }
    }

    fn forget_resume_state(&self, dataset: u64) -> Result<()> {
        for name in RESUME_FIELDS {
            if self.at.extra(dataset, name)?.is_some() {
                self.at.zap_remove(dataset, name)?;
            }
        }
        Ok(())
    }

    /// Ends a receive that failed: what has been filled goes, unless it can be resumed.
    #[doc(alias = "dmu_recv_cleanup_ds")]
    pub fn abort_receive(&self, number: u64, target: &str, keep: bool) -> Result<()> {
        if let Some(live) = self.datasets.opened(number) {
            live.objset.set_log(None);
        }
        if keep && has_resume_state(&self.at, number)? {
            return Ok(());
        }
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

/// All that a dataset keeps of a receive that was interrupted.
const RESUME_FIELDS: [&str; 11] = [
    field::RESUME_FROMGUID,
    field::RESUME_TONAME,
    field::RESUME_TOGUID,
    field::RESUME_OBJECT,
    field::RESUME_OFFSET,
    field::RESUME_BYTES,
    field::RESUME_LARGEBLOCK,
    field::RESUME_EMBEDOK,
    field::RESUME_COMPRESSOK,
    field::RESUME_RAWOK,
    field::RESUME_REDACT_BOOKMARK_SNAPS,
];

fn own(live: &Arc<LiveDataset>) -> Result<()> {
    match live.objset.set_log(Some(Arc::new(Owner))) {
        true => Ok(()),
        false => Err(refuse(Kind::Busy, "dataset is busy")),
    }
}

fn mismatch(target: &str) -> Error {
    refuse(Kind::NotFound, format!("most recent snapshot of {target} does not\nmatch incremental source"))
}

fn modified(target: &str) -> Error {
    refuse(Kind::Busy, format!("destination {target} has been modified\nsince most recent snapshot"))
}

fn embedded() -> Error {
    refuse(Kind::Invalid, "incompatible embedded data stream feature with encrypted receive.")
}
