//! Power cuts at every moment of a workload.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use blkdev::Device;
use engine::env::Env;
use engine::spa::{ImportOptions, Spa, import};
use stdx::rng::Rng;

use crate::actor::{Actor, step_of};
use crate::check;
use crate::disk::{Event, Record};
use crate::image::{Pages, Replay};
use crate::model::{Known, compare};
use crate::timeline::Timeline;
use crate::world::{self, Machine};

/// One image in so many is also imported for writing and continued.
const GO_ON: u64 = 16;

/// Steps of a workload.
pub const STEPS: u64 = 20;

/// The initial pool of a workload.
#[derive(Debug, Clone)]
pub enum Start {
    /// A new pool.
    New(Machine),
    /// An existing pool, under another name.
    Disks(ForeignPool),
}

/// A foreign pool.
#[derive(Debug, Clone, Default)]
pub struct ForeignPool {
    /// Its disks.
    pub disks: Vec<Pages>,
    /// For each encryption root the name below the pool's, and the user's key. They get new keys.
    pub keys: Vec<(String, Vec<u8>)>,
}

impl ForeignPool {
    /// The disks `disk1`, `disk2`, … in a directory.
    pub fn in_folder(folder: &Path) -> std::io::Result<Self> {
        let paths = (1..).map(|number| folder.join(format!("disk{number}"))).take_while(|path| path.exists());
        let disks = paths.map(|path| Pages::of_file(&path)).collect::<Result<_, _>>()?;
        Ok(Self { disks, keys: Vec::new() })
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New(machine) => write!(f, "{machine:?}"),
            Self::Disks(found) => write!(f, "{} disks", found.disks.len()),
        }
    }
}

impl Start {
    fn disks(&self) -> Vec<Pages> {
        match self {
            Self::New(machine) => machine.blank(),
            Self::Disks(found) => found.disks.clone(),
        }
    }
}

/// A run of power cuts.
#[derive(Debug, Clone)]
pub struct CutPlan {
    /// The seed of the whole run.
    pub seed: u64,
    /// Images to check.
    pub images: u64,
    /// Steps of the workload.
    pub steps: u64,
    /// The pool.
    pub start: Start,
    /// Maximum images of one moment.
    pub per_cut: u64,
    /// Only this image: event and variant.
    pub only: Option<(usize, u64)>,
    /// Disks skip one flush in four: then broken promises must be found.
    pub lying: bool,
}

/// The results.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Images checked.
    pub images: u64,
    /// Number of images that were continued.
    pub gone_on: u64,
    /// Number of images with a replayed log.
    pub replayed: u64,
    /// Number of moments.
    pub cuts: u64,
    /// Maximum number of writes at risk at once.
    pub at_risk: usize,
    /// The first wrong image: event number, variant, reason.
    pub failure: Option<(usize, u64, String)>,
    /// The disks of that image.
    pub evidence: Vec<Pages>,
}

/// The events of a workload's disks, and the state after each step.
struct Story {
    events: Vec<Event>,
    past: Timeline,
    /// Number of the boot after the cut.
    boot: u64,
}

/// Runs the workload of `plan` and checks images of power cuts, evenly over all its moments. `sample` sees each
/// good image.
///
/// # Errors
/// If the workload itself fails.
pub fn survive(plan: &CutPlan, sample: &mut dyn FnMut(&[Pages])) -> Result<Outcome, String> {
    let story = tell(plan)?;
    let known = Known::default();
    let mut replay = Replay::new(plan.start.disks());
    let (mut outcome, mut begun) = (Outcome::default(), false);
    // Before the first promise there may be no pool.
    let is_mark = |e: &&Event| matches!(e, Event::Mark(_));
    let moments = story.events.iter().skip_while(|e| !is_mark(e)).filter(|e| !is_mark(e)).count().max(1);
    // The average number of images per moment.
    let share = plan.images as f64 / moments as f64;
    let mut due = 0.0;
    let mut lies = Rng::new(plan.seed);
    for (number, event) in story.events.iter().enumerate() {
        if !(plan.lying && matches!(event, Event::Flush(_)) && lies.below(4) == 0) {
            replay.step(event);
        }
        begun |= matches!(event, Event::Mark(_));
        outcome.at_risk = outcome.at_risk.max(replay.at_risk());
        if !begun || matches!(event, Event::Mark(_)) {
            continue;
        }
        let variants = replay.variants(plan.per_cut);
        // If there are more moments than images, each moment still gets another variant.
        let (mut first, mut tried) = (Rng::new(plan.seed ^ number as u64).below(variants), 0);
        match plan.only {
            Some((event, variant)) => (first, due) = (variant, if event == number { 1.0 } else { 0.0 }),
            None => due += share,
        }
        while due >= 1.0 && tried < variants {
            let variant = (first + tried) % variants;
            let mut random = Rng::new(plan.seed ^ (number as u64) << 20 ^ variant);
            let image = replay.image(variant, &mut random);
            let go_on = random.below(GO_ON) == 0;
            outcome.images += 1;
            outcome.gone_on += u64::from(go_on);
            match check(&image, &story, replay.promised, &known, go_on) {
                Ok(replayed) => outcome.replayed += u64::from(replayed),
                Err(why) => {
                    outcome.failure = Some((number, variant, why));
                    outcome.evidence = image;
                    return Ok(outcome);
                }
            }
            sample(&image);
            (due, tried) = (due - 1.0, tried + 1);
        }
        outcome.cuts += u64::from(tried > 0);
    }
    Ok(outcome)
}

