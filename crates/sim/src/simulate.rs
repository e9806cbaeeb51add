//! The whole engine from one seed: random steps while disks fail, lie, disappear and return, the pool fills up, and
//! the machine is switched off, with or without notice. Faults stay within the redundancy, so all reads must match
//! the model.
//!
//! At most as many disks misbehave as the pool tolerates. From time to time all recover, a resilver and a scrub
//! repair them, and other disks misbehave from then on.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use blkdev::{Device, Fault, FaultyDevice};
use engine::Kind;
use engine::dsl::write::{MosView, scan_state};
use engine::spa::Spa;
use engine::spa::attach::{Attach, NewDevice};
use engine::spa::checkpoint::CheckpointState;
use engine::spa::scrub::ScanCommand;
use engine::vdev::config::AllocBias;
use engine::vdev::leaf::Leaf;
use engine::vdev::top::VdevLayout;
use engine::vdev::tree::Tree;
use ondisk::pool::DslScan;
use stdx::rng::Rng;
use zcommon::health::Health;

use crate::actor::{Actor, Ended};
use crate::check;
use crate::disk::{Disk, Record};
use crate::image::{Pages, Replay};
use crate::model::{Known, compare};
use crate::timeline::{Back, Boot, Timeline};
use crate::world::{self, Machine};

mod faults;
mod halves;
mod jobs;
mod scans;
mod spares;

use scans::scanned;

/// The results of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SimulationCourse {
    /// Steps that were done, lost ones included.
    pub steps: u64,
    /// Faults that were set.
    pub faults: u64,
    /// Clean restarts.
    pub restarts: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Number of times the pool was full.
    pub fills: u64,
    /// Panics within transactions.
    pub panics: u64,
    /// Scrubs that left nothing to repair.
    pub scrubs: u64,
    /// Jobs that were accepted, by kind, and other things that happened now and then.
    pub jobs: BTreeMap<&'static str, u64>,
    /// Returns to a checkpoint.
    pub rewinds: u64,
    /// A fingerprint of the final content of the disks.
    pub print: u64,
}

/// A running machine.
struct Run {
    machine: Machine,
    random: Rng,
    seed: u64,
    /// The content of the disks when the machine was started.
    base: Vec<Pages>,
    record: Arc<Record>,
    disks: Vec<Arc<Disk>>,
    faulty: Vec<Arc<FaultyDevice>>,
    /// Disks that may misbehave.
    victims: Vec<usize>,
    actor: Actor,
    past: Timeline,
    promised: u64,
    was_split: bool,
    /// A spare is in use.
    is_spared: bool,
    course: SimulationCourse,
}

fn devices_of(faulty: &[Arc<FaultyDevice>]) -> Vec<Device> {
    faulty.iter().map(|disk| Arc::clone(disk) as Device).collect()
}

/// Disks that a pool has not got at first: others are exchanged for them, or they are added, also as spares and cache devices.
const IDLE_DISKS: usize = 4;

/// Disks that may misbehave.
fn victims(machine: Machine, random: &mut Rng) -> Vec<usize> {
    let mut all: Vec<usize> = (0..machine.shape.disks()).collect();
    crate::image::shuffle(&mut all, random);
    all.truncate(machine.shape.spare());
    all
}

/// Maximum txgs of a scan.
const MOST_GROUPS: u32 = 10_000;

/// Runs a complete scrub; returns its final state.
fn scrub(spa: &Spa) -> Result<DslScan, String> {
    spa.scans().start(ScanCommand::Scrub).map_err(|e| e.to_string())?;
    scanned(spa)?;
    let scan = scan_state::load(&MosView { mos: &spa.mos }).map_err(|e| e.to_string())?;
    scan.ok_or_else(|| "the scrub left no state".into())
}

/// The leaf on a disk.
fn guid_of(spa: &Spa, disk: &FaultyDevice) -> Option<u64> {
    let tree = spa.pool.tree();
    tree.leaves().find(|leaf| leaf.path == blkdev::BlockDevice::name(disk)).map(|leaf| leaf.guid)
}

