//! Power cuts in bounded number; `make crash` goes on from any seed.

use sim::crash::{Plan, survive};
use sim::world::Machine;

fn run(machine: Machine, seed: u64, images: u64) -> u64 {
    let plan = Plan { seed, images, steps: 20, machine, per_cut: 64, only: None };
    let start = std::time::Instant::now();
    let outcome = survive(&plan, &mut |_| ()).unwrap_or_else(|why| panic!("{machine:?} seed {seed}: {why}"));
    let rate = outcome.images as f64 / start.elapsed().as_secs_f64();
    println!(
        "{machine:?}: {} images of {} moments, {rate:.0} a second, {} writes at risk at most, {} worked on",
        outcome.images, outcome.cuts, outcome.at_risk, outcome.gone_on
    );
    if let Some((event, variant, why)) = outcome.failure {
        panic!("{machine:?}, seed {seed}, {event}:{variant}: {why}");
    }
    outcome.images
}

#[test]
fn a_pool_of_any_shape_survives_power_cuts() {
    for (seed, machine) in (1..).zip(Machine::all()) {
        run(machine, seed, 200);
    }
}
