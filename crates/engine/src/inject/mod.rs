//! Faults injected into an imported pool at run time (`zinject`).
//!
//! A [`Handler`] describes the requests that it matches and their results, and counts both. Handlers of devices belong to
//! the leaf ([`LeafFaults`]): a request that matches fails, is dropped, has a bit flipped or ends late, and everything above
//! the leaf treats the result as the device's own. Handlers of blocks belong to the read path ([`BlockFaults`]): a copy
//! that matches does not verify. Without handlers each check costs one relaxed atomic load.
//!
//! Handlers live in memory only and end with the export of the pool.
//!
//! Format source: the behaviour of `zio_inject`, OpenZFS 2.4. Differs from OpenZFS: a write that fails by injection does
//! not reach the device; the command line, not the engine, refuses to export a pool with handlers.

pub(crate) mod block;
mod delay;
pub(crate) mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use stdx::rng::Rng;

pub use block::{BlockFault, BlockFaults};
pub use device::LeafFaults;

/// Parts of a frequency: 1,000,000 are all requests.
#[doc(alias = "ZI_PERCENTAGE_MAX")]
pub const ALWAYS: u64 = 1_000_000;

/// Numbers handlers across all pools of the process, from 1.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The number of a new handler.
pub fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Which requests of a device a handler matches.
#[doc(alias = "zinject_iotype_t")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoType {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Frees: no request of a device.
    Free,
    /// Claims of intent log blocks: no request of a device.
    Claim,
    /// Cache flushes.
    Flush,
    /// Trims.
    Trim,
    /// Reads and writes of a probe, which match nothing else.
    Probe,
    /// All except probes.
    All,
}

impl IoType {
    /// Whether a handler for `self` matches a request `of` a device.
    fn matches(self, of: IoType) -> bool {
        self == of || (self == Self::All && of != Self::Probe)
    }
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultError {
    /// It fails with EIO; the device opens again.
    Io,
    /// It fails with EIO; the device does not open again.
    Nxio,
    /// A read succeeds with one bit flipped.
    Corrupt,
    /// It succeeds without reaching the device.
    Noop,
    /// A block's checksum does not match.
    Checksum,
    /// A block does not decompress.
    Decompress,
    /// A block does not decrypt.
    Decrypt,
    /// The device's dirty time logs claim that it is required.
    Dtl,
}

/// The effect of a handler.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Fails requests outside the labels, flushes and probes.
    Device {
        /// Result.
        error: FaultError,
        /// Matched requests.
        io: IoType,
    },
    /// Fails requests of a part of each label.
    Label {
        /// Result.
        error: FaultError,
        /// First byte of the part, in the label.
        start: u64,
        /// Last byte of the part, in the label.
        end: u64,
    },
    /// Delays requests.
    Delay {
        /// Least duration of a request.
        latency: Duration,
        /// Requests served at once.
        lanes: usize,
        /// Matched requests.
        io: IoType,
    },
    /// Fails reads of blocks.
    Block(BlockFault),
}

/// One injected fault.
#[doc(alias = "inject_handler_t")]
#[derive(Debug)]
pub struct Handler {
    /// Number, unique in the process.
    pub id: u64,
    /// Guid of the leaf; 0 for blocks.
    pub guid: u64,
    /// Its effect.
    pub action: Action,
    /// Number of injected requests per [`ALWAYS`] matched ones; 0: all.
    pub frequency: u64,
    matched: AtomicU64,
    injected: AtomicU64,
    rng: Mutex<Rng>,
    lanes: delay::DelayLanes,
}

impl Handler {
    /// A handler with a new number. `seed`: of the random choices by frequency.
    pub fn new(guid: u64, action: Action, frequency: u64, seed: u64) -> Arc<Self> {
        let lanes = match action {
            Action::Delay { lanes, .. } => lanes,
            _ => 0,
        };
        Arc::new(Self {
            id: next_id(),
            guid,
            action,
            frequency,
            matched: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            rng: Mutex::new(Rng::new(seed)),
            lanes: delay::DelayLanes::new(lanes),
        })
    }

    /// Requests that matched, and those of them that were injected.
    pub fn counts(&self) -> [u64; 2] {
        [&self.matched, &self.injected].map(|count| count.load(Ordering::Relaxed))
    }

    /// Counts a match; whether it is to be injected.
    fn triggers(&self) -> bool {
        self.matched.fetch_add(1, Ordering::Relaxed);
        let hit =
            self.frequency == 0 || self.frequency >= ALWAYS || self.rng.lock().below(ALWAYS) < self.frequency;
        self.injected.fetch_add(u64::from(hit), Ordering::Relaxed);
        hit
    }
}

/// A set of handlers that costs one load while it is empty.
#[derive(Debug, Default)]
struct Handlers {
    any: AtomicBool,
    all: RwLock<Vec<Arc<Handler>>>,
}

impl Handlers {
    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn add(&self, handler: Arc<Handler>) {
        let mut all = self.all.write();
        all.push(handler);
        self.any.store(true, Ordering::Relaxed);
    }

    fn remove(&self, id: u64) -> bool {
        let mut all = self.all.write();
        let before = all.len();
        all.retain(|handler| handler.id != id);
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        all.len() < before
    }

    fn list(&self) -> Vec<Arc<Handler>> {
        self.all.read().clone()
    }
}
