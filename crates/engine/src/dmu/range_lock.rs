//! Range locks on the bytes of a file or volume.
//!
//! Readers share a range; a writer has its bytes alone. Overlapping requests are granted in their order.

use std::ops::Range;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Ticket, range, whether it writes, whether it is granted.
    asked: Vec<(u64, Range<u64>, bool)>,
}

impl Table {
    /// Whether no earlier request than `ticket` conflicts with it.
    fn is_free(&self, ticket: u64, range: &Range<u64>, write: bool) -> bool {
        let meets = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        !self.asked.iter().any(|(t, r, w)| *t < ticket && meets(r) && (write || *w))
    }
}

/// The locked ranges of one object.
#[derive(Debug, Default)]
pub struct Ranges {
    table: Mutex<Table>,
    changed: Condvar,
}

/// A locked range; unlocked when dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    ranges: &'a Ranges,
    ticket: u64,
}

impl Ranges {
    /// Locks a range, with `write` exclusively; waits for earlier requests.
    #[doc(alias = "zfs_rangelock_enter")]
    pub fn lock(&self, range: Range<u64>, write: bool) -> Locked<'_> {
        let mut table = self.table.lock();
        let ticket = table.next;
        table.next += 1;
        table.asked.push((ticket, range.clone(), write));
        while !table.is_free(ticket, &range, write) {
            self.changed.wait(&mut table);
        }
        Locked { ranges: self, ticket }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.ranges.table.lock().asked.retain(|(ticket, ..)| *ticket != self.ticket);
        self.ranges.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests of threads")]
    use super::*;

    #[test]
    fn writers_wait_only_where_ranges_meet() {
        let ranges = Ranges::default();
        let first = ranges.lock(0..10, true);
        let _other = ranges.lock(10..20, true);
        let _readers = (ranges.lock(30..40, false), ranges.lock(35..50, false));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(ranges.lock(5..6, false)));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            drop(first);
            waiting.join().unwrap();
        });
    }
}
