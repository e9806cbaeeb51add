//! The user's request to stop, as a flag that long work polls.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// A flag that requests an orderly stop. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    /// The signal that set it; 0: none.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// A flag that SIGINT and SIGTERM set. A second one of either ends the process at once.
    pub fn on_signals() -> Self {
        let new = Self::default();
        for signal in [SIGINT, SIGTERM] {
            // The order matters: on the first signal the flag is still unset, so only the other lines
            // act; on the second one the flag is set and the process ends. A refusal leaves the
            // default action of the signal, which is to stop.
            let _ = flag::register_conditional_default(signal, Arc::clone(&new.flag));
            let _ = flag::register(signal, Arc::clone(&new.flag));
            let number = usize::try_from(signal).unwrap_or_default();
            let _ = flag::register_usize(signal, Arc::clone(&new.signal), number);
        }
        new
    }

    /// Ends the process by the signal that requested the stop, if there was one. So the caller can tell a stop from a failure.
    pub fn end_process(&self) {
        let signal = c_int::try_from(self.signal.load(Ordering::Relaxed)).unwrap_or_default();
        if signal != 0 {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }

    /// Wraps a flag that other code sets.
    pub fn of(flag: Arc<AtomicBool>) -> Self {
        Self { flag, ..Self::default() }
    }

    /// Whether a stop was requested.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Requests a stop.
    pub fn set(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for code that takes a plain shared `AtomicBool`.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.flag.clone()
    }
}
