//! Where removed vdevs went, read from the MOS.

use std::sync::Arc;

use ondisk::indirect::{IndirectBirth, IndirectBirths, IndirectMappingEntry, IndirectMappingEntryPhys};

use crate::dmu::{Dense, Object, Objset};
use crate::error::{Error, Result};
use crate::vdev::indirect::{CopyBirth, IndirectMapping, MappingEntry};

/// Most entries of a mapping that are kept: 64 Mi of them are 1.5 GiB of table on disk.
const MAX_ENTRIES: u64 = 1 << 26;
const ENTRY_SIZE: u64 = 24;

/// Most txgs of one removal that are kept.
const MAX_BIRTHS: u64 = 1 << 22;

/// The txgs of the copies of a removed vdev, from the bonus buffer and the bytes of their object: `read` takes a length in
/// bytes.
///
/// # Errors
/// When the object is damaged or cannot be read.
#[doc(alias = "vdev_indirect_births_open")]
pub(crate) fn births(
    number: u64,
    bonus: &[u8],
    read: impl FnOnce(usize) -> Result<Vec<u8>>,
) -> Result<Arc<[CopyBirth]>> {
    let bad = |e: ondisk::Malformed| Error::corrupt(format!("indirect births {number}: {e}"));
    let count = IndirectBirths::from_bytes(bonus).map_err(bad)?.count;
    let count = usize::try_from(count.min(MAX_BIRTHS)).unwrap_or(0);
    let bytes = read(count.saturating_mul(IndirectBirth::SIZE))?;
    let decode = |entry: &[u8; IndirectBirth::SIZE]| {
        let entry = IndirectBirth::from_bytes(entry).map_err(bad)?;
        Ok(CopyBirth { end: entry.offset, txg: entry.phys_birth_txg })
    };
    let births: Arc<[CopyBirth]> = bytes.as_chunks().0.iter().map(decode).collect::<Result<_>>()?;
    if !births.is_sorted_by_key(|birth| birth.end) {
        return Err(Error::corrupt(format!("indirect births {number} are out of order")));
    }
    Ok(births)
}

/// The births of an object that is not being changed.
///
/// # Errors
/// As [`births`].
pub(crate) fn load_births(object: &Object) -> Result<Arc<[CopyBirth]>> {
    births(object.number, object.dnode.bonus(), |len| {
        if u64::try_from(len).unwrap_or(u64::MAX) > object.max_offset() {
            return Err(Error::corrupt(format!("indirect births {} of {len} bytes", object.number)));
        }
        object.read_vec(0, len)
    })
}

/// The mapping of the object `number` of the MOS; empty when that is 0.
pub(crate) fn load_mapping(mos: &Arc<Objset>, number: u64) -> Result<IndirectMapping> {
    if number == 0 {
        return Ok(IndirectMapping::default());
    }
    let object = mos.object(number)?;
    let bad = |e: ondisk::Malformed| Error::corrupt(format!("indirect mapping {number}: {e}"));
    let count = ondisk::indirect::IndirectMapping::from_bytes(object.dnode.bonus()).map_err(bad)?.num_entries;
    if count > MAX_ENTRIES || count.saturating_mul(ENTRY_SIZE) > object.max_offset() {
        return Err(Error::corrupt(format!("indirect mapping of {count} entries")));
    }
    let decode = |entry: &[u8; ENTRY_SIZE as usize]| -> Result<MappingEntry> {
        let entry = IndirectMappingEntry::from(IndirectMappingEntryPhys::from_bytes(entry).map_err(bad)?);
        let (vdev, offset, len) = (u64::from(entry.dst.vdev), entry.dst.offset, entry.dst.asize);
        Ok(MappingEntry { source: entry.src_offset, vdev, offset, len })
    };
    // Entry by entry, so that a table shorter than it claims is found out before it takes memory.
    let mut mapping = IndirectMapping::default();
    let (mut left, mut split) = (count.saturating_mul(ENTRY_SIZE), Vec::new());
    for block in Dense::new(&object, left) {
        split.extend_from_slice(&block?);
        split.truncate(usize::try_from(left).unwrap_or(usize::MAX).min(split.len()));
        let (entries, rest) = split.as_chunks::<{ ENTRY_SIZE as usize }>();
        entries.iter().try_for_each(|entry| mapping.push(decode(entry)?))?;
        left = left.saturating_sub(u64::try_from(split.len() - rest.len()).unwrap_or(0));
        split = rest.to_vec();
    }
    Ok(mapping)
}
