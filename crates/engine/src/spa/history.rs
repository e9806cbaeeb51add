//! The pool's history: records of operations, kept in a ring inside the pool.
//!
//! The first record, the `zpool create`, is never overwritten; behind it the ring starts anew when it is
//! full, and the oldest records are lost.

use nvpair::NvList;
use ondisk::names::mos;
use ondisk::pool::{SpaHistory, history_records};

use super::Pool;
use crate::dmu::Object;
use crate::error::{Error, Result};

/// Bytes of history that are read; OpenZFS keeps at most 1 GiB, and far less in pools of usual size.
const MAX_HISTORY: u64 = 1 << 30;
/// Bytes that are read at once.
const CHUNK: u64 = 1 << 20;

/// The readable part of the history.
#[derive(Debug, Default)]
pub struct History {
    /// Records, oldest first.
    pub records: Vec<NvList>,
    /// Errors of unreadable parts.
    pub damage: Vec<Error>,
}

/// Reads the history; a pool may have none. Damage ends the reading of its part and is kept beside.
#[doc(alias = "spa_history_get")]
pub fn history(pool: &Pool) -> Result<History> {
    let Some(number) = pool.directory()?.u64(mos::HISTORY)? else { return Ok(History::default()) };
    let object = pool.mos.object(number)?;
    let head = SpaHistory::from_bytes(object.dnode.bonus()).map_err(|e| Error::corrupt(e.to_string()))?;
    let mut history = History::default();
    history.read(&object, &head, 0, head.pool_create_len);
    // As long as nothing was overwritten, the create record is also the oldest of the ring.
    history.read(&object, &head, head.bof.max(head.pool_create_len), head.eof);
    Ok(history)
}

impl History {
    /// Reads the records from one logical offset to another.
    fn read(&mut self, object: &Object, head: &SpaHistory, from: u64, to: u64) {
        if to <= from {
            return;
        }
        if to - from > MAX_HISTORY.min(head.phys_max_off) {
            let what = format!("the history claims {} bytes", to - from);
            return self.damage.push(Error::corrupt(what));
        }
        match unwrapped(object, head, from, to) {
            Ok(bytes) => self.decode(&bytes),
            Err(e) => self.damage.push(e),
        }
    }

    fn decode(&mut self, bytes: &[u8]) {
        for record in history_records(bytes) {
            let decoded = record
                .map_err(|e| Error::corrupt(e.to_string()))
                .and_then(|r| NvList::decode(r).map_err(|e| Error::corrupt(format!("history record: {e}"))));
            match decoded {
                Ok(list) => self.records.push(list),
                Err(e) => return self.damage.push(e),
            }
        }
    }
}

/// The bytes between two logical offsets, put together from the ring.
fn unwrapped(object: &Object, head: &SpaHistory, from: u64, to: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut at = from;
    while at < to {
        let broken = || Error::corrupt("the history's offsets contradict each other");
        let physical = head.log_to_phys(at).ok_or_else(broken)?;
        let to_end = head.phys_max_off.checked_sub(physical).filter(|&n| n > 0).ok_or_else(broken)?;
        let step = (to - at).min(to_end).min(CHUNK);
        bytes.extend(object.read_vec(physical, usize::try_from(step).map_err(|_| broken())?)?);
        at += step;
    }
    Ok(bytes)
}
