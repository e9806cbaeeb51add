//! Pruning dedup tables: entries with one reference leave, so that tables of data without duplicates stay small.
//!
//! A pruned block stays where it is. Its pointer still has the dedup bit; when it is freed and no entry names
//! its place, it is freed as any other ([`super::write::Tables::free`]).
//!
//! Crash argument: each batch is a sync task; a batch that is not on disk has not happened.
//!
//! Source: `ddt_prune_walk`, ddt.c, OpenZFS 2.3.

use std::sync::Arc;

use ondisk::ddt::DdtKey;

use super::live::Live;
use super::write::{Host, Tables, decode};
use super::{Class, Store, tables};
use crate::dmu::Objset;
use crate::error::Result;
use crate::zap::ZapEdit;

/// Entries that a sync task prunes.
#[doc(alias = "zfs_ddt_prunes_per_txg")]
const BATCH: usize = 50_000;
/// Entries that are looked for at a time.
const MOST: usize = 20 * BATCH;
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

/// Calls `each` with the key and the age, in seconds, of every flat entry with one reference.
fn walk(mos: &Arc<Objset>, now: u64, mut each: impl FnMut(u8, DdtKey, u64) -> Result<()>) -> Result<()> {
    let mut notes = Vec::new();
    for table in tables(mos, &mut notes).iter().filter(|table| table.is_flat()) {
        let unique = |store: &&Store| store.class == Class::Unique;
        for entry in table.stores.iter().filter(unique).flat_map(Store::entries) {
            let entry = entry?;
            let start = entry.phys.first().and_then(|p| p.class_start).unwrap_or(now);
            each(table.checksum.raw(), entry.key, now.saturating_sub(start))?;
        }
    }
    notes.into_iter().next().map_or(Ok(()), Err)
}

/// The age in seconds from which on entries are pruned.
///
/// # Errors
/// When a table cannot be read.
#[doc(alias = "ddt_prune_unique_entries")]
pub fn least_age(mos: &Arc<Objset>, now: u64, which: Prune) -> Result<u64> {
    let percentage = match which {
        Prune::Age(seconds) => return Ok(seconds),
        Prune::Percentage(percentage) => percentage,
    };
    let (mut ages, mut all) = ([0_u64; AGES], 0_u64);
    walk(mos, now, |_, _, age| {
        let bin = (age / HOUR).checked_ilog2().map_or(0, |log| log + 1);
        if let Some(count) = usize::try_from(bin).ok().and_then(|bin| ages.get_mut(bin)) {
            *count += 1;
        }
        all += 1;
        Ok(())
    })?;
    let (mut target, mut oldest) = (all.saturating_mul(percentage) / 100, u64::MAX);
    for (bin, count) in ages.iter().enumerate().rev().filter(|(_, count)| **count > 0) {
        if target == 0 {
            break;
        }
        oldest = if bin == 0 { 0 } else { HOUR << (bin - 1) };
        target = target.saturating_sub(*count);
    }
    Ok(oldest)
}

/// Returns entries that are at least `least` seconds old, at most `MOST` of them, in parts for one sync
/// task each.
///
/// # Errors
/// When a table cannot be read.
pub fn candidates(mos: &Arc<Objset>, now: u64, least: u64) -> Result<Vec<Candidates>> {
    let (mut found, mut left) = (Vec::<Candidates>::new(), MOST);
    walk(mos, now, |checksum, key, age| {
        if age < least || left == 0 {
            return Ok(());
        }
        left -= 1;
        match found.last_mut().filter(|c| c.checksum == checksum && c.keys.len() < BATCH) {
            Some(last) => last.keys.push(key),
            None => found.push(Candidates { checksum, keys: vec![key] }),
        }
        Ok(())
    })?;
    Ok(found)
}

impl Tables {
    /// Takes entries from their table, those that have changed meanwhile excepted (syncing context). Returns how many.
    #[doc(alias = "prune_candidates_sync")]
    pub fn prune(&self, host: &dyn Host, candidates: &Candidates) -> Result<u64> {
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
    fn prune(&mut self, host: &dyn Host, key: &DdtKey) -> Result<bool> {
        let is_used =
            self.pending.contains_key(key) || self.sides.as_ref().is_some_and(|s| s.find(key).is_some());
        let Some(object) = self.objects.get(&Class::Unique).copied().filter(|_| !is_used) else {
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
        zap.remove(words.as_slice())?;
        drop(edit);
        self.known.iter_mut().for_each(|known| known.remove(key));
        self.count(host, Class::Unique, (key, &phys), true);
        self.close();
        self.dirty = true;
        Ok(true)
    }
}
