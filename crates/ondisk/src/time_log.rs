//! The log that tells which txg was written when: three rings of entries, in the MOS directory.
//!
//! Each ring is an array of words: index of the oldest entry, index after the newest, number of entries, and then the
//! entries, two words each. The rings keep entries of some minutes, of days, and of months.
//!
//! Format source: zfs_crrd.h, OpenZFS 2.4.

use std::collections::VecDeque;

use crate::Malformed;

/// Entries of a ring at most.
#[doc(alias = "RRD_MAX_ENTRIES")]
pub const MAX_ENTRIES: usize = 256;
/// Words before the entries.
const HEAD: usize = 3;
/// Words of a ring.
const WORDS: usize = HEAD + 2 * MAX_ENTRIES;
const DAY: u64 = 24 * 60 * 60;
const MONTH: u64 = 30 * DAY;

/// One ring: times in seconds since 1970, ascending, with the txgs that were written then.
#[doc(alias = "rrd_t")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeRing {
    /// Index of the oldest entry in the array.
    head: usize,
    entries: VecDeque<(u64, u64)>,
}

impl TimeRing {
    /// Decodes the words of an entry of the MOS directory.
    ///
    /// # Errors
    /// When they are no ring.
    pub fn from_words(words: &[u64]) -> Result<Self, Malformed> {
        let bad = |why| Malformed::new("txg log time", why);
        let (head, pairs) = words.split_at_checked(HEAD).ok_or_else(|| bad("too short"))?;
        let pairs = pairs.as_chunks::<2>().0;
        let &[head, _, len] = head else { return Err(bad("too short")) };
        let small = |word: u64, most| usize::try_from(word).ok().filter(|&word| word <= most);
        let (Some(head), Some(len)) = (small(head, MAX_ENTRIES - 1), small(len, MAX_ENTRIES)) else {
            return Err(bad("an index is out of bounds"));
        };
        if words.len() != WORDS {
            return Err(bad("not 515 words"));
        }
        let at =
            |index: usize| pairs.get((head + index) % MAX_ENTRIES).map_or((0, 0), |&[time, txg]| (time, txg));
        Ok(Self { head, entries: (0..len).map(at).collect() })
    }

    /// The words for the MOS directory.
    pub fn to_words(&self) -> Vec<u64> {
        let word = |number: usize| u64::try_from(number).unwrap_or(0);
        let tail = (self.head + self.entries.len()) % MAX_ENTRIES;
        let mut words = vec![0; WORDS];
        let head = [word(self.head), word(tail), word(self.entries.len())];
        words.iter_mut().zip(head).for_each(|(to, from)| *to = from);
        for (index, (time, txg)) in self.entries.iter().enumerate() {
            let at = HEAD + 2 * ((self.head + index) % MAX_ENTRIES);
            if let Some([to_time, to_txg]) = words.get_mut(at..at + 2) {
                (*to_time, *to_txg) = (*time, *txg);
            }
        }
        words
    }

    /// Time of the newest entry; 0 if there is none.
    fn newest(&self) -> u64 {
        self.entries.back().map_or(0, |entry| entry.0)
    }

    fn add(&mut self, time: u64, txg: u64) {
        if let Some(last) = self.entries.back_mut().filter(|last| last.0 == time) {
            last.1 = last.1.max(txg);
            return;
        }
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
            self.head = (self.head + 1) % MAX_ENTRIES;
        }
        self.entries.push_back((time, txg));
    }

    /// The newest entry that is not later than `time`.
    fn before(&self, time: u64) -> Option<(u64, u64)> {
        self.entries.iter().take_while(|entry| entry.0 <= time).last().copied()
    }

    /// The oldest entry that is not earlier than `time`.
    fn after(&self, time: u64) -> Option<(u64, u64)> {
        self.entries.iter().find(|entry| entry.0 >= time).copied()
    }
}

/// The three rings.
#[doc(alias = "dbrrd_t")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeLog {
    /// Entries of the last hours or days.
    pub minutes: TimeRing,
    /// An entry for each day.
    pub days: TimeRing,
    /// An entry for every thirty days.
    pub months: TimeRing,
}