fn wrap(disks: &[Arc<Disk>], seed: u64) -> Vec<Arc<FaultyDevice>> {
    let one = |(number, disk): (u64, &Arc<Disk>)| {
        Arc::new(FaultyDevice::new(Arc::clone(disk) as Device, seed ^ number << 48))
    };
    (0u64..).zip(disks).map(one).collect()
}

/// Runs `rounds` rounds from `seed` on a machine; returns also the final content of its disks.
///
/// # Errors
/// The violated expectation, and the operations before it.
pub fn simulate(seed: u64, machine: Machine, rounds: u64) -> Result<(SimulationCourse, Vec<Pages>), String> {
    let mut run = Run::start(seed, machine)?;
    for round in 0..rounds {
        run.round().map_err(|why| format!("round {round}: {why}{}", run.actor.story()))?;
    }
    let pages = run.finish().map_err(|why| format!("in the end: {why}{}", run.actor.story()))?;
    Ok((run.course, pages))
}

impl Run {
    fn start(seed: u64, machine: Machine) -> Result<Self, String> {
        let mut random = Rng::new(seed);
        let env = world::env(seed);
        let record = Arc::new(Record::default());
        let mut base = machine.blank();
        base.extend(base.first().cloned().into_iter().cycle().take(IDLE_DISKS));
        let disks = world::recorded(&base, &record);
        let faulty = wrap(&disks, seed);
        let devices: Vec<Device> = devices_of(&faulty).into_iter().take(machine.disks()).collect();
        let spa = world::create_pool(&env, machine, &devices).map_err(|e| e.to_string())?;
        if random.below(3) == 0 {
            // Occasionally blocks of at least this many bytes become gangs.
            spa.space.force_ganging(4096 << random.below(3));
        }
        let mut actor = Actor::new(spa, Rng::new(seed ^ 1)).map_err(|e| e.to_string())?;
        actor.syncs_splits = true;
        let past = Timeline::begin(&actor);
        let (victims, course) = (victims(machine, &mut random), SimulationCourse::default());
        let mut run = Self {
            machine,
            random,
            seed,
            base,
            record,
            disks,
            faulty,
            victims,
            actor,
            past,
            promised: 0,
            was_split: false,
            is_spared: false,
            course,
        };
        run.equip()?;
        run.stock()?;
        Ok(run)
    }

    fn round(&mut self) -> Result<(), String> {
        self.actor.spa.background().run_steps();
        self.watch_spares();
        match self.random.below(56) {
            0..24 => self.step(),
            24..27 => self.look(),
            27..32 => self.misbehave(),
            32..34 => self.behave(),
            34 | 35 => self.restart(),
            36..=38 => self.cut(),
            39 | 40 => self.put_right(),
            41 => self.fill_up(),
            42 | 43 => self.exchange(),
            44..52 => self.job(),
            52 | 53 => self.go_back(),
            _ => self.break_off(),
        }
    }

    /// Counts a job, or something else that happens now and then.
    fn count(&mut self, name: &'static str) {
        *self.course.jobs.entry(name).or_insert(0) += 1;
    }

    fn step(&mut self) -> Result<(), String> {
        let ended = self.actor.step().map_err(|e| e.to_string())?;
        // Both parts of a step in two txgs are on disk.
        let split = std::mem::take(&mut self.actor.was_split);
        self.was_split |= split;
        self.note(if split { Ended::Synced } else { ended });
        Ok(())
    }

    fn note(&mut self, ended: Ended) {
        self.course.steps += 1;
        self.promised = self.past.note(&mut self.actor, ended).unwrap_or(self.promised);
    }

