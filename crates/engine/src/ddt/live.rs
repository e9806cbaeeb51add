//! One dedup table of a pool that is being written.
//!
//! A table that cannot be read completely at import is *damaged* as a whole: it changes no more, new blocks
//! do not enter it, and frees of its blocks leak them, because their references are unknown. The pool stays
//! in use. A leaf that is found damaged later affects its own keys only: every look-up of them fails, with
//! the same result.

use std::collections::BTreeMap;
use std::sync::Arc;

use ondisk::ddt::{DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_VERSION_FDT, DdtHistogram, DdtKey};
use ondisk::names::{self, MOS_DIRECTORY_OBJECT};
use ondisk::{Blkptr, ChecksumType};

use super::fingerprints::Fingerprints;
use super::log_sync::LogSides;
use super::stored::{EntryPlaces, FLAT, PendingEntry, Stored};
use super::{DdtClass, DdtTable, STORE_TYPE, stats};
use crate::dmu::Objset;
use crate::error::{Error, Kind, Result};
use crate::zap::Zap;

/// Whether an error means that bytes are lost for good, not that a device is absent.
pub(super) fn is_damage(e: &Error) -> bool {
    matches!(e.kind(), Kind::Corrupt | Kind::Checksum | Kind::NotFound | Kind::Loop)
}

/// One table.
#[derive(Debug)]
pub(super) struct Live {
    pub(crate) checksum: ChecksumType,
    pub(crate) flat: bool,
    /// Directory that names the ZAPs; 0: it is made with the first entry.
    pub(crate) root: u64,
    pub(crate) objects: BTreeMap<DdtClass, u64>,
    pub(crate) histograms: BTreeMap<DdtClass, DdtHistogram>,
    /// Changes go to a log first.
    pub(crate) has_log: bool,
    /// The log; `None` until it is made.
    pub(crate) sides: Option<LogSides>,
    /// Statistics of the log's entries.
    pub(crate) logged: DdtHistogram,
    pub(crate) pending: BTreeMap<DdtKey, PendingEntry>,
    /// ZAPs open for reading until the next sync.
    pub(crate) opened: BTreeMap<DdtClass, Zap>,
    pub(crate) dirty: bool,
    /// The index of the ZAPs' keys.
    pub(crate) known: Fingerprints,
    /// Look-ups in ZAPs, since the last slice of them was read.
    pub(crate) looked_up: u64,
    /// Why it changes no more.
    pub(crate) damage: Option<Error>,
}

impl Live {
    /// A table without entries.
    #[doc(alias = "ddt_configure")]
    pub(crate) fn fresh(checksum: ChecksumType, fast: bool) -> Self {
        Self {
            checksum,
            flat: fast,
            root: if fast { 0 } else { MOS_DIRECTORY_OBJECT },
            objects: BTreeMap::new(),
            histograms: BTreeMap::new(),
            has_log: fast,
            sides: None,
            logged: DdtHistogram::default(),
            pending: BTreeMap::new(),
            opened: BTreeMap::new(),
            dirty: false,
            known: Fingerprints::complete(checksum),
            looked_up: 0,
            damage: None,
        }
    }

    /// A table that is damaged.
    pub(super) fn damaged(checksum: ChecksumType, why: Error) -> Self {
        Self { damage: Some(why), known: Fingerprints::default(), ..Self::fresh(checksum, false) }
    }

