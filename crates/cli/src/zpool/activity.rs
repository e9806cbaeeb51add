//! What a pool was or is busy with: scrub and resilver, removal, checkpoint, expansion.

use engine::Result;
use engine::spa::Pool;
use engine::spa::space::PoolSpace;
use engine::zap::Zap;
use ondisk::names::{mos, vdev_top};
use ondisk::pool::{DslScan, SpaRemoving};
use zcommon::units::{nicebytes, nicenum};

use crate::output::time::{clock, duration};

/// Bytes of memory for each entry of a removed vdev's mapping.
#[doc(alias = "vdev_indirect_mapping_size")]
const MAPPING_ENTRY: u64 = 24;

/// States of scans, removals and expansions (`dsl_scan_state_t`).
mod state {
    pub(super) const SCANNING: u64 = 1;
    pub(super) const FINISHED: u64 = 2;
    pub(super) const CANCELED: u64 = 3;
}

/// Whole lines for `zpool status`; what can't be read is left out.
pub fn activity(pool: &Pool, space: &PoolSpace) -> Vec<String> {
    let parts = [scan(pool), removal(pool), checkpoint(pool, space), expansion(pool)];
    parts.into_iter().filter_map(|part| part.ok().flatten()).flatten().collect()
}

type Lines = Result<Option<Vec<String>>>;

/// The last scrub or resilver, or the one that was going on.
#[doc(alias = "print_scan_scrub_resilver_status")]
fn scan(pool: &Pool) -> Lines {
    let Some(value) = pool.directory()?.lookup(mos::SCAN.as_bytes())? else { return Ok(None) };
    let Ok(scan) = DslScan::from_words(&value.ints) else { return Ok(None) };
    let (name, done) = match scan.func {
        1 => ("scrub", "scrub repaired"),
        2 => ("resilver", "resilvered"),
        _ => return Ok(None),
    };
    let first = match scan.state {
        state::FINISHED => format!(
            "  scan: {done} {} in {} with {} errors on {}",
            nicebytes(scan.processed),
            duration(scan.end_time.saturating_sub(scan.start_time)),
            scan.errors,
            clock(scan.end_time)
        ),
        state::CANCELED => format!("  scan: {name} canceled on {}", clock(scan.end_time)),
        state::SCANNING => format!("  scan: {name} in progress since {}", clock(scan.start_time)),
        _ => return Ok(None),
    };
    let mut lines = vec![first];
    if scan.state == state::SCANNING {
        let percent = scan.examined as f64 * 100.0 / scan.to_examine.max(1) as f64;
        let work = if scan.func == 1 { "repaired" } else { "resilvered" };
        lines.push(format!("\t{} / {} scanned", nicebytes(scan.examined), nicebytes(scan.to_examine)));
        lines.push(format!("\t{} {work}, {percent:.2}% done", nicebytes(scan.processed)));
    }
    Ok(Some(lines))
}

/// The last removal of a top-level vdev.
#[doc(alias = "print_removal_status")]
fn removal(pool: &Pool) -> Lines {
    let Some(value) = pool.directory()?.lookup(mos::REMOVING.as_bytes())? else { return Ok(None) };
    let Ok(removal) = SpaRemoving::from_words(&value.ints) else { return Ok(None) };
    let vdev = [removal.removing_vdev, removal.prev_indirect_vdev].into_iter().find(|v| *v != u64::MAX);
    let vdev = vdev.unwrap_or(0);
    let took = removal.end_time.saturating_sub(removal.start_time);
    let first = match removal.state {
        state::FINISHED => format!(
            "remove: Removal of vdev {vdev} copied {} in {}h{}m, completed on {}",
            nicebytes(removal.copied),
            took / 3600,
            took / 60 % 60,
            clock(removal.end_time)
        ),
        state::CANCELED => format!("remove: Removal of vdev {vdev} canceled on {}", clock(removal.end_time)),
        state::SCANNING => {
            format!("remove: Evacuation of vdev {vdev} in progress since {}", clock(removal.start_time))
        }
        _ => return Ok(None),
    };
    let tree = pool.tree();
    let entries = tree.tops().filter_map(|top| top.mapping()).map(|m| m.entries().len());
    let memory = u64::try_from(entries.sum::<usize>()).unwrap_or(0).saturating_mul(MAPPING_ENTRY);
    let mut lines = vec![first];
    if memory > 0 {
        lines.push(format!("\t{} memory used for removed device mappings", nicenum(memory)));
    }
    Ok(Some(lines))
}

/// The checkpoint.
#[doc(alias = "print_checkpoint_status")]
fn checkpoint(pool: &Pool, space: &PoolSpace) -> Lines {
    let Some(uberblock) = pool.checkpoint_uberblock()? else { return Ok(None) };
    let when = clock(uberblock.timestamp);
    Ok(Some(vec![format!("checkpoint: created {when}, consumes {}", nicebytes(space.checkpoint()))]))
}

/// The last or current expansion of a raidz.
#[doc(alias = "print_raidz_expand_status")]
fn expansion(pool: &Pool) -> Lines {
    let mut last: Option<(u64, String)> = None;
    for top in &pool.tree().config.children {
        let Some(zap) = pool.dsl.zap(top.top_zap)? else { continue };
        if let Some((when, line)) = expansion_of(&zap, &top.name())?
            && last.as_ref().is_none_or(|(before, _)| when >= *before)
        {
            last = Some((when, line));
        }
    }
    Ok(last.map(|(_, line)| vec![line]))
}

/// When it began, and the line on it.
fn expansion_of(zap: &Zap, name: &str) -> Result<Option<(u64, String)>> {
    let number = |entry: &str| zap.u64(entry);
    let Some(now) = number(vdev_top::RAIDZ_EXPAND_STATE)? else { return Ok(None) };
    let start = number(vdev_top::RAIDZ_EXPAND_START_TIME)?.unwrap_or(0);
    let end = number(vdev_top::RAIDZ_EXPAND_END_TIME)?.unwrap_or(0);
    let copied = number(vdev_top::RAIDZ_EXPAND_BYTES_COPIED)?.unwrap_or(0);
    let line = match now {
        state::FINISHED => format!(
            "expand: expanded {name} copied {} in {}, on {}",
            nicebytes(copied),
            duration(end.saturating_sub(start)),
            clock(end)
        ),
        state::SCANNING => format!("expand: expansion of {name} in progress since {}", clock(start)),
        _ => return Ok(None),
    };
    Ok(Some((start, line)))
}
