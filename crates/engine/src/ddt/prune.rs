//! Pruning dedup tables: entries with one reference leave, so that tables of data without duplicates stay small.
//!
//! A pruned block stays where it is. Its pointer still has the dedup bit; when it is freed and no entry names
//! its place, it is freed as any other ([`super::write::Tables::free`]).
//!
//! Differs from OpenZFS: entries of blocks with several copies stay. Pointers that were written before such a block got all of
//! them name fewer, and the others would leak with the entry.
//!
//! Crash argument: each batch is a sync task; a batch that is not on disk has not happened.
//!
//! Source: `ddt_prune_walk`, ddt.c, OpenZFS 2.3.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;

use ondisk::ddt::DdtKey;

use super::host::DdtHost;
use super::live::Live;
use super::stored::decode;
use super::write::Tables;
use super::{DdtClass, DdtObject, tables};
use crate::dmu::Objset;
use crate::error::Result;
use crate::zap::ZapEdit;

/// Entries that are looked at, and pruned by one sync task, at a time: no txg ends while they are looked at.
#[doc(alias = "zfs_ddt_prunes_per_txg")]
pub(crate) const BATCH: usize = 50_000;
/// Age classes, by powers of two of hours, for a choice by percentage.
#[doc(alias = "HIST_BINS")]
const AGES: usize = 64;
/// Seconds of an hour.
const HOUR: u64 = 3600;

/// Which entries are pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prune {
    /// Entries not changed for so many seconds.
    Age(u64),
    /// The oldest, so many of a hundred, 1 to 100.
    Percentage(u64),
}

/// Entries of one table that a sync task may prune.
#[derive(Debug)]
pub struct Candidates {
    checksum: u8,
    keys: Vec<DdtKey>,
}

impl Candidates {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.keys.len()
    }
}

/// A place in the walk over the tables; the default is its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    checksum: u8,
    cursor: u64,
}

/// Calls `each` with the key and the age, in seconds, of flat entries with one reference: of at most `most` from `from` on.
/// Returns where the walk goes on, `None` at the end.
fn walk(
    mos: &Arc<Objset>,
    now: u64,
    (from, most): (Place, usize),
    mut each: impl FnMut(u8, DdtKey, u64),
) -> Result<Option<Place>> {
    let (mut notes, mut left) = (Vec::new(), most);
    for table in tables(mos, &mut notes).iter().filter(|table| table.is_flat()) {
        let checksum = table.checksum.raw();
        let cursor = match checksum.cmp(&from.checksum) {
            Less => continue,
            Equal => from.cursor,
            Greater => 0,
        };
        let unique = |store: &&DdtObject| store.class == DdtClass::Unique;
        for entry in table.stores.iter().filter(unique).flat_map(|store| store.entries_from(cursor)) {
            let entry = entry?;
            let start = entry.phys.first().and_then(|p| p.class_start).unwrap_or(now);
            each(checksum, entry.key, now.saturating_sub(start));
            left = left.saturating_sub(1);
            if left == 0 {
                return Ok(Some(Place { checksum, cursor: entry.cursor }));
            }
        }
    }
    notes.into_iter().next().map_or(Ok(None), Err)
}

/// How many entries have which age.
#[derive(Debug)]
pub(crate) struct Ages {
    bins: [u64; AGES],
    all: u64,
}

impl Default for Ages {
    fn default() -> Self {
        Self { bins: [0; AGES], all: 0 }
    }
}

impl Ages {
    /// Counts the next [`BATCH`] entries from `from` on. Returns where the walk goes on, `None` at the end.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub(crate) fn add(&mut self, mos: &Arc<Objset>, now: u64, from: Place) -> Result<Option<Place>> {
        walk(mos, now, (from, BATCH), |_, _, age| {
            let bin = (age / HOUR).checked_ilog2().map_or(0, |log| log + 1);
            if let Some(count) = usize::try_from(bin).ok().and_then(|bin| self.bins.get_mut(bin)) {
                *count += 1;
            }
            self.all += 1;
        })
    }

    /// The age in seconds from which on entries are pruned, for the oldest `percentage` of a hundred.
    #[doc(alias = "ddt_prune_unique_entries")]
    pub(crate) fn least(&self, percentage: u64) -> u64 {
        let (mut target, mut oldest) = (self.all.saturating_mul(percentage) / 100, u64::MAX);
        for (bin, count) in self.bins.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
            if target == 0 {
                break;
            }
            oldest = if bin == 0 { 0 } else { HOUR << (bin - 1) };
            target = target.saturating_sub(*count);
        }
        oldest
    }
}

/// Looks at `most` entries from `from` on. Returns those that are at least `least` seconds old, in parts for one
/// sync task each, and where the walk goes on, `None` at the end.
///
/// # Errors
/// When a table cannot be read.
pub fn candidates(
    mos: &Arc<Objset>,
    (now, least): (u64, u64),
    (from, most): (Place, usize),
) -> Result<(Vec<Candidates>, Option<Place>)> {
    let mut found = Vec::<Candidates>::new();
    let next = walk(mos, now, (from, most), |checksum, key, age| {
        if age < least {
            return;
        }
        match found.last_mut().filter(|part| part.checksum == checksum) {
            Some(last) => last.keys.push(key),
            None => found.push(Candidates { checksum, keys: vec![key] }),
        }
    })?;
    Ok((found, next))
}

impl Tables {
    /// Takes entries from their table, those that have changed meanwhile excepted (syncing context). Returns how many.
    #[doc(alias = "prune_candidates_sync")]
    pub(crate) fn prune(&self, host: &dyn DdtHost, candidates: &Candidates) -> Result<u64> {
        let mut pruned = 0;
        self.with_table(candidates.checksum, |table| {
            candidates.keys.iter().try_for_each(|key| {
                pruned += u64::from(table.prune(host, key)?);
                Ok(())
            })
        })?;
        Ok(pruned)
    }
}

impl Live {
    fn prune(&mut self, host: &dyn DdtHost, key: &DdtKey) -> Result<bool> {
        let is_used =
            self.pending.contains_key(key) || self.sides.as_ref().is_some_and(|s| s.find(key).is_some());
        let Some(object) = self.objects.get(&DdtClass::Unique).copied().filter(|_| !is_used) else {
            return Ok(false);
        };
        let words = key.to_words();
        let mut edit = host.objects().edit(object)?;
        let mut zap = ZapEdit::open(&mut *edit)?;
        let Some(value) = zap.lookup(words.as_slice())? else {
            return Ok(false);
        };
        let phys = decode(self.flat, &value)?;
        // Freed like an ordinary block by its first owner, a block with a second one would be lost to that.
        if phys.iter().map(|p| p.refcnt).fold(0, u64::saturating_add) > 1 {
            return Ok(false);
        }
        // Its pointer may be from before the block got further copies: only the entry names those then.
        if phys.iter().any(|p| p.dvas(key.crypt()).nth(1).is_some()) {
            return Ok(false);
        }
        zap.remove(words.as_slice())?;
        drop(edit);
        self.known.remove(DdtClass::Unique, key);
        self.count(host, DdtClass::Unique, (key, &phys), true);
        self.close();
        self.dirty = true;
        Ok(true)
    }
}
