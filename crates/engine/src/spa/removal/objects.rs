//! The objects of a mapping: the mapping itself, its obsolete counts, and the births.
//!
//! All are arrays that are only appended to. The counts, 32 bits for each entry, are the obsolete bytes of
//! the entry; condensing brings them up to date.

use std::sync::Arc;

use ondisk::indirect::{
    IndirectBirth, IndirectBirths, IndirectMapping as MappingHead, IndirectMappingEntry,
    IndirectMappingEntryPhys,
};
use ondisk::{Byteswap, Dva, ObjectType};
use zcommon::features::Feature;

use crate::dmu::NewObject;
use crate::dmu::edit::Edit as _;
use crate::dsl::write::MosTx;
use crate::error::{Error, Result};
use crate::vdev::indirect::{CopyBirth, MappingEntry};

/// Bytes of a block of all of them.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const BLOCK: u64 = 128 << 10;
const WORDS64: ObjectType = ObjectType::newtype(Byteswap::Uint64, true, false);
const WORDS32: ObjectType = ObjectType::newtype(Byteswap::Uint32, true, false);
/// Bytes of a mapping's head without counts.
#[doc(alias = "VDEV_INDIRECT_MAPPING_SIZE_V0")]
const HEAD_V0: usize = 24;

fn size(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Makes an empty mapping, with counts if the pool may have them.
#[doc(alias = "vdev_indirect_mapping_alloc")]
pub(super) fn create_mapping(at: &MosTx<'_>) -> Result<u64> {
    let counted = at.enabled(Feature::ObsoleteCounts);
    let head = if counted { MappingHead::SIZE } else { HEAD_V0 };
    let mapping = at.create_object(NewObject::with_bonus(WORDS64, BLOCK, WORDS64, head))?;
    if counted {
        let counts_object = at.create_object(NewObject::plain(WORDS32, BLOCK))?;
        at.count(Feature::ObsoleteCounts, 1)?;
        let head = MappingHead { counts_object, ..MappingHead::default() };
        at.handle(mapping)?.set_bonus(at.tx, &head.to_bytes())?;
    }
    Ok(mapping)
}

/// The head of a mapping.
pub(super) fn head(at: &MosTx<'_>, mapping: u64) -> Result<MappingHead> {
    let dnode = at.handle(mapping)?.dnode();
    MappingHead::from_bytes(dnode.bonus())
        .map_err(|e| Error::corrupt(format!("indirect mapping {mapping}: {e}")))
}

/// Appends entries, each with the bytes of it that are obsolete. Those with lower source offsets must be there already.
#[doc(alias = "vdev_indirect_mapping_add_entries")]
pub(super) fn append(at: &MosTx<'_>, mapping: u64, entries: &[(MappingEntry, u32)]) -> Result<()> {
    let Some((last, _)) = entries.last() else { return Ok(()) };
    let mut head = head(at, mapping)?;
    let (mut bytes, mut counts) = (Vec::new(), Vec::new());
    for (entry, obsolete) in entries {
        bytes.extend_from_slice(&encode(entry)?);
        counts.extend_from_slice(&obsolete.to_le_bytes());
        head.bytes_mapped = head.bytes_mapped.saturating_add(entry.len);
    }
    let before = head.num_entries;
    let width = size(IndirectMappingEntryPhys::SIZE);
    at.handle(mapping)?.edit(at.tx).write_at(before.saturating_mul(width), &bytes)?;
    if head.counts_object != 0 {
        at.handle(head.counts_object)?.edit(at.tx).write_at(before.saturating_mul(4), &counts)?;
    }
    head.num_entries = before.saturating_add(size(entries.len()));
    head.max_offset = last.source.saturating_add(last.len);
    let len = at.handle(mapping)?.dnode().bonus().len();
    let whole = head.to_bytes();
    at.handle(mapping)?.set_bonus(at.tx, whole.get(..len).unwrap_or(&whole))
}

fn encode(entry: &MappingEntry) -> Result<Vec<u8>> {
    let vdev = u32::try_from(entry.vdev).map_err(|_| Error::corrupt("vdev number too big"))?;
    let dst = Dva { vdev, offset: entry.offset, asize: entry.len, ..Dva::default() };
    let entry = IndirectMappingEntry { src_offset: entry.source, mark: false, dst };
    Ok(IndirectMappingEntryPhys::from(entry).to_bytes())
}

/// Frees a mapping with its counts.
#[doc(alias = "vdev_indirect_mapping_free")]
pub(super) fn free_mapping(at: &MosTx<'_>, mapping: u64) -> Result<()> {
    let counts = head(at, mapping)?.counts_object;
    if counts != 0 {
        at.free_object(counts)?;
        at.count(Feature::ObsoleteCounts, -1)?;
    }
    at.free_object(mapping)
}

/// The counts of a mapping of so many entries: all 0 when it has none.
#[doc(alias = "vdev_indirect_mapping_load_obsolete_counts")]
pub(super) fn counts(at: &MosTx<'_>, mapping: u64, entries: usize) -> Result<Vec<u32>> {
    let object = head(at, mapping)?.counts_object;
    if object == 0 {
        return Ok(vec![0; entries]);
    }
    let bytes = at.handle(object)?.edit(at.tx).read_at(0, entries.saturating_mul(4))?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|count| u32::from_le_bytes(*count)).collect())
}

/// Makes an empty list of births.
#[doc(alias = "vdev_indirect_births_alloc")]
pub(super) fn create_births(at: &MosTx<'_>) -> Result<u64> {
    at.create_object(NewObject::with_bonus(WORDS64, BLOCK, WORDS64, IndirectBirths::SIZE))
}

/// Records that the range from the previous entry up to `offset` was copied in this txg.
#[doc(alias = "vdev_indirect_births_add_entry")]
pub(super) fn add_birth(at: &MosTx<'_>, births: u64, offset: u64) -> Result<()> {
    let object = at.handle(births)?;
    let bad = |e: ondisk::Malformed| Error::corrupt(format!("indirect births {births}: {e}"));
    let count = IndirectBirths::from_bytes(object.dnode().bonus()).map_err(bad)?.count;
    let entry = IndirectBirth { offset, phys_birth_txg: at.tx.txg() };
    object.edit(at.tx).write_at(count.saturating_mul(size(IndirectBirth::SIZE)), &entry.to_bytes())?;
    object.set_bonus(at.tx, &IndirectBirths { count: count.saturating_add(1) }.to_bytes())
}

/// The births of a removal that is under way.
pub(super) fn births(at: &MosTx<'_>, births: u64) -> Result<Arc<[CopyBirth]>> {
    let object = at.handle(births)?;
    crate::metaslab::births(births, object.dnode().bonus(), |len| object.edit(at.tx).read_at(0, len))
}
