//! The events of the present and former pools, separately for each import.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::spa::events::Events;
use parking_lot::Mutex;

/// Maximum number of former imports whose events are kept.
const MAX_FORMER: usize = 32;

/// Lists of events: those of all imported pools, and those of the latest that are gone.
#[derive(Debug, Default)]
pub struct Rings(Mutex<VecDeque<Arc<Events>>>);

impl Rings {
    /// All lists, the oldest first.
    pub fn all(&self) -> Vec<Arc<Events>> {
        self.0.lock().iter().cloned().collect()
    }

    /// Adds a pool's list; drops the oldest of pools that are gone if there are too many.
    pub fn add(&self, events: &Arc<Events>) {
        let mut all = self.0.lock();
        if all.iter().any(|known| Arc::ptr_eq(known, events)) {
            return;
        }
        // An imported pool holds its list.
        let is_former = |ring: &Arc<Events>| Arc::strong_count(ring) == 1;
        let mut surplus = all.iter().filter(|ring| is_former(ring)).count().saturating_sub(MAX_FORMER);
        all.retain(|ring| {
            let is_dropped = surplus > 0 && is_former(ring);
            surplus -= usize::from(is_dropped);
            !is_dropped
        });
        all.push_back(Arc::clone(events));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_of_former_pools_are_dropped() {
        let rings = Rings::default();
        let held: Vec<Arc<Events>> = (0..MAX_FORMER + 2).map(|_| Arc::default()).collect();
        held.iter().for_each(|events| rings.add(events));
        assert_eq!(rings.all().len(), held.len());
        (0..2 * MAX_FORMER).for_each(|_| rings.add(&Arc::default()));
        let kept = rings.all();
        assert!(held.iter().all(|events| kept.iter().any(|ring| Arc::ptr_eq(ring, events))));
        assert_eq!(kept.len(), held.len() + MAX_FORMER + 1);
    }
}
