//! Filling the indices of keys ([`Known`]) from the ZAPs, slice by slice.
//!
//! Two readers fill them: each txg whose look-ups reached ZAPs reads a slice for about the cost of these look-ups
//! ([`Tables::learn`]), and a background activity reads all of it after an import ([`Tables::read_part`]). The latter holds no
//! lock while it reads: when a ZAP may have changed meanwhile, the slice is dropped and read again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ondisk::zap::ZapFlags;

use super::host::Host;
use super::known::{BUCKETS, Known, first_hash};
use super::live::Live;
use super::write::Tables;
use crate::dmu::Objset;
use crate::error::Result;
use crate::zap::Zap;

/// Entries of a leaf, about.
const LEAF_ENTRIES: u64 = 150;
/// Leaves that a slice reads at least.
const LEAST_LEAVES: u64 = 32;
/// Leaves that it reads at most.
const MOST_LEAVES: u64 = 2048;

/// What [`Tables::read_part`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexProgress {
    /// It read a part; there is more.
    Read,
    /// A table changed while it was read.
    Changed,
    /// Nothing is left to read, as far as memory allows.
    Done,
}

/// A slice of a table's keys that is to be read.
struct Slice {
    table: u8,
    buckets: Range<usize>,
    zaps: Vec<Zap>,
}

fn held(all: &BTreeMap<u8, Live>) -> u64 {
    let known = all.values().filter_map(|table| table.known.as_ref());
    known.map(Known::bytes).fold(0, u64::saturating_add)
}

impl Tables {
    /// Reads more of the ZAPs' keys into the indices, within their memory limit (syncing context).
    pub(super) fn learn(&self, host: &dyn Host, all: &mut BTreeMap<u8, Live>) {
        let mut others = held(all);
        let room = host.index_room(others);
        for table in all.values_mut().filter(|table| table.damage.is_none()) {
            let own = table.known.as_ref().map_or(0, Known::bytes);
            others = others.saturating_sub(own);
            table.learn(&host.view(), room.saturating_sub(others));
            others = others.saturating_add(table.known.as_ref().map_or(0, Known::bytes));
        }
        host.index_room(held(all));
    }

    /// Reads a small part of the ZAPs' keys into the indices, in open context. `room` takes the bytes that all indices hold and
    /// returns how many they may.
    pub(crate) fn read_part(&self, view: &Arc<Objset>, room: &dyn Fn(u64) -> u64) -> IndexProgress {
        let (before, objects) = {
            let all = self.all.lock();
            let wants = |table: &&Live| {
                table.damage.is_none() && table.known.as_ref().is_some_and(|known| !known.is_full())
            };
            let wanted = all.iter().filter(|(_, table)| wants(table));
            let objects: Vec<(u8, Vec<u64>)> =
                wanted.map(|(raw, table)| (*raw, table.objects.values().copied().collect())).collect();
            (self.changes.load(Ordering::Relaxed), objects)
        };
        let mut progress = IndexProgress::Done;
        for (table, objects) in objects {
            let opened = open_hashed(view, &objects);
            let slice = {
                let mut all = self.all.lock();
                if self.changes.load(Ordering::Relaxed) != before {
                    return IndexProgress::Changed;
                }
                self.slice(&mut all, table, opened, room)
            };
            let Some(slice) = slice else { continue };
            let words = read(&slice.zaps, &slice.buckets);
            let mut all = self.all.lock();
            if self.changes.load(Ordering::Relaxed) != before {
                return IndexProgress::Changed;
            }
            if let Some(known) = all.get_mut(&slice.table).and_then(|table| table.known.as_mut()) {
                known.take(slice.buckets, words);
            }
            room(held(&all));
            progress = IndexProgress::Read;
        }
        progress
    }

    /// Whether an index lacks keys that it could have.
    pub(crate) fn wants_index(&self) -> bool {
        self.all.lock().values().any(|table| table.known.as_ref().is_some_and(|known| !known.is_full()))
    }

    /// The slice that is read next; `None`: there is no room for one.
    fn slice(
        &self,
        all: &mut BTreeMap<u8, Live>,
        raw: u8,
        opened: Option<(Vec<Zap>, u64)>,
        room: &dyn Fn(u64) -> u64,
    ) -> Option<Slice> {
        let all_held = held(all);
        let room = room(all_held);
        let known = all.get_mut(&raw)?.known.as_mut()?;
        let own = room.saturating_sub(all_held.saturating_sub(known.bytes()));
        let Some((zaps, total)) = opened else {
            known.give_up(0);
            return None;
        };
        known.fit(own);
        let buckets = known.slice(LEAST_LEAVES * LEAF_ENTRIES, total, own);
        (!buckets.is_empty()).then_some(Slice { table: raw, buckets, zaps })
    }
}

impl Live {
    /// Reads the next slice of the ZAPs' keys into the index, if look-ups reached the ZAPs because the index did not cover them;
    /// keeps the index within `room` bytes. The slice costs about as much as the look-ups did.
    fn learn(&mut self, view: &Arc<Objset>, room: u64) {
        let looked_up = std::mem::take(&mut self.looked_up);
        let Some(known) = &mut self.known else { return };
        known.fit(room);
        if looked_up == 0 || known.covered() == BUCKETS {
            return;
        }
        let objects: Vec<u64> = self.objects.values().copied().collect();
        let Some((zaps, total)) = open_hashed(view, &objects) else { return known.give_up(0) };
        let entries = looked_up.clamp(LEAST_LEAVES, MOST_LEAVES).saturating_mul(LEAF_ENTRIES);
        let buckets = known.slice(entries, total, room);
        if !buckets.is_empty() {
            known.take(buckets.clone(), read(&zaps, &buckets));
        }
    }
}

impl Known {
    /// Takes the keys that were read of the next slice. Beyond keys that cannot be read nothing will be covered.
    fn take(&mut self, buckets: Range<usize>, words: Result<Vec<u64>>) {
        match words {
            Ok(words) => self.cover(buckets, words.into_iter()),
            Err(_) => self.give_up(buckets.start),
        }
    }
}

/// The ZAPs of a table and the number of their entries; `None` when one cannot be read, or does not have keys as hashes.
fn open_hashed(view: &Arc<Objset>, objects: &[u64]) -> Option<(Vec<Zap>, u64)> {
    let zaps = objects.iter().map(|object| Zap::open(&view.object(*object)?));
    let zaps = zaps.collect::<Result<Vec<Zap>>>().ok()?;
    let wanted = ZapFlags(ZapFlags::PRE_HASHED_KEY.0 | ZapFlags::HASH64.0);
    let is_hashed = |zap: &Zap| zap.fat_header().is_some_and(|header| header.flags.has(wanted));
    let total = zaps.iter().map(|zap| zap.count().unwrap_or(0)).fold(0, u64::saturating_add);
    zaps.iter().all(is_hashed).then_some((zaps, total))
}

/// The first words of the keys in these buckets.
fn read(zaps: &[Zap], buckets: &Range<usize>) -> Result<Vec<u64>> {
    let (start, end) = (first_hash(buckets.start).unwrap_or(u64::MAX), first_hash(buckets.end));
    let mut words = Vec::new();
    for zap in zaps {
        words.extend(zap.hashes_between(start, end)?);
    }
    Ok(words)
}