    /// Compares live file systems and snapshots with the model.
    fn look(&mut self) -> Result<(), String> {
        for name in self.actor.model.heads.keys().cloned().collect::<Vec<_>>() {
            self.actor.look(&name).map_err(|e| e.to_string())?;
        }
        self.actor.spa.sync().map_err(|e| e.to_string())?;
        let view = self.actor.spa.view().map_err(|e| e.to_string())?;
        compare(&view, &self.actor.model, &Known::default())?;
        self.whole_now()
    }

    /// Checks the on-disk state.
    fn whole_now(&self) -> Result<(), String> {
        let pages: Vec<Pages> = self.disks.iter().map(|disk| disk.pages()).collect();
        let pool = check::opened(&world::as_devices(&world::disks_of(&pages)))?;
        check::whole(&pool).map(|_| ())
    }

    /// All disks recover, are resilvered and scrubbed; a second scrub finds nothing. Then others misbehave.
    fn put_right(&mut self) -> Result<(), String> {
        self.actor.tell("all disks are put right".into());
        let spa = Arc::clone(&self.actor.spa);
        self.bring_all_back()?;
        if self.random.below(2) == 0 {
            self.settle(true)?;
            // A scrub follows an expansion.
            scanned(&spa)?;
        }
        let first = scrub(&spa)?;
        // It may have found so much on a disk that a spare stands in for it.
        self.bring_all_back()?;
        // Scans do not meet what only a checkpoint has, so the disks do not count as whole while there is one, and each scrub
        // writes their blocks again.
        let no_checkpoint = spa.checkpoint().state().is_ok_and(|state| state == CheckpointState::None);
        let tree = spa.pool.tree();
        let lacking = tree.leaves().find(|leaf| no_checkpoint && !leaf.dtl.read().is_empty());
        if let Some(leaf) = lacking {
            return Err(format!("{} still lacks {:?} after {first:?}", leaf.path, leaf.dtl.read()));
        }
        let second = scrub(&spa)?;
        if (first.errors, second.errors) != (0, 0) || no_checkpoint && second.processed > 0 {
            return Err(format!("scrubs end with {first:?}, then {second:?}"));
        }
        if no_checkpoint {
            self.spares_are_back()?;
        }
        self.course.scrubs += 1;
        self.victims = victims(self.machine, &mut self.random);
        if spa.pool.tree().leaves().any(|leaf| !leaf.dtl.read().is_empty()) {
            self.victims.clear();
        }
        self.keep_needed_disks_well();
        self.promised = self.past.all_safe(&self.actor);
        Ok(())
    }

    /// Has an idle disk replace one of the pool, or join a mirror; without an idle disk, detaches one.
    fn exchange(&mut self) -> Result<(), String> {
        let spa = Arc::clone(&self.actor.spa);
        let tree = spa.pool.tree();
        let idle = self.idle().filter(|_| self.random.below(4) > 0);
        // Devices of logs and classes have to be reliable.
        let of_data =
            tree.tops().filter(|top| spa.vdevs().bias_of(top) == AllocBias::Normal && !top.is_removed());
        let mut leaves: Vec<u64> = of_data.flat_map(|top| top.leaves()).map(|leaf| leaf.guid).collect();
        leaves.sort_unstable();
        let count = u64::try_from(leaves.len()).unwrap_or(1);
        let target = usize::try_from(self.random.below(count)).ok().and_then(|at| leaves.get(at));
        let Some(&target) = target else { return Ok(()) };
        let replacing = self.random.below(3) > 0;
        let done = match idle {
            Some(disk) => {
                disk.clear();
                let name = blkdev::BlockDevice::name(&*disk).to_owned();
                let how = if replacing { "replaces" } else { "is attached to" };
                self.actor.tell(format!("{name} {how} {}", tree.leaf_name(target, 0)));
                let device = NewDevice::Fresh { leaf: jobs::spec_of(disk), ashift: None };
                let sequential = self.random.below(3) == 0;
                spa.disks().attach(Attach { target, device, replacing, sequential })
            }
            // Without it the disks that are left might be those that misbehave, or hold the unchecked copy of one.
            None if !self.is_spared(&tree, target)
                || spa.rebuilds().is_rebuilding()
                || spa.scans().is_scanning() =>
            {
                return Ok(());
            }
            None => {
                self.actor.tell(format!("{} is detached", tree.leaf_name(target, 0)));
                spa.disks().detach(target)
            }
        };
        self.keep_needed_disks_well();
        match done {
            // A disk that was being replaced may have left meanwhile.
            Err(e)
                if !matches!(
                    e.kind(),
                    Kind::Busy | Kind::Unsupported | Kind::Invalid | Kind::NotFound | Kind::Exists
                ) =>
            {
                Err(e.to_string())
            }
            _ => {
                self.actor.spa.sync().map_err(|e| e.to_string())?;
                self.promised = self.past.all_safe(&self.actor);
                Ok(())
            }
        }
    }

