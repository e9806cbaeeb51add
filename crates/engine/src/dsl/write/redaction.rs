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

use ondisk::dsl::{RedactionList, RedactionListHead};
use ondisk::{Byteswap, ObjectType};
use zcommon::features::Feature;

use super::lists;
use super::mos_tx::{MosTx, MosView};
use crate::dmu::NewObject;
use crate::error::Result;

/// The type of a list's object and of its bonus buffer.
#[doc(alias = "DMU_OTN_UINT64_METADATA")]
const KIND: ObjectType = ObjectType::newtype(Byteswap::Uint64, true, false);
/// A place in a snapshot, in the order of objects and blocks.
pub(crate) type RedactedPlace = (u64, u64);
/// The place that a complete list has reached.
pub(crate) const COMPLETE: RedactedPlace = (u64::MAX, u64::MAX);
/// Largest bonus buffer of the smallest dnode.
#[doc(alias = "dmu_bonus_max")]
pub(super) const MAX_BONUS: usize = 320;
/// Largest spill block that can be written.
///
/// Differs from OpenZFS, which takes blocks up to the pool's largest: some 16,000 snapshots are enough.
pub(super) const MAX_SPILL: usize = 128 << 10;

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

/// The bonus buffer of a list, or its spill block.
pub(super) fn get(at: &MosView<'_>, number: u64) -> Result<RedactionList> {
    let handle = at.handle(number)?;
    let list = match handle.spill()? {
        Some(spill) => RedactionList::from_bytes(&spill),
        None => RedactionList::from_bytes(handle.dnode().bonus()),
    };
    list.map_err(|e| super::super::malformed(number, &e))
}

/// Replaces it.
pub(super) fn put(at: &MosTx<'_>, number: u64, list: &RedactionList) -> Result<()> {
    let (handle, mut bytes) = (at.handle(number)?, list.to_bytes());
    if bytes.len() <= MAX_BONUS {
        return handle.set_bonus(at.tx, &bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    handle.set_spill(at.tx, Some(stdx::Buf::from(bytes.as_slice())))
}

/// Whether two lists have the same snapshots.
pub(super) fn same(one: &[u64], other: &[u64]) -> bool {
    one.len() == other.len() && one.iter().all(|guid| other.contains(guid))
}
