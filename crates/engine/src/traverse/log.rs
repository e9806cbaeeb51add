//! Intent logs as a walk meets them: the blocks of the chain, and blocks that write records name.
//!
//! The part of a chain that counts: up to the claimed record when the log was claimed at an import; else
//! blocks born in synced txgs (later ones are not in the space maps).
//!
//! Format source: `traverse_zil`, `zil_parse`, OpenZFS 2.3.

use ondisk::zil::{LogBlock, LogRecord};
use ondisk::{Blkptr, ZilHeader};

use super::walk::{Places, ReferenceKind, Stop, Visit, Walk};
use crate::types::Bookmark;
use crate::zio::{Form, ReadOptions};

/// Longest chain that is followed: sequence numbers rise, so this only bounds hostile images.
const MAX_BLOCKS: u64 = 1 << 24;

/// The part of a log that counts.
struct Claim {
    txg: u64,
    /// Blocks born from here on are not in the space maps.
    unsynced: u64,
    block_seq: u64,
    record_seq: u64,
}

impl Claim {
    fn of(header: &ZilHeader, unsynced: u64) -> Self {
        let claimed = header.claim_txg != 0;
        let up_to = |seq| if claimed { seq } else { u64::MAX };
        Self {
            txg: header.claim_txg,
            unsynced,
            block_seq: up_to(header.claim_blk_seq),
            record_seq: up_to(header.claim_lr_seq),
        }
    }
}

/// Meets the blocks of a log.
pub(super) fn walk(walk: &mut Walk<'_>, header: &ZilHeader) -> Result<(), Stop> {
    let Some(last) = walk.log_until else { return Ok(()) };
    let claim = Claim::of(header, last.saturating_add(1));
    let mut seen = Places::new();
    let mut bp = header.log;
    let mut last_record = 0;
    for _ in 0..MAX_BLOCKS {
        let seq = LogBlock::sequence(&bp);
        if bp.is_hole() || seq > claim.block_seq {
            break;
        }
        if claim.txg == 0 && bp.accounting_birth() >= claim.unsynced {
            break;
        }
        let at = Bookmark::new(walk.objset, 0, Bookmark::ZIL, seq);
        met(walk, &mut seen, &bp, at)?;
        if last_record == claim.record_seq && seq == claim.block_seq {
            break;
        }
        match block(walk, &mut seen, &claim, &bp, at)? {
            // A block is bound to its number, so numbers that rise make the chain end.
            Some((next, record)) if LogBlock::sequence(&next) > seq => (bp, last_record) = (next, record),
            Some(_) | None => break,
        }
    }
    Ok(())
}

fn met(walk: &mut Walk<'_>, seen: &mut Places, bp: &Blkptr, at: Bookmark) -> Result<(), Stop> {
    let new = bp.dva(0).is_none_or(|dva| seen.insert((dva.vdev, dva.offset)));
    if !new {
        return Ok(());
    }
    walk.visitor.block(&Visit { bp, at, origin: ReferenceKind::IntentLog, dnode: None })
}

/// Visits the blocks that a log block's records name; returns the next log block and the last record's
/// number, or nothing where the chain ends.
fn block(
    walk: &mut Walk<'_>,
    seen: &mut Places,
    claim: &Claim,
    bp: &Blkptr,
    at: Bookmark,
) -> Result<Option<(Blkptr, u64)>, Stop> {
    let options = ReadOptions { form: Form::Physical, speculative: true, ..ReadOptions::default() };
    // A log's last block was allocated ahead and never written: no checksum fits, and that is its end.
    let Ok(bytes) = walk.arc.zio().read_wait(bp, at, options).data else { return Ok(None) };
    let Ok(block) = LogBlock::from_bytes(&bytes, bp) else { return Ok(None) };
    let mut last = 0;
    for (head, record) in block.records() {
        if head.seq > claim.record_seq {
            return Ok(None);
        }
        if let Ok(LogRecord::Write(write)) = record {
            let bp = &write.lr.blkptr;
            if !bp.is_hole() && claim.txg != 0 && bp.accounting_birth() >= claim.txg {
                let blkid = write.lr.offset.checked_div(bp.lsize()).unwrap_or(0);
                met(walk, seen, bp, Bookmark::new(walk.objset, write.lr.foid, Bookmark::ZIL, blkid))?;
            }
        }
        last = head.seq;
    }
    Ok(Some((block.chain.next_blk, last)))
}
