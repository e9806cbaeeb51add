//! Redaction lists: made empty with their bookmark, filled by further transactions, complete with the last one.
//!
//! The object has [`RedactBlock`] entries in its blocks, and a bonus buffer ([`RedactionList`]) with their
//! number, the redaction snapshots, and the position in the snapshot up to which the list goes. With more
//! snapshots than a bonus buffer has room for, the same bytes are in a spill block.
//!
//! Crash argument: entries, their number and the place they reach are changed by one transaction. A list
//! whose search was interrupted is marked as incomplete, is not accepted by a send, and is continued by the
//! same `zfs redact` from that place.
//!
//! Source: `redaction_list_phys_t`, `dsl_bookmark_create_sync_impl_snap`, `redaction_list_update_sync`, OpenZFS 2.4.

use ondisk::dsl::{RedactBlock, RedactionList, RedactionListHead};
use ondisk::{Byteswap, ObjectType};
use zcommon::features::Feature;

use super::bookmarks::{self, Source};
use super::mos_tx::{MosTx, MosView};
use super::tasks::Tasks;
use super::{lists, names, space};
use crate::dmu::NewObject;
use crate::dmu::edit::Edit;
use crate::error::{Error, Kind, Result};

/// The type of a list's object and of its bonus buffer.
#[doc(alias = "DMU_OTN_UINT64_METADATA")]
const KIND: ObjectType = ObjectType::newtype(Byteswap::Uint64, true, false);
/// A place in a snapshot, in the order of objects and blocks.
pub(crate) type RedactedPlace = (u64, u64);
/// The place that a complete list has reached.
pub(crate) const COMPLETE: RedactedPlace = (u64::MAX, u64::MAX);
/// Largest bonus buffer of the smallest dnode.
#[doc(alias = "dmu_bonus_max")]
const MAX_BONUS: usize = 320;
/// Largest spill block that can be written.
///
/// Differs from OpenZFS, which takes blocks up to the pool's largest: some 16,000 snapshots are enough.
const MAX_SPILL: usize = 128 << 10;

/// A bookmark whose redaction list is to be filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// Object number of the list.
    pub list: u64,
    /// The place up to which it goes.
    pub place: RedactedPlace,
}

/// Makes a list without entries.
pub(super) fn create(at: &MosTx<'_>, by: &[u64], reached: RedactedPlace) -> Result<u64> {
    let head = RedactionListHead { last_object: reached.0, last_blkid: reached.1, ..Default::default() };
    let list = RedactionList { head, snaps: by.to_vec() };
    let len = list.to_bytes().len();
    let spills = len > MAX_BONUS;
    let number = match spills {
        // One pointer, as system attributes have: OpenZFS makes three and writes the spill pointer over the last one.
        true => at.create_object(NewObject::with_bonus(KIND, lists::BLOCK, ObjectType::SA, 0))?,
        false => at.create_object(NewObject::with_bonus(KIND, lists::BLOCK, KIND, len))?,
    };
    at.count(Feature::RedactionBookmarks, 1)?;
    if spills {
        at.handle(number)?.set_typed_bonus(at.tx, KIND, &[])?;
        at.count(Feature::RedactionListSpill, 1)?;
    }
    put(at, number, &list)?;
    Ok(number)
}

/// Frees a list.
pub(super) fn free(at: &MosTx<'_>, number: u64) -> Result<()> {
    if at.handle(number)?.dnode().spill().is_some() {
        at.count(Feature::RedactionListSpill, -1)?;
    }
    at.free_object(number)?;
    at.count(Feature::RedactionBookmarks, -1)
}

fn get(at: &MosView<'_>, number: u64) -> Result<RedactionList> {
    let handle = at.handle(number)?;
    let list = match handle.spill()? {
        Some(spill) => RedactionList::from_bytes(&spill),
        None => RedactionList::from_bytes(handle.dnode().bonus()),
    };
    list.map_err(|e| super::super::malformed(number, &e))
}

