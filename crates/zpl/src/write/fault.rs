//! Deliberate errors: tests check their consequences.

use std::sync::atomic::Ordering;

use engine::{Error, Kind, Result};

use super::fs::FsWriter;

impl FsWriter {
    /// For tests of operations of several steps: the `count`th step from now on fails. 0: none.
    pub fn fail_step(&self, count: u64) {
        self.fails.store(count, Ordering::Relaxed);
    }

    /// Called before each step of an operation: fails where [`FsWriter::fail_step`] says so.
    pub(super) fn may_fail(&self) -> Result<()> {
        let left = &self.fails;
        if left.load(Ordering::Relaxed) > 0 && left.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(Error::new(Kind::Io, "a step fails on purpose"));
        }
        Ok(())
    }
}

/// In builds with debug assertions only: panics when `name` is the one in the variable `AQUIFER_PANIC_AT` of the
/// environment. Called in the middle of a change.
#[cfg(debug_assertions)]
#[allow(clippy::panic, reason = "that is the purpose")]
pub(super) fn break_off(name: &[u8]) {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::OnceLock;
    static AT: OnceLock<Option<OsString>> = OnceLock::new();
    let at = AT.get_or_init(|| std::env::var_os("AQUIFER_PANIC_AT"));
    if at.as_ref().is_some_and(|at| at.as_bytes() == name) {
        panic!("a fault on purpose");
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
pub(super) const fn break_off(_name: &[u8]) {}
