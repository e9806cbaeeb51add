//! Dedup tables of a pool that is being written.
//!
//! A write or a free of a listed block first fetches the block's entry into its table's pending entries
//! ([`super::stored::PendingEntry`], fetched by [`super::lookup`]) and changes it there. [`Tables::sync`], once in each sync
//! pass, stores the pending entries ([`super::table_sync`]), frees blocks without references, and writes statistics. So an
//! entry changes on disk once a txg, however often it is used.
//!
//! States of a pending entry: fetched → (being written → fetched)* → stored. While a new block is being written, others
//! with the same key wait for it: each block gets one copy.
//!
//! Crash argument: entries are objects of the MOS, so they reach the disk with the pointers that they count.
//!
//! Locks: `all` is held for changes of memory only while writes are under way; tables are read without it. The sync holds
//! it while it stores entries: then no write is under way. Nothing else is locked inside.
//!
//! Tables of `fast_dedup` have a log before their ZAPs ([`super::log_sync`]).
//!
//! Differs from OpenZFS: a free whose entry cannot be read leaks the block, where OpenZFS panics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ondisk::ddt::{DdtKey, DdtPhys};
use ondisk::{Blkptr, ChecksumType};
use parking_lot::Mutex;

use super::counts::AllCounts;
use super::host::{DdtHost, DdtSource};
use super::live::{Live, is_damage};
use super::log_sync::LogSides;
use super::lookup::Lookups;
use super::stored::unused;
use super::{DdtTable, each_table, stats};
use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::zio::dedup::{Claim, ClaimAgain, Want, Where};

/// The dedup tables of a pool.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(super) all: Mutex<BTreeMap<u8, Live>>,
    /// Deflated bytes allocated for the tables' blocks, and those that their references name.
    dsize: AtomicU64,
    ref_dsize: AtomicU64,
    /// Bytes on disk of all tables.
    size: AtomicU64,
    /// No entries are made.
    is_full: AtomicBool,
    /// Entries in logs.
    logged: AtomicU64,
    /// Some of them are flushed as fast as possible.
    is_forced: AtomicBool,
    /// The objects of tables changed since the last txg was begun.
    is_changing: AtomicBool,
    /// How often ZAPs may have changed; it changes under the lock of `all` only.
    pub(super) changes: AtomicU64,
    /// Look-ups in ZAPs that wait, and their counts.
    pub(super) lookups: Lookups,
    pub(super) counts: AllCounts,
    /// Blocks whose references end when their entries have been looked up.
    pub(super) frees: Mutex<Vec<Blkptr>>,
}

