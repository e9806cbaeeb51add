//! The names of the program.

use std::ffi::OsStr;
use std::path::Path;

/// The names of links to the program, beside its own.
pub const NAMES: [&str; 13] = [
    "zpool",
    "zfs",
    "zdb",
    "zinject",
    "zstream",
    "arcstat",
    "zarcstat",
    "arc_summary",
    "zarcsummary",
    "zilstat",
    "zed",
    "mount.zfs",
    // mount(8) asks for this one when it changes the options of a mount: the kernel's type of ours is fuse.zfs.
    "mount.fuse.zfs",
];

/// The OpenZFS release whose words, properties and features the commands follow.
pub const RELEASE: &str = "2.4.4";
/// This program's own version, in the format of a distribution's build.
pub const BUILD: &str = concat!("0aquifer", env!("CARGO_PKG_VERSION"));

/// The name by which the program was called, without directories; it selects the command.
pub fn called_as(argv0: &OsStr) -> String {
    Path::new(argv0).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The commands with OpenZFS's usage messages.
pub fn is_ours(name: &str) -> bool {
    matches!(name, "zpool" | "zfs")
}
