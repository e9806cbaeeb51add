//! Reads the events of all pools, for commands that follow them.

use std::sync::Arc;

use engine::spa::events::{Event, Events};

use crate::registry::Registry;

/// Events that a [`Reader`] had not returned before.
#[derive(Debug, Default)]
pub struct News {
    /// The events, in the order of their numbers.
    pub events: Vec<Event>,
    /// Number of events that were dropped before the reader got them.
    pub missed: u64,
}

/// A reader of the events of all present and former pools. A pool that appears later is read from its first event on.
#[derive(Debug, Default)]
pub struct Reader {
    /// The pools' events, each with the position of the next one. A reference is kept, so that the address identifies them.
    pools: Vec<(Arc<Events>, u64)>,
}

impl Reader {
    /// The events since the last call.
    pub fn news(&mut self, registry: &Registry) -> News {
        let present = registry.events();
        self.pools.retain(|(known, _)| present.iter().any(|events| Arc::ptr_eq(events, known)));
        for events in present {
            if !self.pools.iter().any(|(known, _)| Arc::ptr_eq(&events, known)) {
                self.pools.push((events, 0));
            }
        }
        let mut news = News::default();
        for (events, position) in &mut self.pools {
            let since = events.since(*position);
            *position = since.position;
            news.missed += since.missed;
            news.events.extend(since.events);
        }
        news.events.sort_by_key(|event| event.eid);
        news
    }
}
