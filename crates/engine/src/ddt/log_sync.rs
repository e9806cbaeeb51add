//! The log of a table: changed entries are appended in each txg, and moved to the ZAPs in key order, a bounded number in
//! each txg.
//!
//! A table with a log has two sides. The active side takes new records; the flushing side is emptied into the ZAPs. When it
//! is empty, and the active side is old or large enough, they change places. An entry in a log hides the same key's entry
//! in a ZAP; the active side hides the flushing side. A record names the ZAP of the key's entry, if any.
//!
//! Crash argument: records, the checkpoint and the ZAPs are of the MOS: a txg changes them together.
//!
//! Differs from OpenZFS: an entry whose last reference ends leaves its ZAP at once, and its blocks are freed; when the log
//! has the key, a record without copies follows. There such blocks stay allocated until the log is flushed, which zdb counts
//! as leaks. The pace ([`super::pace`]) also bounds the memory of both sides.
//!
//! Format source: ddt_log.c, OpenZFS 2.3.

use std::collections::BTreeMap;

use ondisk::ddt::{DdtKey, DdtLogHeader, DdtPhys, log_record};
use ondisk::names;
use ondisk::{Blkptr, Byteswap, ObjectType};
use stdx::AlignedBuf;

use super::host::DdtHost;
use super::live::Live;
use super::pace::{FlushShare, LogFill, Pressure, Rates, wants_swap};
use super::stored::{ChangedEntry, class_of};
use super::{DdtLog, LogEntry, stats};
use crate::dmu::NewObject;
use crate::dmu::edit::Objects;
use crate::error::Result;
use crate::zap::{Zap, ZapEdit};

/// Type of a log and of its bonus buffer.
#[doc(alias = "DMU_OTN_UINT64_METADATA")]
const LOG_TYPE: ObjectType = ObjectType::newtype(Byteswap::Uint64, true, false);
/// Bytes of a block of a log.
#[doc(alias = "SPA_OLD_MAXBLOCKSIZE")]
const LOG_BLOCK: u64 = 128 << 10;
/// Records whose leaves are read at the same time.
const READ_AHEAD: usize = 64;

/// Both sides of a log.
#[derive(Debug)]
pub(super) struct LogSides {
    /// Takes records.
    pub(crate) active: DdtLog,
    /// Is moved to the ZAPs.
    pub(crate) flushing: DdtLog,
    /// Entries of the active side at the last flush.
    seen: usize,
    pressure: Pressure,
    pub(super) rates: Rates,
    /// Records up to this txg are flushed as fast as the settings allow; 0: none are.
    #[doc(alias = "ddt_flush_force_txg")]
    forced: u64,
}

impl LogSides {
    /// The sides, as they were loaded; `None` when there are not two, one of each kind.
    pub(super) fn of(logs: Vec<DdtLog>) -> Option<Self> {
        let [one, two]: [DdtLog; 2] = logs.try_into().ok()?;
        let (active, flushing) = match (is_flushing(&one), is_flushing(&two)) {
            (false, true) => (one, two),
            (true, false) => (two, one),
            _ => return None,
        };
        Some(Self {
            active,
            flushing,
            seen: 0,
            pressure: Pressure::default(),
            rates: Rates::default(),
            forced: 0,
        })
    }

    /// The newest record of a key.
    pub(super) fn find(&self, key: &DdtKey) -> Option<&LogEntry> {
        self.active.entries.get(key).or_else(|| self.flushing.entries.get(key))
    }

    /// Entries of both.
    pub(super) fn len(&self) -> usize {
        self.active.entries.len().saturating_add(self.flushing.entries.len())
    }

    /// Flushes the records of the txgs up to `txg` as fast as the settings allow.
    #[doc(alias = "ddt_flush_force_update_txg")]
    pub(super) fn force(&mut self, txg: u64) {
        self.forced = self.forced.max(txg);
        let is_left = |log: &DdtLog| !log.entries.is_empty() && log.header.first_txg <= self.forced;
        if !self.objects().into_iter().any(is_left) {
            self.forced = 0;
        }
    }

