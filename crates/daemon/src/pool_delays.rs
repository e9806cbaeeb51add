//! Delays of imports and exports (`zinject -P`): the next one of the pool of that name takes at least so long. The export of a
//! pool that is imported read-only is not delayed.
//!
//! They belong to the daemon, since the pool of a delayed import is not imported yet. Each serves once. A cancelled one lets the
//! command that waits go on.
//!
//! Source: the behaviour of `zio_handle_import_delay` and `zio_handle_export_delay`, OpenZFS 2.4.

use std::thread;
use std::time::{Duration, Instant};

use engine::inject;
use parking_lot::Mutex;

/// Time between two looks at whether a delay has been cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// A command that is delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolCommand {
    /// `zpool import`.
    #[doc(alias = "ZINJECT_DELAY_IMPORT")]
    Import,
    /// `zpool export`.
    #[doc(alias = "ZINJECT_DELAY_EXPORT")]
    Export,
}

/// A delay of the next such command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolDelay {
    /// Its number among all handlers.
    pub id: u64,
    /// Name of the pool.
    pub pool: String,
    /// The command.
    pub command: PoolCommand,
    /// Least duration of the command.
    pub duration: Duration,
}

/// All delays of a daemon.
#[derive(Debug, Default)]
pub struct PoolDelays {
    all: Mutex<Vec<PoolDelay>>,
}

impl PoolDelays {
    /// Adds a delay; `None` if the pool has one of that command already.
    #[doc(alias = "zio_pool_handler_exists")]
    pub fn add(&self, pool: &str, command: PoolCommand, duration: Duration) -> Option<PoolDelay> {
        let mut all = self.all.lock();
        if all.iter().any(|delay| delay.pool == pool && delay.command == command) {
            return None;
        }
        let delay = PoolDelay { id: inject::next_id(), pool: pool.to_owned(), command, duration };
        all.push(delay.clone());
        Some(delay)
    }

    /// Removes the delay of that number. Returns whether there was one.
    pub fn cancel(&self, id: u64) -> bool {
        let mut all = self.all.lock();
        let before = all.len();
        all.retain(|delay| delay.id != id);
        all.len() < before
    }

    /// All delays, oldest first.
    pub fn list(&self) -> Vec<PoolDelay> {
        self.all.lock().clone()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    /// Waits until a command that `began` then has taken as long as its delay demands, and removes the delay.
    #[doc(alias = "zio_handle_pool_delay")]
    pub(crate) fn serve(&self, pool: &str, command: PoolCommand, began: Instant) {
        let is_it = |delay: &&PoolDelay| delay.pool == pool && delay.command == command;
        let found = self.all.lock().iter().find(is_it).cloned();
        let Some(delay) = found else { return };
        let is_there = || self.all.lock().iter().any(|other| other.id == delay.id);
        while let Some(left) = delay.duration.checked_sub(began.elapsed()).filter(|_| is_there()) {
            thread::sleep(left.min(LOOK));
        }
        self.cancel(delay.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_serves_the_next_command_of_its_pool_once() {
        let delays = PoolDelays::default();
        let long = Duration::from_millis(200);
        let delay = delays.add("tank", PoolCommand::Import, long).unwrap();
        assert_eq!(delays.add("tank", PoolCommand::Import, long), None);
        let export = delays.add("tank", PoolCommand::Export, Duration::from_secs(3600)).unwrap();
        let began = Instant::now();
        delays.serve("dozer", PoolCommand::Import, began);
        assert_eq!(delays.list(), [delay, export.clone()]);
        delays.serve("tank", PoolCommand::Import, began);
        assert!(began.elapsed() >= long);
        assert_eq!(delays.list(), [export]);
    }

    #[test]
    fn a_cancelled_delay_lets_the_command_go_on() {
        let delays = PoolDelays::default();
        let delay = delays.add("tank", PoolCommand::Export, Duration::from_secs(3600)).unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| delays.serve("tank", PoolCommand::Export, Instant::now()));
            assert!(delays.cancel(delay.id) && !delays.cancel(delay.id));
            waits.join().unwrap();
        });
        assert!(delays.is_empty());
    }
}
