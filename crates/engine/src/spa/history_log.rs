//! Writing the history: one record for each command and each change it made.
//!
//! Records are packed lists with their length in front. The first, of the pool's creation, stays; behind it the
//! object is a ring whose oldest records are overwritten. Source: spa_history.c, OpenZFS 2.3.
//!
//! The history is no part of any change, so that its damage fails none: where the last block cannot be read, the records
//! begin anew in the next one, and where nothing can be written the record is dropped.

use std::sync::Arc;

use nvpair::NvList;
use ondisk::ObjectType;
use ondisk::names::{MOS_DIRECTORY_OBJECT, mos};
use ondisk::pool::SpaHistory;

use super::Spa;
use super::subjects::Reports;
use crate::dmu::dirty::Handle;
use crate::dmu::{NewObject, Object, Tx};
use crate::error::{Error, Kind, Result};
use crate::zap::{Zap, ZapEdit};

/// Block of the history.
const BLOCK: u64 = 128 << 10;
/// Smallest and largest ring.
const LIMITS: (u64, u64) = (128 << 10, 1 << 30);
/// Bytes of the number before a record.
const LENGTH: u64 = 8;

/// A record's content.
#[derive(Debug, Clone)]
pub enum HistoryEvent {
    /// A command as the user gave it.
    Command(String),
    /// A change that the pool made: its name (`create`), the dataset's name and number, and details.
    Internal {
        /// Name of the operation.
        name: String,
        /// Dataset, when it is about one.
        dataset: Option<(String, u64)>,
        /// Details.
        text: String,
    },
}

/// User and host of an operation.
#[derive(Debug, Clone, Default)]
pub struct HistoryOrigin {
    /// User number.
    pub who: u64,
    /// The machine's name.
    pub host: String,
}

impl Reports<'_> {
    /// Adds a record (syncing context).
    #[doc(alias("spa_history_log", "spa_history_log_internal"))]
    pub fn log_history(self, event: &HistoryEvent, origin: &HistoryOrigin, tx: &Tx) -> Result<()> {
        let mut list = NvList::new();
        match event {
            HistoryEvent::Command(command) => {
                list.add("history command", command.as_str());
                list.add("history zone", "linux").add("history who", origin.who);
            }
            HistoryEvent::Internal { name, dataset, text } => {
                if let Some((dataset, number)) = dataset {
                    list.add("dsname", dataset.as_str()).add("dsid", *number);
                }
                list.add("history internal str", text.as_str()).add("internal_name", name.as_str());
                list.add("history txg", tx.txg());
            }
        }
        list.add("history time", self.spa.pool.env.now()).add("history hostname", origin.host.as_str());
        let packed = list.encode_native().map_err(|e| Error::new(Kind::Invalid, e.to_string()))?;
        self.notify_history(event, origin, tx);
        match append_history(self.spa, &packed, matches!(event, HistoryEvent::Command(_)), tx) {
            // The damage itself is reported by the read.
            Err(why) if why.is_damage() => Ok(()),
            done => done,
        }
    }
}

fn append_history(spa: &Spa, packed: &[u8], command: bool, tx: &Tx) -> Result<()> {
    let view = spa.mos.view();
    let number = match Zap::open(&view.object(MOS_DIRECTORY_OBJECT)?)?.u64(mos::HISTORY)? {
        Some(number) => number,
        None => new_history(spa, tx)?,
    };
    let handle = spa.mos.handle(number)?;
    let object = view.object(number)?;
    let mut head = SpaHistory::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    head = match append(&handle, &object, head, packed, tx) {
        Err(why) if why.is_damage() => append(&handle, &object, begin_anew(&head), packed, tx)?,
        done => done?,
    };
    if head.pool_create_len == 0 && command {
        head.pool_create_len = head.eof;
        head.bof = head.eof;
    }
    handle.set_bonus(tx, &head.to_bytes())
}

