//! The order of a scan: the MOS, then `$ORIGIN`'s snapshot, then each dataset after the snapshot before it.
//!
//! A dataset counts with the blocks born after the snapshot that it follows: those before were scanned there. When it is
//! done, the snapshot or head after it and its clones come into the queue.
//!
//! Format source: `dsl_scan_visit`, `dsl_scan_visitds`, OpenZFS 2.3.

use ondisk::dsl::DslDataset;
use ondisk::pool::DslScan;
use ondisk::{Blkptr, Bookmark as Stored, ObjectType};

use super::live::LiveScan;
use super::slice::Slice;
use crate::dmu::Objset;
use crate::dsl::write::{MosTx, scan_moves, version};
use crate::error::{Kind, Result};
use crate::traverse::{Births, Paused, dataset};
use crate::types::Bookmark;
use crate::zil;
use crate::zio::Form;

/// Whether a part of the walk has come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walked {
    /// To its end.
    Ended,
    /// The slice is over; the state has the position to continue from.
    Paused,
}

/// The number of the MOS as an object set.
pub(super) const MOS: u64 = 0;

/// Walks on until the slice or the scan is over.
///
/// # Errors
/// When the MOS cannot be read.
#[doc(alias = "dsl_scan_visit")]
pub(super) fn walk(at: &MosTx<'_>, live: &mut LiveScan, slice: &mut Slice<'_>) -> Result<Walked> {
    if live.scan.bookmark.objset == MOS {
        let scan = &mut live.scan;
        (scan.cur_min_txg, scan.cur_max_txg) = (scan.min_txg, scan.max_txg);
        let root = slice.spa.uberblock().rootbp;
        if blocks(scan, slice, &root, MOS) == Walked::Paused {
            return Ok(Walked::Paused);
        }
        scan.bookmark = between();
        enqueue_oldest(at, live)?;
    } else if live.scan.bookmark.objset != scan_moves::BETWEEN {
        // `cur_max_txg` stays that of the dataset in which the scan paused, even if that is gone and its blocks are now the
        // next one's: what was born later is met when that dataset is visited again.
        let number = live.scan.bookmark.objset;
        if one(at, live, slice, number)? == Walked::Paused {
            return Ok(Walked::Paused);
        }
        live.scan.bookmark = between();
    }
    while let Some((&number, _)) = live.queue.first_key_value() {
        if slice.is_paused() {
            return Ok(Walked::Paused);
        }
        let Some(after) = live.queue.remove(&number) else { break };
        let scan = &mut live.scan;
        scan.cur_min_txg = after.max(scan.min_txg);
        scan.bookmark = place(Bookmark::root(number));
        begin(at, scan, slice, number)?;
        if one(at, live, slice, number)? == Walked::Paused {
            return Ok(Walked::Paused);
        }
        live.scan.bookmark = between();
    }
    Ok(Walked::Ended)
}

fn between() -> Stored {
    Stored { objset: scan_moves::BETWEEN, object: 0, level: 0, blkid: 0 }
}

fn place(at: Bookmark) -> Stored {
    Stored { objset: at.objset, object: at.object, level: at.level, blkid: at.blkid }
}

