//! Filling the indices of keys ([`super::fingerprints::Fingerprints`]) from the ZAPs, slice by slice.
//!
//! Two readers fill them: each txg whose look-ups reached ZAPs reads a slice for about the cost of these look-ups
//! ([`Tables::learn`]), and a background activity reads all of it after an import ([`Tables::read_part`]). The latter holds no
//! lock while it reads: when a ZAP may have changed meanwhile, the slice is dropped and read again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::DdtClass;
use super::host::DdtHost;
use super::known::{Hashing, Known, first_hash};
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

/// Result of [`Tables::read_part`].
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
    class: Option<DdtClass>,
    buckets: Range<usize>,
    zaps: Vec<Zap>,
}

fn held(all: &BTreeMap<u8, Live>) -> u64 {
    all.values().map(|table| table.known.bytes()).fold(0, u64::saturating_add)
}

impl Tables {
    /// Reads more of the ZAPs' keys into the indices, within their memory limit (syncing context).
    pub(super) fn learn(&self, host: &dyn DdtHost, all: &mut BTreeMap<u8, Live>) {
        let mut others = held(all);
        let room = host.index_room(others);
        for table in all.values_mut().filter(|table| table.damage.is_none()) {
            others = others.saturating_sub(table.known.bytes());
            table.learn(&host.view(), room.saturating_sub(others));
            others = others.saturating_add(table.known.bytes());
        }
        host.index_room(held(all));
    }

    /// Reads a small part of the ZAPs' keys into the indices, in open context. `room` takes the bytes that all indices hold and
    /// returns how many they may.
    pub(crate) fn read_part(&self, view: &Arc<Objset>, room: &dyn Fn(u64) -> u64) -> IndexProgress {
        let (before, objects) = {
            let all = self.all.lock();
            let wanted = all.iter().filter(|(_, table)| table.damage.is_none() && !table.known.is_full());
            let objects: Vec<(u8, BTreeMap<DdtClass, u64>)> =
                wanted.map(|(raw, table)| (*raw, table.objects.clone())).collect();
            (self.changes.load(Ordering::Relaxed), objects)
        };
        let mut progress = IndexProgress::Done;
        for (table, objects) in objects {
            let opened = open(view, &objects);
            let slice = {
                let mut all = self.all.lock();
                if self.changes.load(Ordering::Relaxed) != before {
                    return IndexProgress::Changed;
                }
                self.slice(&mut all, table, opened, room)
            };
            let Some(slice) = slice else { continue };
            let hashes = read(&slice.zaps, &slice.buckets);
            let mut all = self.all.lock();
            if self.changes.load(Ordering::Relaxed) != before {
                return IndexProgress::Changed;
            }
            if let Some(known) = all.get_mut(&slice.table).and_then(|table| table.known.of(slice.class)) {
                known.take(slice.buckets, hashes);
            }
            room(held(&all));
            progress = IndexProgress::Read;
        }
        progress
    }

    /// Whether an index lacks keys that it could have.
    pub(crate) fn wants_index(&self) -> bool {
        self.all.lock().values().any(|table| !table.known.is_full())
    }

    /// The slice that is read next; `None`: there is no room for one.
    fn slice(
        &self,
        all: &mut BTreeMap<u8, Live>,
        raw: u8,
        opened: Result<Vec<(DdtClass, Zap)>>,
        room: &dyn Fn(u64) -> u64,
    ) -> Option<Slice> {
        let all_held = held(all);
        let room = room(all_held);
        let known = &mut all.get_mut(&raw)?.known;
        let own = room.saturating_sub(all_held.saturating_sub(known.bytes()));
        known.fit(own);
        let (class, part, own) = known.next(own)?;
        let Some((zaps, total)) = opened.ok().and_then(|opened| hashed(opened, class, part.hashing())) else {
            part.give_up(0);
            return None;
        };
        let buckets = part.slice(LEAST_LEAVES * LEAF_ENTRIES, total, own);
        (!buckets.is_empty()).then_some(Slice { table: raw, class, buckets, zaps })
    }
}

impl Live {
    /// Reads the next slice of the ZAPs' keys into the index, if look-ups reached the ZAPs because the index did not cover them;
    /// keeps the index within `room` bytes. The slice costs about as much as the look-ups did.
    fn learn(&mut self, view: &Arc<Objset>, room: u64) {
        let looked_up = std::mem::take(&mut self.looked_up);
        self.known.fit(room);
        if looked_up == 0 || self.known.is_complete() {
            return;
        }
        let Some((class, part, room)) = self.known.next(room) else { return };
        let opened = open(view, &self.objects);
        let Some((zaps, total)) = opened.ok().and_then(|opened| hashed(opened, class, part.hashing())) else {
            return part.give_up(0);
        };
        let entries = looked_up.clamp(LEAST_LEAVES, MOST_LEAVES).saturating_mul(LEAF_ENTRIES);
        let buckets = part.slice(entries, total, room);
        if !buckets.is_empty() {
            part.take(buckets.clone(), read(&zaps, &buckets));
        }
    }
}

impl Known {
    /// Takes the keys that were read of the next slice. Beyond keys that cannot be read nothing will be covered.
    fn take(&mut self, buckets: Range<usize>, hashes: Result<Vec<u64>>) {
        match hashes {
            Ok(hashes) => self.cover(buckets, hashes.into_iter()),
            Err(_) => self.give_up(buckets.start),
        }
    }
}

/// The ZAPs of a table.
fn open(view: &Arc<Objset>, objects: &BTreeMap<DdtClass, u64>) -> Result<Vec<(DdtClass, Zap)>> {
    let zap = |(class, object): (&DdtClass, &u64)| Ok((*class, Zap::open(&view.object(*object)?)?));
    objects.iter().map(zap).collect()
}

/// The tables of a class, or all, and the number of their entries; `None` when one hashes keys in another way.
fn hashed(all: Vec<(DdtClass, Zap)>, class: Option<DdtClass>, hashing: Hashing) -> Option<(Vec<Zap>, u64)> {
    let of_class = all.into_iter().filter(|(of, _)| class.is_none_or(|class| class == *of));
    let zaps: Vec<Zap> = of_class.map(|(_, zap)| zap).collect();
    let is_hashed =
        |zap: &Zap| zap.fat_header().is_some_and(|header| hashing.is_of(header.flags, header.salt));
    let total = zaps.iter().map(|zap| zap.count().unwrap_or(0)).fold(0, u64::saturating_add);
    zaps.iter().all(is_hashed).then_some((zaps, total))
}

/// The hashes of the keys in these buckets.
fn read(zaps: &[Zap], buckets: &Range<usize>) -> Result<Vec<u64>> {
    let (start, end) = (first_hash(buckets.start).unwrap_or(u64::MAX), first_hash(buckets.end));
    let mut hashes = Vec::new();
    for zap in zaps {
        hashes.extend(zap.hashes_between(start, end)?);
    }
    Ok(hashes)
}
