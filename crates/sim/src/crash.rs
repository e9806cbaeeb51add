//! Power cuts at every moment of a workload.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use engine::scan::verify::{Options, verify};
use engine::spa::{OpenOptions, open};
use stdx::rng::Rng;

use crate::disk::{Event, Record};
use crate::image::{Pages, Replay};
use crate::workload;
use crate::world::{self, Shape};

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
    pub shape: Shape,
    /// Most images of one moment.
    pub per_cut: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Images checked.
    pub images: u64,
    /// Moments looked at.
    pub cuts: u64,
    /// Most writes that were at risk at once.
    pub at_risk: usize,
    /// The first image that is wrong: event number, variant, why.
    pub failure: Option<(usize, u64, String)>,
    /// The images behind it.
    pub evidence: Vec<Pages>,
}

/// Runs the workload of `plan` and checks images of power cuts, evenly over all its moments.
///
/// # Errors
/// When the workload itself fails.
pub fn survive(plan: &Plan) -> Result<Outcome, String> {
    let events = record(plan)?;
    let mut random = Rng::new(plan.seed ^ 0x5eed);
    let mut replay = Replay::new(vec![Pages::default(); plan.shape.disks()]);
    let (mut outcome, mut first_mark) = (Outcome::default(), None);
    let moments = events.iter().filter(|e| !matches!(e, Event::Mark(_))).count().max(1);
    // As many a moment as are wanted in all, on average.
    let share = plan.images as f64 / moments as f64;
    let mut due = 0.0;
    for (number, event) in events.iter().enumerate() {
        replay.step(event);
        first_mark = first_mark.or(matches!(event, Event::Mark(_)).then_some(number));
        outcome.at_risk = outcome.at_risk.max(replay.at_risk());
        if first_mark.is_none() {
            // Before the first promise there is no pool to find.
            continue;
        }
        due += share;
        let variants = replay.variants(plan.per_cut);
        let mut tried = 0;
        while due >= 1.0 && tried < variants {
            let image = replay.image(tried, &mut random);
            outcome.images += 1;
            if let Err(why) = check(&image, replay.promised) {
                outcome.failure = Some((number, tried, why));
                outcome.evidence = image;
                return Ok(outcome);
            }
            (due, tried) = (due - 1.0, tried + 1);
        }
        outcome.cuts += u64::from(tried > 0);
    }
    Ok(outcome)
}

fn record(plan: &Plan) -> Result<Vec<Event>, String> {
    let env = world::env(plan.seed);
    let record = Arc::new(Record::default());
    let (spa, _disks) = world::new_pool(&env, plan.shape, &record).map_err(|e| e.to_string())?;
    record.mark(0);
    let mut random = Rng::new(plan.seed);
    workload::run(&spa, plan.steps, &mut random, &record).map_err(|e| e.to_string())?;
    Ok(record.take())
}

/// One image: it opens, holds what was promised, and every block is there exactly once.
fn check(image: &[Pages], promised: u64) -> Result<(), String> {
    let source = world::found(image).ok_or("no pool is found")?;
    let env = world::env(1);
    let pool = open(&env, source, OpenOptions::default()).map_err(|e| format!("it does not open: {e}"))?;
    if let Some(note) = pool.notes.first() {
        return Err(format!("it opens with damage: {note}"));
    }
    let survived = workload::survived(&pool).map_err(|e| format!("its content is damaged: {e}"))?;
    if survived < promised {
        return Err(format!("step {promised} was promised and {survived} is there"));
    }
    let stop = AtomicBool::new(false);
    let report = verify(&pool, &Options::new(&stop), &mut |_| (), &mut |_| ());
    if let Some((_, error)) = report.failed.first() {
        return Err(format!("a block can't be read: {error}"));
    }
    match &report.account.space {
        Some(space) if space.is_clean() => {}
        Some(space) => return Err(format!("space maps and blocks differ: {space:?}")),
        None => return Err("space could not be accounted for".into()),
    }
    Ok(())
}