fn tell(plan: &CutPlan) -> Result<Story, String> {
    let env = world::env(plan.seed);
    let record = Arc::new(Record::default());
    let disks = world::recorded(&plan.start.disks(), &record);
    let devices = world::as_devices(&disks);
    let grows = matches!(&plan.start, Start::New(machine) if machine.grows);
    if grows {
        disks.iter().for_each(|disk| disk.hide(world::GROWTH));
    }
    let mut random = Rng::new(plan.seed);
    let actor = match &plan.start {
        Start::New(machine) => begun(&env, *machine, &devices, &mut random),
        Start::Disks(found) => taken_over(&env, &devices, &found.keys, random),
    };
    let mut actor = actor.map_err(|e| format!("in the beginning: {e}"))?;
    record.mark(0);
    let mut past = Timeline::begin(&actor);
    for step in 1..=plan.steps {
        let ended = actor.step().map_err(|e| format!("step {step}: {e}{}", actor.story()))?;
        if let Some(count) = past.note(&mut actor, ended) {
            record.mark(count);
        }
        if grows && step == plan.steps / 2 {
            grow(&actor.spa).map_err(|e| format!("it does not grow: {e}"))?;
        }
    }
    Ok(Story { events: record.take(), past, boot: plan.seed ^ 1 << 32 })
}

/// Expands the grown disks, one after the other.
fn grow(spa: &Spa) -> engine::Result<()> {
    let space = |spa: &Spa| spa.space.vdev_stats(0).map_or(0, |stats| stats.space);
    let (tree, before) = (spa.pool.tree(), space(spa));
    let mut leaves: Vec<u64> = tree.leaves().map(|leaf| leaf.guid).collect();
    leaves.sort_unstable();
    leaves.into_iter().try_for_each(|guid| spa.disks().online(guid, None, true).map(drop))?;
    assert!(space(spa) > before, "there are no new metaslabs");
    Ok(())
}

fn begun(env: &Env, machine: Machine, devices: &[Device], random: &mut Rng) -> engine::Result<Actor> {
    let spa = world::create_pool(env, machine, devices)?;
    if random.below(3) == 0 {
        // Occasionally blocks of at least this many bytes become gangs.
        spa.space.force_ganging(2048 << random.below(6));
    }
    Actor::new(spa, random.clone())
}

fn taken_over(
    env: &Env,
    devices: &[Device],
    keys: &[(String, Vec<u8>)],
    random: Rng,
) -> engine::Result<Actor> {
    let none = || engine::Error::new(engine::Kind::NotFound, "no pool is found");
    let host = ImportOptions { hostid: 1, hostname: "sim".into(), force: true, ..ImportOptions::default() };
    let options = ImportOptions { rename: Some(world::POOL.into()), ..host };
    let spa = import(env, world::found(devices).ok_or_else(none)?, &options)?;
    for (name, key) in keys {
        spa.dsl().load_key(&format!("{}/{name}", world::POOL), key)?;
    }
    Actor::take_over(spa, random)
}

/// Checks one image: it opens, matches the state after a step, and contains every block exactly once. Committed
/// changes are present after the log replay. Returns whether a log was replayed.
fn check(image: &[Pages], story: &Story, promised: u64, known: &Known, go_on: bool) -> Result<bool, String> {
    let disks = world::disks_of(image);
    let devices = world::as_devices(&disks);
    let pool = check::opened(&devices)?;
    let step = step_of(&pool).map_err(|e| format!("its mark is damaged: {e}"))?;
    let state = story.past.state(step, promised)?;
    // No key is loaded yet.
    check::whole(&pool)?;
    compare(&pool, state, known).map_err(|why| format!("after step {step}: {why}"))?;
    drop(pool);
    let committed = !story.past.promises.files(promised, step).is_empty();
    if committed || go_on {
        worked_on(&devices, story, (promised, known), go_on)
            .map_err(|why| format!("imported after step {step}: {why}"))?;
    }
    Ok(committed)
}

/// Replays the logs, checks the committed changes, changes the pool, and checks it again.
fn worked_on(
    devices: &[Device],
    story: &Story,
    (promised, known): (u64, &Known),
    go_on: bool,
) -> Result<(), String> {
    let mut actor = story.past.resume(devices, promised, story.boot.into(), known)?;
    for _ in 0..if go_on { 3 } else { 0 } {
        actor.step().map_err(|e| format!("working on: {e}{}", actor.story()))?;
    }
    actor.unmount_all().map_err(|e| format!("it can't be unmounted: {e}"))?;
    actor.spa.export().map_err(|e| format!("it can't be exported: {e}"))?;
    let pool = check::opened(devices)?;
    compare(&pool, &actor.model, &Known::default()).map_err(|why| format!("exported again: {why}"))?;
    check::whole(&pool).map_err(|why| format!("exported again: {why}")).map(|_| ())
}