fn put(at: &MosTx<'_>, number: u64, list: &RedactionList) -> Result<()> {
    let (handle, mut bytes) = (at.handle(number)?, list.to_bytes());
    if bytes.len() <= MAX_BONUS {
        return handle.set_bonus(at.tx, &bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    handle.set_spill(at.tx, Some(stdx::Buf::from(bytes.as_slice())))
}

fn same(one: &[u64], other: &[u64]) -> bool {
    one.len() == other.len() && one.iter().all(|guid| other.contains(guid))
}

impl Tasks<'_> {
    /// Makes the bookmark `name` (`tank/a#b`) of the snapshot `of` with a list to be filled, with respect to the
    /// snapshots `by`; or finds one that is not complete. The caller fills it by [`Tasks::redact`].
    ///
    /// # Errors
    /// `Unsupported` without the feature, `TooLarge` for too many snapshots, `Exists` when the bookmark is there
    /// and is none of these or is complete, `NotFound` for snapshots, `OtherDevice` when an unfinished list has other
    /// snapshots, `Invalid` when one does not descend from `of`, `NotPermitted` when one is redacted itself.
    #[doc(alias("dsl_bookmark_create_redacted", "dmu_redact_snap"))]
    pub fn begin_redaction(&self, name: &str, of: &str, by: &[String]) -> Result<Unfinished> {
        space::check_room(&self.at, 5, false)?;
        let invalid = |what: &str| Error::new(Kind::Invalid, what).in_dataset(name);
        let (dir, mark) = name.split_once('#').ok_or_else(|| invalid("no name of a bookmark"))?;
        let (found, snapshot) = names::find_snapshot(&self.at, self.pool, of)?;
        self.check_not_redacted(snapshot, of)?;
        let txg = self.at.dataset(snapshot)?.creation_txg;
        let mut guids = Vec::new();
        for name in by {
            let (head, number) = names::find_snapshot(&self.at, self.pool, name)?;
            let phys = self.at.dataset(number)?;
            if number == snapshot || phys.creation_txg <= txg {
                return Err(invalid("a redaction snapshot is not younger than the snapshot"));
            }
            self.check_before(head.head, found.head, txg)?;
            self.check_not_redacted(number, name)?;
            guids.push(phys.guid);
        }
        names::check_part(mark).map_err(|e| e.in_dataset(name))?;
        if let Some(known) = bookmarks::find(&self.at, found.head, mark)? {
            return self.go_on(known.redaction_obj, &guids).map_err(|e| e.in_dataset(name));
        }
        if !self.at.enabled(Feature::RedactionBookmarks) {
            return Err(Error::unsupported("redaction bookmarks feature not enabled").in_dataset(name));
        }
        let most = if self.at.enabled(Feature::RedactionListSpill) { MAX_SPILL } else { MAX_BONUS };
        if RedactionListHead::SIZE + guids.len() * size_of::<u64>() > most {
            return Err(Error::new(Kind::TooLarge, "too many redaction snapshots specified").in_dataset(name));
        }
        let list = bookmarks::create(&self.at, found.head, mark, &Source::Redacted(snapshot, guids))?;
        let what = format!("name={mark} creation_txg={txg} target_snap={snapshot} redact_obj={list}");
        self.log("bookmark", dir, found.head, &what)?;
        Ok(Unfinished { list, place: (0, 0) })
    }

    fn check_not_redacted(&self, number: u64, name: &str) -> Result<()> {
        match self.at.extra(number, Feature::RedactedDatasets.info().guid)? {
            Some(_) => Err(Error::new(Kind::NotPermitted, "the dataset is redacted itself").in_dataset(name)),
            None => Ok(()),
        }
    }

    fn go_on(&self, number: u64, guids: &[u64]) -> Result<Unfinished> {
        let exists = || Error::new(Kind::Exists, "bookmark already exists");
        if number == 0 {
            return Err(exists());
        }
        let list = get(&self.at, number)?;
        if !same(&list.snaps, guids) {
            return Err(Error::new(Kind::OtherDevice, "the unfinished list has other redaction snapshots"));
        }
        match (list.head.last_object, list.head.last_blkid) {
            COMPLETE => Err(exists()),
            place if self.datasets.long_holds.has(number) => {
                let what = format!("another redaction is at object {}", place.0);
                Err(Error::new(Kind::Busy, what))
            }
            place => Ok(Unfinished { list: number, place }),
        }
    }

    /// Adds entries to a list, which then goes up to `reached`.
    ///
    /// # Errors
    /// `NotFound` when the list is gone.
    #[doc(alias = "redaction_list_update_sync")]
    pub fn redact(&self, number: u64, blocks: &[RedactBlock], reached: RedactedPlace) -> Result<()> {
        space::check_room(&self.at, 2, false)?;
        let mut list = get(&self.at, number)?;
        let entries: Vec<u8> = blocks.iter().flat_map(RedactBlock::to_bytes).collect();
        let size = RedactBlock::SIZE as u64;
        let offset = list.head.num_entries.saturating_mul(size);
        if !entries.is_empty() {
            self.at.handle(number)?.edit(self.at.tx).write_at(offset, &entries)?;
        }
        let head = &mut list.head;
        head.num_entries += u64::try_from(entries.len()).unwrap_or(0) / size;
        (head.last_object, head.last_blkid) = reached;
        put(&self.at, number, &list)
    }
}
