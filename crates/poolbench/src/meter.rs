//! Measures the time of one run, and how busy processors and devices were meanwhile.
//!
//! Counters are the kernel's: `/proc/stat` for all processors, and field 10 of `/sys/dev/block/MAJOR:MINOR/stat`
//! (milliseconds with a request under way; Documentation/block/stat.rst). Both count the whole machine.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stdx::clock::{Clock, SystemClock};

use super::stats::{Limit, Measurement};

/// Share of the time from which on a resource is a limit.
const FULL: f64 = 0.9;

/// The clock, and the block devices under the pool.
#[derive(Debug, Default)]
pub struct Meter {
    clock: SystemClock,
    counters: Vec<PathBuf>,
}

/// Counters at the start of a run.
#[derive(Debug)]
pub struct Start {
    at: Duration,
    cpu: Option<(u64, u64)>,
    busy: Vec<u64>,
}

impl Meter {
    /// A meter for pools on these files or devices. One without counters (tmpfs, network) is never named as the limit.
    pub fn over(disks: &[PathBuf]) -> Self {
        let mut counters: Vec<PathBuf> = disks.iter().filter_map(|disk| counter_of(disk)).collect();
        counters.sort();
        counters.dedup();
        Self { clock: SystemClock::default(), counters }
    }

    /// Time since some fixed start.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Begins a run.
    pub fn start(&self) -> Start {
        Start { at: self.now(), cpu: processors(), busy: self.busy() }
    }

    /// Ends a run in which `done` units were processed.
    pub fn stop(&self, start: &Start, done: f64) -> Measurement {
        let took = self.now().saturating_sub(start.at).as_secs_f64().max(1e-6);
        let share = |(now, then): (&u64, &u64)| now.saturating_sub(*then) as f64 / 1000.0 / took;
        let device = self.busy().iter().zip(&start.busy).map(share).fold(0.0, f64::max);
        let cpu = processors().zip(start.cpu).map_or(0.0, |(now, then)| {
            let all = now.1.saturating_sub(then.1).max(1);
            now.0.saturating_sub(then.0) as f64 / all as f64
        });
        let limit = match () {
            () if device >= FULL => Limit::Device,
            () if cpu >= FULL => Limit::Cpu,
            () => Limit::Unknown,
        };
        Measurement { rate: done / took, limit }
    }

    fn busy(&self) -> Vec<u64> {
        self.counters.iter().map(|path| busy_in(&fs::read_to_string(path).unwrap_or_default())).collect()
    }
}

/// The counters of the block device that `disk` is, or whose file system `disk` is in.
fn counter_of(disk: &Path) -> Option<PathBuf> {
    let meta = fs::metadata(disk).ok()?;
    let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

fn busy_in(stat: &str) -> u64 {
    stat.split_whitespace().nth(9).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn processors() -> Option<(u64, u64)> {
    ticks_in(&fs::read_to_string("/proc/stat").ok()?)
}

/// Busy and total ticks of all processors: idle, waiting for I/O and stolen time are not busy.
fn ticks_in(stat: &str) -> Option<(u64, u64)> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // Guest time, behind the eighth, is part of user time.
    let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle = [3, 4, 7].iter().filter_map(|at| ticks.get(*at)).sum::<u64>();
    Some((all.saturating_sub(idle), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_documents_them() {
        assert_eq!(ticks_in("cpu  10 1 2 100 20 0 3 4 5 0\ncpu0 …"), Some((16, 140)));
        assert_eq!(ticks_in("intr 5"), None);
        assert_eq!(busy_in("  1 2 3 4 5 6 7 8 9 1234 11\n"), 1234);
        assert_eq!(busy_in(""), 0);
    }

    #[test]
    fn a_rate_is_work_by_time() {
        let meter = Meter::default();
        let start = meter.start();
        std::thread::sleep(Duration::from_millis(20));
        let sample = meter.stop(&start, 100.0);
        assert!(sample.rate > 0.0 && sample.rate <= 5000.0, "{sample:?}");
    }
}
