//! Jobs of an administrator beside the workload: top-level vdevs come and go, a raidz is expanded, checkpoints are taken,
//! discarded and returned to, leaves are initialized and trimmed, scrubs begin, pause and stop, spares and cache devices come and
//! go, halves of mirrors are split off.
//!
//! Each command is accepted or refused in the words of OpenZFS; a refusal changes nothing. An accepted job
//! continues during the following rounds, through faults, restarts and power cuts.

use std::sync::Arc;

use blkdev::{BlockDevice, FaultyDevice};
use engine::Kind;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::layout::{LeafSpec, PoolSpec, TopSpec, VdevSpec};
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use engine::spa::{ActivityCommand, WaitActivity};
use engine::vdev::config::AllocBias;
use engine::vdev::top::{Top, VdevLayout};

use super::{MOST_GROUPS, Run, guid_of};

/// Kinds of errors that are refusals: the pool's state does not permit the job.
fn is_refused(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Busy
            | Kind::Unsupported
            | Kind::Invalid
            | Kind::NotFound
            | Kind::Exists
            | Kind::NoSpace
            | Kind::NoDevice
    )
}

/// Whether a top-level vdev keeps its content without one of its leaves.
fn is_redundant(top: &Top) -> bool {
    match top.layout {
        VdevLayout::Mirror => top.leaves().count() > 1,
        _ => top.children().len() > 1,
    }
}

impl Run {
    /// Starts or stops a job.
    pub(super) fn job(&mut self) -> Result<(), String> {
        if self.has_halves() && self.random.below(6) == 0 {
            let done = self.well_and_split().map_err(|why| format!("split: {why}"))?;
            self.count(if done { "split" } else { "refused split" });
        }
        let (name, done) = match self.random.below(25) {
            0 | 1 => ("add", self.add_top()),
            2..=4 => ("remove", self.remove_top()),
            5 => ("cancel", self.cancel_remove()),
            6 | 7 => ("expand", self.expand()),
            8 => ("checkpoint", self.ask(|run| run.actor.spa.checkpoint().take())),
            9 => ("discard", self.ask(|run| run.actor.spa.checkpoint().discard())),
            10 => ("initialize", self.sweep(SweepKind::Initialize)),
            11 => ("trim", self.sweep(SweepKind::Trim)),
            12 | 13 => ("spare", self.add_spare()),
            14 => ("remove spare", self.remove_spare()),
            15 | 16 => ("detach of a pair", self.detach_of_pair()),
            17 => ("cache", self.add_cache()),
            18 => ("remove cache", self.remove_cache()),
            19 | 20 => ("use cache", self.use_cache()),
            21 => ("scrub", self.begin_scrub()),
            22 => ("pause", self.pause()),
            23 => ("stop", self.end_scan(ActivityCommand::Cancel)),
            _ => ("remove log", self.remove_log()),
        };
        match done.map_err(|why| format!("{name}: {why}"))? {
            true => self.count(name),
            false => self.actor.tell(format!("{name} is refused")),
        }
        self.actor.spa.sync().map_err(|e| e.to_string())?;
        self.promised = self.past.all_safe(&self.actor);
        Ok(())
    }

    /// Whether a command is accepted.
    pub(super) fn ask(
        &mut self,
        command: impl FnOnce(&mut Self) -> engine::Result<()>,
    ) -> Result<bool, String> {
        match command(self) {
            Ok(()) => Ok(true),
            Err(e) if is_refused(e.kind()) => Ok(false),
            Err(e) => Err(e.to_string()),
        }
    }

    /// A disk that the pool does not have.
    pub(super) fn idle(&self) -> Option<Arc<FaultyDevice>> {
        let spa = &self.actor.spa;
        let others: Vec<String> = [spa.spares().entries(), spa.caches().entries()]
            .into_iter()
            .flat_map(Result::unwrap_or_default)
            .filter_map(|entry| entry.str("path").map(str::to_owned))
            .collect();
        let is_other = |disk: &FaultyDevice| others.iter().any(|path| path == disk.name());
        let idle = self.faulty.iter().find(|disk| guid_of(spa, disk).is_none() && !is_other(disk));
        idle.map(Arc::clone)
    }

    fn remove_log(&mut self) -> Result<bool, String> {
        let spa = Arc::clone(&self.actor.spa);
        let tree = spa.pool.tree();
        let logs = tree.tops().filter(|top| !top.is_removed() && spa.vdevs().bias_of(top) == AllocBias::Log);
        let logs: Vec<u64> = logs.map(|top| top.id).collect();
        let Some(guid) = self.actor.pick(&logs).and_then(|id| self.guid_of_top(id)) else { return Ok(false) };
        self.actor.tell("a log is removed".into());
        self.ask(|run| run.actor.spa.removal().remove(guid))
    }

    fn well_and_split(&mut self) -> Result<bool, String> {
        self.put_right()?;
        self.split()
    }

    fn guid_of_top(&self, id: u64) -> Option<u64> {
        self.actor.spa.pool.tree().config.children.iter().find(|top| top.id == id).map(|top| top.guid)
    }

