//! Past and present activities of a pool: scrub and resilver, removal, checkpoint, expansion.
//!
//! Differs from OpenZFS: estimates the remaining time from this import's progress, at any speed and from the first seconds on;
//! a paused scrub of a pool that is not imported is taken to have been paused when the pool was last written.

mod errors;
mod json;
mod rebuild;
mod text;

use std::time::{SystemTime, UNIX_EPOCH};

use engine::Result;
use engine::spa::copy_pass::CopyPass;
use engine::spa::scrub::ScanPass;
use engine::zap::Zap;
use ondisk::names::{mos, vdev_top};
use ondisk::pool::{DslScan, SpaRemoving};

use zcommon::features::Feature;

use self::errors::ErrorScrub;
use self::rebuild::Rebuild;
use super::prop::PoolView;

/// Bytes of memory for each entry of a removed vdev's mapping.
#[doc(alias = "vdev_indirect_mapping_size")]
const MAPPING_ENTRY: u64 = 24;
/// Flag of a scan that waits for its administrator.
#[doc(alias = "DSF_SCRUB_PAUSED")]
const PAUSED: u64 = 1 << 1;

/// States of scans, removals and expansions (`dsl_scan_state_t`).
mod state {
    pub(super) const SCANNING: u64 = 1;
    pub(super) const FINISHED: u64 = 2;
    pub(super) const CANCELED: u64 = 3;
    pub(super) const ERROR_SCRUBBING: u64 = 4;
}

/// The activities that `zpool status` shows; unreadable ones are skipped.
#[derive(Debug, Clone, Default)]
pub struct Activity {
    scan: Option<Scan>,
    errors: Option<ErrorScrub>,
    rebuilds: Vec<Rebuild>,
    removal: Option<Removal>,
    checkpoint: Option<Checkpoint>,
    expansion: Option<Expansion>,
}

/// The last scrub or resilver, or the one that was going on.
#[doc(alias = "pool_scan_stat_t")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Scan {
    /// 1 scrub, 2 resilver, 3 error scrub.
    func: u64,
    state: u64,
    start: u64,
    end: u64,
    to_examine: u64,
    examined: u64,
    skipped: u64,
    /// Bytes read and checked already.
    issued: u64,
    processed: u64,
    errors: u64,
    /// Since when it is paused; 0: it is not.
    paused: u64,
    /// The part of the scan since this import.
    pass: ScanPass,
    /// Bytes met and bytes read in each second of this import; 0: not known.
    rates: [u64; 2],
}

/// The last removal of a top-level vdev, or the one that was going on.
#[doc(alias = "pool_removal_stat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Removal {
    state: u64,
    vdev: u64,
    start: u64,
    end: u64,
    to_copy: u64,
    copied: u64,
    mapping_memory: u64,
    pass: CopyPass,
}

/// The checkpoint.
#[doc(alias = "pool_checkpoint_stat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Checkpoint {
    /// When it was taken; `None`: it is being discarded.
    start: Option<u64>,
    space: u64,
}

/// The last expansion of a raidz, or the one that was going on.
#[doc(alias = "pool_raidz_expand_stat_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expansion {
    state: u64,
    vdev: u64,
    start: u64,
    end: u64,
    to_reflow: u64,
    reflowed: u64,
    /// It waits for a disk that is absent, or lacks something.
    waits: bool,
    pass: CopyPass,
}

impl Activity {
    /// Looks at everything.
    pub fn of(view: &PoolView<'_>) -> Self {
        Self {
            scan: Scan::of(view).ok().flatten(),
            errors: ErrorScrub::of(view).ok().flatten(),
            rebuilds: Rebuild::all(view).unwrap_or_default(),
            removal: Removal::of(view).ok().flatten(),
            checkpoint: Checkpoint::of(view).ok().flatten(),
            expansion: Expansion::of(view).ok().flatten(),
        }
    }
}

