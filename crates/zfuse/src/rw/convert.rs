//! Converts the kernel's types to those of the file system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::wire::{RenameFlags, TimeOrNow};
use zpl::write::{RenameKind, XattrMode};
use zpl::{FileKind, Time};

/// A time; `now` replaces the kernel's request for the current time.
pub fn time(given: TimeOrNow, now: SystemTime) -> Time {
    match given {
        TimeOrNow::SpecificTime(moment) => of_system(moment),
        TimeOrNow::Now => of_system(now),
    }
}

/// A time before 1970 has negative seconds and nanoseconds that still count upwards.
pub fn of_system(moment: SystemTime) -> Time {
    match moment.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Time { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
        }
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match Duration::from_secs(1).checked_sub(Duration::from_nanos(before.subsec_nanos().into())) {
                Some(rest) if before.subsec_nanos() > 0 => {
                    Time { sec: -whole - 1, nsec: rest.subsec_nanos() }
                }
                _ => Time { sec: -whole, nsec: 0 },
            }
        }
    }
}

/// Type and permission bits of a mode.
pub fn mode(mode: u32) -> Option<(FileKind, u64)> {
    Some((FileKind::from_mode(mode.into())?, u64::from(mode & 0o7777)))
}

/// A device number as Linux stores it in files, from the kernel's 32-bit form.
pub fn rdev(raw: u32) -> u64 {
    let (major, minor) = (raw >> 8 & 0xfff, raw & 0xff | raw >> 12 & 0xf_ff00);
    u64::from(major) << 20 | u64::from(minor)
}

/// The kind of a rename; `None` for invalid combinations of flags.
pub fn rename(flags: RenameFlags) -> Option<RenameKind> {
    Some(match flags {
        f if f.is_empty() => RenameKind::Plain,
        RenameFlags::RENAME_NOREPLACE => RenameKind::NoReplace,
        RenameFlags::RENAME_EXCHANGE => RenameKind::Exchange,
        RenameFlags::RENAME_WHITEOUT => RenameKind::Whiteout,
        f if f == RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_WHITEOUT => {
            RenameKind::NoReplaceWhiteout
        }
        _ => return None,
    })
}

/// `XATTR_CREATE` and `XATTR_REPLACE`.
pub fn xattr_mode(flags: i32) -> XattrMode {
    match (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0) {
        (false, false) => XattrMode::Set,
        (true, false) => XattrMode::Create,
        (false, true) => XattrMode::Replace,
        (true, true) => XattrMode::CreateAndReplace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_1970_count_upwards_from_the_second_before() {
        let moment = UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(of_system(moment), Time { sec: -2, nsec: 500_000_000 });
        assert_eq!(of_system(UNIX_EPOCH - Duration::from_secs(3)), Time { sec: -3, nsec: 0 });
        assert_eq!(of_system(UNIX_EPOCH + Duration::from_nanos(7)), Time { sec: 0, nsec: 7 });
    }

    #[test]
    fn device_numbers_have_twelve_bits_of_major_and_twenty_of_minor() {
        assert_eq!(rdev(0x0801), 8 << 20 | 1);
        assert_eq!(rdev(0x0011_032c), 259 << 20 | 300);
    }
}