    /// Whether a leaf of a mirror leaves as many whole ones behind as the machine had disks at first.
    fn is_spared(&self, tree: &Tree, leaf: u64) -> bool {
        let Some(top) = tree.top_of(leaf) else { return false };
        let least = if self.machine.shape == world::Shape::Mirror { 2 } else { 1 };
        let is_whole = |other: &Arc<Leaf>| {
            other.guid != leaf && other.health() == Health::ONLINE && other.dtl.read().is_empty()
        };
        matches!(top.layout, VdevLayout::Mirror) && top.leaves().filter(is_whole).count() >= least
    }

    fn export(&mut self) -> Result<(), String> {
        self.actor.unmount_all().map_err(|e| format!("it can't be unmounted: {e}"))?;
        self.actor.spa.export().map_err(|e| format!("it can't be exported: {e}"))
    }

    /// Shuts the machine down, and starts it again.
    fn restart(&mut self) -> Result<(), String> {
        self.actor.tell("restart".into());
        let paused = scans::paused_on_disk(&self.actor.spa)?;
        let has_checkpoint =
            self.actor.spa.checkpoint().state().is_ok_and(|state| state == CheckpointState::Exists);
        self.export()?;
        let pages: Vec<Pages> = self.disks.iter().map(|disk| disk.pages()).collect();
        self.promised = self.past.all_safe(&self.actor);
        self.course.restarts += 1;
        if has_checkpoint && self.random.below(2) == 0 {
            return self.boot_into(pages, Back::Checkpoint);
        }
        self.boot(pages)?;
        paused.map_or(Ok(()), |before| self.still_paused(&before))
    }

    /// Cuts the power during a step.
    fn cut(&mut self) -> Result<(), String> {
        self.actor.tell("power cut".into());
        let what = self.random.below(10);
        let splits = what >= 8 && self.has_halves();
        if splits {
            self.put_right()?;
            // Disks that leave are missing if it is cut.
            self.victims.clear();
        }
        let (before, promised) = (self.record.len(), self.promised);
        self.was_split = false;
        match what {
            0 | 1 => self.exchange()?,
            2 | 3 => self.job()?,
            _ if splits => {
                let name = if self.split()? { "split amid a power cut" } else { "refused split" };
                self.count(name);
            }
            _ => self.step()?,
        }
        if self.was_split {
            // In its middle the disks have a state without a number.
            return Ok(());
        }
        let events = self.record.take();
        let at = before + usize::try_from(self.random.below((events.len() - before) as u64 + 1)).unwrap_or(0);
        if at < events.len() {
            self.promised = promised;
        }
        let mut replay = Replay::new(self.base.clone());
        events.iter().take(at).for_each(|event| replay.step(event));
        let variant = self.random.below(replay.variants(64));
        self.course.cuts += 1;
        let pages = replay.image(variant, &mut self.random);
        self.boot(pages)
    }

