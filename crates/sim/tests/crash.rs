//! Power cuts in bounded number; `make crash` goes on from any seed.

use sim::crash::{Plan, survive};
use sim::world::Shape;

fn run(shape: Shape, images: u64) {
    let plan = Plan { seed: 1, images, steps: 12, shape, per_cut: 64 };
    let start = std::time::Instant::now();
    let outcome = survive(&plan).unwrap();
    let rate = outcome.images as f64 / start.elapsed().as_secs_f64();
    println!(
        "{shape:?}: {} images of {} moments, {rate:.0} a second, {} writes at risk at most",
        outcome.images, outcome.cuts, outcome.at_risk
    );
    if let Some((event, variant, why)) = outcome.failure {
        panic!("{shape:?}, event {event}, variant {variant}: {why}");
    }
    assert!(outcome.images >= images * 8 / 10, "{outcome:?}");
}

#[test]
fn a_pool_of_any_shape_survives_power_cuts() {
    for shape in Shape::ALL {
        run(shape, 200);
    }
}
