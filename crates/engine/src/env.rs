//! The engine's environment: time, threads, random bytes, memory.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use stdx::rng::Rng;

use stdx::clock::{Clock, SystemClock};

use crate::error::{Error, Kind, Result};
use crate::memory::Memory;
use crate::taskq::{Executor, ThreadPool};

/// Unpredictable random bytes.
pub trait Secrets: Send + Sync + std::fmt::Debug {
    /// Fills `out`.
    ///
    /// # Errors
    /// If the source fails; `out` must not be used then.
    fn fill(&self, out: &mut [u8]) -> Result<()>;
}

/// The operating system's random bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemSecrets;

impl Secrets for SystemSecrets {
    #[expect(clippy::disallowed_methods, reason = "the source of Env::secrets")]
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        getrandom::fill(out).map_err(|e| Error::new(Kind::Io, format!("cannot read random bytes: {e}")))
    }
}

/// Bytes determined by a seed: only for simulations, which must be repeatable.
#[derive(Debug)]
pub struct SeededSecrets(pub Mutex<Rng>);

impl Secrets for SeededSecrets {
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        self.0.lock().fill(out);
        Ok(())
    }
}

/// The environment of an engine.
#[derive(Debug, Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Runs CPU work.
    pub executor: Arc<dyn Executor>,
    /// For guids and salts of hash tables: random, but never for keys.
    pub random: Arc<Mutex<Rng>>,
    /// For keys and the encryption of blocks.
    pub secrets: Arc<dyn Secrets>,
    /// The memory shared by all pools of this environment.
    pub memory: Arc<Memory>,
}

impl Env {
    /// A random number other than 0.
    pub fn guid(&self) -> u64 {
        let mut random = self.random.lock();
        loop {
            let guid = random.next_u64();
            if guid != 0 {
                return guid;
            }
        }
    }

    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        u64::try_from(self.clock.wall().0).unwrap_or(0)
    }

    /// The machine's clock and as many threads as it has cores; at most `arc_max` bytes of cached blocks.
    pub fn system(arc_max: u64) -> Result<Self> {
        Self::with_memory(Arc::new(Memory::of_size(arc_max)))
    }

    /// Like [`Env::system`], with shared memory.
    #[expect(clippy::disallowed_methods, reason = "the machine's own environment")]
    pub fn with_memory(memory: Arc<Memory>) -> Result<Self> {
        let width = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Ok(Self {
            clock: Arc::new(SystemClock::default()),
            executor: Arc::new(ThreadPool::new(width)?),
            random: Arc::new(Mutex::new(Rng::new(std::hash::RandomState::new().build_hasher().finish()))),
            secrets: Arc::new(SystemSecrets),
            memory,
        })
    }
}