/// A dataset comes out of the queue: sets the txg up to which its blocks count, and scans its intent log.
fn begin(at: &MosTx<'_>, scan: &mut DslScan, slice: &mut Slice<'_>, number: u64) -> Result<()> {
    let phys = match at.dataset(number) {
        Ok(phys) => phys,
        Err(e) if e.kind() == Kind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let newest = if phys.is_snapshot() { phys.creation_txg } else { scan.max_txg };
    scan.cur_max_txg = newest.min(scan.max_txg);
    if !phys.is_snapshot() && !phys.bp.is_hole() && scan.cur_min_txg < scan.max_txg {
        claimed_log(at, scan, slice, (number, &phys.bp));
    }
    Ok(())
}

/// Scans the log blocks of a head that were claimed and not replayed, as those of an encrypted file system without its key.
/// No other reference leads to them.
#[doc(alias = "dsl_scan_zil")]
fn claimed_log(at: &MosTx<'_>, scan: &DslScan, slice: &mut Slice<'_>, (number, root): (u64, &Blkptr)) {
    // An object set that can't be read is reported by the walk.
    let Ok(objset) = Objset::open(at.mos.arc(), number, root, Form::NoKey) else { return };
    if objset.phys.zil_header.claim_txg == 0 {
        return;
    }
    let Ok(held) = zil::held_by(&objset) else { return };
    // The last block of a log was never written.
    let written = held.blocks.iter().filter(|bp| held.end.as_ref() != Some(bp));
    for bp in written.filter(|bp| bp.accounting_birth() > scan.cur_min_txg) {
        slice.take_now(bp, Bookmark::new(number, 0, Bookmark::ZIL, 0));
    }
}

/// Scans a dataset, and puts its successors into the queue.
#[doc(alias = "dsl_scan_visitds")]
fn one(at: &MosTx<'_>, live: &mut LiveScan, slice: &mut Slice<'_>, number: u64) -> Result<Walked> {
    let scan = &mut live.scan;
    let phys = match at.dataset(number) {
        Ok(phys) => phys,
        // A dataset that is gone has nothing to scan.
        Err(e) if e.kind() == Kind::NotFound => return Ok(Walked::Ended),
        Err(e) => return Err(e),
    };
    if scan.cur_min_txg >= scan.max_txg {
        // It was made after the scan began: its blocks were met below an older one, or need not be.
        return Ok(Walked::Ended);
    }
    if blocks(scan, slice, &phys.bp, number) == Walked::Paused {
        return Ok(Walked::Paused);
    }
    if scan.flags & scan_moves::VISIT_AGAIN != 0 {
        scan.flags &= !scan_moves::VISIT_AGAIN;
        live.queue.insert(number, scan.cur_max_txg);
        return Ok(Walked::Ended);
    }
    enqueue_descendants(at, live, number, &phys)?;
    Ok(Walked::Ended)
}

fn blocks(scan: &mut DslScan, slice: &mut Slice<'_>, root: &Blkptr, objset: u64) -> Walked {
    let births = Births { after: scan.cur_min_txg, until: scan.cur_max_txg };
    let Stored { object, level, blkid, .. } = scan.bookmark;
    let from = Bookmark { objset, object, level, blkid };
    let is_start = object == 0 && level == 0 && blkid == 0;
    let arc = std::sync::Arc::clone(&slice.spa.pool.arc);
    match dataset(&arc, slice, (root, objset), births, (!is_start).then_some(from)) {
        Ok(()) => Walked::Ended,
        Err(Paused(here)) => {
            scan.bookmark = place(here);
            Walked::Paused
        }
    }
}

/// The oldest datasets: `$ORIGIN`'s snapshot, of which all others are clones, and in old pools each that follows none.
fn enqueue_oldest(at: &MosTx<'_>, live: &mut LiveScan) -> Result<()> {
    let oldest = datasets(at)?.into_iter().filter(|(_, phys)| phys.prev_snap_obj == 0);
    live.queue.extend(oldest.map(|(number, _)| (number, 0)));
    Ok(())
}

fn enqueue_descendants(at: &MosTx<'_>, live: &mut LiveScan, number: u64, phys: &DslDataset) -> Result<()> {
    if phys.next_snap_obj != 0 {
        live.queue.insert(phys.next_snap_obj, phys.creation_txg);
    }
    if phys.num_children <= 1 {
        return Ok(());
    }
    let mut clones: Vec<u64> = Vec::new();
    if phys.next_clones_obj != 0 && at.since(version::ORIGIN) {
        clones =
            at.zap_entries(phys.next_clones_obj)?.iter().filter_map(|entry| entry.value.first()).collect();
    }
    if u64::try_from(clones.len()).unwrap_or(0) != phys.num_children - 1 {
        // The list of old pools may lack some.
        let follow = |other: &DslDataset| other.prev_snap_obj == number;
        let found =
            datasets(at)?.into_iter().filter(|(clone, other)| follow(other) && *clone != phys.next_snap_obj);
        clones = found.map(|(clone, _)| clone).collect();
    }
    live.queue.extend(clones.into_iter().map(|clone| (clone, phys.creation_txg)));
    Ok(())
}

/// All datasets and snapshots.
fn datasets(at: &MosTx<'_>) -> Result<Vec<(u64, DslDataset)>> {
    let mut found = Vec::new();
    for object in at.mos.view().objects() {
        let object = object?;
        if object.dnode.bonustype == ObjectType::DSL_DATASET
            && let Ok(phys) = DslDataset::from_bytes(object.dnode.bonus())
        {
            found.push((object.number, phys));
        }
    }
    Ok(found)
}