#[doc(alias = "spa_history_create_obj")]
fn new_history(spa: &Spa, tx: &Tx) -> Result<u64> {
    let new = NewObject::with_bonus(
        ObjectType::SPA_HISTORY,
        BLOCK,
        ObjectType::SPA_HISTORY_OFFSETS,
        SpaHistory::SIZE,
    );
    let object = spa.mos.create_object(tx, new)?;
    let directory = spa.mos.handle(MOS_DIRECTORY_OBJECT)?;
    ZapEdit::open(&mut directory.edit(tx))?.insert(mos::HISTORY, object.number)?;
    // A thousandth of the pool, within limits.
    let size = spa.space.class_stats(crate::zio::alloc::MetaslabClass::Normal).dspace / 1000;
    let head =
        SpaHistory { phys_max_off: size.clamp(LIMITS.0, LIMITS.1) / BLOCK * BLOCK, ..SpaHistory::default() };
    object.set_bonus(tx, &head.to_bytes())?;
    Ok(object.number)
}

/// Writes a record, and returns the offsets behind it.
fn append(
    handle: &Arc<Handle>,
    object: &Object,
    mut head: SpaHistory,
    packed: &[u8],
    tx: &Tx,
) -> Result<SpaHistory> {
    let len = u64::try_from(packed.len()).unwrap_or(u64::MAX);
    if head.eof.saturating_sub(head.bof).saturating_add(len + LENGTH) > room(&head) {
        make_room(object, &mut head, len + LENGTH)?;
    }
    for part in [&len.to_le_bytes()[..], packed] {
        let mut rest = part;
        while !rest.is_empty() {
            let (place, left) = place(&head, head.eof);
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_checked(take).unwrap_or((rest, &[]));
            handle.write(tx, place, now)?;
            head.eof += u64::try_from(now.len()).unwrap_or(0);
            rest = later;
        }
    }
    Ok(head)
}

/// An empty ring that begins with the block after the last record's, or where the ring ends before that, at its start.
fn begin_anew(head: &SpaHistory) -> SpaHistory {
    let (at, left) = place(head, head.eof);
    let start = head.eof.saturating_add((BLOCK - at % BLOCK).min(left));
    SpaHistory { bof: start, eof: start, records_lost: head.records_lost.saturating_add(1), ..*head }
}

/// Bytes of the ring.
fn room(head: &SpaHistory) -> u64 {
    head.phys_max_off.saturating_sub(head.pool_create_len)
}

/// Where a logical offset stands, and how many bytes follow there before the ring's end.
fn place(head: &SpaHistory, logical: u64) -> (u64, u64) {
    if logical < head.pool_create_len || head.pool_create_len == 0 {
        return (logical, head.phys_max_off.saturating_sub(logical));
    }
    let at = (logical - head.pool_create_len) % room(head).max(1);
    (head.pool_create_len + at, room(head) - at)
}

/// Drops the oldest records until `len` bytes fit.
#[doc(alias = "spa_history_advance_bof")]
fn make_room(object: &Object, head: &mut SpaHistory, len: u64) -> Result<()> {
    while head.eof.saturating_sub(head.bof).saturating_add(len) > room(head) {
        if head.bof >= head.eof {
            return Err(Error::new(Kind::TooLong, "a history record is longer than the history"));
        }
        let mut bytes = [0; 8];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let (at, _) = place(head, head.bof + u64::try_from(i).unwrap_or(0));
            *byte = object.read_vec(at, 1)?.first().copied().unwrap_or(0);
        }
        let record = u64::from_le_bytes(bytes);
        head.bof = head.bof.saturating_add(LENGTH).saturating_add(record).min(head.eof);
        head.records_lost += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_beginning_is_at_the_next_block_or_at_the_start_of_the_ring() {
        let head = SpaHistory {
            pool_create_len: 100,
            phys_max_off: 4 * BLOCK,
            bof: 100,
            eof: BLOCK + 7,
            records_lost: 0,
        };
        let anew = begin_anew(&head);
        assert_eq!((anew.bof, place(&anew, anew.eof).0, anew.records_lost), (anew.eof, 2 * BLOCK, 1));
        let anew = begin_anew(&SpaHistory { eof: 3 * BLOCK + 1, ..head });
        assert_eq!(place(&anew, anew.eof).0, 100);
    }

    #[test]
    fn the_ring_begins_behind_the_first_record() {
        let head =
            SpaHistory { pool_create_len: 100, phys_max_off: 1100, bof: 100, eof: 100, records_lost: 0 };
        assert_eq!(place(&head, 40), (40, 1060));
        assert_eq!(
            [100, 1099, 1100, 2150].map(|l| place(&head, l)),
            [(100, 1000), (1099, 1), (100, 1000), (150, 950)]
        );
    }
}
