//! How much memory the machine has, and the watch over it: blocks in memory make room when others need it.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use engine::memory::{Limits, Memory};

use crate::conf;
use crate::paths::RunPaths;

/// How often is looked how much memory is available.
const TICK: Duration = Duration::from_secs(1);
/// Bytes beside those of blocks with which freed memory is given back to the system, and how often at most.
const SLACK: u64 = 64 << 20;
const PAUSE: Duration = Duration::from_secs(10);

/// Memory for blocks as the settings file says, and the machine where it says nothing. Slips go to standard error.
pub fn of_place(place: &RunPaths) -> Arc<Memory> {
    let limits = Limits::of_machine(total());
    for why in conf::load(&place.conf, &limits) {
        eprintln!("{why}");
    }
    Arc::new(Memory::new(limits))
}

/// Looks after `memory` for as long as somebody has it.
pub fn watch(memory: &Arc<Memory>) {
    let weak = Arc::downgrade(memory);
    let look = move || {
        let mut tidied = Instant::now();
        while let Some(memory) = Weak::upgrade(&weak) {
            memory.available(available());
            let held = memory.contents().bytes.saturating_add(SLACK);
            if tidied.elapsed() >= PAUSE && stdx::os::resident_memory().is_some_and(|bytes| bytes > held) {
                stdx::os::release_memory();
                tidied = Instant::now();
            }
            drop(memory);
            thread::sleep(TICK);
        }
    };
    if let Err(e) = thread::Builder::new().name("memory".into()).spawn(look) {
        eprintln!("nobody looks after memory: {e}");
    }
}

/// Bytes that this process can have at most: the machine's, or fewer if its control group has a limit.
#[doc(alias = "arc_all_memory")]
pub fn total() -> u64 {
    let machine = meminfo("MemTotal:").unwrap_or(1 << 30);
    Group::of_process().and_then(|group| group.limit).map_or(machine, |limit| limit.min(machine))
}

/// Bytes that could be had without taking them from anybody.
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

/// The number behind a name in a file of names and numbers.
fn number_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What the process's control group (version 2) may have and has, the cache of files apart.
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
