//! Power cuts while pools that OpenZFS made are worked on: tables of deduplicated and of cloned blocks go down as
//! files are changed and removed, removed vdevs are written around, blocks of a checkpoint are kept.
//!
//! By hand, since it takes minutes unoptimised; `sim crash SEED COUNT FOLDER` does the same with any folder of disks.

mod common;

use sim::crash::{Plan, STEPS, Start, survive};
use sim::image::Pages;
use testkit::golden;

/// Images of each pool.
const IMAGES: u64 = 24;
/// One image in so many is shown to real zdb.
const SHOWN: u64 = 8;

fn disks_of(pool: &golden::Golden) -> Vec<Pages> {
    let path = |number: usize| pool.dir.join(format!("disk{number}"));
    let paths = (1..).map(path).take_while(|path| path.exists());
    paths.map(|path| Pages::of_file(&path).unwrap()).collect()
}

#[test]
#[ignore = "minutes: each image is some thousand files"]
fn pools_of_openzfs_survive_power_cuts_while_their_tables_go_down() {
    for name in ["dedup-fast", "dedup-legacy", "reflink"] {
        let Some(pool) = golden::get(name) else { continue };
        let start = Start::Disks(disks_of(&pool));
        let plan =
            Plan { seed: 3, images: IMAGES, steps: STEPS, start, per_cut: 64, only: None, lying: false };
        let mut seen = 0;
        let outcome = survive(&plan, &mut |image| {
            seen += 1;
            if seen % SHOWN == 0 {
                common::show(image);
            }
        });
        let outcome = outcome.unwrap_or_else(|why| panic!("{name}: {why}"));
        println!("{name}: {} images of {} moments", outcome.images, outcome.cuts);
        if let Some((event, variant, why)) = outcome.failure {
            panic!("{name}, {event}:{variant}: {why}");
        }
        assert!(outcome.images > IMAGES * 9 / 10, "{name}: {}", outcome.images);
    }
}
