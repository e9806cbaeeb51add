//! Environment variables of the command that a thread serves.
//!
//! The daemon runs commands of many processes; its own environment is that of the command that started it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;

thread_local! {
    static OF_CLIENT: RefCell<Option<BTreeMap<String, OsString>>> = const { RefCell::new(None) };
}

/// Gives this thread a client's variables in place of those of its process.
pub fn use_clients(variables: BTreeMap<String, OsString>) {
    OF_CLIENT.set(Some(variables));
}

/// The variable of the client that this thread serves or, without one, of this process.
pub fn var(name: &str) -> Option<OsString> {
    OF_CLIENT.with_borrow(|client| match client {
        Some(variables) => variables.get(name).cloned(),
        None => std::env::var_os(name),
    })
}
