//! The pool's events, as `zpool events` shows them: a bounded list in memory that drops the oldest first.
//!
//! Each event has a class (`sysevent.fs.zfs.config_sync`, `ereport.fs.zfs.checksum`), a payload as in
//! OpenZFS, the time and a number. The numbers of all pools of a process are one sequence, as in OpenZFS. Source: fm.c,
//! spa_event_create (spa.c), OpenZFS 2.3.

use std::collections::VecDeque;

use nvpair::{NvList, NvValue};
use parking_lot::Mutex;
use zcommon::vdev::PoolState;

use super::history_log::{HistoryEvent, HistoryOrigin};
use super::subjects::Reports;
use crate::dmu::Tx;
use crate::env::Env;
use crate::error::Error;
use crate::memory::Limit;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its number, from 1, unique in the process; it grows with each event.
    pub eid: u64,
    /// Seconds since 1970, nanoseconds.
    pub time: (i64, i64),
    /// Its class, such as `sysevent.fs.zfs.history_event`.
    pub class: String,
    /// All that `zpool events -v` prints, class, time and number included.
    pub payload: NvList,
}

#[derive(Debug, Default)]
struct State {
    kept: VecDeque<Event>,
    /// Number of events that came before the first kept one.
    gone: u64,
}

/// The events of a pool from a position on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Since {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Number of events from that position on that were dropped before this call.
    pub missed: u64,
    /// The position after the last event.
    pub position: u64,
}

/// The events of a pool. They stay readable after the pool is gone.
#[derive(Debug, Default)]
pub struct Events {
    state: Mutex<State>,
}

impl Events {
    /// The kept events with numbers above `eid`, oldest first.
    pub fn after(&self, eid: u64) -> Vec<Event> {
        self.state.lock().kept.iter().filter(|event| event.eid > eid).cloned().collect()
    }

    /// The kept events from a position on. Positions count the events of the pool from 0.
    pub fn since(&self, position: u64) -> Since {
        let state = self.state.lock();
        let skipped = usize::try_from(position.saturating_sub(state.gone)).unwrap_or(usize::MAX);
        Since {
            events: state.kept.iter().skip(skipped).cloned().collect(),
            missed: state.gone.saturating_sub(position),
            position: state.gone + state.kept.len() as u64,
        }
    }

    /// Drops all events; returns their number.
    #[doc(alias = "zpool events -c")]
    pub fn clear(&self) -> usize {
        let mut state = self.state.lock();
        let cleared = std::mem::take(&mut state.kept).len();
        state.gone += cleared as u64;
        cleared
    }

    pub(super) fn post(&self, env: &Env, class: String, mut payload: NvList) {
        let (seconds, nanos) = env.clock.wall();
        let time = (seconds, i64::from(nanos));
        let mut state = self.state.lock();
        // The lock is held meanwhile, so that the numbers of this pool are in order.
        let eid = env.memory.next_event();
        payload.add("time", NvValue::Int64Array(vec![time.0, time.1])).add("eid", eid);
        let most = usize::try_from(env.memory.limits.get(Limit::EventsMax)).unwrap_or(usize::MAX).max(1);
        let surplus = (state.kept.len() + 1).saturating_sub(most);
        state.kept.drain(..surplus);
        state.gone += surplus as u64;
        state.kept.push_back(Event { eid, time, class, payload });
    }
}

