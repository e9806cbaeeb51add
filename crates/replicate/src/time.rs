//! Times of snapshots' names and retention, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of a day.
pub(crate) const DAY: u64 = 86400;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Year, month and day of a number of days since 1970.
pub(crate) fn civil(days: u64) -> (u64, u64, u64) {
    // Years are counted from March of year 0, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, date)
}

/// `2026-11-23_08:15:00`.
pub(crate) fn stamp(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}_{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(stamp(0), "1970-01-01_00:00:00");
        assert_eq!(stamp(951_782_400), "2000-02-29_00:00:00");
        assert_eq!(stamp(1_795_421_700), "2026-11-23_08:15:00");
        assert_eq!(civil(47_540), (2100, 2, 28));
        assert_eq!(civil(47_541), (2100, 3, 1));
    }
}