impl Tables {
    /// The tables of an existing pool. A damaged one is kept as such: see [`super::live`].
    ///
    /// # Errors
    /// When a device is away, or a table has a form that this build doesn't know: such a pool can't be written.
    pub(crate) fn load(mos: &Arc<Objset>, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<Self> {
        let (mut all, mut sound) = (BTreeMap::new(), Vec::<DdtTable>::new());
        for (checksum, table, lost) in each_table(mos)? {
            match (table, lost.into_iter().next()) {
                (_, Some(why)) if is_damage(&why) => {
                    all.insert(checksum.raw(), Live::damaged(checksum, why));
                }
                (_, Some(why)) => return Err(why),
                (table, None) => sound.extend(table),
            }
        }
        let saved = stats::Totals::of(&sound, dsize).all();
        for table in sound {
            let checksum = table.checksum;
            let live = match Live::new(mos, table, dsize) {
                Err(why) if is_damage(&why) => Live::damaged(checksum, why),
                live => live?,
            };
            all.insert(checksum.raw(), live);
        }
        let tables = Self::default();
        tables.store_totals(saved.dsize, saved.ref_dsize);
        *tables.all.lock() = all;
        tables.count_logged(&tables.all.lock());
        tables.measure(&tables.all.lock(), mos);
        Ok(tables)
    }

    /// The tables that change no more, and why.
    pub(crate) fn damaged(&self) -> Vec<(ChecksumType, Error)> {
        let all = self.all.lock();
        all.values().filter_map(|table| Some((table.checksum, table.damage.clone()?))).collect()
    }

    /// Whether logs have entries that are not in their tables.
    pub(crate) fn has_logged(&self) -> bool {
        self.logged.load(Ordering::Relaxed) > 0
    }

    /// Flushes the records of all logs up to those of `txg`, over as many txgs as the settings need (syncing context).
    #[doc(alias = "ddt_walk_init")]
    pub(crate) fn force_flush(&self, txg: u64) {
        let mut all = self.all.lock();
        all.values_mut().filter_map(|table| table.sides.as_mut()).for_each(|sides| sides.force(txg));
        self.count_logged(&all);
    }

    /// Whether records that [`Tables::force_flush`] named are left.
    #[doc(alias = "ddt_walk_ready")]
    pub(crate) fn is_flush_forced(&self) -> bool {
        self.is_forced.load(Ordering::Relaxed)
    }

    /// Bytes that the tables take on disk, as of the last txg that changed them.
    #[doc(alias = "ddt_get_ddt_dsize")]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// While a table is full, blocks that it does not have are written without dedup.
    #[doc(alias = "ddt_over_quota")]
    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    fn measure(&self, all: &BTreeMap<u8, Live>, view: &Arc<Objset>) {
        let bytes = |number: u64| view.object(number).map_or(0, |object| object.dnode.used_bytes());
        let numbers = all.values().flat_map(|table| {
            let logs = table.sides.iter().flat_map(|sides| sides.objects().map(|log| log.object));
            table.objects.values().copied().chain(logs)
        });
        self.size.store(numbers.map(bytes).fold(0, u64::saturating_add), Ordering::Relaxed);
    }

    fn count_logged(&self, all: &BTreeMap<u8, Live>) {
        let logged = all.values().filter_map(|table| table.sides.as_ref()).map(LogSides::len).sum::<usize>();
        self.logged.store(u64::try_from(logged).unwrap_or(u64::MAX), Ordering::Relaxed);
        let changing = all.values().filter(|table| table.damage.is_none());
        let is_forced = changing.filter_map(|table| table.sides.as_ref()).any(LogSides::is_forced);
        self.is_forced.store(is_forced, Ordering::Relaxed);
    }

    /// Bytes that the pool would need more without the tables.
    #[doc(alias = "ddt_get_dedup_dspace")]
    pub(crate) fn saved(&self) -> u64 {
        let (dsize, ref_dsize) = self.totals();
        ref_dsize.saturating_sub(dsize)
    }

    /// Deflated bytes allocated for the blocks of all tables and their logs, and those that their references name.
    #[doc(alias = "ddt_get_dedup_stats")]
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.dsize.load(Ordering::Relaxed), self.ref_dsize.load(Ordering::Relaxed))
    }

    fn store_totals(&self, dsize: u64, ref_dsize: u64) {
        self.dsize.store(dsize, Ordering::Relaxed);
        self.ref_dsize.store(ref_dsize, Ordering::Relaxed);
    }

    /// Looks a block up that is to be written: see [`crate::zio::dedup::DedupTables::claim`].
    #[doc(alias = "zio_ddt_write")]
    pub(crate) fn claim(
        &self,
        source: &dyn DdtSource,
        bp: &Blkptr,
        want: &Want,
        again: &mut Option<ClaimAgain>,
    ) -> Result<Claim> {
        let Some(checksum) = bp.checksum() else { return Ok(Claim::Refused) };
        let key = DdtKey::of(bp);
        if !want.looked_up && self.ask(checksum, &key) {
            self.lookups.put((checksum, key), again);
            return Ok(Claim::InFlight);
        }
        self.fetch(source, checksum, &key)?;
        let mut all = self.all.lock();
        let Some(table) = all.get_mut(&checksum.raw()) else { return Ok(Claim::Refused) };
        let variant = table.variant(want.copies);
        let Some(entry) = table.pending.get_mut(&key) else { return Ok(Claim::Refused) };
        let is_new = entry.stored.is_none() && entry.phys.is_empty() && !entry.writing;
        if is_new && self.is_full.load(Ordering::Relaxed) {
            return Ok(Claim::Refused);
        }
        if entry.writing {
            entry.waiting.extend(again.take());
            return Ok(Claim::InFlight);
        }
        // Salt and IV follow from the plaintext: another one means that the entry is not of these bytes.
        let iv = |p: &DdtPhys| !bp.is_encrypted() || p.phys_birth == 0 || p.dva_words[2] == iv_words(bp);
        let is_sound = |p: &DdtPhys| p.phys_birth == 0 || source.is_sound(&filled(bp, p, want.txg));
        if !entry.phys.iter().all(|p| iv(p) && is_sound(p)) {
            return Ok(Claim::Refused);
        }
        if let Some(first) = entry.phys.iter().find(|p| want.verify && p.variant != 0 && p.phys_birth != 0) {
            let stored = filled(bp, first, want.txg);
            if !want.equal.is_some_and(|equal| equal.same_block(&stored)) {
                return Ok(Claim::Compare(stored));
            }
        }
        let (mut have, mut is_gang) = (0, false);
        if let Some(phys) = entry.phys.iter_mut().find(|p| p.variant == variant) {
            have = u8::try_from(phys.dvas(key.crypt()).count()).unwrap_or(u8::MAX);
            if have >= want.copies {
                if want.moves.is_some_and(|old| is_named(&old, bp, phys)) {
                    return Ok(Claim::Kept);
                }
                let Some(refcnt) = phys.refcnt.checked_add(1) else { return Ok(Claim::Refused) };
                phys.refcnt = refcnt;
                return Ok(Claim::Shared(filled(bp, phys, want.txg)));
            }
            is_gang = phys.dvas(key.crypt()).any(|dva| dva.gang);
        }
        if is_gang {
            return Ok(Claim::Refused);
        }
        entry.writing = true;
        Ok(Claim::Write { copies: want.copies - have, extends: have > 0 })
    }

    /// Takes the copies that a claim had written: see [`crate::zio::dedup::DedupTables::written`].
    #[doc(alias = "zio_ddt_child_write_done")]
    pub(crate) fn written(&self, bp: &Blkptr, want: &Want, written: Option<&Blkptr>) -> Option<Blkptr> {
        let key = DdtKey::of(bp);
        let mut all = self.all.lock();
        let table = all.get_mut(&bp.checksum()?.raw())?;
        let variant = table.variant(want.copies);
        let entry = table.pending.get_mut(&key)?;
        entry.writing = false;
        let waiting = std::mem::take(&mut entry.waiting);
        let whole = written.map(|written| {
            if !entry.phys.iter().any(|p| p.variant == variant) {
                entry.phys.push(unused(variant));
                entry.phys.sort_by_key(|p| p.variant);
            }
            let phys = entry.phys.iter_mut().find(|p| p.variant == variant);
            phys.map(|phys| {
                extend(phys, written);
                phys.refcnt = phys.refcnt.saturating_add(1);
                filled(bp, phys, want.txg)
            })
        });
        drop(all);
        waiting.into_iter().for_each(|again| again(Where::Elsewhere));
        whole.flatten()
    }

    /// Replaces all tables.
    pub(super) fn set_all(&self, all: BTreeMap<u8, Live>) {
        let mut held = self.all.lock();
        self.changes.fetch_add(1, Ordering::Relaxed);
        *held = all;
    }

    /// Changes a table, if there is one of that checksum.
    pub(super) fn with_table(&self, checksum: u8, work: impl FnOnce(&mut Live) -> Result<()>) -> Result<()> {
        let mut all = self.all.lock();
        self.changes.fetch_add(1, Ordering::Relaxed);
        all.get_mut(&checksum).filter(|table| table.damage.is_none()).map_or(Ok(()), work)
    }

    /// Stores pending entries and statistics, and removes tables without entries. Returns the blocks that nothing refers to
    /// any more; they are in no dedup table.
    #[doc(alias = "ddt_sync")]
    pub(crate) fn sync(&self, host: &dyn DdtHost) -> Result<Vec<Blkptr>> {
        let mut all = self.all.lock();
        self.changes.fetch_add(1, Ordering::Relaxed);
        let (mut freed, mut gone, mut changed) = (Vec::new(), Vec::new(), false);
        for (raw, table) in all.iter_mut().filter(|(_, table)| table.damage.is_none()) {
            table.store_pending(host, &mut freed)?;
            if host.txg().1 == 1 {
                table.flush_log(host, &mut freed)?;
            }
            if std::mem::take(&mut table.dirty) {
                changed = true;
                if table.sync(host)? {
                    gone.push(*raw);
                }
            }
        }
        gone.iter().for_each(|raw| {
            all.remove(raw);
        });
        if host.txg().1 == 1 {
            self.learn(host, &mut all);
        }
        if changed {
            let totals = all.values().map(Live::totals);
            let (dsize, ref_dsize) = totals
                .fold((0_u64, 0_u64), |sum, of| (sum.0.saturating_add(of.0), sum.1.saturating_add(of.1)));
            self.store_totals(dsize, ref_dsize);
        }
        // A pass writes objects after their entries: their size is known in the next one.
        let is_changing = changed || self.is_changing.load(Ordering::Relaxed);
        if is_changing {
            self.measure(&all, &host.view());
        }
        self.is_changing.store(changed || is_changing && host.txg().1 > 1, Ordering::Relaxed);
        self.count_logged(&all);
        Ok(freed)
    }
}

