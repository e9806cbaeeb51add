//! Look-ups of entries, alone and many at once.
//!
//! A key that the memory knows about (pending, in a log, or not in the index of the ZAPs) is answered at once. Others wait in
//! [`Lookups`] while a batch of earlier ones is read; then they are the next batch. So a batch is as large as the disks are
//! slow, no write waits for others to come, and each leaf is read once a batch, at the same time as other leaves. A waiting
//! write holds its block, so the bytes that wait are those of the blocks that are being written.
//!
//! Differs from OpenZFS, where each write reads the leaf of its key, and frees start reads ahead (`ddt_prefetch`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::ChecksumType;
use ondisk::ddt::DdtKey;
use parking_lot::Mutex;

use super::DdtClass;
use super::host::DdtSource;
use super::live::Live;
use super::stored::{EntryPlaces, PendingEntry, Stored, decode, open};
use super::write::Tables;
use crate::error::Result;
use crate::plug::plugged;
use crate::zap::Zap;
use crate::zio::dedup::{ClaimAgain, Where};

/// Keys of one batch.
const BATCH: usize = 512;

/// A key of a table.
pub(super) type LookupKey = (ChecksumType, DdtKey);

/// Look-ups in ZAPs since the pool was opened.
#[derive(Debug, Default)]
pub struct LookupCounts {
    /// Keys that were looked up in ZAPs.
    pub keys: AtomicU64,
    /// Batches of them.
    pub batches: AtomicU64,
    /// Leaves that these read, from memory or from disk.
    pub leaves: AtomicU64,
}

/// Look-ups that wait.
#[derive(Default)]
pub(crate) struct Lookups {
    waiting: Mutex<Waiting>,
    counts: LookupCounts,
}

#[derive(Default)]
struct Waiting {
    writes: Vec<(LookupKey, ClaimAgain)>,
    /// A job reads a batch, and then the next ones.
    is_served: bool,
}

impl std::fmt::Debug for Lookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lookups({} wait, {:?})", self.waiting.lock().writes.len(), self.counts)
    }
}

impl Lookups {
    /// A write waits for its entry.
    pub(super) fn put(&self, key: LookupKey, again: &mut Option<ClaimAgain>) {
        self.waiting.lock().writes.extend(again.take().map(|again| (key, again)));
    }

    fn next(&self) -> Vec<(LookupKey, ClaimAgain)> {
        let mut waiting = self.waiting.lock();
        let count = waiting.writes.len().min(BATCH);
        let batch: Vec<_> = waiting.writes.drain(..count).collect();
        waiting.is_served = !batch.is_empty();
        batch
    }
}

impl Tables {
    /// Counts of look-ups.
    pub(crate) fn lookup_counts(&self) -> &LookupCounts {
        &self.lookups.counts
    }

    /// A block is looked up. Returns whether only ZAPs tell its entry.
    pub(super) fn ask(&self, checksum: ChecksumType, key: &DdtKey) -> bool {
        let all = self.all.lock();
        let table = all.get(&checksum.raw());
        self.counts.asked(checksum, table.is_some_and(|table| table.pending.contains_key(key)));
        table.is_some_and(|table| table.asks_zaps(key))
    }

    /// Whether writes wait for entries, and no job looks them up: the caller starts one, for [`Tables::serve`].
    pub(crate) fn wants_service(&self) -> bool {
        let mut waiting = self.lookups.waiting.lock();
        !waiting.writes.is_empty() && !std::mem::replace(&mut waiting.is_served, true)
    }

    /// Looks up entries for which writes wait, until none waits.
    pub(crate) fn serve(&self, source: &dyn DdtSource) {
        loop {
            let batch = self.lookups.next();
            if batch.is_empty() {
                return;
            }
            self.fetch_many(source, batch.iter().map(|(key, _)| *key));
            plugged(|| batch.into_iter().for_each(|(_, again)| again(Where::Here)));
        }
    }

    /// Puts the entries of keys among the pending ones. Those that cannot be read stay away: a look-up of one alone tells why.
    pub(crate) fn fetch_many(&self, source: &dyn DdtSource, keys: impl Iterator<Item = LookupKey>) {
        let mut by_table: BTreeMap<u8, (ChecksumType, Vec<DdtKey>)> = BTreeMap::new();
        for (checksum, key) in keys {
            by_table.entry(checksum.raw()).or_insert((checksum, Vec::new())).1.push(key);
        }
        for (checksum, mut keys) in by_table.into_values() {
            let all = keys.len();
            keys.sort_unstable();
            keys.dedup();
            self.counts.waited(checksum, all - keys.len());
            self.fetch_of(source, checksum, keys);
        }
    }

