//! Records that wait: what was done in open groups, in the order in which it was done.
//!
//! Each group has one list that the next commit writes whatever it is for, and one for each object of what only a
//! commit of that object needs (writes that nobody waits for). Lists of groups that are on disk are dropped.

use std::collections::BTreeMap;

use ondisk::zil::{LogRecord, LrWrite, TxType, Write, encode_write, stamp_txg};

/// Where the data of a write are when the log is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The record is whole.
    #[doc(alias = "WR_COPIED")]
    Whole(Vec<u8>),
    /// Of a write the data are read from the object when the record is written.
    #[doc(alias = "WR_NEED_COPY")]
    Read(LrWrite),
    /// The block that holds the data is written to where it will stay, and the record points to it.
    #[doc(alias = "WR_INDIRECT")]
    Placed(LrWrite),
}

/// A record on its way to the log.
#[doc(alias = "itx_t")]
#[derive(Debug, Clone)]
pub struct Itx {
    /// The object that it belongs to, for commits of one object.
    pub object: u64,
    /// Whether every commit writes it, not only one of its object.
    pub sync: bool,
    pub(super) txg: u64,
    pub(super) payload: Payload,
}

impl Itx {
    /// A record that every commit writes: a change of names, or of an object that somebody has open for
    /// synchronous writing.
    pub fn new(object: u64, txtype: TxType, record: &LogRecord<'_>) -> Self {
        Self { object, sync: true, txg: 0, payload: Payload::Whole(record.encode(txtype)) }
    }

    /// A write whose data are given. Those that a block of the log might not hold are read from the object later.
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

    /// A write within one block whose data are too many for the log: if it is ever written, the block goes to its
    /// final place at once.
    pub fn write_placed(object: u64, offset: u64, length: u64) -> Self {
        let lr = LrWrite { foid: object, offset, length, ..LrWrite::default() };
        Self { object, sync: false, txg: 0, payload: Payload::Placed(lr) }
    }

    /// As given, but only for commits of its object, or for all.
    pub fn with_sync(self, sync: bool) -> Self {
        Self { sync, ..self }
    }

    /// Bytes that it takes in the log, about.
    pub(super) fn size(&self) -> u64 {
        match &self.payload {
            Payload::Whole(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Payload::Read(lr) => WRITE_RECORD.saturating_add(lr.length).next_multiple_of(8),
            Payload::Placed(_) => WRITE_RECORD,
        }
    }
}

/// Most data that are kept in a record.
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

#[derive(Debug, Default)]
struct Group {
    sync: Vec<Itx>,
    later: BTreeMap<u64, Vec<Itx>>,
}

/// The lists of all open groups.
#[derive(Debug, Default)]
pub(super) struct Itxs {
    groups: BTreeMap<u64, Group>,
    /// Commits asked for so far.
    pub requested: u64,
    /// The newest group with a change that no record describes.
    pub unlogged: u64,
}

impl Itxs {
    pub fn assign(&mut self, mut itx: Itx, txg: u64) {
        itx.txg = txg;
        if let Payload::Whole(bytes) = &mut itx.payload {
            stamp_txg(bytes, txg);
        }
        let group = self.groups.entry(txg).or_default();
        match itx.sync {
            true => group.sync.push(itx),
            false => group.later.entry(itx.object).or_default().push(itx),
        }
    }

    /// Has the next commit write what belongs to `object`; 0: to any.
    #[doc(alias = "zil_async_to_sync")]
    pub fn want(&mut self, object: u64) {
        for group in self.groups.values_mut() {
            let moved = match object {
                0 => std::mem::take(&mut group.later).into_values().flatten().collect(),
                one => group.later.remove(&one).unwrap_or_default(),
            };
            group.sync.extend(moved);
        }
    }

    /// Forgets what no commit has asked for of an object that is gone.
    #[doc(alias = "zil_remove_async")]
    pub fn forget_object(&mut self, object: u64) {
        self.groups.values_mut().for_each(|group| drop(group.later.remove(&object)));
    }

    /// Forgets groups that are on disk.
    #[doc(alias = "zil_clean")]
    pub fn forget_synced(&mut self, synced: u64) {
        self.groups.retain(|&txg, _| txg > synced);
    }

    /// What the next commit writes, in order.
    pub fn take(&mut self, synced: u64) -> Vec<Itx> {
        self.forget_synced(synced);
        self.groups.values_mut().flat_map(|group| std::mem::take(&mut group.sync)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_takes_its_object_and_what_is_synchronous_in_the_order_of_groups() {
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
    fn what_belongs_to_a_removed_object_is_forgotten() {
        let mut all = Itxs::default();
        all.assign(Itx::write_later(7, 0, 10), 5);
        all.forget_object(7);
        all.want(0);
        assert!(all.take(0).is_empty());
    }
}
