//! A deliberate panic, in builds with debug assertions only: tests check its consequences.

/// Panics when `name` is the one in the variable `AQUIFER_PANIC_AT` of the environment. Called in the middle of a change.
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