    /// As [`Tables::fetch_many`], of one table; the keys differ.
    fn fetch_of(&self, source: &dyn DdtSource, checksum: ChecksumType, mut keys: Vec<DdtKey>) {
        let places = self.all.lock().get_mut(&checksum.raw()).map(|table| {
            keys.retain(|key| table.asks_zaps(key));
            table.places_of_zaps(keys.len())
        });
        let Some(places) = places.filter(|_| !keys.is_empty()) else { return };
        let counts = &self.lookups.counts;
        counts.keys.fetch_add(keys.len() as u64, Ordering::Relaxed);
        counts.batches.fetch_add(1, Ordering::Relaxed);
        let (has_log, mut opened) = (places.has_log, Vec::new());
        let found = self.look(source, places, keys, &mut opened);
        if let Some(table) = self.all.lock().get_mut(&checksum.raw()) {
            table.opened.extend(opened);
            for (key, stored) in found {
                self.counts.found(checksum, stored.as_ref(), false, has_log);
                table.pend(key, stored);
            }
        }
    }

    /// Looks keys up in ZAPs. Returns the entries that could be read.
    fn look(
        &self,
        source: &dyn DdtSource,
        places: EntryPlaces,
        mut rest: Vec<DdtKey>,
        opened: &mut Vec<(DdtClass, Zap)>,
    ) -> Vec<(DdtKey, Option<Stored>)> {
        let mut found = Vec::new();
        for place in places.zaps {
            if rest.is_empty() {
                break;
            }
            let class = place.0;
            let Ok(zap) = open(source, place, opened) else { return found };
            let words: Vec<_> = rest.iter().map(DdtKey::to_words).collect();
            let looked = zap.lookup_many(&words);
            self.lookups.counts.leaves.fetch_add(looked.leaves as u64, Ordering::Relaxed);
            for (key, answer) in std::mem::take(&mut rest).into_iter().zip(looked.values) {
                match answer {
                    Ok(None) => rest.push(key),
                    Ok(Some(value)) => found.extend(
                        decode(places.flat, &value)
                            .ok()
                            .map(|phys| (key, Some(Stored { class: Some(class), phys, logged: false }))),
                    ),
                    Err(_) => {}
                }
            }
        }
        found.extend(rest.into_iter().map(|key| (key, None)));
        found
    }

    /// Puts the entry of `key` among the pending ones.
    #[doc(alias = "ddt_lookup")]
    pub(super) fn fetch(&self, source: &dyn DdtSource, checksum: ChecksumType, key: &DdtKey) -> Result<()> {
        let places = match self.all.lock().get_mut(&checksum.raw()) {
            Some(table) if table.pending.contains_key(key) => return Ok(()),
            Some(table) => table.places(key),
            None => EntryPlaces::nowhere(source.makes_fast()),
        };
        let (mut opened, is_active, has_log) = (Vec::new(), places.is_active, places.has_log);
        let stored = places.find(source, key, &mut opened)?;
        self.counts.found(checksum, stored.as_ref(), is_active, has_log);
        let mut all = self.all.lock();
        let table = all.entry(checksum.raw()).or_insert_with(|| Live::fresh(checksum, source.makes_fast()));
        table.opened.extend(opened);
        table.pend(*key, stored);
        Ok(())
    }
}

impl Live {
    /// Whether only a look-up in a ZAP tells the entry of a key.
    fn asks_zaps(&self, key: &DdtKey) -> bool {
        let is_in_memory =
            || self.pending.contains_key(key) || self.sides.iter().any(|s| s.find(key).is_some());
        self.damage.is_none() && !self.objects.is_empty() && !is_in_memory() && self.may_have(key)
    }

    /// An entry was fetched.
    fn pend(&mut self, key: DdtKey, stored: Option<Stored>) {
        if let Slot::Vacant(slot) = self.pending.entry(key) {
            slot.insert(PendingEntry::fetched(stored));
        }
    }
}
