//! Starting, suspending, canceling and forgetting sweeps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Sweep, SweepKind, SweepState};
use crate::dmu::Tx;
use crate::dsl::write::Hooks as _;
use crate::error::Result;
use crate::memory::Limit;
use crate::spa::Spa;
use crate::spa::subjects::FreeSpace;
use crate::vdev::leaf::Leaf;
use crate::vdev::top::{Top, VdevLayout};

/// A command for sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepCommand {
    /// Begin, or resume suspended ones.
    Start,
    /// They end for good.
    Cancel,
    /// They stop until they are started.
    Suspend,
    /// The state of an initialization is removed, so that it can be repeated.
    Uninit,
}

/// How to trim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrimOptions {
    /// Bytes a second on the leaf, at most; 0: as many as it takes.
    pub rate: u64,
    /// Skip metaslabs in which nothing was ever allocated (a tunable of OpenZFS).
    pub partial: bool,
    /// The device is to make the bytes unreadable.
    pub secure: bool,
}

/// Why a leaf is not swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepRefusal {
    /// The pool has no such leaf.
    NoDevice,
    /// It has no space of its own, or cannot be written.
    BadDevice,
    /// A sweep is under way already, or the vdev is being removed or expanded.
    Busy,
    /// None is under way.
    NotActive,
    /// The device has no request for that.
    Unsupported,
}

impl SweepRefusal {
    /// Its words for a kind of sweep.
    pub fn what(self, kind: SweepKind) -> &'static str {
        match (self, kind) {
            (Self::NoDevice, _) => "no such device in pool",
            (Self::BadDevice, _) => "invalid device",
            (Self::Busy, SweepKind::Initialize) => "currently initializing",
            (Self::Busy, SweepKind::Trim) => "currently trimming",
            (Self::NotActive, SweepKind::Initialize) => "there is no active initialization",
            (Self::Unsupported, _) => "trim operations are not supported by this device",
            (Self::NotActive, SweepKind::Trim) => "there is no active trim",
        }
    }
}

/// Whether a leaf has a device that can be trimmed so.
#[doc(alias("vdev_has_trim", "vdev_has_securetrim"))]
pub(super) fn supports(leaf: &Leaf, options: TrimOptions) -> bool {
    let known = leaf.device().map(|device| device.trim_support());
    known.is_some_and(|known| if options.secure { known.erase } else { known.trim })
}

impl FreeSpace<'_> {
    /// Carries out a command on the sweeps of leaves; returns, when it is on disk, the leaves that it could not be done on. The
    /// others are done all the same.
    ///
    /// # Errors
    /// When the pool cannot be read or written.
    #[doc(alias("spa_vdev_initialize", "spa_vdev_trim"))]
    pub fn sweep(
        self,
        kind: SweepKind,
        command: SweepCommand,
        options: TrimOptions,
        leaves: &[u64],
    ) -> Result<BTreeMap<u64, SweepRefusal>> {
        let skips = kind == SweepKind::Trim && self.spa.limits().is_on(Limit::TrimMetaslabSkip);
        let options = TrimOptions { partial: options.partial || skips, ..options };
        let mut refused = BTreeMap::new();
        let mut sweeps = Vec::new();
        for leaf in leaves {
            match check_sweep(self.spa, (kind, options), command, *leaf)? {
                Ok(sweep) => sweeps.push(sweep),
                Err(why) => drop(refused.insert(*leaf, why)),
            }
        }
        let changed = sweeps.clone();
        self.spa.sync_task(move |spa, tx| {
            let to = match command {
                SweepCommand::Start => SweepState::Active,
                SweepCommand::Cancel => SweepState::Canceled,
                SweepCommand::Suspend => SweepState::Suspended,
                SweepCommand::Uninit => SweepState::None,
            };
            changed.iter().try_for_each(|sweep| sweep.change(spa, to, options, tx))
        })?;
        for sweep in sweeps {
            match command {
                SweepCommand::Start => sweep.start(self.spa),
                // The step under way ends first.
                _ => drop(sweep.step.lock()),
            }
        }
        Ok(refused)
    }

    /// Whether the vdev is being removed or expanded: its sweeps rest.
    pub(in crate::spa) fn is_reshaped(self, top: &Top) -> bool {
        let is_leaving =
            self.spa.config.lock().top(top.id).is_some_and(|config| config.u64("removing") == Some(1));
        is_leaving || matches!(&top.layout, VdevLayout::Raidz(geometry) if geometry.is_reflowing())
    }
}

