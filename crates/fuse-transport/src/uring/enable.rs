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
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if is_off && (any_release || version(&release).is_some_and(|version| version >= TESTED)) {
        fs::write(SWITCH, "Y")?;
    }
    Ok(())
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
}
