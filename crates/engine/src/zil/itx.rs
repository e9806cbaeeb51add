//! Records that wait: the operations of open txgs, in their order.
//!
//! Each txg has one list that the next commit writes in any case, and one for each object with records that only a
//! commit of that object needs (asynchronous writes). Lists of txgs that are on disk are dropped.

use std::collections::BTreeMap;

use ondisk::zil::{LogRecord, LrWrite, TxType, Write, encode_write, stamp_txg};

/// The location of a write's data when the log is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The record is complete.
    #[doc(alias = "WR_COPIED")]
    Whole(Vec<u8>),
    /// For a write: the data are read from the object when the record is written.
    #[doc(alias = "WR_NEED_COPY")]
    Read(LrWrite),
    /// The block with the data is written to its final location, and the record points to it.
    #[doc(alias = "WR_INDIRECT")]
    Placed(LrWrite),
}

/// A record to be written to the log.
#[doc(alias = "itx_t")]
#[derive(Debug, Clone)]
pub struct Itx {
    /// Its object, for commits of one object.
    pub(crate) object: u64,
    /// Whether every commit writes it, not only one of its object.
    pub(crate) sync: bool,
    pub(super) txg: u64,
    pub(super) payload: Payload,
}

impl Itx {
    /// A record that every commit writes: a change of names, or of an object that is open for synchronous writing.
    pub fn new(object: u64, txtype: TxType, record: &LogRecord<'_>) -> Self {
        Self { object, sync: true, txg: 0, payload: Payload::Whole(record.encode(txtype)) }
    }

    /// A write with its data. Data that might not fit into a log block are read from the object later.
    pub fn write(object: u64, offset: u64, data: &[u8]) -> Self {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if length > MAX_COPIED {
            return Self::write_later(object, offset, length).with_sync(true);
        }
        let lr = LrWrite { foid: object, offset, length, ..LrWrite::default() };
        Self { object, sync: true, txg: 0, payload: Payload::Whole(encode_write(&lr, data)) }
    }

    /// A write whose data are read from the object if the log is ever written.
    pub fn write_later(object: u64, offset: u64, length: u64) -> Self {
        let lr = LrWrite { foid: object, offset, length, ..LrWrite::default() };
        Self { object, sync: false, txg: 0, payload: Payload::Read(lr) }
    }

    /// A write within one block whose data are too large for the log: if it is ever written, the block goes to its
    /// final location at once.
    pub(crate) fn write_placed(object: u64, offset: u64, length: u64) -> Self {
        let lr = LrWrite { foid: object, offset, length, ..LrWrite::default() };
        Self { object, sync: false, txg: 0, payload: Payload::Placed(lr) }
    }

    /// Sets whether all commits write it, or only those of its object.
    pub fn with_sync(self, sync: bool) -> Self {
        Self { sync, ..self }
    }

    /// Bytes of memory.
    fn memory(&self) -> usize {
        let content = if let Payload::Whole(bytes) = &self.payload { bytes.capacity() } else { 0 };
        size_of::<Self>() + content
    }

    /// Approximate bytes in the log.
    pub(super) fn size(&self) -> u64 {
        match &self.payload {
            Payload::Whole(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Payload::Read(lr) => WRITE_RECORD.saturating_add(lr.length).next_multiple_of(8),
            Payload::Placed(_) => WRITE_RECORD,
        }
    }
}

/// Maximum data in a record.
#[doc(alias = "zil_max_copied_data")]
const MAX_COPIED: u64 = 64 << 10;
/// Bytes of a write record without data.
pub(super) const WRITE_RECORD: u64 = 192;

/// A write record that points to its data.
pub(super) fn pointing(lr: &LrWrite, txg: u64) -> Vec<u8> {
    let mut bytes = LogRecord::Write(Write { lr: *lr, data: None }).encode(TxType(TxType::WRITE));
    stamp_txg(&mut bytes, txg);
    bytes
}

/// Bytes of memory that the waiting records of one log may take. A txg with more is not logged: the next commit waits for it.
const MAX_WAITING: usize = 16 << 20;

#[derive(Debug, Default)]
struct TxgItxs {
    sync: Vec<Itx>,
    later: BTreeMap<u64, Vec<Itx>>,
    /// Bytes of memory of these records.
    bytes: usize,
}

/// The lists of all open txgs.
#[derive(Debug, Default)]
pub(super) struct Itxs {
    txgs: BTreeMap<u64, TxgItxs>,
    /// Number of requested commits.
    pub(crate) requested: u64,
    /// The newest txg with a change that no record describes.
    pub(crate) unlogged: u64,
}

impl Itxs {
    /// Adds a record, unless the next commit waits for its txg.
    pub(super) fn assign(&mut self, mut itx: Itx, txg: u64) {
        let bytes = itx.memory();
        if txg <= self.unlogged {
            return;
        }
        let waiting: usize = self.txgs.values().map(|records| records.bytes).sum();
        if waiting + bytes > MAX_WAITING {
            self.skip(txg);
            return;
        }
        itx.txg = txg;
        if let Payload::Whole(bytes) = &mut itx.payload {
            stamp_txg(bytes, txg);
        }
        let records = self.txgs.entry(txg).or_default();
        records.bytes += bytes;
        match itx.sync {
            true => records.sync.push(itx),
            false => records.later.entry(itx.object).or_default().push(itx),
        }
    }

