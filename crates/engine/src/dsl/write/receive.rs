//! The DSL side of a receive: before the first record of a stream, and after its last.
//!
//! ```text
//!  begin ─ new dataset, or clone `%recv` below the target: marked inconsistent ─▶ filled by `engine::recv`
//!  end   ─ (newer snapshots give way) clone and target change contents ─▶ snapshot with the sender's guid ─▶ consistent
//! ```
//!
//! Crash argument: until the end task's txg is on disk the target is unchanged; the partially received
//! dataset is marked inconsistent, and the next import destroys it unless it can be resumed.
//!
//! Source: `dmu_recv_begin_check`, `dmu_recv_begin_sync`, dmu_recv.c, OpenZFS 2.3.

mod end;
mod heal;
mod resume;

use std::sync::Arc;

use ondisk::drr::{begin_flag, stream_feature};
use ondisk::dsl::DslDataset;
use ondisk::objset::ZilHeader;
use ondisk::{Dnode, ObjsetType};
use zcommon::features::Feature;

use super::crypto::Encryption;
use super::mos_tx::Limited;
use super::mos_tx::MosView;
use super::open_datasets::LiveDataset;
use super::received_key::{self, RawKey};
use super::tasks::Tasks;
use super::tree::{self, CloneOrigin};
use super::{crypto, limits, names, space};
use crate::dmu::{Objset, Tx};
use crate::dsl::RECEIVE_CHILD;
use crate::error::{Error, Kind, Result};
use crate::zap::Value;
use crate::zio::Form;
use resume::has_resume_state;

/// The target and the properties of a receive.
#[derive(Debug, Clone)]
pub struct Wish {
    /// File system or volume.
    pub(crate) target: String,
    /// The snapshot's name, behind the `@`.
    pub(crate) snapshot: String,
    /// Type of the stream's content.
    pub kind: ObjsetType,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot that it builds on; 0: none.
    pub(crate) from_guid: u64,
    /// Seconds since 1970.
    pub(crate) creation_time: u64,
    /// See [`begin_flag`].
    pub(crate) flags: u32,
    /// See [`stream_feature`].
    pub(crate) features: u64,
    /// The snapshot's name in the stream.
    pub(crate) to_name: String,
    /// Changes and snapshots since the one that the stream builds on give way.
    pub force: bool,
    /// Keep the received part when the stream breaks off.
    pub resumable: bool,
    /// The snapshot that a new dataset is a clone of.
    pub origin: Option<String>,
    /// Guids of the snapshots by which the stream was redacted.
    pub(crate) redacted: Option<Vec<u64>>,
    /// Guids of the redaction snapshots of the bookmark that the stream builds on.
    pub(crate) from_redacted: Option<Vec<u64>>,
    /// How a new dataset is encrypted, unless the stream is raw.
    pub encryption: Encryption,
    /// A raw stream's key.
    pub(crate) key: Option<RawKey>,
    /// After the receive the caller gives the dataset the encryption root that it has at the sender
    /// ([`Tasks::set_encryption_root`]), so that the key is stored as the sender wrapped it.
    pub roots_follow: bool,
    /// Position of a resumed stream: object and offset.
    pub resumes: Option<(u64, u64)>,
    /// The user that receives, unless it is the pool's owner.
    pub limited: Option<Arc<dyn Limited>>,
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
pub struct BegunReceive {
    /// The dataset that is filled.
    pub(crate) number: u64,
    /// Its guid: the number may be another dataset's once this one is gone.
    pub(super) guid: u64,
    /// The target was not there before.
    pub is_new: bool,
    /// It is filled over the content of another snapshot.
    pub(crate) is_clone: bool,
    /// The request.
    pub wish: Wish,
    /// Bytes of the stream that came before it broke off.
    pub(crate) bytes: u64,
}

impl BegunReceive {
    /// Number and guid of the dataset that is filled.
    pub fn dataset(&self) -> (u64, u64) {
        (self.number, self.guid)
    }
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

/// Whether a head has changed since one of its snapshots.
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

impl Tasks<'_> {
    /// Creates the dataset that a stream is received into. A refusal changes nothing, and its error has
    /// OpenZFS' text.
    #[doc(alias("dmu_recv_begin_check", "dmu_recv_begin_sync"))]
    pub(crate) fn begin_receive(&self, wish: Wish) -> Result<BegunReceive> {
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

    /// Checks that the pool supports the stream's features.
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
        if wish.flags & begin_flag::CLONE != 0 && wish.origin.is_none() && wish.resumes.is_none() {
            return Err(refuse(Kind::Invalid, "the stream makes a clone, and no origin is given"));
        }
        Ok(())
    }

