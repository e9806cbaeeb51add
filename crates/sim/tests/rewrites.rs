//! Blocks of the MOS that can't be written over where a pass before put them: they get another place, and the old one is
//! freed once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::io;
use std::ops::Range;
use std::sync::Arc;

use blkdev::{BlockDevice, Device, Geometry, Io, IoKind};
use parking_lot::Mutex;
use sim::actor::Actor;
use sim::check;
use sim::disk::{Disk, Record};
use sim::model::{Known, compare};
use sim::world::{Shape, as_devices, create_pool, disks_of, env};
use stdx::rng::Rng;

/// Writes that fail.
const FAILURES: usize = 3;
/// Labels lie before and behind it.
const DATA: Range<u64> = 4 << 20..63 << 20;

/// A disk that takes no second write to a place between two flushes, some times.
#[derive(Debug)]
struct Stubborn {
    disk: Arc<Disk>,
    /// Ranges written since the last flush, and the number of writes still to fail.
    state: Mutex<(Vec<Range<u64>>, usize)>,
}

impl Stubborn {
    fn refuses(&self, io: &Io) -> bool {
        let mut state = self.state.lock();
        let (written, left) = &mut *state;
        let range = io.offset..io.offset + io.buf.len() as u64;
        match io.kind {
            IoKind::Flush => written.clear(),
            IoKind::Write if DATA.contains(&range.start) => {
                if *left > 0 && written.iter().any(|w| w.start < range.end && range.start < w.end) {
                    *left -= 1;
                    return true;
                }
                written.push(range);
            }
            _ => {}
        }
        false
    }
}

impl BlockDevice for Stubborn {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, io: Io) {
        match self.refuses(&io) {
            true => (io.done)(Err(io::Error::other("refused")), io.buf),
            false => self.disk.submit(io),
        }
    }
}

fn refused(gangs: bool) {
    let disk = Disk::new(0, &Arc::new(Record::default()));
    let stubborn = Arc::new(Stubborn { disk: Arc::clone(&disk), state: Mutex::default() });
    let devices = [Arc::clone(&stubborn) as Device];
    let spa = create_pool(&env(1), Shape::Single.into(), &devices).unwrap();
    if gangs {
        spa.space.force_ganging(1024);
    }
    let mut actor = Actor::new(spa, Rng::new(1)).unwrap();
    stubborn.state.lock().1 = FAILURES;
    for _ in 0..6 {
        actor.step().unwrap();
    }
    assert_eq!(stubborn.state.lock().1, 0, "nothing was written over");
    actor.unmount_all().unwrap();
    actor.spa.export().unwrap();
    let pool = check::opened(&as_devices(&disks_of(&[disk.pages()]))).unwrap();
    compare(&pool, &actor.model, &Known::default()).unwrap();
    check::whole(&pool).unwrap();
}

#[test]
fn blocks_that_cannot_be_overwritten_are_freed_once() {
    refused(false);
}

#[test]
fn the_same_for_pieces_of_gangs() {
    refused(true);
}