impl Scan {
    fn of(view: &PoolView<'_>) -> Result<Option<Self>> {
        let pool = view.pool;
        let Some(value) = pool.directory()?.lookup(mos::SCAN.as_bytes())? else { return Ok(None) };
        let Ok(scan) = DslScan::from_words(&value.ints) else { return Ok(None) };
        let paused = scan.state == state::SCANNING && scan.flags & PAUSED != 0;
        let spa = view.imported().and_then(|live| live.spa().ok());
        let pass = spa.as_ref().map(|spa| spa.scans().pass()).unwrap_or_default();
        // The scan in memory is ahead of the one on disk.
        let known = spa.and_then(|spa| spa.scans().progress().ok().flatten());
        let live =
            known.filter(|live| scan.state == state::SCANNING && live.scan.start_time == scan.start_time);
        let issued = live.map_or_else(|| scan.examined.saturating_sub(scan.skipped), |live| live.issued);
        let scan = live.map_or(scan, |live| live.scan);
        Ok((1..=3).contains(&scan.func).then_some(Self {
            func: scan.func,
            state: scan.state,
            start: scan.start_time,
            end: scan.end_time,
            to_examine: scan.to_examine,
            examined: scan.examined,
            skipped: scan.skipped,
            issued,
            processed: scan.processed,
            errors: scan.errors,
            paused: match (paused, pass.paused_at) {
                (false, _) => 0,
                (true, 0) => pool.uberblock.timestamp,
                (true, when) => when,
            },
            pass,
            rates: rates(&pass, scan.state == state::SCANNING),
        }))
    }

    /// Bytes to read and check in all.
    fn wanted(&self) -> u64 {
        self.to_examine.saturating_sub(self.skipped)
    }
}

/// Bytes met and bytes read in each second of a scan that runs now.
fn rates(pass: &ScanPass, running: bool) -> [u64; 2] {
    if !running || pass.start == 0 || pass.paused_at != 0 {
        return [0; 2];
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = now.saturating_sub(pass.start).saturating_sub(pass.paused).max(1);
    [pass.examined / seconds, pass.issued / seconds]
}

impl Removal {
    fn of(view: &PoolView<'_>) -> Result<Option<Self>> {
        let pool = view.pool;
        let Some(value) = pool.directory()?.lookup(mos::REMOVING.as_bytes())? else { return Ok(None) };
        let Ok(removal) = SpaRemoving::from_words(&value.ints) else { return Ok(None) };
        let tree = pool.tree();
        let pass = view.imported().and_then(|live| live.spa().ok()?.removal().pass());
        let entries = tree.tops().filter_map(|top| top.mapping()).map(|m| m.entries().len());
        Ok((removal.state != 0).then(|| Self {
            state: removal.state,
            vdev: removal.removing_vdev,
            start: removal.start_time,
            end: removal.end_time,
            to_copy: removal.to_copy,
            copied: removal.copied,
            mapping_memory: u64::try_from(entries.sum::<usize>()).unwrap_or(0).saturating_mul(MAPPING_ENTRY),
            pass: pass.unwrap_or(CopyPass { start: removal.start_time, before: 0 }),
        }))
    }
}

impl Checkpoint {
    fn of(view: &PoolView<'_>) -> Result<Option<Self>> {
        if !view.pool.features.is_active(Feature::ZpoolCheckpoint.info().guid) {
            return Ok(None);
        }
        let start = view.pool.checkpoint_uberblock()?.map(|uberblock| uberblock.timestamp);
        Ok(Some(Self { start, space: view.space.checkpoint() }))
    }
}

impl Expansion {
    /// The one that was going on, else that which ended last.
    fn of(view: &PoolView<'_>) -> Result<Option<Self>> {
        let mut found: Vec<Self> = Vec::new();
        let spa = view.imported().and_then(|live| live.spa().ok());
        let waits = spa.as_ref().is_some_and(|spa| spa.expansion().waits());
        let pass = spa.and_then(|spa| spa.expansion().pass());
        for top in &view.pool.tree().config.children {
            let Some(zap) = view.pool.dsl.zap(top.top_zap)? else { continue };
            found.extend(Self::of_vdev(&zap, top.id, view.sizes.get(top.guid).allocated)?);
        }
        let last = found.into_iter().max_by_key(|e| (e.state == state::SCANNING, e.end));
        let under_way = |e: Self| Self { waits, pass: pass.unwrap_or(e.pass), ..e };
        Ok(last.map(|e| if e.state == state::SCANNING { under_way(e) } else { e }))
    }

    fn of_vdev(zap: &Zap, vdev: u64, to_reflow: u64) -> Result<Option<Self>> {
        let Some(state) = zap.u64(vdev_top::RAIDZ_EXPAND_STATE)?.filter(|state| *state != 0) else {
            return Ok(None);
        };
        let number = |entry: &str| Ok::<u64, engine::Error>(zap.u64(entry)?.unwrap_or(0));
        let start = number(vdev_top::RAIDZ_EXPAND_START_TIME)?;
        Ok(Some(Self {
            state,
            vdev,
            start,
            end: number(vdev_top::RAIDZ_EXPAND_END_TIME)?,
            to_reflow,
            reflowed: number(vdev_top::RAIDZ_EXPAND_BYTES_COPIED)?,
            waits: false,
            pass: CopyPass { start, before: 0 },
        }))
    }
}
