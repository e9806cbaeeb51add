//! Monitors the machine's memory: the cache shrinks when other processes need memory.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine::memory::limits::Limit;
use engine::memory::{Limits, Memory};

use crate::conf;
use crate::paths::RunPaths;

/// Interval of checking the process's memory, and number of these checks for each one of the machine's.
const TICK: Duration = Duration::from_millis(250);
const TICKS: u32 = 4;
/// Number of these checks after which workspaces without use are freed.
const UNUSED_TICKS: u32 = 40;
/// Bytes beyond those of cached blocks at which freed memory is returned to the system, and the minimum interval.
const SLACK: u64 = 64 << 20;
const PAUSE: Duration = Duration::from_secs(3);
/// The share of the time that this takes is at most one in so many.
const REST: u32 = 10;

/// Memory limits from the settings file, with the machine's defaults. Invalid lines are reported on standard error.
pub fn of_place(place: &RunPaths) -> Arc<Memory> {
    let limits = Limits::of_machine(total());
    for why in conf::load(&place.conf, &limits) {
        eprintln!("{why}");
    }
    Arc::new(Memory::new(limits))
}

/// Monitors `memory` as long as it is in use.
pub fn watch(memory: &Arc<Memory>) {
    let weak = Arc::downgrade(memory);
    let look = move || {
        let (mut tidied, mut took, mut ticks) = (Instant::now(), Duration::ZERO, 0u32);
        while let Some(memory) = Weak::upgrade(&weak) {
            if ticks.is_multiple_of(TICKS) {
                memory.available(available());
            }
            if ticks.is_multiple_of(UNUSED_TICKS) {
                engine::memory::release_unused();
            }
            ticks = ticks.wrapping_add(1);
            let bytes = stdx::os::resident_memory().unwrap_or(0);
            let is_worth = bytes > memory.contents().bytes.saturating_add(SLACK);
            let pause = if bytes > near(&memory) { took.saturating_mul(REST) } else { PAUSE };
            if is_worth && tidied.elapsed() >= pause {
                let begun = Instant::now();
                stdx::os::release_memory();
                (tidied, took) = (Instant::now(), begun.elapsed());
            }
            drop(memory);
            thread::sleep(TICK);
        }
    };
    if let Err(e) = thread::Builder::new().name("memory".into()).spawn(look) {
        eprintln!("the machine's memory is not monitored: {e}");
    }
}

/// Bytes of the process from which on freed memory is returned without delay: the share that docs/memory.md
/// allows for everything but the cache and one pool's changes remains then.
fn near(memory: &Memory) -> u64 {
    let limits = [Limit::ArcMax, Limit::DirtyMax].map(|limit| memory.limits.get(limit));
    limits.into_iter().fold(0, u64::saturating_add)
}

/// Maximum bytes for this process: the machine's memory, or less if its control group has a limit.
#[doc(alias = "arc_all_memory")]
pub fn total() -> u64 {
    let machine = meminfo("MemTotal:").unwrap_or(1 << 30);
    Group::of_process().and_then(|group| group.limit).map_or(machine, |limit| limit.min(machine))
}

/// Bytes that are available without taking them from other processes.
#[doc(alias = "arc_free_memory")]
pub fn available() -> u64 {
    let machine = meminfo("MemAvailable:").unwrap_or(u64::MAX);
    let group = Group::of_process();
    let left = group.and_then(|group| Some(group.limit?.saturating_sub(group.used)));
    left.map_or(machine, |left| left.min(machine))
}

fn meminfo(name: &str) -> Option<u64> {
    number_of(&fs::read_to_string("/proc/meminfo").ok()?, name).map(|kib| kib << 10)
}

/// The number after a name in a file of names and numbers.
fn number_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The limit and usage of the process's control group (version 2), without the page cache.
struct Group {
    limit: Option<u64>,
    used: u64,
}

impl Group {
    fn of_process() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let dir = Path::new("/sys/fs/cgroup").join(own);
        let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let limit = read("memory.max").and_then(|text| text.trim().parse().ok());
        let used: u64 = read("memory.current")?.trim().parse().ok()?;
        let files = read("memory.stat").and_then(|text| number_of(&text, "inactive_file ")).unwrap_or(0);
        Some(Self { limit, used: used.saturating_sub(files) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_more_memory_than_is_available() {
        assert!(total() >= available() && available() > 0, "{} {}", total(), available());
        assert_eq!(number_of("a 1\ninactive_file 77\n", "inactive_file "), Some(77));
    }
}