impl TimeLog {
    /// Notes that `txg` is written at `time`, in the coarsest ring whose newest entry is old enough. Times before the newest
    /// entry are not noted.
    #[doc(alias = "dbrrd_add")]
    pub fn add(&mut self, time: u64, txg: u64) {
        let is_due =
            |ring: &TimeRing, after: u64| time.checked_sub(ring.newest()).is_some_and(|age| age >= after);
        if is_due(&self.months, MONTH) {
            self.months.add(time, txg);
        } else if is_due(&self.days, DAY) {
            self.days.add(time, txg);
        } else if is_due(&self.minutes, 0) {
            self.minutes.add(time, txg);
        }
    }

    /// The txg of the last entry that is not later than `time`: blocks born after it may have been written since `time`.
    /// 0 if there is none.
    pub fn txg_before(&self, time: u64) -> u64 {
        self.closest(time, |ring| ring.before(time))
    }

    /// The txg of the first entry that is not earlier than `time`; 0 if there is none.
    pub fn txg_after(&self, time: u64) -> u64 {
        self.closest(time, |ring| ring.after(time))
    }

    #[doc(alias = "dbrrd_query")]
    fn closest(&self, time: u64, find: impl Fn(&TimeRing) -> Option<(u64, u64)>) -> u64 {
        let found = [&self.minutes, &self.days, &self.months].into_iter().filter_map(find);
        found.min_by_key(|entry| entry.0.abs_diff(time)).map_or(0, |entry| entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_to_the_coarsest_ring_that_is_due() {
        let mut log = TimeLog::default();
        (0..5).for_each(|n| log.add(MONTH * 700 + n, 10 + n));
        assert_eq!(log.months.entries, [(MONTH * 700, 10)]);
        assert_eq!(log.days.entries, [(MONTH * 700 + 1, 11)]);
        assert_eq!(log.minutes.entries.len(), 3);
        log.add(MONTH * 700 + 2, 99);
        assert_eq!(log.minutes.entries.len(), 3, "the clock was set back");
        log.add(MONTH * 700 + 4, 99);
        assert_eq!(log.minutes.entries.back(), Some(&(MONTH * 700 + 4, 99)));
        log.add(MONTH * 700 + 1 + DAY, 200);
        assert_eq!(log.days.entries.len(), 2);
        log.add(MONTH * 701, 300);
        assert_eq!(log.months.entries.len(), 2);
    }

    #[test]
    fn times_are_rounded_outwards() {
        let mut log = TimeLog::default();
        [(1000, 5), (1000 + MONTH, 50)].into_iter().for_each(|(time, txg)| log.add(time, txg));
        [(1010 + MONTH, 60), (1020 + MONTH, 61), (1030 + MONTH, 62)]
            .into_iter()
            .for_each(|(t, txg)| log.add(t, txg));
        assert_eq!(log.txg_before(999), 0);
        assert_eq!((log.txg_before(1000), log.txg_before(1001)), (5, 5));
        assert_eq!(log.txg_before(1025 + MONTH), 61);
        assert_eq!((log.txg_after(999), log.txg_after(1001)), (5, 50));
        assert_eq!(log.txg_after(1021 + MONTH), 62);
        assert_eq!(log.txg_after(1031 + MONTH), 0, "up to now");
    }

    #[test]
    fn rings_survive_the_disk_and_hostile_words_do_not_harm() {
        let mut ring = TimeRing::default();
        (0..300).for_each(|n| ring.add(n, n * 2));
        assert_eq!((ring.head, ring.entries.len(), ring.entries[0]), (44, 256, (44, 88)));
        let words = ring.to_words();
        assert_eq!((words.len(), &words[..3]), (515, &[44, 44, 256][..]));
        assert_eq!(TimeRing::from_words(&words).unwrap(), ring);
        for (at, word) in [(0, 256), (0, u64::MAX), (2, 257), (2, u64::MAX)] {
            let mut bad = words.clone();
            bad[at] = word;
            assert!(TimeRing::from_words(&bad).is_err());
        }
        assert!(TimeRing::from_words(&words[..514]).is_err() && TimeRing::from_words(&[]).is_err());
    }
}
