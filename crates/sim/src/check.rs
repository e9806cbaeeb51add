//! Invariants of a pool at any moment.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use blkdev::Device;
use engine::scan::account::WalkEvent;
use engine::scan::space::SpaceRange;
use engine::scan::verify::{Report, VerifyOptions, VerifyScope, verify};
use engine::spa::{ImportSource, OpenOptions, Pool, open};
use ondisk::Dva;

use crate::world;

/// Opens a pool for reading; a notice of damage is an error.
pub fn opened(devices: &[Device]) -> Result<Arc<Pool>, String> {
    opened_from(world::found(devices).ok_or("no pool is found")?)
}

/// As [`opened`], from an import source.
pub fn opened_from(source: ImportSource) -> Result<Arc<Pool>, String> {
    let env = world::env(1);
    let pool = open(&env, source, OpenOptions::default()).map_err(|e| format!("it does not open: {e}"))?;
    match pool.notes.first() {
        Some(note) => Err(format!("it opens with damage: {note}")),
        None => Ok(pool),
    }
}

/// Checks that every block is readable and allocated exactly once.
pub fn whole(pool: &Pool) -> Result<Report, String> {
    let stop = AtomicBool::new(false);
    let report = verify(pool, &VerifyOptions::new(&stop), &mut |_| (), &mut |_| ());
    if let Some((request, error)) = report.failed.first() {
        return Err(format!("a block can't be read: {error} ({:?})", request.at));
    }
    if report.is_lost() {
        return Err(format!("blocks are lost: {:?} {:?}", report.damage, report.account.notes));
    }
    match &report.account.space {
        Some(space) if space.is_clean() => Ok(report),
        Some(space) => {
            let runs = space.doubled.iter().chain(&space.unallocated).chain(&space.leaked);
            let runs: Vec<SpaceRange> = runs.copied().collect();
            Err(format!("space maps and blocks differ: {space:?}{}", blocks_at(pool, &runs)))
        }
        None => Err("space could not be accounted for".into()),
    }
}

/// The blocks at these locations, for reports.
fn blocks_at(pool: &Pool, runs: &[SpaceRange]) -> String {
    let (stop, mut text) = (AtomicBool::new(false), String::new());
    verify(
        pool,
        &VerifyOptions { which: VerifyScope::None, ..VerifyOptions::new(&stop) },
        &mut |_| (),
        &mut |event| {
            if let WalkEvent::Block(visit, met) = event {
                let is_there = |dva: Dva| {
                    let at = |run: &&SpaceRange| run.vdev == u64::from(dva.vdev) && overlap(run, dva);
                    runs.iter().find(at).is_some()
                };
                if visit.bp.dvas().any(is_there) {
                    text += &format!("\n  {:?} {:?} {met:?}: {:?}", visit.origin, visit.at, visit.bp);
                }
            }
        },
    );
    text
}

fn overlap(run: &SpaceRange, dva: Dva) -> bool {
    dva.offset < run.offset + run.size && run.offset < dva.offset + dva.asize
}
