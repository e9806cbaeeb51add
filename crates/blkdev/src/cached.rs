//! Tests whether a range of a file is in the page cache.

use std::fs::File;
use std::os::fd::AsRawFd;

/// `struct cachestat_range`, linux/mman.h.
#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

/// `struct cachestat`, linux/mman.h: counts of pages.
#[repr(C)]
#[derive(Default)]
struct Stat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;
/// The smallest page size; where pages are larger, a range just counts as cached less readily.
const PAGE: u64 = 4096;

/// Whether all of the range is cached; also false if the kernel (before 6.5) cannot tell.
pub(crate) fn is_cached(file: &File, offset: u64, len: u64) -> bool {
    let range = Range { off: offset, len };
    let mut stat = Stat::default();
    // SAFETY: both structures live through the call and have the kernel's layout; the call reads the first
    // and writes the second, and touches nothing else.
    let done =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0u32) };
    let pages = offset.saturating_add(len).div_ceil(PAGE).saturating_sub(offset / PAGE);
    done == 0 && stat.cache >= pages
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn written_bytes_are_cached_and_bytes_beyond_the_end_are_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        if is_cached(&file, 0, 1) {
            assert!(is_cached(&file, 5, 99_000));
            assert!(!is_cached(&file, 0, 1 << 20));
        }
    }
}
