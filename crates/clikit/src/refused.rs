//! The forms of OpenZFS's messages to a user without a permission.

use crate::verb::Failure;

/// The message of a failed system call.
pub const DENIED: &str = "permission denied";

/// The refusal of an action on `what`.
pub fn plain(action: &str, what: &str) -> Failure {
    if what.is_empty() {
        return without_name(action);
    }
    Failure::failed(format!("cannot {action} {what}: {DENIED}"))
}

/// The refusal of an action on `what`, which is in quotes.
pub fn quoted(action: &str, what: &str) -> Failure {
    if what.is_empty() {
        return without_name(action);
    }
    Failure::cannot(action, what, DENIED)
}

/// The refusal to mount a file system.
pub fn mount(name: &str) -> Failure {
    Failure::cannot("mount", name, "Insufficient privileges (permission denied)")
}

/// The refusal of an action on everything (`-a`).
fn without_name(action: &str) -> Failure {
    Failure::failed(format!("cannot {action}: {DENIED}"))
}
