//! The forms of OpenZFS's messages to a user without a permission.

use clikit::verb::Failure;

/// The message of a failed system call.
pub(crate) const DENIED: &str = "permission denied";

/// The refusal of an action on `what`.
pub(crate) fn plain(action: &str, what: &str) -> Failure {
    if what.is_empty() {
        return without_name(action);
    }
    Failure::failed(format!("cannot {action} {what}: {DENIED}"))
}

/// The refusal of an action on `what`, which is in quotes.
pub(crate) fn quoted(action: &str, what: &str) -> Failure {
    if what.is_empty() {
        return without_name(action);
    }
    Failure::cannot(action, what, DENIED)
}

/// The refusal to mount a file system.
pub(crate) fn mount(name: &str) -> Failure {
    Failure::cannot("mount", name, "Insufficient privileges (permission denied)")
}

/// The refusal of an action on everything (`-a`).
fn without_name(action: &str) -> Failure {
    Failure::failed(format!("cannot {action}: {DENIED}"))
}
