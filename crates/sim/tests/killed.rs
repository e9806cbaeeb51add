//! A process is killed, not the machine: its writes are in the system's page cache, and may be on no disk.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::sync::Arc;

use sim::actor::Actor;
use sim::disk::{Event, Record};
use sim::world::{self, Machine, Shape};
use stdx::rng::Rng;

use engine::spa::{ImportOptions, import};

/// The last uberblock may be one that no flush followed. The next process builds on it, so a power cut must not bring back
/// the one before, whose blocks are overwritten by then.
#[test]
fn the_state_found_is_made_durable_before_the_first_write() {
    for shape in [Shape::Single, Shape::Mirror, Shape::Raidz(1)] {
        let (machine, record) = (Machine::from(shape), Arc::new(Record::default()));
        let (spa, disks) = world::new_pool(&world::env(1), machine, &record).unwrap();
        let mut actor = Actor::new(spa, Rng::new(2)).unwrap();
        (0..4).for_each(|_| drop(actor.step().unwrap()));
        let images: Vec<_> = disks.iter().map(|disk| disk.pages()).collect();
        drop(record.take());
        let record = Arc::new(Record::default());
        let devices = world::as_devices(&world::recorded(&images, &record));
        let options = ImportOptions { hostid: 1, ..ImportOptions::default() };
        let spa = import(&world::env(3), world::found(&devices).unwrap(), &options).unwrap();
        spa.sync().unwrap();
        let events = record.take();
        let first = events.iter().position(|event| matches!(event, Event::Write(..))).unwrap();
        let is_flushed = |disk| events[..first].iter().any(|e| matches!(e, Event::Flush(n) if *n == disk));
        assert!((0..disks.len()).all(is_flushed), "{shape:?}: {first} events before the first write");
    }
}
