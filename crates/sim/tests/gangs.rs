//! Space so fragmented that also the blocks of the MOS are gangs: every pass over it writes them again where they are,
//! or a transaction group finds no end.

mod common;

use std::sync::Arc;

use sim::actor::Actor;
use sim::check;
use sim::disk::Record;
use sim::image::Pages;
use sim::model::{Known, compare};
use sim::world::{Shape, as_devices, disks_of, env, new_pool};
use stdx::rng::Rng;

/// Blocks of as many bytes are gangs, and their larger pieces are, too.
const SMALLEST: u64 = 1024;
/// Steps of the work.
const STEPS: u64 = 12;

#[test]
fn the_mos_of_a_fragmented_pool_is_written_to_an_end() {
    for shape in [Shape::Single, Shape::Raidz(1)] {
        let (spa, disks) = new_pool(&env(7), shape.into(), &Arc::new(Record::default())).unwrap();
        spa.space.force_ganging(SMALLEST);
        let mut actor = Actor::new(spa, Rng::new(7)).unwrap();
        for _ in 0..STEPS {
            actor.step().unwrap_or_else(|e| panic!("{shape:?}: {e}{}", actor.story()));
        }
        actor.unmount_all().unwrap();
        actor.spa.export().unwrap();
        let pages: Vec<Pages> = disks.iter().map(|disk| disk.pages()).collect();
        let pool = check::opened(&as_devices(&disks_of(&pages))).unwrap();
        compare(&pool, &actor.model, &Known::default()).unwrap();
        check::whole(&pool).unwrap();
        let gangs = pool.mos.phys.meta_dnode.blkptrs().iter().filter(|bp| bp.is_gang()).count();
        assert!(gangs > 0, "{shape:?}: no block of the MOS is a gang");
        common::show(&pages);
    }
}