    /// Whether such records are left.
    pub(super) fn is_forced(&self) -> bool {
        self.forced != 0
    }

    /// All records.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&DdtKey, &LogEntry)> {
        self.active.entries.iter().chain(&self.flushing.entries)
    }

    /// The objects.
    pub(super) fn objects(&self) -> [&DdtLog; 2] {
        [&self.active, &self.flushing]
    }
}

fn is_flushing(log: &DdtLog) -> bool {
    log.header.flags() & DdtLogHeader::FLAG_FLUSHING != 0
}

fn set_flag(log: &mut DdtLog, flag: u8, on: bool) {
    let bit = u64::from(flag) << 8;
    log.header.info = log.header.info & !bit | if on { bit } else { 0 };
}

fn store_header(objects: &dyn Objects, log: &DdtLog) -> Result<()> {
    objects.edit(log.object)?.set_bonus(&log.header.to_bytes())
}

/// Empties a log on disk; it keeps its side.
#[doc(alias = "ddt_log_truncate")]
fn truncate(objects: &dyn Objects, log: &mut DdtLog) -> Result<()> {
    objects.edit(log.object)?.free_from(0)?;
    log.header.length = 0;
    set_flag(log, DdtLogHeader::FLAG_CHECKPOINT, false);
    log.header.checkpoint = DdtKey::default();
    store_header(objects, log)
}

impl Live {
    /// Appends the changes to the active side.
    #[doc(alias = "ddt_sync_table_log")]
    pub(super) fn append(&mut self, host: &dyn DdtHost, changed: Vec<ChangedEntry>) -> Result<()> {
        let mut sides = match self.sides.take() {
            Some(sides) => sides,
            None => self.create_log(host)?,
        };
        let mut blocks: Vec<AlignedBuf> = Vec::new();
        let (size, mut at) = (usize::try_from(LOG_BLOCK).unwrap_or(0), usize::MAX);
        for (key, stored, phys) in changed {
            if let Some(old) = stored.as_ref().filter(|stored| stored.logged) {
                self.count_logged(host, (&key, &old.phys), true);
            }
            self.count_logged(host, (&key, &phys), false);
            let class = stored.and_then(|stored| stored.class);
            let record = log_record(self.flat, class.map(|class| class as u8), &key, &phys);
            if at.saturating_add(record.len()) > size {
                blocks.push(AlignedBuf::zeroed(size));
                at = 0;
            }
            if let Some(to) = blocks.last_mut().and_then(|block| block.get_mut(at..at + record.len())) {
                to.copy_from_slice(&record);
            }
            at += record.len();
            sides.flushing.entries.remove(&key);
            sides.active.entries.insert(key, LogEntry { class, phys });
        }
        let log = &mut sides.active;
        let mut edit = host.objects().edit(log.object)?;
        edit.place_with_tables();
        for block in blocks {
            edit.write_block(log.header.length / LOG_BLOCK, block)?;
            log.header.length = log.header.length.saturating_add(LOG_BLOCK);
        }
        edit.set_bonus(&log.header.to_bytes())?;
        drop(edit);
        self.sides = Some(sides);
        self.dirty = true;
        Ok(())
    }

    fn count_logged(&mut self, host: &dyn DdtHost, entry: (&DdtKey, &[DdtPhys]), out: bool) {
        stats::tally(&mut self.logged, entry, self.checksum, &|bp| host.dsize(bp), out);
    }

    #[doc(alias = "ddt_log_create")]
    fn create_log(&mut self, host: &dyn DdtHost) -> Result<LogSides> {
        let root = self.directory(host)?;
        let objects = host.objects();
        let create = |number: u32| -> Result<DdtLog> {
            let bonus_len = DdtLogHeader::SIZE;
            let new = NewObject::with_bonus(LOG_TYPE, LOG_BLOCK, LOG_TYPE, bonus_len);
            let object = objects.create(&new)?;
            let name = names::ddt_log(self.checksum.name(), number);
            ZapEdit::open(&mut *objects.edit(root)?)?.insert(name.as_str(), object)?;
            let header = DdtLogHeader { info: 1, first_txg: host.txg().0, ..DdtLogHeader::default() };
            let mut log = DdtLog { number, object, header, entries: BTreeMap::new() };
            set_flag(&mut log, DdtLogHeader::FLAG_FLUSHING, number == 1);
            store_header(objects, &log)?;
            Ok(log)
        };
        Ok(LogSides {
            active: create(0)?,
            flushing: create(1)?,
            seen: 0,
            pressure: Pressure::default(),
            rates: Rates::default(),
            forced: 0,
        })
    }