    /// A change in `txg` has no record. Records of txgs up to it are never written: the next commit waits.
    pub(crate) fn skip(&mut self, txg: u64) {
        self.unlogged = self.unlogged.max(txg);
        self.txgs.retain(|&held, _| held > txg);
    }

    /// Makes the next commit write the records of `object`; 0 for any.
    #[doc(alias = "zil_async_to_sync")]
    pub(crate) fn want(&mut self, object: u64) {
        for records in self.txgs.values_mut() {
            let moved = match object {
                0 => std::mem::take(&mut records.later).into_values().flatten().collect(),
                one => records.later.remove(&one).unwrap_or_default(),
            };
            records.sync.extend(moved);
        }
    }

    /// Drops the records of a removed object that no commit requires.
    #[doc(alias = "zil_remove_async")]
    pub(crate) fn forget_object(&mut self, object: u64) {
        for records in self.txgs.values_mut() {
            let gone = records.later.remove(&object).unwrap_or_default();
            records.bytes = records.bytes.saturating_sub(gone.iter().map(Itx::memory).sum());
        }
    }

    /// Drops txgs that are on disk.
    #[doc(alias = "zil_clean")]
    pub(crate) fn forget_synced(&mut self, synced: u64) {
        self.txgs.retain(|&txg, _| txg > synced);
    }

    /// The records of the next commit, in order.
    pub(super) fn take(&mut self, synced: u64) -> Vec<Itx> {
        self.forget_synced(synced);
        let taken = self.txgs.values_mut().flat_map(|records| {
            let taken = std::mem::take(&mut records.sync);
            records.bytes = records.bytes.saturating_sub(taken.iter().map(Itx::memory).sum());
            taken
        });
        taken.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_takes_its_object_and_synchronous_records_in_the_order_of_txgs() {
        let mut all = Itxs::default();
        all.assign(Itx::write_later(7, 0, 10), 5);
        all.assign(Itx::write_later(8, 0, 10), 5);
        all.assign(Itx::write(9, 0, b"x"), 6);
        all.assign(Itx::write(9, 1, b"y"), 5);
        all.want(7);
        let objects = |all: Vec<Itx>| all.iter().map(|i| (i.txg, i.object)).collect::<Vec<_>>();
        assert_eq!(objects(all.take(4)), [(5, 9), (5, 7), (6, 9)]);
        all.want(0);
        all.assign(Itx::write(9, 1, b"y"), 6);
        assert_eq!(objects(all.take(5)), [(6, 9)]);
    }

    #[test]
    fn a_txg_whose_records_take_too_much_memory_is_not_logged() {
        let mut all = Itxs::default();
        all.assign(Itx::write(7, 0, b"x"), 5);
        let data = vec![7; 60 << 10];
        (0..1000).for_each(|_| all.assign(Itx::write(9, 0, &data), 6));
        assert_eq!(all.unlogged, 6);
        assert!(all.take(4).is_empty());
        // Records that commits have taken no longer count.
        for _ in 0..1000 {
            all.assign(Itx::write(9, 0, &data), 7);
            assert_eq!(all.take(6).len(), 1);
            all.assign(Itx::write_later(8, 0, 10), 7);
            all.forget_object(8);
        }
        assert_eq!((all.unlogged, all.txgs[&7].bytes), (6, 0));
    }

    #[test]
    fn records_of_a_removed_object_are_forgotten() {
        let mut all = Itxs::default();
        all.assign(Itx::write_later(7, 0, 10), 5);
        all.forget_object(7);
        all.want(0);
        assert!(all.take(0).is_empty());
    }
}
