//! Accounts that begin while a file system is mounted: see [`engine::spa::PoolDatasets::begin_accounts`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use engine::dsl::write::LiveDataset;
use engine::spa::Spa;
use ondisk::objset::ObjsetFlags;
use zcommon::props::ZfsProp;

/// The thread that does it.
#[derive(Debug, Default)]
pub(super) struct Counting {
    stop: Arc<AtomicBool>,
    /// Returns whether it finished.
    thread: Option<JoinHandle<bool>>,
    /// It failed: the next mount tries again.
    failed: bool,
}

impl Counting {
    /// Starts it if something is to be counted, it is not running, and it has not failed.
    pub fn start(&mut self, spa: &Arc<Spa>, dataset: &Arc<LiveDataset>) {
        if spa.dsl().uncounted(dataset) == ObjsetFlags::default() || self.stop.load(Ordering::Acquire) {
            return;
        }
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            self.failed |= !thread.join().unwrap_or(false);
        }
        let read_only = spa.datasets.number_property(dataset.number, ZfsProp::Readonly.name());
        if self.failed || self.thread.is_some() || read_only.is_ok_and(|set| set == Some(1)) {
            return;
        }
        // Where callers that wait for a txg write it themselves, a thread of our own would interfere.
        if !spa.is_threaded() {
            return;
        }
        let (spa, dataset, stop) = (Arc::clone(spa), Arc::clone(dataset), Arc::clone(&self.stop));
        let work = move || spa.dsl().begin_accounts(&dataset, &stop).unwrap_or(false);
        #[expect(clippy::disallowed_methods, reason = "only pools with threads come here")]
        match std::thread::Builder::new().name("accounts".to_owned()).spawn(work) {
            Ok(thread) => self.thread = Some(thread),
            Err(_) => self.failed = true,
        }
    }

    /// Stops it for good. Returns the thread, for which the caller waits without the lock around this.
    pub fn end(&mut self) -> Option<JoinHandle<bool>> {
        self.stop.store(true, Ordering::Release);
        self.thread.take()
    }
}