    /// The power goes, and the pool returns to the state of one or two txgs before, whose blocks are all kept, while logs have
    /// records; or to its checkpoint, if it has one.
    fn go_back(&mut self) -> Result<(), String> {
        // A disk that has just left the pool would be missing in a state before.
        self.put_right()?;
        self.settle(true)?;
        for last in [false, false, false, false, true] {
            self.was_split = false;
            self.step()?;
            if self.was_split {
                // The state in its middle has no number.
                return Ok(());
            }
            if !last || self.random.below(2) == 0 {
                self.actor.spa.sync().map_err(|e| e.to_string())?;
            }
        }
        let has_checkpoint =
            self.actor.spa.checkpoint().state().is_ok_and(|state| state == CheckpointState::Exists);
        self.actor.tell("power cut".into());
        let mut replay = Replay::new(self.base.clone());
        self.record.take().iter().for_each(|event| replay.step(event));
        let variant = self.random.below(replay.variants(64));
        self.course.cuts += 1;
        let pages = replay.image(variant, &mut self.random);
        let back = match has_checkpoint && self.random.below(2) == 0 {
            true => Back::Checkpoint,
            false => Back::By(1 + self.random.below(2)),
        };
        self.boot_into(pages, back)
    }

    /// A panic within a transaction suspends the pool: nothing can be changed or written any more, and the next import finds
    /// nothing of the step that broke off.
    fn break_off(&mut self) -> Result<(), String> {
        let (before, synced) = (self.record.len(), self.actor.spa.txgs.synced());
        let spa = Arc::clone(&self.actor.spa);
        let changes = 1 + self.random.below(60);
        self.actor.tell(format!("change {changes} from now panics"));
        spa.break_off_after(changes);
        let ended = catch_unwind(AssertUnwindSafe(|| self.actor.change()));
        spa.break_off_after(0);
        let split = std::mem::take(&mut self.actor.was_split);
        if let Ok(done) = ended {
            done.map_err(|e| e.to_string())?;
            self.was_split |= split;
            self.note(if split { Ended::Synced } else { Ended::Open });
            return Ok(());
        }
        self.course.panics += 1;
        let why = spa.suspending().state().ok_or("a transaction broke off and the pool is not suspended")?;
        if !why.is_ours || spa.begin().is_ok() || spa.sync().is_ok() {
            return Err(format!("a transaction broke off, and the pool goes on: {why:?}"));
        }
        // A writer that waited for space closed txgs: their parts of the step have no number.
        let whole = spa.txgs.synced() == synced;
        let events = self.record.take();
        let mut replay = Replay::new(self.base.clone());
        let kept = if whole { events.len() } else { before };
        events.iter().take(kept).for_each(|event| replay.step(event));
        let variant = self.random.below(replay.variants(64));
        self.course.restarts += 1;
        let pages = replay.image(variant, &mut self.random);
        self.boot(pages)
    }

    /// Starts the machine with these disks.
    fn boot(&mut self, pages: Vec<Pages>) -> Result<(), String> {
        self.boot_into(pages, Back::Nowhere)
    }

    /// As [`Run::boot`]; the pool returns to an older state.
    fn boot_into(&mut self, pages: Vec<Pages>, back: Back) -> Result<(), String> {
        let rewinds = back != Back::Nowhere;
        // A replacement may have ended since: the new disk is needed now.
        self.keep_needed_disks_well();
        self.record = Arc::new(Record::default());
        self.disks = world::recorded(&pages, &self.record);
        self.base = pages;
        let boot = self.seed ^ (1 + self.course.cuts + self.course.restarts) << 32;
        self.faulty = wrap(&self.disks, boot);
        let victims = self.victims.clone();
        let absent = self.actor.pick(&victims).filter(|_| self.random.below(4) == 0 && !rewinds);
        if let Some(disk) = absent.and_then(|n| self.faulty.get(n)) {
            self.actor.tell(format!("{} is not there", blkdev::BlockDevice::name(&**disk)));
            disk.inject(Fault::Dead);
        }
        if rewinds {
            self.actor.tell(format!("the pool goes back: {back:?}"));
            self.promised = 0;
            match back {
                Back::By(_) => self.count("return to a txg"),
                _ => self.course.rewinds += 1,
            }
            // Another disk may be out of use there, or lack something, until all are put right again.
            self.victims.clear();
        }
        let boot = Boot { number: boot, back };
        let resumed = self.past.resume(&devices_of(&self.faulty), self.promised, boot, &Known::default())?;
        let before = std::mem::replace(&mut self.actor, resumed);
        self.actor.told = before.told;
        self.actor.pruned = before.pruned;
        self.actor.syncs_splits = true;
        self.past.forget_after(&self.actor);
        self.equip()?;
        self.keep_needed_disks_well();
        // The state after the log replay is a new one.
        let ended = self.actor.change().and_then(|()| self.actor.spa.sync());
        ended.map_err(|e| e.to_string())?;
        self.actor.was_split = false;
        self.note(Ended::Synced);
        Ok(())
    }