/// Whether `old`, a block that is written again as `bp`, is the stored copy.
fn is_named(old: &Blkptr, bp: &Blkptr, phys: &DdtPhys) -> bool {
    old.dedup() && filled(bp, phys, old.logical_birth()).same_block(old)
}

/// The words of an encrypted block's pointer that hold its salt and half of its IV.
fn iv_words(bp: &Blkptr) -> [u64; 2] {
    let [_, _, _, _, w4, w5, ..] = *bp.words();
    [w4, w5]
}

/// Adds the copies of a new block.
#[doc(alias = "ddt_phys_extend")]
fn extend(phys: &mut DdtPhys, new: &Blkptr) {
    let most = if new.is_encrypted() { 2 } else { 3 };
    let mut dvas = new.dvas();
    for slot in phys.dva_words.iter_mut().take(most).filter(|words| **words == [0; 2]) {
        let Some(dva) = dvas.next() else { break };
        *slot = dva.to_words();
    }
    if let Some(slot) = phys.dva_words.get_mut(2).filter(|_| new.is_encrypted()) {
        *slot = iv_words(new);
    }
    if phys.phys_birth == 0 {
        phys.phys_birth = new.physical_birth();
    }
}

/// A pointer to a stored copy, born in `txg`.
#[doc(alias = "ddt_bp_fill")]
fn filled(bp: &Blkptr, phys: &DdtPhys, txg: u64) -> Blkptr {
    let mut bp = *bp;
    phys.dva_words.iter().flatten().enumerate().for_each(|(i, word)| bp.set_word(i, *word));
    bp.set_births(txg, phys.phys_birth);
    bp
}
