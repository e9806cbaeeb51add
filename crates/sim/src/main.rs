//! `make crash SEED=… COUNT=…`: power cuts from any seed, as many as wanted.

use std::process::ExitCode;
use std::time::Instant;

use sim::crash::{Outcome, Plan, survive};
use sim::world::Shape;

/// Images of one workload before the next seed is taken.
const BATCH: u64 = 500;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let (seed, count) = match (args.next(), args.next()) {
        (Some(Ok(seed)), Some(Ok(count))) => (seed, count),
        _ => {
            eprintln!(
                "usage: sim SEED COUNT\n\nchecks COUNT images that power cuts could leave, from SEED on"
            );
            return ExitCode::from(2);
        }
    };
    let (start, mut done, mut seed) = (Instant::now(), 0, seed);
    while done < count {
        for shape in Shape::ALL {
            let plan = Plan { seed, images: BATCH.min(count), steps: 20, shape, per_cut: 64 };
            match survive(&plan) {
                Ok(Outcome { failure: Some((event, variant, why)), .. }) => {
                    println!("seed {seed}, {shape:?}, event {event}, variant {variant}: {why}");
                    return ExitCode::FAILURE;
                }
                Ok(outcome) => done += outcome.images,
                Err(why) => {
                    println!("seed {seed}, {shape:?}: the workload failed: {why}");
                    return ExitCode::FAILURE;
                }
            }
            let rate = done as f64 / start.elapsed().as_secs_f64();
            println!("seed {seed}, {shape:?}: {done} images so far, {rate:.0} a second");
            if done >= count {
                break;
            }
        }
        seed += 1;
    }
    ExitCode::SUCCESS
}
