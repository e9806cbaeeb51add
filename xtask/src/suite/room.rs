//! Free space of the file systems that tests write to.
//!
//! On a full disk many tests fail, each with a message of its own, and pools suspend, so that their tests wait for ever. The
//! run prints the space that was free at its begin and at least, and does not begin with too little.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that must be free: twice the 1.4 GiB that a run was seen to take.
const NEEDED: u64 = 3 << 30;

/// The least free space that was seen of one directory.
pub struct Room {
    directory: PathBuf,
    begun: u64,
    least: AtomicU64,
}

impl Room {
    /// Room of the directory of temporary files. Errors if it is too little for the suite.
    pub fn of_temporary() -> Result<Self, String> {
        let directory = std::env::temp_dir();
        let begun = free(&directory);
        if begun < NEEDED {
            return Err(format!(
                "{} has {} free and the tests need {}; make room, or set TMPDIR to a directory that has it",
                directory.display(),
                gib(begun),
                gib(NEEDED)
            ));
        }
        Ok(Self { directory, begun, least: AtomicU64::new(begun) })
    }

    /// Looks again; returns the bytes that are free.
    pub fn look(&self) -> u64 {
        let now = free(&self.directory);
        self.least.fetch_min(now, Relaxed);
        now
    }

    /// A line about the free space of the run.
    pub fn tell(&self) -> String {
        let (begun, least) = (gib(self.begun), gib(self.least.load(Relaxed)));
        format!("{} had {begun} free, at least {least} during the run", self.directory.display())
    }
}

/// Bytes that users may still write to the file system of a directory; `u64::MAX` if that is unknown.
fn free(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(u64::MAX, |s| s.f_bavail.saturating_mul(s.f_frsize))
}

/// Bytes in GiB, for messages.
pub fn gib(bytes: u64) -> String {
    let tenths = (bytes >> 20) * 10 / 1024;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_kept() {
        let room = Room { directory: std::env::temp_dir(), begun: u64::MAX, least: AtomicU64::new(u64::MAX) };
        let now = room.look();
        assert!(now > 0 && now < u64::MAX && room.least.load(Relaxed) == now);
        room.least.store(1, Relaxed);
        room.look();
        assert!(room.tell().contains("at least 0.0 GiB"), "{}", room.tell());
        assert_eq!(gib((5 << 30) + (1 << 29)), "5.5 GiB");
    }
}
