//! A look at the blocks of a state that a rewind would return to, before it does.
//!
//! Of a state whose blocks were all kept since, those born in the last txgs are read: they are the ones that the newer,
//! unreadable states and the fault behind them may have damaged. Of older states, all blocks are read, because their space may
//! have been used again. Any unreadable block of metadata disqualifies a state; data is only counted.
//!
//! Source: `spa_load_verify`, `spa_ld_verify_pool_data`, OpenZFS 2.4. Differs from it: only rewinds of pools that are to be
//! written are verified. OpenZFS also verifies the newest state at each import, and refuses it without `-F`; here such a pool
//! is imported, and scrubs and reads report the damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ondisk::ObjectType;
use ondisk::dsl::DslDataset;

use super::pool::Pool;
use crate::error::Error;
use crate::memory::Limit;
use crate::metaslab::DEFER;
use crate::traverse::reader::{INFLIGHT, Reader, Request};
use crate::traverse::{SPILL, Stop, Visit, Visitor, Walk};
use crate::types::Bookmark;
use crate::zio::{ReadOptions, ReadOutcome};

/// Unreadable blocks.
#[derive(Debug, Default)]
pub(super) struct UnreadBlocks {
    /// Metadata.
    pub(super) metadata: u64,
    /// The first error of metadata that the walk met.
    pub(super) first: Option<Error>,
    /// Contents of files and volumes.
    pub(super) data: u64,
}

#[derive(Debug, Default)]
struct Counts {
    metadata: AtomicU64,
    data: AtomicU64,
}

struct Verifier {
    reader: Arc<Reader>,
    with_data: bool,
    found: UnreadBlocks,
}

impl Visitor for Verifier {
    fn block(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        let bp = visit.bp;
        // The walk itself reads all blocks that lead to others.
        let is_walked = visit.at.level != 0 || bp.object_type() == ObjectType::DNODE;
        let is_wanted = self.with_data || bp.is_metadata();
        if !is_walked && is_wanted && !bp.is_embedded() && !bp.is_hole() && !bp.is_redacted() {
            let (start, end) =
                if visit.at.blkid == SPILL { (0, bp.lsize()) } else { (visit.offset(), visit.end()) };
            self.reader.push(Request { bp: *bp, at: visit.at, start, end, lead: false });
        }
        Ok(())
    }

    fn unreadable(&mut self, _: Bookmark, error: &Error) {
        self.found.metadata += 1;
        self.found.first.get_or_insert_with(|| error.clone());
    }
}

/// Reads blocks of the pool's state; `all`: every block, not only those born in the last txgs. Nothing without
/// `spa_load_verify_metadata`.
#[doc(alias("spa_load_verify", "spa_verify_min_txg"))]
pub(super) fn verify(pool: &Pool, all: bool) -> UnreadBlocks {
    let limits = &pool.env.memory.limits;
    if !limits.is_on(Limit::LoadVerifyMetadata) {
        return UnreadBlocks::default();
    }
    let after = if all { 0 } else { pool.uberblock.txg.saturating_sub(DEFER + 1) };
    let counts = Arc::new(Counts::default());
    let theirs = Arc::clone(&counts);
    let told = Box::new(move |request: &Request, outcome: ReadOutcome| {
        if outcome.data.is_err() {
            let kind = if request.bp.is_metadata() { &theirs.metadata } else { &theirs.data };
            kind.fetch_add(1, Ordering::Relaxed);
        }
    });
    let options = ReadOptions { speculative: true, ..ReadOptions::default() };
    let reader = Reader::new(&pool.zio, options, INFLIGHT, told);
    let with_data = limits.is_on(Limit::LoadVerifyData);
    let mut verifier = Verifier { reader, with_data, found: UnreadBlocks::default() };
    // It never stops.
    let _ = walk(pool, &mut verifier, after);
    verifier.reader.drain(|_| ());
    let mut found = verifier.found;
    found.metadata += counts.metadata.load(Ordering::Relaxed);
    found.data = counts.data.load(Ordering::Relaxed);
    found
}

/// Meets the blocks born after a txg: those of the MOS, of datasets and of snapshots. Intent logs are not met: a rewind drops
/// them.
#[doc(alias = "traverse_pool")]
fn walk(pool: &Pool, verifier: &mut Verifier, after: u64) -> Result<(), Stop> {
    let mut walk = Walk::new(&pool.arc, verifier);
    walk.object_set(&pool.uberblock.rootbp, 0, after, false)?;
    for object in pool.mos.objects().filter_map(Result::ok) {
        if object.dnode.bonustype != ObjectType::DSL_DATASET {
            continue;
        }
        match DslDataset::from_bytes(object.dnode.bonus()) {
            Ok(phys) => walk.object_set(&phys.bp, object.number, phys.prev_snap_txg.max(after), false)?,
            Err(e) => {
                let at = Bookmark::new(0, object.number, 0, 0);
                walk.tell(at, &Error::corrupt(e.to_string()).at_block(at));
            }
        }
    }
    Ok(())
}
