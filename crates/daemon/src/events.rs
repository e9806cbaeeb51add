//! Reads the events of all pools, for commands that follow them.

use std::sync::{Arc, Weak};

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
    /// The pools' events, each with the position of the next one. A weak reference keeps the address from becoming that of
    /// others, and does not make the events of a former pool look like those of an imported one.
    pools: Vec<(Weak<Events>, u64)>,
}

impl Reader {
    /// The events since the last call.
    pub fn news(&mut self, registry: &Registry) -> News {
        let present = registry.events();
        let is = |known: &Weak<Events>, events: &Arc<Events>| known.as_ptr() == Arc::as_ptr(events);
        self.pools.retain(|(known, _)| present.iter().any(|events| is(known, events)));
        let mut news = News::default();
        for events in present {
            let at = self.pools.iter().position(|(known, _)| is(known, &events)).unwrap_or_else(|| {
                self.pools.push((Arc::downgrade(&events), 0));
                self.pools.len() - 1
            });
            let Some((_, position)) = self.pools.get_mut(at) else { continue };
            let since = events.since(*position);
            *position = since.position;
            news.missed += since.missed;
            news.events.extend(since.events);
        }
        news.events.sort_by_key(|event| event.eid);
        news
    }
}
