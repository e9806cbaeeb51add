//! The measured work. Each function runs once and returns a rate with its limit.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clikit::interrupt::Interrupt;
use clikit::verb::{Failure, strerror};
use stdx::rng::Rng;

use super::meter::Meter;
use super::pool::Bed;
use super::sample::{PIECE, Sample};
use super::stats;
use super::store::{Opened, Store};

/// The clock and the user's wish to stop.
#[derive(Debug)]
pub struct RunClock {
    /// Time and counters.
    pub meter: Meter,
    /// Set when the user pressed Ctrl-C.
    pub stop: Interrupt,
}

/// The kinds of access to many small files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Small {
    /// Make a file and write it.
    Create,
    /// Read its attributes.
    Stat,
    /// Open it and read all of it.
    Read,
    /// Remove it.
    Delete,
}

/// Small files: bytes of each, and files of a directory.
const SMALL: usize = 3000;

fn failed(e: io::Error) -> Failure {
    Failure::failed(format!("the benchmark's files: {}", strerror(&e)))
}

impl RunClock {
    fn go_on(&self) -> Result<(), Failure> {
        if self.stop.is_set() { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Writes a new file of `size` bytes in pieces of 1 MiB until it is on disk: bytes per second.
    pub fn write(
        &self,
        bed: &Bed,
        path: &str,
        size: u64,
        sample: &Sample,
    ) -> Result<stats::Measurement, Failure> {
        let start = self.meter.start();
        let file = bed.store().create(path).map_err(failed)?;
        for at in (0..size).step_by(PIECE) {
            self.go_on()?;
            let len = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
            file.write_at(at, sample.piece(at, len)).map_err(failed)?;
        }
        bed.sync()?;
        Ok(self.meter.stop(&start, size as f64))
    }

    /// Reads `size` bytes of a file and compares nothing: bytes per second.
    pub fn read(&self, store: &dyn Store, path: &str, size: u64) -> Result<stats::Measurement, Failure> {
        let mut buffer = vec![0; PIECE];
        let start = self.meter.start();
        let file = store.open(path).map_err(failed)?;
        for at in (0..size).step_by(PIECE) {
            self.go_on()?;
            let len = usize::try_from(size - at).unwrap_or(PIECE).min(PIECE);
            let out = buffer.get_mut(..len).unwrap_or_default();
            if file.read_at(at, out).map_err(failed)? != len {
                return Err(Failure::failed("a file of the benchmark is shorter than it was written"));
            }
        }
        Ok(self.meter.stop(&start, size as f64))
    }

    /// Does `what` with all of these files of the directory `dir`: files per second.
    pub fn small(
        &self,
        bed: &Bed,
        dir: &str,
        (names, what): (&[String], Small),
        sample: &Sample,
    ) -> Result<stats::Measurement, Failure> {
        let store = bed.store();
        let mut buffer = vec![0; SMALL];
        let start = self.meter.start();
        for (at, name) in (0_u64..).zip(names) {
            self.go_on()?;
            let path = format!("{dir}/{name}");
            match what {
                Small::Create => store
                    .create(&path)
                    .and_then(|file| file.write_at(0, sample.piece(at * SMALL as u64, SMALL))),
                Small::Stat => store.stat(&path).map(drop),
                Small::Read => store.open(&path).and_then(|file| file.read_at(0, &mut buffer)).map(drop),
                Small::Delete => store.remove(&path),
            }
            .map_err(failed)?;
        }
        if matches!(what, Small::Create | Small::Delete) {
            bed.sync()?;
        }
        Ok(self.meter.stop(&start, names.len() as f64))
    }

    /// Reads or rewrites blocks of `block` bytes at random places of a file of `size` bytes, by `depth` callers at once, for
    /// `time`; rewrites until they are on disk. Operations per second.
    pub fn random(
        &self,
        bed: &Bed,
        path: &str,
        (size, block, depth): (u64, u64, u64),
        (writes, time): (Option<&Sample>, Duration),
        seed: u64,
    ) -> Result<stats::Measurement, Failure> {
        let file = bed.store().open(path).map_err(failed)?;
        let file: &dyn Opened = &*file;
        let len = usize::try_from(block).unwrap_or(PIECE);
        let one = |caller: u64, number: u64, random: &mut Rng, buffer: &mut Vec<u8>| -> io::Result<()> {
            let at = random.below(size / block) * block;
            buffer.resize(len, 0);
            match writes {
                Some(sample) => {
                    let shift = (caller << 40) + number * 4099 + seed;
                    file.write_at(at, sample.piece(shift, len))
                }
                None => file.read_at(at, buffer).map(drop),
            }
        };
        let start = self.meter.start();
        let done = self.callers(depth, time, seed, &one)?;
        if writes.is_some() {
            bed.sync()?;
        }
        Ok(self.meter.stop(&start, done as f64))
    }

    /// Appends 4 KiB and calls fsync, by each of `callers` on a file of its own, for `time`: calls per second.
    pub fn fsync(
        &self,
        bed: &Bed,
        dataset: &str,
        (callers, time): (u64, Duration),
        (sample, run): (&Sample, u64),
    ) -> Result<stats::Measurement, Failure> {
        let store = bed.store();
        let name = |caller: u64| format!("{dataset}/log{run}-{caller}");
        let files: Vec<_> = (0..callers)
            .map(|caller| store.create(&name(caller)))
            .collect::<io::Result<_>>()
            .map_err(failed)?;
        let start = self.meter.start();
        let one = |caller: u64, number: u64, _: &mut Rng, _: &mut Vec<u8>| -> io::Result<()> {
            let file = usize::try_from(caller).ok().and_then(|at| files.get(at));
            let file = file.ok_or_else(|| io::Error::other("a file is missing"))?;
            file.append(sample.piece(number * 4096, 4096))?;
            file.fsync()
        };
        let done = self.callers(callers, time, run, &one)?;
        let rate = self.meter.stop(&start, done as f64);
        drop(files);
        (0..callers).try_for_each(|caller| store.remove(&name(caller))).map_err(failed)?;
        Ok(rate)
    }

    /// Calls `one` from `callers` threads until `time` is over (each thread at least once); returns the number of calls.
    fn callers(
        &self,
        callers: u64,
        time: Duration,
        seed: u64,
        one: &(dyn Fn(u64, u64, &mut Rng, &mut Vec<u8>) -> io::Result<()> + Sync),
    ) -> Result<u64, Failure> {
        let (until, total) = (self.meter.now() + time, AtomicU64::new(0));
        let work = |caller: u64| -> io::Result<()> {
            let (mut random, mut buffer) = (Rng::new(seed << 8 | caller), Vec::new());
            for number in 0.. {
                one(caller, number, &mut random, &mut buffer)?;
                total.fetch_add(1, Ordering::Relaxed);
                if self.stop.is_set() || self.meter.now() >= until {
                    break;
                }
            }
            Ok(())
        };
        let ended = thread::scope(|scope| {
            let threads: Vec<_> = (0..callers).map(|caller| scope.spawn(move || work(caller))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the benchmark ended")))
            })
        });
        ended.map_err(failed)?;
        self.go_on()?;
        Ok(total.into_inner())
    }
}

/// Names of small files in the order in which they are made, and in which they are used afterwards: as bonnie++, sequential
/// names are in order, random names are in no order.
pub fn names(count: u64, sequential: bool, seed: u64) -> (Vec<String>, Vec<String>) {
    let mut random = Rng::new(seed);
    if sequential {
        let all: Vec<String> = (0..count).map(|number| format!("{number:08}")).collect();
        return (all.clone(), all);
    }
    let all: Vec<String> = (0..count).map(|number| format!("{:016x}{number:x}", random.next_u64())).collect();
    let mut later = all.clone();
    for at in (1..later.len()).rev() {
        let other = usize::try_from(random.below(at as u64 + 1)).unwrap_or(at);
        later.swap(at, other);
    }
    (all, later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_used_once_in_either_order() {
        let (made, used) = names(100, true, 1);
        assert_eq!((made.len(), &made), (100, &used));
        let (made, used) = names(100, false, 1);
        assert_ne!(made, used);
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        assert_eq!(sorted(made), sorted(used));
    }
}