impl<'a> Reports<'a> {
    /// Returns the pool's events since it was opened.
    pub fn events(self) -> &'a std::sync::Arc<Events> {
        &self.spa.events
    }

    /// Returns an event with the entries that describe the pool. Takes no lock: reads under any lock may post
    /// events.
    pub(super) fn event_of(self, class: &str, state: PoolState) -> NvList {
        let mut list = NvList::new();
        list.add("version", NvValue::Uint8(0)).add("class", class);
        self.of_pool(&mut list, state);
        list
    }

    pub(super) fn of_pool(self, list: &mut NvList, state: PoolState) {
        list.add("pool", self.spa.pool.name.as_str()).add("pool_guid", self.spa.guid());
        list.add("pool_state", NvValue::Int32(shown(state))).add("pool_context", NvValue::Int32(0));
    }

    /// Notes that something was done to the pool (`pool_import`).
    #[doc(alias = "spa_event_notify")]
    pub(super) fn notify(self, what: &str) {
        let class = format!("sysevent.fs.zfs.{what}");
        let state = match what {
            "pool_export" => PoolState::Exported,
            "pool_destroy" => PoolState::Destroyed,
            _ => PoolState::Active,
        };
        let payload = self.event_of(&class, state);
        self.spa.events.post(&self.spa.pool.env, class, payload);
    }

    /// As [`Reports::notify`], of a sequential reconstruction.
    #[doc(alias = "vdev_rebuild_log_notify")]
    pub(super) fn notify_sequential(self, what: &str) {
        let class = format!("sysevent.fs.zfs.{what}");
        let mut list = self.event_of(&class, PoolState::Active);
        list.add("resilver_type", "sequential");
        self.spa.events.post(&self.spa.pool.env, class, list);
    }

    /// Notes that a part of a dataset's intent log could not be replayed, and is lost.
    #[doc(alias = "FM_EREPORT_ZFS_LOG_REPLAY")]
    pub fn notify_log_lost(self, dataset: &str, lost: u64, why: &Error) {
        let class = "ereport.fs.zfs.log_replay";
        let mut list = self.event_of(class, PoolState::Active);
        list.add("dataset", dataset).add("records_lost", lost).add("cause", why.to_string().as_str());
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }

    #[doc(alias = "spa_history_log_notify")]
    pub(super) fn notify_history(self, event: &HistoryEvent, origin: &HistoryOrigin, tx: &Tx) {
        let class = "sysevent.fs.zfs.history_event";
        let mut list = self.event_of(class, PoolState::Active);
        list.add("history_hostname", origin.host.as_str());
        match event {
            HistoryEvent::Command(command) => {
                list.add("history_command", command.as_str()).add("history_who", origin.who);
            }
            HistoryEvent::Internal { name, dataset, text } => {
                if let Some((dataset, _)) = dataset {
                    list.add("history_dsname", dataset.as_str());
                }
                list.add("history_internal_str", text.as_str()).add("history_internal_name", name.as_str());
                if let Some((_, number)) = dataset {
                    list.add("history_dsid", *number);
                }
                list.add("history_txg", tx.txg());
            }
        }
        list.add("history_time", self.spa.pool.env.now());
        self.spa.events.post(&self.spa.pool.env, class.to_owned(), list);
    }
}

fn shown(state: PoolState) -> i32 {
    i32::try_from(state as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default of the setting.
    const KEPT: usize = 512;

    #[test]
    fn the_oldest_are_forgotten_and_numbers_go_on() {
        let (events, env) = (Events::default(), Env::system(1 << 20).unwrap());
        for _ in 0..KEPT + 5 {
            events.post(&env, "sysevent.fs.zfs.config_sync".into(), NvList::new());
        }
        let all = events.after(0);
        assert_eq!((all.len(), all[0].eid, all[0].payload.u64("eid")), (KEPT, 6, Some(6)));
        let newest = 5 + KEPT as u64;
        assert_eq!(events.after(newest - 1).len(), 1);
        assert!(events.after(newest).is_empty());
        assert_eq!(events.clear(), KEPT);
        assert!(events.after(0).is_empty());
    }

    #[test]
    fn a_reader_learns_how_many_events_it_missed() {
        let (events, env) = (Events::default(), Env::system(1 << 20).unwrap());
        let other = Events::default();
        let post = |to: &Events| to.post(&env, "sysevent.fs.zfs.config_sync".into(), NvList::new());
        post(&events);
        post(&other);
        post(&events);
        let first = events.since(0);
        let numbers: Vec<u64> = first.events.iter().map(|event| event.eid).collect();
        assert_eq!((numbers, first.missed, first.position), (vec![1, 3], 0, 2));
        (0..KEPT + 5).for_each(|_| post(&events));
        let next = events.since(first.position);
        assert_eq!((next.events.len(), next.missed, next.position), (KEPT, 5, 2 + 5 + KEPT as u64));
        assert_eq!(events.since(next.position), Since { position: next.position, ..Since::default() });
        events.clear();
        assert_eq!(events.since(next.position).missed, 0);
    }
}