fn check_sweep(
    spa: &Spa,
    (kind, options): (SweepKind, TrimOptions),
    command: SweepCommand,
    guid: u64,
) -> Result<std::result::Result<Arc<Sweep>, SweepRefusal>> {
    let tree = spa.pool.zio.tree();
    let Some(leaf) = tree.leaf(guid) else { return Ok(Err(SweepRefusal::NoDevice)) };
    let top = tree.top_of(guid).filter(|top| top.child_of(guid).is_some());
    let Some(top) = top.filter(|top| !top.is_removed() && leaf.is_writable()) else {
        return Ok(Err(SweepRefusal::BadDevice));
    };
    let Some(sweep) = spa.free_space().sweep_of(kind, guid)? else { return Ok(Err(SweepRefusal::BadDevice)) };
    let state = sweep.progress.lock().state;
    let refusal = match command {
        SweepCommand::Start if state == SweepState::Active || spa.free_space().is_reshaped(&top) => {
            Some(SweepRefusal::Busy)
        }
        SweepCommand::Start if kind == SweepKind::Trim && !supports(leaf, options) => {
            Some(SweepRefusal::Unsupported)
        }
        SweepCommand::Cancel if !matches!(state, SweepState::Active | SweepState::Suspended) => {
            Some(SweepRefusal::NotActive)
        }
        SweepCommand::Suspend if state != SweepState::Active => Some(SweepRefusal::NotActive),
        SweepCommand::Uninit if state == SweepState::Active => Some(SweepRefusal::Busy),
        _ => None,
    };
    Ok(refusal.map_or(Ok(sweep), Err))
}

impl Sweep {
    /// Changes the state, records it and posts an event (syncing context).
    #[doc(alias("vdev_initialize_change_state", "vdev_trim_change_state"))]
    pub(super) fn change(&self, spa: &Spa, to: SweepState, options: TrimOptions, tx: &Tx) -> Result<()> {
        let from = {
            let mut progress = self.progress.lock();
            let from = progress.state;
            if from == to {
                return Ok(());
            }
            if from != SweepState::Suspended {
                progress.time = spa.pool.env.now();
            }
            if to == SweepState::Active {
                // A trim begins anew; an initialization does so only after `uninit`.
                if self.kind == SweepKind::Trim && from != SweepState::Suspended {
                    progress.offset = 0;
                    progress.options = options;
                }
                if options.rate != 0 {
                    progress.options.rate = options.rate;
                }
                (progress.cursor, progress.bytes, progress.since) = (0, 0, None);
            }
            if to == SweepState::None {
                (progress.offset, progress.time) = (0, 0);
            }
            progress.state = to;
            progress.changed = true;
            from
        };
        self.tell(spa, from, to, tx)
    }

    fn tell(&self, spa: &Spa, from: SweepState, to: SweepState, tx: &Tx) -> Result<()> {
        let tree = spa.pool.zio.tree();
        let Some(leaf) = tree.leaf(self.leaf()) else { return Ok(()) };
        let was_under_way = matches!(from, SweepState::Active | SweepState::Suspended);
        let (event, done) = match to {
            SweepState::None => return spa.log("uninitialize", "", 0, &format!("vdev={}", leaf.path), tx),
            SweepState::Active if from == SweepState::Suspended => ("resume", "activated"),
            SweepState::Active => ("start", "activated"),
            SweepState::Suspended => ("suspend", "suspended"),
            SweepState::Canceled if !was_under_way => return Ok(()),
            SweepState::Canceled => ("cancel", "canceled"),
            SweepState::Complete => ("finish", "complete"),
        };
        if self.kind == SweepKind::Trim {
            spa.reports().report_leaf(&format!("sysevent.fs.zfs.trim_{event}"), leaf);
        }
        spa.log(self.kind.word(), "", 0, &format!("vdev={} {done}", leaf.path), tx)
    }
}