    fn add_top(&mut self) -> Result<bool, String> {
        let Some(disk) = self.idle() else { return Ok(false) };
        let class = match self.random.below(6) {
            0 => AllocBias::Log,
            1 => AllocBias::Special,
            _ => AllocBias::Normal,
        };
        disk.clear();
        self.actor.tell(format!("{} is added for {class:?}", disk.name()));
        let top = TopSpec { vdev: VdevSpec::Leaf(spec_of(disk)), class, ashift: None };
        let spec = PoolSpec { tops: vec![top], ashift: self.machine.ashift, ..PoolSpec::default() };
        let done = self.ask(|run| run.actor.spa.vdevs().add(spec, true));
        self.keep_needed_disks_well();
        done
    }

    fn remove_top(&mut self) -> Result<bool, String> {
        let tree = self.actor.spa.pool.tree();
        let tops: Vec<u64> = tree.tops().filter(|top| !top.is_removed()).map(|top| top.id).collect();
        let Some(id) = self.actor.pick(&tops) else { return Ok(false) };
        let Some(guid) = self.guid_of_top(id) else { return Ok(false) };
        self.actor.tell(format!("vdev {id} is removed"));
        let done = match self.actor.spa.removal().remove(guid) {
            // A vdev whose disk is degraded is refused so; the pool continues.
            Err(e) if e.kind() == Kind::Io && self.actor.spa.suspending().state().is_none() => {
                return Ok(false);
            }
            done => self.ask(|_| done)?,
        };
        // Most are over before another job can stop them.
        if done && self.random.below(4) == 0 && self.cancel_remove()? {
            self.actor.tell("the removal is canceled".into());
            self.count("cancel");
        }
        Ok(done)
    }

    /// Attaches an idle disk to a raidz.
    fn expand(&mut self) -> Result<bool, String> {
        let tree = self.actor.spa.pool.tree();
        let raidz = tree.tops().find(|top| matches!(top.layout, VdevLayout::Raidz(_)));
        let target = raidz.and_then(|top| self.guid_of_top(top.id));
        let (Some(disk), Some(target)) = (self.idle(), target) else { return Ok(false) };
        disk.clear();
        self.actor.tell(format!("{} expands a raidz", disk.name()));
        let device = NewDevice::Fresh { leaf: spec_of(disk), ashift: None };
        let attach = Attach { target, device, replacing: false, sequential: false };
        self.ask(|run| run.actor.spa.disks().attach(attach))
    }

    fn sweep(&mut self, kind: SweepKind) -> Result<bool, String> {
        let command = match self.random.below(5) {
            0 => SweepCommand::Suspend,
            1 => SweepCommand::Cancel,
            _ => SweepCommand::Start,
        };
        let leaves: Vec<u64> = self.actor.spa.pool.tree().leaves().map(|leaf| leaf.guid).collect();
        self.actor.tell(format!("{kind:?}: {command:?}"));
        let refused = self.actor.spa.free_space().sweep(kind, command, TrimOptions::default(), &leaves);
        Ok(refused.map_err(|e| e.to_string())?.len() < leaves.len())
    }

    /// Disks without which data would be lost do not misbehave.
    pub(super) fn keep_needed_disks_well(&mut self) {
        let (spa, faulty) = (&self.actor.spa, &self.faulty);
        let tree = spa.pool.tree();
        self.victims.retain(|disk| {
            let guid = faulty.get(*disk).and_then(|disk| guid_of(spa, disk));
            guid.and_then(|guid| tree.top_of(guid)).is_none_or(|top| is_redundant(&top))
        });
    }

    fn cancel_remove(&mut self) -> Result<bool, String> {
        self.ask(|run| run.actor.spa.background().command(WaitActivity::Remove, ActivityCommand::Cancel))
    }

    /// Waits until no removal, expansion or discard is under way; an expansion may wait for a disk unless `all_well`.
    pub(super) fn settle(&self, all_well: bool) -> Result<(), String> {
        let spa = &self.actor.spa;
        for _ in 0..MOST_GROUPS {
            spa.sync().map_err(|e| e.to_string())?;
            let runs =
                |work| spa.background().left(work).map_err(|e| e.to_string()).map(|left| left.is_some());
            let expands = spa.expansion().is_active() && (all_well || !spa.expansion().waits());
            if !expands && !runs(WaitActivity::Remove)? && !runs(WaitActivity::Discard)? {
                return Ok(());
            }
        }
        let works = [WaitActivity::Remove, WaitActivity::RaidzExpand, WaitActivity::Discard];
        let left = works.map(|work| spa.background().left(work).ok().flatten());
        Err(format!("jobs do not end: bytes left to remove, expand, discard {left:?}"))
    }

    /// Discards the checkpoint, if there is one: the space that it keeps would not become free.
    pub(super) fn discard(&mut self) -> Result<(), String> {
        if self.ask(|run| run.actor.spa.checkpoint().discard())? {
            self.actor.tell("the checkpoint is discarded".into());
        }
        Ok(())
    }
}

/// The description of a disk for a command.
pub(super) fn spec_of(disk: Arc<FaultyDevice>) -> LeafSpec {
    let path = disk.name().to_owned();
    LeafSpec { path, is_disk: false, whole_disk: None, devid: None, device: disk }
}