    /// Reads the leaves at the same time that these records go to.
    fn read_ahead<'a>(
        &self,
        host: &dyn DdtHost,
        records: impl Iterator<Item = (&'a DdtKey, &'a LogEntry)> + Clone,
    ) {
        let view = host.view();
        for (class, object) in &self.objects {
            let goes_there =
                |entry: &LogEntry| entry.class == Some(*class) || class_of(&entry.phys) == *class;
            let there = records.clone().filter(|(_, entry)| goes_there(entry));
            let keys: Vec<_> = there.map(|(key, _)| key.to_words()).collect();
            // An entry that cannot be read is reported when it is stored.
            if let Ok(zap) = view.object(*object).and_then(|object| Zap::open(&object)) {
                zap.read_ahead(&keys);
            }
        }
    }

    /// Moves a share of the flushing side to the ZAPs, and lets the sides change places when it is empty.
    #[doc(alias = "ddt_sync_flush_log")]
    pub(super) fn flush_log(&mut self, host: &dyn DdtHost, freed: &mut Vec<Blkptr>) -> Result<()> {
        let Some(mut sides) = self.sides.take() else { return Ok(()) };
        let active = sides.active.entries.len();
        let fill = LogFill {
            active,
            flushing: sides.flushing.entries.len(),
            added: active.saturating_sub(sides.seen),
        };
        let limits = host.limits();
        let elapsed = || host.elapsed();
        let mut share = FlushShare::of(fill, limits, &mut sides.pressure, &elapsed);
        if sides.is_forced() {
            share.take(fill.flushing, limits);
        }
        sides.seen = active;
        let (mut last, mut ahead) = (None, 0);
        while share.goes_on() {
            if ahead == 0 {
                ahead = share.left().clamp(1, READ_AHEAD);
                self.read_ahead(host, sides.flushing.entries.iter().take(ahead));
            }
            ahead -= 1;
            let Some((key, entry)) = sides.flushing.entries.pop_first() else { break };
            self.count_logged(host, (&key, &entry.phys), true);
            self.put(host, &key, entry.class, entry.phys, freed)?;
            last = Some(key);
            share.flushed();
        }
        sides.rates.update(fill.added, &share);
        let objects = host.objects();
        if let Some(last) = last {
            let log = &mut sides.flushing;
            if log.entries.is_empty() {
                truncate(objects, log)?;
            } else {
                set_flag(log, DdtLogHeader::FLAG_CHECKPOINT, true);
                log.header.checkpoint = last;
                store_header(objects, log)?;
            }
        }
        let active = &sides.active;
        let age = host.txg().0.saturating_sub(active.header.first_txg);
        let is_wanted = sides.is_forced() || wants_swap(limits, active.entries.len(), age);
        let wants = !active.entries.is_empty() && is_wanted;
        if sides.flushing.entries.is_empty() && wants {
            if sides.flushing.header.length > 0 {
                truncate(objects, &mut sides.flushing)?;
            }
            std::mem::swap(&mut sides.active, &mut sides.flushing);
            set_flag(&mut sides.active, DdtLogHeader::FLAG_FLUSHING, false);
            set_flag(&mut sides.flushing, DdtLogHeader::FLAG_FLUSHING, true);
            sides.active.header.first_txg = host.txg().0;
            sides.seen = 0;
            sides.objects().into_iter().try_for_each(|log| store_header(objects, log))?;
        }
        // Nothing is forced any more once the last such record is in its ZAP.
        sides.force(sides.forced);
        self.sides = Some(sides);
        Ok(())
    }
}
