//! State of an interrupted receive: the token's values, kept with the dataset that is filled, and the check
//! of a stream that continues it.
//!
//! Source: `dmu_recv_resume_begin_check`, `dmu_recv_resume_begin_sync`, dmu_recv.c, OpenZFS 2.3.

use ondisk::drr::stream_feature;
use ondisk::dsl::DslDataset;
use ondisk::names::dsl_dataset as field;

use super::super::mos_tx::MosView;
use super::super::tasks::Tasks;
use super::super::tree;
use super::super::{names, received_key};
use super::{BegunReceive, Wish, own, refuse};
use crate::dsl::RECEIVE_CHILD;
use crate::error::{Error, Kind, Result};
use crate::zap::Value;

/// Whether a dataset is the rest of an interrupted receive.
#[doc(alias = "dsl_dataset_has_resume_receive_state")]
pub(super) fn has_resume_state(at: &MosView<'_>, dataset: u64) -> Result<bool> {
    Ok(at.extra(dataset, field::RESUME_TOGUID)?.is_some())
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

impl Tasks<'_> {
    /// Records the values of a resume token.
    pub(super) fn note_resumable(&self, number: u64, wish: &Wish) -> Result<()> {
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

    /// Resumes an interrupted receive.
    #[doc(alias("dmu_recv_resume_begin_check", "dmu_recv_resume_begin_sync"))]
    pub(super) fn resume(&self, wish: Wish, found: names::FoundDataset) -> Result<BegunReceive> {
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
        if self.has_snapshots(number, &phys)? {
            let what = "the partly received destination has snapshots, which must be destroyed first";
            return Err(refuse(Kind::Invalid, what).in_dataset(&wish.target));
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
        self.check_large_blocks(number, &wish)?;
        // The caller need not repeat `-o origin`: the dataset names its origin.
        let empty = tree::origin(&self.at)?.map_or(0, |origin| origin.number);
        let is_clone = ![0, empty].contains(&phys.prev_snap_obj);
        if let Some(key) = &wish.key {
            received_key::check_received(&self.at, phys.dir_obj, (phys.prev_snap_obj, wish.from_guid), key)?;
        }
        self.datasets.close(number);
        let live = self.datasets.open_received(&self.at, number, wish.key.as_ref())?;
        own(&live)?;
        let bytes = word(field::RESUME_BYTES)?;
        let wish = Wish { resumable: true, ..wish };
        Ok(BegunReceive { number, guid: phys.guid, is_new, is_clone, wish, bytes })
    }

    fn has_snapshots(&self, number: u64, phys: &DslDataset) -> Result<bool> {
        Ok(phys.prev_snap_obj != 0 && self.at.dataset(phys.prev_snap_obj)?.next_snap_obj == number)
    }

    pub(super) fn forget_resume_state(&self, dataset: u64) -> Result<()> {
        for name in RESUME_FIELDS {
            if self.at.extra(dataset, name)?.is_some() {
                self.at.zap_remove(dataset, name)?;
            }
        }
        Ok(())
    }
}