    /// Writes files until there is no space; then they can be removed.
    fn fill_up(&mut self) -> Result<(), String> {
        self.course.fills += 1;
        self.discard()?;
        self.settle(false)?;
        self.actor.may_split = true;
        let done = self.actor.fill_up();
        self.actor.may_split = false;
        done.map_err(|e| format!("with a full pool: {e}"))?;
        self.note(Ended::Synced);
        Ok(())
    }

    /// Checks that everything is present when the machine is off and all disks have recovered.
    fn finish(&mut self) -> Result<Vec<Pages>, String> {
        if self.actor.pruned > 0 {
            self.count("pruned dedup table");
        }
        self.faulty.iter().for_each(|disk| disk.clear());
        self.export()?;
        let pages: Vec<Pages> = self.disks.iter().map(|disk| disk.pages()).collect();
        self.course.print = pages.iter().fold(self.machine.disks() as u64, |sum, pages| pages.print(sum));
        let pool = check::opened(&world::as_devices(&world::disks_of(&pages)))?;
        compare(&pool, &self.actor.model, &Known::default())?;
        check::whole(&pool)?;
        Ok(pages)
    }
}

/// A pool that loses more disks than it tolerates: operations fail, no read returns wrong data, and when the disks
/// return all promises hold.
///
/// # Errors
/// The violated expectation.
pub fn lose_too_much(seed: u64, machine: Machine) -> Result<(), String> {
    let mut run = Run::start(seed, machine)?;
    for _ in 0..6 {
        run.step()?;
    }
    let lost = machine.shape.spare() + 1;
    run.faulty.iter().take(lost).for_each(|disk| disk.inject(Fault::Dead));
    let (mut failed, mut synced) = (None, 0);
    for _ in 0..20 {
        synced = run.actor.spa.txgs.synced();
        match run.actor.step() {
            Ok(ended) => run.note(ended),
            Err(e) => {
                failed = Some(e);
                break;
            }
        }
    }
    let why = failed.ok_or("nothing failed without its disks")?;
    for name in run.actor.model.heads.keys().cloned().collect::<Vec<_>>() {
        match run.actor.look(&name) {
            Err(e) if e.kind() == Kind::Corrupt => return Err(format!("after {why}: {e}")),
            _ => {}
        }
    }
    let pages: Vec<Pages> = run.disks.iter().map(|disk| disk.pages()).collect();
    let devices = world::as_devices(&world::disks_of(&pages));
    if run.actor.spa.txgs.synced() != synced {
        // A txg without the lost disks closed in the middle of the step: this state has no number.
        return check::opened(&devices).and_then(|pool| check::whole(&pool)).map(|_| ());
    }
    // It is unknown whether the failed step is on disk.
    run.past.note(&mut run.actor, Ended::Open);
    run.past
        .resume(&devices, run.promised, (seed ^ 1 << 32).into(), &Known::default())
        .map_err(|e| format!("after {why}: {e}"))?;
    Ok(())
}
