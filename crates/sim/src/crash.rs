//! Power cuts at every moment of a workload.

use std::sync::Arc;

use engine::spa::{ImportOptions, import};
use stdx::rng::Rng;

use crate::actor::{Actor, step_of};
use crate::check;
use crate::disk::{Event, Record};
use crate::image::{Pages, Replay};
use crate::model::{Known, Model, compare};
use crate::world::{self, Machine};

/// One image in so many is also imported for writing, and worked on.
const GO_ON: u64 = 16;

/// A run of power cuts.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Everything follows from it.
    pub seed: u64,
    /// Images to check.
    pub images: u64,
    /// Steps of the workload.
    pub steps: u64,
    /// The pool.
    pub machine: Machine,
    /// Most images of one moment.
    pub per_cut: u64,
    /// Only this image: event and variant.
    pub only: Option<(usize, u64)>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Images checked.
    pub images: u64,
    /// Of them, those that were worked on.
    pub gone_on: u64,
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
    states: Vec<Model>,
}

/// Runs the workload of `plan` and checks images of power cuts, evenly over all its moments. `sample` sees each good
/// image.
///
/// # Errors
/// When the workload itself fails.
pub fn survive(plan: &Plan, sample: &mut dyn FnMut(&[Pages])) -> Result<Outcome, String> {
    let story = tell(plan)?;
    let known = Known::default();
    let mut replay = Replay::new(vec![Pages::default(); plan.machine.disks()]);
    let (mut outcome, mut begun) = (Outcome::default(), false);
    let moments = story.events.iter().filter(|e| !matches!(e, Event::Mark(_))).count().max(1);
    // As many a moment as are wanted in all, on average.
    let share = plan.images as f64 / moments as f64;
    let mut due = 0.0;
    for (number, event) in story.events.iter().enumerate() {
        replay.step(event);
        begun |= matches!(event, Event::Mark(_));
        outcome.at_risk = outcome.at_risk.max(replay.at_risk());
        if !begun {
            // Before the first promise there is no pool to find.
            continue;
        }
        due += share;
        let (mut tried, variants) = (0, replay.variants(plan.per_cut));
        // Where there are more moments than images, each moment still gets another variant.
        let first = Rng::new(plan.seed ^ number as u64).below(variants);
        while due >= 1.0 && tried < variants {
            let variant = (first + tried) % variants;
            let wanted = plan.only.is_none_or(|only| only == (number, variant));
            if wanted {
                let mut random = Rng::new(plan.seed ^ (number as u64) << 20 ^ variant);
                let image = replay.image(variant, &mut random);
                let go_on = plan.only.is_some() || random.below(GO_ON) == 0;
                outcome.images += 1;
                outcome.gone_on += u64::from(go_on);
                if let Err(why) = check(&image, &story, replay.promised, &known, go_on) {
                    outcome.failure = Some((number, variant, why));
                    outcome.evidence = image;
                    return Ok(outcome);
                }
                sample(&image);
            }
            (due, tried) = (due - 1.0, tried + 1);
        }
        outcome.cuts += u64::from(tried > 0);
    }
    Ok(outcome)
}

fn tell(plan: &Plan) -> Result<Story, String> {
    let env = world::env(plan.seed);
    let record = Arc::new(Record::default());
    let (spa, _disks) = world::new_pool(&env, plan.machine, &record).map_err(|e| e.to_string())?;
    let mut random = Rng::new(plan.seed);
    if random.below(3) == 0 {
        // Blocks of at least this many bytes become gangs now and then.
        spa.space.force_ganging(4096 << random.below(3));
    }
    let mut actor = Actor::new(spa, random).map_err(|e| e.to_string())?;
    record.mark(0);
    let mut states = vec![actor.model.clone()];
    for step in 1..=plan.steps {
        let synced = actor.step().map_err(|e| format!("step {step}: {e}{}", actor.story()))?;
        states.push(actor.model.clone());
        if synced {
            record.mark(step);
        }
    }
    Ok(Story { events: record.take(), states })
}

/// One image: it opens, is as it was after a step, and every block is there exactly once.
fn check(image: &[Pages], story: &Story, promised: u64, known: &Known, go_on: bool) -> Result<(), String> {
    let disks = world::disks_of(image);
    let devices = world::as_devices(&disks);
    let pool = check::opened(&devices)?;
    let step = step_of(&pool).map_err(|e| format!("its mark is damaged: {e}"))?;
    if step < promised {
        return Err(format!("step {promised} was promised and {step} is there"));
    }
    let state = usize::try_from(step).ok().and_then(|step| story.states.get(step));
    let state = state.ok_or(format!("step {step} never was"))?;
    compare(&pool, state, known).map_err(|why| format!("after step {step}: {why}"))?;
    check::whole(&pool)?;
    drop(pool);
    if go_on { worked_on(&devices, state, step) } else { Ok(()) }
}

/// The pool can be imported and changed, and is whole after that.
fn worked_on(devices: &[blkdev::Device], state: &Model, step: u64) -> Result<(), String> {
    let source = world::found(devices).ok_or("no pool is found")?;
    let env = world::env(step);
    let options = ImportOptions { hostid: 1, hostname: "sim".into(), ..ImportOptions::default() };
    let spa = import(&env, source, &options).map_err(|e| format!("it can't be imported: {e}"))?;
    let mut actor = Actor::with(spa, state.clone(), step, Rng::new(step));
    for _ in 0..3 {
        actor.step().map_err(|e| format!("working on after step {step}: {e}{}", actor.story()))?;
    }
    actor.spa.export().map_err(|e| format!("it can't be exported: {e}"))?;
    let pool = check::opened(devices).map_err(|why| format!("after working on: {why}"))?;
    compare(&pool, &actor.model, &Known::default()).map_err(|why| format!("after working on: {why}"))?;
    check::whole(&pool).map_err(|why| format!("after working on: {why}")).map(|_| ())
}
