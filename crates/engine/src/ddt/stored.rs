//! Entries of dedup tables in memory: as they are stored, as they are now, and the places where one may be.

use ondisk::Blkptr;
use ondisk::ddt::{DDT_TRAD_SIZE, DdtKey, DdtPhys, DdtPhysFlat, decode_value, decompress_value};

use super::DdtClass;
use super::host::DdtSource;
use crate::error::{Error, Result};
use crate::zap::{Value, Zap};
use crate::zio::dedup::ClaimAgain;

/// The variant of a flat value.
pub(super) const FLAT: u8 = 4;

/// An entry in use since the last sync pass.
#[derive(Default)]
pub(super) struct PendingEntry {
    /// As the table has it.
    pub(crate) stored: Option<Stored>,
    /// As it is now.
    pub(crate) phys: Vec<DdtPhys>,
    /// A new copy is being written.
    pub(super) writing: bool,
    /// Writes of the same block.
    pub(super) waiting: Vec<ClaimAgain>,
}

impl std::fmt::Debug for PendingEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { stored, phys, writing, waiting } = self;
        write!(f, "Pending({stored:?} -> {phys:?}, writing {writing}, {} wait)", waiting.len())
    }
}

impl PendingEntry {
    /// An entry as its table has it; `None`: it has none.
    pub(super) fn fetched(stored: Option<Stored>) -> Self {
        let phys = stored.as_ref().map(|stored| stored.phys.clone()).unwrap_or_default();
        Self { stored, phys, ..Self::default() }
    }
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// Class of the ZAP that has the key.
    pub(crate) class: Option<DdtClass>,
    /// The newest variants.
    pub(crate) phys: Vec<DdtPhys>,
    /// They are in the log.
    pub(crate) logged: bool,
}

/// An entry that changed: its key, as it is stored, as it is now.
pub(super) type ChangedEntry = (DdtKey, Option<Stored>, Vec<DdtPhys>);

/// Where an entry may be.
pub(super) struct EntryPlaces {
    pub(crate) flat: bool,
    pub(crate) logged: Option<Stored>,
    /// Whether that is the active side of the log.
    pub(crate) is_active: bool,
    /// Whether there is a log.
    pub(crate) has_log: bool,
    pub(crate) zaps: Vec<(DdtClass, u64, Option<Zap>)>,
    /// Why that cannot be known.
    pub(crate) damage: Option<Error>,
}

impl EntryPlaces {
    /// The places in a table that is not there yet.
    pub(super) fn nowhere(has_log: bool) -> Self {
        Self { flat: false, logged: None, is_active: false, has_log, zaps: Vec::new(), damage: None }
    }

    /// The entry of a key, and its class; ZAPs that had to be opened go to `opened`.
    pub(super) fn find(
        self,
        source: &dyn DdtSource,
        key: &DdtKey,
        opened: &mut Vec<(DdtClass, Zap)>,
    ) -> Result<Option<Stored>> {
        if let Some(why) = self.damage {
            return Err(why);
        }
        if self.logged.is_some() {
            return Ok(self.logged);
        }
        for place in self.zaps {
            let class = place.0;
            let zap = open(source, place, opened)?;
            if let Some(value) = zap.lookup_words(&key.to_words())? {
                let phys = decode(self.flat, &value)?;
                return Ok(Some(Stored { class: Some(class), phys, logged: false }));
            }
        }
        Ok(None)
    }
}

/// Opens the ZAP of a class, unless it is open; then it goes to `opened`.
pub(super) fn open(
    source: &dyn DdtSource,
    (class, object, zap): (DdtClass, u64, Option<Zap>),
    opened: &mut Vec<(DdtClass, Zap)>,
) -> Result<Zap> {
    if let Some(zap) = zap {
        return Ok(zap);
    }
    let zap = Zap::open(&source.view()?.object(object)?)?;
    opened.push((class, zap.clone()));
    Ok(zap)
}

/// The variants that a stored value has.
pub(super) fn decode(flat: bool, value: &Value) -> Result<Vec<DdtPhys>> {
    let bad = |e: ondisk::Malformed| Error::corrupt(e.to_string());
    let size = if flat { DdtPhysFlat::SIZE } else { DDT_TRAD_SIZE };
    let value = decompress_value(&value.bytes(), size).map_err(bad)?;
    decode_value(flat, &value).map_err(bad)
}

/// Whether a variant lists the block.
pub(super) fn is_of(phys: &DdtPhys, bp: &Blkptr) -> bool {
    let [[w0, w1], ..] = phys.dva_words;
    phys.phys_birth == bp.physical_birth() && bp.words().first_chunk() == Some(&[w0, w1])
}

/// A log entry for a key without copies.
pub(super) fn no_copies() -> DdtPhys {
    unused(FLAT)
}

/// A variant without copies and references.
pub(super) fn unused(variant: u8) -> DdtPhys {
    let class_start = (variant == FLAT).then_some(0);
    DdtPhys { variant, dva_words: [[0; 2]; 3], refcnt: 0, phys_birth: 0, class_start }
}

/// All references of an entry.
pub(super) fn references(phys: &[DdtPhys]) -> u64 {
    phys.iter().filter(|p| p.variant != 0).map(|p| p.refcnt).fold(0, u64::saturating_add)
}

/// The class of the ZAP for an entry with these variants.
pub(super) fn class_of(phys: &[DdtPhys]) -> DdtClass {
    if references(phys) > 1 { DdtClass::Duplicate } else { DdtClass::Unique }
}
