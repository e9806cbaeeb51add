//! The amount of work: from the user's options, free memory, and free space.

use std::time::Duration;

use clikit::verb::Failure;
use zcommon::units::nicebytes;

use super::layout::Layout;

/// Least bytes of a large file.
const LEAST: u64 = 8 << 20;
/// Least cache that a daemon accepts.
const LEAST_CACHE: u64 = 64 << 20;
/// Space for labels, reserve, metadata and small files beside the large file, on each device.
const BESIDE: u64 = 256 << 20;

/// The amount of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of each large file.
    pub size: u64,
    /// Bytes of the pool's cache.
    pub cache: u64,
    /// Runs of each measurement.
    pub runs: u64,
    /// Duration of one run of random I/O and fsync.
    pub time: Duration,
    /// Number of small files.
    pub files: u64,
    /// Fewer combinations.
    pub quick: bool,
}

impl Plan {
    /// Work for a pool of its own. Large files are twice its cache, and the cache an eighth of the free memory: from 64 MiB
    /// to 1 GiB; 64 MiB if `quick`.
    pub fn new(quick: bool, runs: u64, size: Option<u64>, memory: u64) -> Self {
        let most = if quick { LEAST_CACHE } else { 1 << 30 };
        let cache = (memory / 8).clamp(LEAST_CACHE, most);
        let size = size.unwrap_or(cache * 2).max(LEAST);
        let (time, files) = if quick { (500, 500) } else { (5000, 5000) };
        // A smaller file than the default keeps its proportion to the cache as far as the cache can shrink.
        let cache = cache.min((size / 2).max(LEAST_CACHE));
        Self { size, cache, runs, time: Duration::from_millis(time), files, quick }
    }

    /// Bytes of each of `count` files that serve as devices.
    pub fn disk_size(&self, count: usize) -> u64 {
        let data = Layout::all(count).iter().map(|layout| layout.data_disks(count)).min().unwrap_or(1);
        // A file that is removed frees its space some txgs later, when the next one is being written.
        let share = (self.size * 2).div_ceil(data as u64);
        (share + BESIDE).next_multiple_of(1 << 20)
    }

    /// Reduces the large files so that `count` devices of `room` bytes each suffice.
    ///
    /// # Errors
    /// If the user has chosen the size, or nothing useful fits.
    pub fn fit(&mut self, count: usize, room: u64, chosen: bool, place: &str) -> Result<(), Failure> {
        let needed = self.disk_size(count);
        if needed <= room {
            return Ok(());
        }
        let mut smaller = self.clone();
        while !chosen && smaller.size / 2 >= LEAST {
            smaller.size /= 2;
            if smaller.disk_size(count) <= room {
                *self = Self { cache: self.cache.min((smaller.size / 2).max(LEAST_CACHE)), ..smaller };
                return Ok(());
            }
        }
        let needed = if chosen { needed } else { smaller.disk_size(count) };
        let why = format!(
            "{} for each of {count} devices needed, {} free: use a smaller --size or fewer devices",
            nicebytes(needed),
            nicebytes(room)
        );
        Err(Failure::cannot("measure", place, why))
    }

    /// The work in an existing pool with `free` bytes and a cache of `cache` bytes: large files exceed the cache if they
    /// take no more than an eighth of the free space.
    ///
    /// # Errors
    /// If there is too little free space.
    pub fn fit_pool(&mut self, free: u64, cache: u64, chosen: bool, place: &str) -> Result<(), Failure> {
        self.cache = cache;
        if !chosen {
            let wanted = if self.quick { self.size } else { cache * 2 };
            self.size = wanted.min(free / 8).max(LEAST);
        }
        // Two copies of the largest file, before space that was freed is available again, and the small files.
        let needed = self.size * 3 + BESIDE;
        if needed <= free {
            return Ok(());
        }
        let why = format!("{} needed, {} free: use a smaller --size", nicebytes(needed), nicebytes(free));
        Err(Failure::cannot("measure", place, why))
    }

    /// Bytes that fit into the cache, for hot reads.
    pub fn hot(&self) -> u64 {
        (self.cache / 4).min(self.size)
    }

    /// Whether large files exceed the cache.
    pub fn exceeds(&self) -> bool {
        self.size > self.cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_exceeds_the_cache_and_fits_the_space() {
        let mut plan = Plan::new(false, 3, None, 64 << 30);
        assert_eq!((plan.size, plan.cache), (2 << 30, 1 << 30));
        assert!(plan.exceeds() && plan.hot() < plan.cache);
        assert_eq!(Plan::new(true, 3, None, 64 << 30).size, 128 << 20);
        plan.fit(4, 1 << 30, false, "x").unwrap();
        assert!(plan.disk_size(4) <= 1 << 30 && plan.size < 2 << 30);
        let chosen = |size| Plan::new(false, 3, Some(size), 64 << 30);
        assert!(chosen(1 << 40).fit(4, 1 << 30, true, "x").is_err());
        assert!(Plan::new(true, 1, None, 0).fit(1, 100 << 20, false, "x").is_err());
    }

    #[test]
    fn an_existing_pool_keeps_most_of_its_free_space() {
        let mut plan = Plan::new(false, 3, None, 64 << 30);
        plan.fit_pool(100 << 30, 4 << 30, false, "tank").unwrap();
        assert_eq!(plan.size, 8 << 30);
        assert!(plan.exceeds());
        plan.fit_pool(8 << 30, 4 << 30, false, "tank").unwrap();
        assert_eq!(plan.size, 1 << 30);
        assert!(!plan.exceeds());
        assert!(plan.fit_pool(100 << 20, 4 << 30, false, "tank").is_err());
    }
}
