//! The intent log of a pool that was not exported, laid over the committed state in memory.
//!
//! A synchronous write is promised when its record is in the log; the txg that makes it part of the file
//! system may never have been synced. An import would replay the log, which writes to the pool. Here the same
//! records are applied to an [`Overlay`] that every read of attributes, directories and data passes through,
//! and the pool stays as it is.
//!
//! Records that count: those of a txg that was not synced (`claim_txg` when an import has claimed the log,
//! else one past the newest synced), with a sequence number above the highest that an interrupted replay has
//! done. A snapshot has no log.
//!
//! Differs from OpenZFS: a record that can't be applied is noted and the next one is tried, where an
//! import stops; the times of a write, which the log does not hold, are those of the state before it
//! (an import sets the time of the replay).

mod apply;
mod create;
mod names;
mod patch;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use engine::dsl::Dataset;
use engine::{Error, Kind, zil};
use ondisk::Endian;

pub(crate) use patch::Patched;
pub(crate) use state::{Changes, Stored};

use crate::filesystem::Filesystem;
use state::OverlayState;

/// Bytes of names, attributes and data that a log may bring into memory.
const MAX_BYTES: u64 = 512 << 20;

/// Result of a replay in memory.
#[derive(Debug, Clone, Default)]
pub struct Replayed {
    /// Records applied.
    pub applied: u64,
    /// Records that could not be applied, and why.
    pub notes: Vec<Error>,
}

/// Files as the log leaves them, by object number; those that it does not touch are not here.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// `None`: removed.
    nodes: HashMap<u64, Option<Stored>>,
    pub(crate) replayed: Replayed,
}

impl Overlay {
    /// The log's state of an object; the outer `None`: not in the log.
    pub(crate) fn get(&self, number: u64) -> Option<Option<&Stored>> {
        self.nodes.get(&number).map(Option::as_ref)
    }
}

/// Reads the log of `dataset` over `fs`; `None` when there is nothing to replay.
pub(crate) fn overlay(fs: &Arc<Filesystem>, dataset: &Dataset) -> Option<Overlay> {
    let header = fs.objset.phys.zil_header;
    if dataset.is_snapshot() || header.log.is_hole() {
        return None;
    }
    let synced = dataset.dsl.mos.rootbp.logical_birth();
    let first = if header.claim_txg != 0 { header.claim_txg } else { synced.saturating_add(1) };
    let mut state = OverlayState::new(fs);
    let mut bytes: u64 = 0;
    for block in zil::chain(&fs.objset) {
        bytes = bytes.saturating_add(block.bp.lsize());
        if bytes > MAX_BYTES {
            state.note(Error::new(Kind::Limit, "the intent log is too long to be replayed in memory"));
            break;
        }
        state.endian = block.decode().map_or(Endian::Little, |b| b.endian);
        for (head, record) in block.records() {
            if head.txg < first || head.seq <= header.replay_seq {
                continue;
            }
            let applied = record.and_then(|record| apply::record(&mut state, head.txtype, record));
            match applied {
                Ok(()) => state.replayed.applied += 1,
                Err(e) => state.note(Error::new(e.kind(), format!("log record {}: {e}", head.seq))),
            }
        }
    }
    let overlay = state.finish();
    (overlay.replayed.applied > 0 || !overlay.replayed.notes.is_empty()).then_some(overlay)
}
