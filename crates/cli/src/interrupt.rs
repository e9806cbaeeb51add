//! The user's request to stop, as a flag that long work polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// A flag that requests an orderly stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that SIGINT and SIGTERM set. A second one of either ends the process at once.
    pub fn on_signals() -> Self {
        let flag = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // The order matters: on the first signal the flag is still unset, so only the second line
            // acts; on the second one the flag is set and the process ends. A refusal leaves the
            // default action of the signal, which is to stop.
            let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.0.clone());
            let _ = signal_hook::flag::register(signal, flag.0.clone());
        }
        flag
    }

    /// Wraps a flag that other code sets.
    pub fn of(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    /// Whether a stop was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Requests a stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for code that takes a plain shared `AtomicBool`.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}