    /// A new file system or volume.
    fn begin_new(&self, wish: Wish) -> Result<BegunReceive> {
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
        let from = origin.map_or_else(|| tree::origin(&self.at), |origin| Ok(Some(origin)))?;
        let (dir, number) = tree::create_dataset(&self.at, (parent, last), from, flags)?;
        if let Some(plan) = plan {
            crypto::apply(&self.at, &self.datasets.keys, (dir, number), plan)?;
        }
        if let (Some(key), None) = (&wish.key, &origin) {
            received_key::receive_key(&self.at, (dir, number), key)?;
        }
        let guid = self.at.dataset(number)?.guid;
        let is_clone = origin.is_some();
        self.fill_from(BegunReceive { number, guid, is_new: true, is_clone, wish, bytes: 0 })
    }

    /// The snapshot that a new dataset is a clone of.
    fn origin_of(&self, name: &str, wish: &Wish) -> Result<CloneOrigin> {
        let (of, number) = names::find_snapshot(&self.at, self.pool, name)?;
        let snapshot = self.at.dataset(number)?;
        if wish.from_guid != 0 && snapshot.guid != wish.from_guid {
            return Err(mismatch(&wish.target));
        }
        if snapshot.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            return Err(refuse(Kind::Invalid, "the origin is inconsistent"));
        }
        self.check_redaction(number, wish)?;
        self.check_large_blocks(number, wish)?;
        let encrypted = crypto::key_object(&self.at, of.dir)?.is_some();
        if encrypted != wish.is_raw() && (wish.is_raw() || wish.has(stream_feature::EMBED_DATA)) {
            return Err(if wish.is_raw() {
                refuse(Kind::Invalid, "the origin is not encrypted")
            } else {
                embedded()
            });
        }
        if encrypted && !wish.is_raw() {
            self.datasets.keys.open_for_writing(of.head)?;
        }
        if let (Some(key), true) = (&wish.key, encrypted) {
            received_key::check_received(&self.at, of.dir, (number, wish.from_guid), key)?;
        }
        Ok(CloneOrigin { number, head: of.head })
    }

    /// Checks that a stream does not need blocks that are redacted in the snapshot it builds on. A full
    /// stream needs none. A stream from a redaction bookmark, or a redacted one, must be redacted with
    /// respect to a subset of the snapshots that the base snapshot is redacted with respect to; any other
    /// stream must be of one of these snapshots.
    #[doc(alias = "redact_check")]
    fn check_redaction(&self, snapshot: u64, wish: &Wish) -> Result<()> {
        let Some(by) = self.at.extra(snapshot, Feature::RedactedDatasets.info().guid)? else { return Ok(()) };
        let is_subset =
            |guids: &[u64]| guids.len() <= by.ints.len() && guids.iter().all(|guid| by.ints.contains(guid));
        let fits = match (&wish.from_redacted, wish.has(stream_feature::REDACTED)) {
            _ if wish.from_guid == 0 => true,
            (Some(guids), _) => is_subset(guids),
            (None, true) => wish.redacted.as_deref().is_some_and(is_subset),
            (None, false) => by.ints.contains(&wish.to_guid),
        };
        match fits {
            true => Ok(()),
            false => {
                Err(refuse(Kind::Invalid, "the destination was redacted by other snapshots than the stream"))
            }
        }
    }

    /// A stream that is not redacted and was accepted over a redacted snapshot ([`Self::check_redaction`]) has every block
    /// that the snapshot lacks, so the dataset is complete, unlike the snapshot.
    fn complete_redacted(&self, number: u64) -> Result<()> {
        let redacted = Feature::RedactedDatasets.info().guid;
        if self.at.extra(number, redacted)?.is_none() {
            return Ok(());
        }
        self.at.zap_remove(number, redacted)?;
        self.at.count(Feature::RedactedDatasets, -1)
    }

