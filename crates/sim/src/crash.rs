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

/// One image in so many is also imported for writing, and worked on.
const GO_ON: u64 = 16;

/// Steps of a workload.
pub const STEPS: u64 = 20;

/// What a workload begins with.
#[derive(Debug, Clone)]
pub enum Start {
    /// A new pool.
    New(Machine),
    /// A pool that is there already, under another name.
    Disks(Found),
}

/// A pool that somebody else made.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Its disks.
    pub disks: Vec<Pages>,
    /// Of each encryption root the name below the pool's, and the key as its user would give it. They get others.
    pub keys: Vec<(String, Vec<u8>)>,
}

impl Found {
    /// The disks `disk1`, `disk2`, … in a folder.
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
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// Images to check.
    pub images: u64,
    /// Steps of the workload.
    pub steps: u64,
    /// The pool.
    pub start: Start,
    /// Most images of one moment.
    pub per_cut: u64,
    /// Only this image: event and variant.
    pub only: Option<(usize, u64)>,
    /// Disks leave out one flush in four: then promises must be found broken.
    pub lying: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Images checked.
    pub images: u64,
    /// Of them, those that were worked on.
    pub gone_on: u64,
    /// Of them, those with a log that had to be done again.
    pub replayed: u64,
    /// Moments looked at.
    pub cuts: u64,
    /// Most writes that were at risk at once.
    pub at_risk: usize,
    /// The first image that is wrong: event number, variant, why.
    pub failure: Option<(usize, u64, String)>,
    /// The images behind it.
    pub evidence: Vec<Pages>,
}

/// What a workload did: events of its disks, and what was there after each step.
struct Story {
    events: Vec<Event>,
    past: Timeline,
    /// Number of the start after the cut.
    boot: u64,
}

/// Runs the workload of `plan` and checks images of power cuts, evenly over all its moments. `sample` sees each good
/// image.
///
/// # Errors
/// When the workload itself fails.
pub fn survive(plan: &Plan, sample: &mut dyn FnMut(&[Pages])) -> Result<Outcome, String> {
    let story = tell(plan)?;
    let known = Known::default();
    let mut replay = Replay::new(plan.start.disks());
    let (mut outcome, mut begun) = (Outcome::default(), false);
    // Before the first promise there is no pool to find.
    let is_mark = |e: &&Event| matches!(e, Event::Mark(_));
    let moments = story.events.iter().skip_while(|e| !is_mark(e)).filter(|e| !is_mark(e)).count().max(1);
    // As many a moment as are wanted in all, on average.
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
        // Where there are more moments than images, each moment still gets another variant.
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

fn tell(plan: &Plan) -> Result<Story, String> {
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

/// Uses what the disks have gained, one after the other.
fn grow(spa: &Spa) -> engine::Result<()> {
    let space = |spa: &Spa| spa.space.vdev_stats(0).map_or(0, |stats| stats.space);
    let (tree, before) = (spa.pool.tree(), space(spa));
    let mut leaves: Vec<u64> = tree.leaves().map(|leaf| leaf.guid).collect();
    leaves.sort_unstable();
    leaves.into_iter().try_for_each(|guid| spa.online(guid, None, true).map(drop))?;
    assert!(space(spa) > before, "there are no new metaslabs");
    Ok(())
}

fn begun(env: &Env, machine: Machine, devices: &[Device], random: &mut Rng) -> engine::Result<Actor> {
    let spa = world::create_pool(env, machine, devices)?;
    if random.below(3) == 0 {
        // Blocks of at least this many bytes become gangs now and then.
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
        spa.load_key(&format!("{}/{name}", world::POOL), key)?;
    }
    Actor::take_over(spa, random)
}

/// One image: it opens, is as it was after a step, and every block is there exactly once. What was committed is there
/// after its logs were done again. True when such were.
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

/// Logs are done again, what was committed is there, the pool can be changed, and is whole after that.
fn worked_on(
    devices: &[Device],
    story: &Story,
    (promised, known): (u64, &Known),
    go_on: bool,
) -> Result<(), String> {
    let mut actor = story.past.resume(devices, promised, story.boot, known)?;
    for _ in 0..if go_on { 3 } else { 0 } {
        actor.step().map_err(|e| format!("working on: {e}{}", actor.story()))?;
    }
    actor.unmount_all().map_err(|e| format!("it can't be unmounted: {e}"))?;
    actor.spa.export().map_err(|e| format!("it can't be exported: {e}"))?;
    let pool = check::opened(devices)?;
    compare(&pool, &actor.model, &Known::default()).map_err(|why| format!("exported again: {why}"))?;
    check::whole(&pool).map_err(|why| format!("exported again: {why}")).map(|_| ())
}