    /// An existing table.
    pub(super) fn new(mos: &Arc<Objset>, table: DdtTable, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<Self> {
        let known = table.version <= DDT_VERSION_FDT && table.flags & !(DDT_FLAG_FLAT | DDT_FLAG_LOG) == 0;
        if !known {
            let what = format!("dedup table of version {} with flags {:#x}", table.version, table.flags);
            return Err(Error::unsupported(what));
        }
        let root = Zap::open(&mos.object(table.root)?)?;
        let mut live = Self::fresh(table.checksum, table.is_flat());
        live.root = table.root;
        live.has_log = table.flags & DDT_FLAG_LOG != 0;
        if !table.logs.is_empty() {
            let sides = LogSides::of(table.logs);
            let sides = sides.ok_or_else(|| Error::corrupt("a dedup log without its other side"))?;
            for (key, entry) in sides.entries() {
                stats::tally(&mut live.logged, (key, &entry.phys), live.checksum, dsize, false);
            }
            live.sides = Some(sides);
        }
        for class in DdtClass::ALL {
            if let Some(object) = root.u64(&live.name(class))? {
                live.objects.insert(class, object);
            }
        }
        if !live.objects.is_empty() {
            let mut salts = Vec::new();
            for (class, object) in &live.objects {
                let zap = Zap::open(&mos.object(*object)?)?;
                salts.push((*class, zap.fat_header().map_or(0, |header| header.salt)));
            }
            live.known = Fingerprints::nothing(live.checksum, salts.into_iter());
        }
        for store in table.stores {
            let histogram = match store.histogram {
                Some(histogram) => histogram,
                None => live.count_store(&store, dsize)?,
            };
            live.histograms.insert(store.class, histogram);
        }
        Ok(live)
    }

    pub(crate) fn name(&self, class: DdtClass) -> String {
        names::ddt(self.checksum.name(), STORE_TYPE, class.name())
    }

    /// The variant that a block with so many copies uses.
    #[doc(alias = "DDT_PHYS_FOR_COPIES")]
    pub(crate) fn variant(&self, copies: u8) -> u8 {
        if self.flat { FLAT } else { copies }
    }

    pub(crate) fn count_store(
        &self,
        store: &super::DdtObject,
        dsize: &dyn Fn(&Blkptr) -> u64,
    ) -> Result<DdtHistogram> {
        let mut histogram = DdtHistogram::default();
        for entry in store.entries() {
            let entry = entry?;
            stats::tally(&mut histogram, (&entry.key, &entry.phys), self.checksum, dsize, false);
        }
        Ok(histogram)
    }

    /// Deflated bytes allocated for the blocks of the table and its log, and those that their references name.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let all = self.histograms.values().chain([&self.logged]).flat_map(|h| h.stat.iter());
        all.fold((0, 0), |sum, stat| (sum.0.saturating_add(stat.dsize), sum.1.saturating_add(stat.ref_dsize)))
    }

    /// Whether a ZAP may have the key.
    pub(crate) fn may_have(&self, key: &DdtKey) -> bool {
        self.objects.keys().any(|class| self.known.may_have(*class, key))
    }

    /// Where the entry of a key may be.
    pub(super) fn places(&mut self, key: &DdtKey) -> EntryPlaces {
        let logged = self.sides.as_ref().and_then(|sides| sides.find(key));
        let logged = logged.map(|e| Stored { class: e.class, phys: e.phys.clone(), logged: true });
        let zap = |(&class, &object): (&DdtClass, &u64)| (class, object, self.opened.get(&class).cloned());
        let damage = self.damage.clone();
        let may_have = |(class, _): &(&DdtClass, &u64)| logged.is_none() && self.known.may_have(**class, key);
        let zaps: Vec<_> = self.objects.iter().filter(may_have).map(zap).collect();
        self.looked_up += u64::from(!zaps.is_empty());
        let is_active = self.sides.as_ref().is_some_and(|sides| sides.active.entries.contains_key(key));
        EntryPlaces { flat: self.flat, logged, is_active, has_log: self.has_log, zaps, damage }
    }

    /// The ZAPs, for so many keys that only they tell.
    pub(crate) fn places_of_zaps(&mut self, keys: usize) -> EntryPlaces {
        let zap = |(&class, &object): (&DdtClass, &u64)| (class, object, self.opened.get(&class).cloned());
        let zaps = self.objects.iter().map(zap).collect();
        self.looked_up = self.looked_up.saturating_add(u64::try_from(keys).unwrap_or(u64::MAX));
        let (flat, has_log) = (self.flat, self.has_log);
        EntryPlaces { flat, logged: None, is_active: false, has_log, zaps, damage: None }
    }

    /// The ZAPs change: those open for reading are no longer true.
    pub(crate) fn close(&mut self) {
        self.opened.clear();
    }
}