    fn new_flags(&self, wish: &Wish) -> u64 {
        if wish.flags & begin_flag::CI_DATA != 0 { DslDataset::FLAG_CI_DATASET } else { 0 }
    }

    /// A clone below an existing target.
    #[doc(alias = "recv_begin_check_existing_impl")]
    fn begin_into(&self, wish: Wish, found: names::FoundDataset) -> Result<BegunReceive> {
        let target = &wish.target;
        if wish.flags & begin_flag::CLONE != 0 || wish.origin.is_some() {
            return Err(refuse(Kind::Invalid, "a clone can't be received into an existing dataset"));
        }
        let dir = self.at.dir(found.dir)?;
        let child = self.at.zap_word(dir.child_dir_zapobj, RECEIVE_CHILD)?;
        let receiving = match child {
            Some(child) => self.at.dir(child)?.head_dataset_obj,
            None => found.head,
        };
        if has_resume_state(&self.at, receiving)? {
            return Err(partial(target));
        }
        if child.is_some() {
            // Another receive is under way that could not be resumed.
            return Err(refuse(Kind::Busy, "dataset is busy"));
        }
        let head = self.at.dataset(found.head)?;
        if head.flags & DslDataset::FLAG_INCONSISTENT != 0 {
            return Err(Error::new(Kind::Busy, "dataset is busy").in_dataset(target));
        }
        if names::snapshot(&self.at, found.head, &wish.snapshot)?.is_some() {
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
        let origin = if from == 0 {
            tree::origin(&self.at)?
        } else {
            Some(CloneOrigin { number: from, head: found.head })
        };
        let flags = self.new_flags(&wish);
        let clone_dir = tree::create_dir(&self.at, Some((found.dir, RECEIVE_CHILD)))?;
        let number = tree::create_head(&self.at, clone_dir, origin, flags)?;
        let guid = self.at.dataset(number)?.guid;
        self.fill_from(BegunReceive { number, guid, is_new: false, is_clone: from != 0, wish, bytes: 0 })
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
        (found, head): (names::FoundDataset, &DslDataset),
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
        let has_newer = number != head.prev_snap_obj;
        if !wish.force && (has_newer && wish.is_raw() || is_modified(&self.at, found.head, number)?) {
            return Err(modified(&wish.target));
        }
        self.check_redaction(number, wish)?;
        self.check_large_blocks(number, wish)?;
        // Newer snapshots without changes stay.
        Ok(if wish.force { number } else { head.prev_snap_obj })
    }

    /// A stream without large blocks splits those of its files, which would replace the blocks that a stream with them made.
    /// A raw stream splits none: without them its sender has only objects whose large blocks are holes.
    #[doc(alias = "recv_check_large_blocks")]
    fn check_large_blocks(&self, snapshot: u64, wish: &Wish) -> Result<()> {
        let used = self.at.extra(snapshot, Feature::LargeBlocks.info().guid)?.is_some();
        let splits = !wish.has(stream_feature::LARGE_BLOCKS) && !wish.is_raw();
        if used && wish.from_guid != 0 && splits {
            let what = "incremental send stream requires -L (--large-block), to match previous receive.";
            return Err(refuse(Kind::Invalid, what));
        }
        Ok(())
    }

    /// Marks a dataset that is about to be filled, and opens it.
    fn fill_from(&self, begun: BegunReceive) -> Result<BegunReceive> {
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
        } else if begun.is_clone {
            self.complete_redacted(number)?;
        }
        // Large blocks count though there may be none any more: the next stream must have the flag, too.
        for (bit, feature) in [
            (stream_feature::LARGE_BLOCKS, Feature::LargeBlocks),
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
                // The clone of an existing dataset has its key.
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
}

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

fn partial(target: &str) -> Error {
    let what = format!("destination {target} contains partially-complete state from \"zfs receive -s\".");
    refuse(Kind::Busy, what)
}

fn embedded() -> Error {
    refuse(Kind::Invalid, "incompatible embedded data stream feature with encrypted receive.")
}
