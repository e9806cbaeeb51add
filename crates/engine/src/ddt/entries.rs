//! The entries of a table's ZAP.

use crate::error::{Error, Result};
use crate::zap::{Cursor, Zap, ZapEntry, ZapKey};
use ondisk::ddt::{DDT_TRAD_SIZE, DdtKey, DdtPhys, DdtPhysFlat, decode_value, decompress_value};

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdtEntry {
    /// Its key.
    pub key: DdtKey,
    /// Its variants in use.
    pub phys: Vec<DdtPhys>,
    /// The cursor of the next entry, as zdb numbers entries.
    pub cursor: u64,
}

/// Iterator over the entries of one ZAP. A malformed entry yields an error and is skipped.
#[derive(Debug)]
pub struct DdtEntries {
    cursor: Cursor,
    flat: bool,
    hash_bits: u32,
}

impl DdtEntries {
    pub(super) fn new(zap: &Zap, flat: bool, cookie: u64) -> Self {
        let hash_bits = zap.fat_header().map_or(28, |h| h.flags.hash_bits());
        Self { cursor: zap.entries_from(cookie), flat, hash_bits }
    }

    fn decode(&self, entry: &ZapEntry) -> Result<DdtEntry> {
        let bad = |e: ondisk::Malformed| Error::corrupt(e.to_string());
        let ZapKey::Words(words) = &entry.key else {
            return Err(Error::corrupt("dedup table with names for keys"));
        };
        let key = DdtKey::from_words(words).map_err(bad)?;
        let size = if self.flat { DdtPhysFlat::SIZE } else { DDT_TRAD_SIZE };
        let value = decompress_value(&entry.value.bytes(), size).map_err(bad)?;
        let phys = decode_value(self.flat, &value).map_err(bad)?;
        let next = u64::from(entry.cd).saturating_add(1);
        let cursor = entry.hash >> (64 - self.hash_bits) | next << self.hash_bits;
        Ok(DdtEntry { key, phys, cursor })
    }
}

impl Iterator for DdtEntries {
    type Item = Result<DdtEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.cursor.next()?;
        Some(entry.and_then(|entry| self.decode(&entry)))
    }
}
