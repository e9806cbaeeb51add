//! The kernel's switch for FUSE over io_uring.
//!
//! The parameter permits servers to ask for it and changes nothing for those that do not. The kernel's default is off.

use std::fs;
use std::io;

/// The parameter.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// The oldest release on which this project's tests of mounts have passed over io_uring.
const TESTED: (u32, u32) = (6, 18);

/// Has the kernel offer FUSE over io_uring to connections that begin from now on. `any_release`: also with a kernel older
/// than those with which this transport has been tested. Does nothing where it is on, or where the kernel does not have it.
///
/// # Errors
/// If the parameter cannot be changed: its owner is root, and containers usually see it read-only.
pub fn enable_in_kernel(any_release: bool) -> io::Result<()> {
    let is_off = fs::read_to_string(SWITCH).is_ok_and(|now| now.trim() == "N");
    if is_off && (any_release || is_tested()) {
        fs::write(SWITCH, "Y")?;
    }
    Ok(())
}

/// Why the kernel does not offer it to a connection.
pub fn why_not_offered() -> String {
    let is_on = fs::read_to_string(SWITCH).map(|now| now.trim() != "N").ok();
    why(is_on, fs::OpenOptions::new().write(true).open(SWITCH).map(drop), is_tested())
}

/// `is_on`: the parameter, if there is one; `change`: how its change begins.
fn why(is_on: Option<bool>, change: io::Result<()>, is_tested: bool) -> String {
    let off = "the kernel's parameter fuse.enable_uring is off";
    match (is_on, change) {
        (None, _) => "the kernel does not have FUSE over io_uring, which is new in Linux 6.14".to_owned(),
        (Some(true), _) => "the kernel does not offer it to this mount".to_owned(),
        (Some(false), Err(e)) => format!("{off} and cannot be changed here: {e}"),
        (Some(false), Ok(())) if is_tested => off.to_owned(),
        (Some(false), Ok(())) => {
            format!("{off}; with AQUIFER_IO_URING=1 the daemon switches it on before Linux 6.18, too")
        }
    }
}

/// Whether this kernel is none of those that are too old to be switched unasked.
fn is_tested() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= TESTED)
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-1-amd64\n"), Some((6, 18)));
        assert!(version("6.8.0").is_some_and(|version| version < TESTED));
        assert!(version("7.0-rc1").is_some_and(|version| version >= TESTED));
        assert_eq!(version("unknown"), None);
    }
    #[test]
    fn a_reason_is_given_for_each_state_of_the_parameter() {
        let refused = || Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        assert!(why(None, refused(), true).contains("does not have"));
        assert!(why(Some(true), refused(), true).contains("to this mount"));
        assert!(why(Some(false), refused(), true).contains("is off and cannot be changed here: read-only"));
        assert!(why(Some(false), Ok(()), true).ends_with("is off"));
        assert!(why(Some(false), Ok(()), false).contains("AQUIFER_IO_URING=1"));
    }
}
