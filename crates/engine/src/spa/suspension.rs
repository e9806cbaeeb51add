//! The reason of a pool's suspension, and its listeners.
//!
//! A pool is suspended because devices failed requests that it can't do without, because metadata is damaged in all its copies,
//! or because of an error of this program: a violated invariant, found while a txg was synced, or a panic. They require different
//! actions of the administrator, so each message about a suspension ([`Suspending::state`]) states which of
//! them it was, and the cause.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Spa;
use super::subjects::{IntentLogs, Suspending};
use crate::dmu::LiveObjset;
use crate::error::{Error, Kind, Result};

/// Called on a suspension, on any thread; must be short.
pub(crate) type OnSuspension = Arc<dyn Fn(&Suspension) + Send + Sync>;

/// Why nothing is written any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspension {
    /// The error that it began with, and its place.
    pub cause: String,
    /// It is an error of this program: no device failed.
    pub is_ours: bool,
    /// Metadata is damaged: no device failed, and the stored blocks do not match their checksums.
    pub is_damage: bool,
}

impl Suspension {
    /// Derives the suspension from the error that callers get.
    pub fn of(why: &Error) -> Self {
        let of_devices = |e: &Error| matches!(e.kind(), Kind::Io | Kind::NoDevice | Kind::Checksum);
        let is_ours = !why.causes().any(of_devices);
        let is_damage = !is_ours && !why.causes().any(|e| matches!(e.kind(), Kind::Io | Kind::NoDevice));
        let cause = why.causes().nth(1).map_or_else(|| why.to_string(), ToString::to_string);
        Self { cause, is_ours, is_damage }
    }
}

/// The listeners.
#[derive(Default)]
pub(super) struct Telling {
    listener: Mutex<Option<OnSuspension>>,
    is_told: AtomicBool,
    /// Datasets whose intent logs are being replayed, or were when the pool was suspended.
    replaying: Mutex<BTreeMap<String, LogId>>,
    /// Logs that are not replayed: see [`IntentLogs::refuse`].
    refused: Mutex<BTreeSet<LogId>>,
}

/// The seed of an intent log's chain, which no other log of the pool has.
#[doc(alias("ZIL_ZC_GUID_0", "ZIL_ZC_GUID_1"))]
pub type LogId = [u64; 2];

fn log_id(objset: &LiveObjset) -> LogId {
    let [first, second, ..] = objset.zil_header().log.checksum_words();
    [first, second]
}

/// The intent log of a dataset is being replayed, until this is dropped: see [`IntentLogs::note_replay`].
#[derive(Debug)]
pub struct ReplayNote<'a> {
    spa: &'a Spa,
    dataset: String,
}

impl Drop for ReplayNote<'_> {
    fn drop(&mut self) {
        // A suspension keeps naming the replay that it began in.
        if self.spa.txgs.suspended().is_none() {
            self.spa.telling.replaying.lock().remove(&self.dataset);
        }
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Telling({:?})", self.is_told)
    }
}

impl<'a> IntentLogs<'a> {
    /// Records that the intent log of `dataset` is being replayed: the message of a suspension by an error of
    /// this program then explains how to import the pool without that log.
    ///
    /// # Errors
    /// `Invalid` for a log that [`IntentLogs::refuse`] names.
    pub fn note_replay(self, dataset: &str, objset: &LiveObjset) -> Result<ReplayNote<'a>> {
        let log = log_id(objset);
        if self.spa.telling.refused.lock().contains(&log) {
            let what = format!(
                "an error of this program suspended the pool when the intent log of {dataset} was last replayed; \
                 'zfs discard-log {dataset}' gives that log up"
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        self.spa.telling.replaying.lock().insert(dataset.to_owned(), log);
        Ok(ReplayNote { spa: self.spa, dataset: dataset.to_owned() })
    }

    /// Returns the logs that are being replayed, or were when the pool was suspended.
    pub fn replaying(self) -> Vec<LogId> {
        self.spa.telling.replaying.lock().values().copied().collect()
    }

    /// Refuses to replay these logs: an earlier replay of each has suspended the pool, and would do so again.
    pub fn refuse(self, logs: impl IntoIterator<Item = LogId>) {
        self.spa.telling.refused.lock().extend(logs);
    }
}

impl Suspending<'_> {
    /// Why the pool is suspended, if it is.
    pub fn state(self) -> Option<Suspension> {
        let mut suspension = self.spa.txgs.suspended().as_ref().map(Suspension::of)?;
        if suspension.is_ours {
            suspension.cause += &way_out_of_replays(self.spa);
        }
        Some(suspension)
    }

    /// Sets the callback for suspensions; `told` is called once for each.
    pub fn when_suspended(self, told: OnSuspension) {
        *self.spa.telling.listener.lock() = Some(told);
        self.tell();
    }

    /// Stops writing: waiting and new callers get the reason as an error.
    #[doc(alias = "zio_suspend")]
    pub(super) fn suspend(self, why: Error) {
        let what = "the pool is suspended: what was changed can't be written";
        self.suspend_because(Error::new(Kind::Suspended, what).because(why));
    }

    /// As [`Suspending::suspend`], with the error that callers get.
    pub(super) fn suspend_because(self, why: Error) {
        self.spa.txgs.suspend(why.in_pool(&self.spa.pool.name));
        self.tell();
    }

    /// Reports a suspension that was not reported yet, to the events and the listeners.
    pub(super) fn tell(self) {
        let Some(suspension) = self.state() else { return };
        if !self.spa.telling.is_told.swap(true, Ordering::AcqRel) {
            self.spa.reports().report_pool("ereport.fs.zfs.io_failure", &suspension.cause);
            let listener = self.spa.telling.listener.lock().clone();
            if let Some(listener) = listener {
                listener(&suspension);
            }
        }
    }

    /// The next suspension is another one.
    pub(super) fn forget(self) {
        self.spa.telling.is_told.store(false, Ordering::Release);
        self.spa.telling.replaying.lock().clear();
    }
}

fn way_out_of_replays(spa: &Spa) -> String {
    let replaying = spa.telling.replaying.lock();
    let told = |name: &String| {
        format!(
            "; the intent log of {name} was being replayed: 'zpool import -N' imports the pool without mounting anything, \
             and 'zfs discard-log {name}' then gives that log up"
        )
    };
    replaying.keys().map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_only_blamed_for_what_they_did() {
        let told = |why: Error| {
            Suspension::of(&Error::new(Kind::Suspended, "the pool is suspended").because(why).in_pool("tank"))
        };
        let ours = told(Error::corrupt("a space map stands at two places").on_vdev("mirror-0"));
        assert_eq!(
            (ours.is_ours, ours.cause.as_str()),
            (true, "a space map stands at two places (vdev mirror-0)")
        );
        let theirs =
            told(Error::new(Kind::Invalid, "no place").because(Error::new(Kind::Io, "a write failed")));
        assert_eq!((theirs.is_ours, theirs.cause.as_str()), (false, "no place: a write failed"));
        assert!(!theirs.is_damage && !ours.is_damage);
        let damage = told(Error::new(Kind::Checksum, "no copy matches"));
        assert!(damage.is_damage && !damage.is_ours, "{damage:?}");
        let alone = Suspension::of(&Error::new(Kind::Suspended, "a change broke off"));
        assert_eq!((alone.is_ours, alone.cause.as_str()), (true, "a change broke off"));
    }
}
