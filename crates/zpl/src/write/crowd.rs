//! Values kept in memory by number, until too many of them are unused.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The treatment of a value when there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays.
    Stays,
    /// It goes; this number of it is kept, unless it is 0.
    Leaves(u64),
}

/// Values by number.
#[derive(Debug)]
pub(super) struct Crowd<T> {
    /// All of them.
    pub map: BTreeMap<u64, Arc<T>>,
    /// Numbers kept of values that went.
    left: BTreeMap<u64, u64>,
    /// Increases whenever values go: a value that was read before may be older than one that went.
    looks: u64,
    /// With more, and more than the share, those without a use go.
    crowded: usize,
    /// The same for bytes beside the values.
    heavy: usize,
}

/// Bytes beside a value, such as a spill block, that are allowed for each of the share.
const BESIDE: usize = 256;

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Self { map: BTreeMap::new(), left: BTreeMap::new(), looks: 0, crowded: 0, heavy: 0 }
    }
}

impl<T> Crowd<T> {
    /// Makes room for one more value, where `share` unused ones may stay. `beside`: bytes of memory that the
    /// values hold outside of themselves. Returns the number of inspected values: on average few, however
    /// many are in use.
    pub fn make_room(&mut self, share: usize, beside: usize, fate: impl Fn(&Arc<T>) -> Fate) -> usize {
        let before = self.map.len();
        if before <= share.max(self.crowded) && beside <= share.saturating_mul(BESIDE).max(self.heavy) {
            return 0;
        }
        let left = &mut self.left;
        self.map.retain(|&number, value| match fate(value) {
            Fate::Stays => true,
            Fate::Leaves(0) => false,
            Fate::Leaves(kept) => {
                left.insert(number, kept);
                false
            }
        });
        self.looks += 1;
        // Those in use stay: the next look over all comes when there are as many others again.
        self.crowded = self.map.len().saturating_mul(2);
        before
    }

    /// How often values have gone.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Takes the number kept of a value that went; 0: none.
    pub fn take_left(&mut self, number: u64) -> u64 {
        self.left.remove(&number).unwrap_or(0)
    }

    /// The values of which a number is kept.
    pub fn left(&self) -> impl Iterator<Item = u64> {
        self.left.keys().copied()
    }

    /// After a look: values that stay have so many bytes beside themselves.
    pub fn has_beside(&mut self, bytes: usize) {
        self.heavy = bytes.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 30,000 values in use, one after the other: a look at all of them each time would be 400 million steps.
    #[test]
    fn values_in_use_are_not_looked_at_each_time() {
        let mut crowd = Crowd::default();
        let mut steps = 0;
        for number in 0..30_000 {
            steps += crowd.make_room(100, 0, |_| Fate::Stays);
            crowd.map.insert(number, Arc::new(()));
        }
        assert!(steps < 60_000, "{steps}");
        assert!(crowd.make_room(100, 0, |_| Fate::Leaves(0)) == 0 && crowd.map.len() == 30_000);
    }

    /// Few values of many bytes go as many of few do.
    #[test]
    fn heavy_values_without_a_use_go() {
        let (mut crowd, mut beside, mut most) = (Crowd::default(), 0, 0);
        for number in 0..1000 {
            if crowd.make_room(100, beside, |_| Fate::Leaves(0)) > 0 {
                beside = crowd.map.len() * 10_000;
                crowd.has_beside(beside);
            }
            crowd.map.insert(number, Arc::new(()));
            beside += 10_000;
            most = most.max(crowd.map.len());
        }
        assert!(most <= 4, "{most}");
    }

    #[test]
    fn unused_entries_may_exceed_the_share() {
        let mut crowd = Crowd::default();
        for number in 0..1000 {
            crowd.make_room(100, 0, |value| match **value {
                0..10 => Fate::Stays,
                even if even % 2 == 0 => Fate::Leaves(even),
                _ => Fate::Leaves(0),
            });
            crowd.map.insert(number, Arc::new(number));
            assert!(crowd.map.len() <= 101);
        }
        assert!((0..10).all(|number| crowd.map.contains_key(&number)));
        assert!(crowd.looks() > 5 && crowd.left().count() > 400);
        assert_eq!([12, 12, 13].map(|number| crowd.take_left(number)), [12, 0, 0]);
    }
}
