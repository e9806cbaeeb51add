//! What the MOS knows of vdevs: where removed ones went, and what leaves lack.
//!
//! Damage here never stops an open: a mapping that can't be read makes only its vdev unreadable, and
//! without a DTL a stale leaf is found out by checksums.

use std::sync::Arc;

use ondisk::Dva;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::vdev::indirect::{IndirectMapping, MappingEntry};
use crate::vdev::leaf::Dtl;
use crate::vdev::top::Layout;
use crate::vdev::tree::Tree;

/// Most entries of a mapping that are kept: 64 Mi of them are 1.5 GiB of table on disk.
const MAX_ENTRIES: u64 = 1 << 26;
const ENTRY_SIZE: u64 = 24;

/// Loads every mapping and DTL of `tree`; what fails is noted.
pub fn load_all(tree: &Tree, mos: &Arc<Objset>, notes: &mut Vec<Error>) {
    for config in &tree.config.children {
        let Some(top) = tree.top(config.id) else { continue };
        let Layout::Indirect(slot) = &top.layout else { continue };
        match load_mapping(mos, config.indirect_object) {
            Ok(mapping) => *slot.write() = Some(Arc::new(mapping)),
            Err(e) => notes.push(e.on_vdev(&top.name)),
        }
    }
    for config in tree.config.walk() {
        let Some(leaf) = tree.leaf(config.guid).filter(|_| config.dtl_object != 0) else { continue };
        match load_dtl(mos, config.dtl_object) {
            Ok(dtl) => *leaf.dtl.write() = dtl,
            Err(e) => notes.push(e.on_vdev(&leaf.path)),
        }
    }
}

fn load_mapping(mos: &Arc<Objset>, number: u64) -> Result<IndirectMapping> {
    if number == 0 {
        return Ok(IndirectMapping::default());
    }
    let object = mos.object(number)?;
    let count = object
        .dnode
        .bonus()
        .get(16..24)
        .and_then(|b| b.first_chunk::<8>())
        .map_or(0, |b| u64::from_le_bytes(*b));
    if count > MAX_ENTRIES || count.saturating_mul(ENTRY_SIZE) > object.max_offset() {
        return Err(Error::corrupt(format!("indirect mapping of {count} entries")));
    }
    let bytes =
        usize::try_from(count * ENTRY_SIZE).map_err(|_| Error::corrupt("indirect mapping is too large"))?;
    let table = object.read_vec(0, bytes)?;
    let (entries, _) = table.as_chunks::<24>();
    IndirectMapping::new(entries.iter().map(decode).collect())
}

/// `vdev_indirect_mapping_entry_phys_t`: source in sectors (63 bits), then the destination's DVA.
fn decode(entry: &[u8; 24]) -> MappingEntry {
    let word =
        |at: usize| entry.get(at..).and_then(|b| b.first_chunk::<8>()).map_or(0, |b| u64::from_le_bytes(*b));
    let dva = Dva::from_words(word(8), word(16));
    MappingEntry {
        source: (word(0) & (u64::MAX >> 1)) << ondisk::MIN_BLOCK_SHIFT,
        vdev: u64::from(dva.vdev),
        offset: dva.offset,
        len: dva.asize,
    }
}

/// A DTL is a space map whose "offsets" are transaction groups.
fn load_dtl(mos: &Arc<Objset>, number: u64) -> Result<Dtl> {
    let object = mos.object(number)?;
    let ranges = crate::metaslab::load(&object, 0, 0, u64::MAX)?;
    Ok(Dtl::new(ranges.iter().collect()))
}
