//! Formats times like OpenZFS, in the user's time zone.

use std::cell::RefCell;

use jiff::civil::Time;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

thread_local! {
    /// The time zone of the client that this thread serves, if it differs from the process's.
    static ZONE: RefCell<Option<TimeZone>> = const { RefCell::new(None) };
}

/// Makes this thread print times in the zone of the client's `TZ`. An unknown zone is ignored.
pub fn use_zone(word: Option<&str>) {
    let zone = word.map(|word| word.trim_start_matches(':')).and_then(|word| match word {
        "" => Some(TimeZone::UTC),
        word => TimeZone::get(word).or_else(|_| TimeZone::posix(word)).ok(),
    });
    ZONE.set(zone);
}

fn local(seconds: i64) -> Option<Zoned> {
    let zone = ZONE.with_borrow(Clone::clone).unwrap_or_else(TimeZone::system);
    Timestamp::from_second(seconds).ok().map(|t| t.to_zoned(zone))
}

/// A time beyond the calendar's range prints as a number.
fn format(seconds: u64, form: &str) -> String {
    let moment = i64::try_from(seconds).ok().and_then(local);
    moment.map_or_else(|| seconds.to_string(), |t| t.strftime(form).to_string())
}

/// `Sat Nov 21  0:14 2026`: the `creation` property and the time of a hold.
pub fn date(seconds: u64) -> String {
    format(seconds, "%a %b %e %k:%M %Y")
}

/// `Sat Nov 21  0:14:46 2026`: the `snapshots_changed` property.
pub fn date_with_seconds(seconds: u64) -> String {
    format(seconds, "%a %b %e %k:%M:%S %Y")
}

/// `Sat Nov 21 00:14:46 2026`: `zpool status`.
pub fn clock(seconds: u64) -> String {
    format(seconds, "%a %b %e %H:%M:%S %Y")
}

/// `00:14:46`: `arcstat`.
pub fn time_of_day(seconds: u64) -> String {
    format(seconds, "%H:%M:%S")
}

/// `Sat Nov 21 00:14:46 UTC 2026`: `zpool status -j`, `-T d`.
pub fn zoned_clock(seconds: u64) -> String {
    format(seconds, "%a %b %e %H:%M:%S %Z %Y")
}

/// `Nov 21 2026 00:14:46`: `zpool events`.
pub fn event_clock(seconds: i64) -> String {
    local(seconds).map_or_else(|| seconds.to_string(), |t| t.strftime("%b %e %Y %H:%M:%S").to_string())
}

/// `Nov 21 00:14:46`: a line of the system's log.
pub fn log_clock(seconds: i64) -> String {
    local(seconds).map_or_else(|| seconds.to_string(), |t| t.strftime("%b %e %H:%M:%S").to_string())
}

/// `2026-11-21 00:14:46+0000`: `ZEVENT_TIME_STRING` of the event daemon; `None` beyond the calendar's range.
pub fn offset_clock(seconds: i64) -> Option<String> {
    local(seconds).map(|t| t.strftime("%Y-%m-%d %H:%M:%S%z").to_string())
}

/// Like [`clock`], also before 1970: the output of C's `ctime`.
pub fn ctime(seconds: i64) -> String {
    let moment = local(seconds);
    moment.map_or_else(|| seconds.to_string(), |t| t.strftime("%a %b %e %H:%M:%S %Y").to_string())
}

/// `2026-11-21.00:14:46`: `zpool history`.
pub fn stamp(seconds: u64) -> String {
    format(seconds, "%Y-%m-%d.%H:%M:%S")
}

/// `00:00:02` or `3 days 04:05:06`: a duration.
pub fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days == 0 { clock } else { format!("{days} days {clock}") }
}

/// The time that `2026-11-21 00:14` or `2026-11-21`, and more behind it, names in the user's time zone, in seconds since 1970;
/// with `end` the end of that minute or day. `None` if it is no such time.
#[doc(alias = "date_string_to_sec")]
pub fn parse_date(text: &str, end: bool) -> Option<u64> {
    let zone = ZONE.with_borrow(Clone::clone).unwrap_or_else(TimeZone::system);
    // As C's `strptime`, which ignores what follows.
    let parsed = |form| BrokenDownTime::parse_prefix(form, text).map(|(parsed, _)| parsed);
    let (moment, length) = match parsed("%Y-%m-%d %H:%M").and_then(|parsed| parsed.to_datetime()) {
        Ok(moment) => (moment, 60),
        Err(_) => (parsed("%Y-%m-%d").ok()?.to_date().ok()?.to_datetime(Time::midnight()), 86_400),
    };
    let seconds = moment.to_zoned(zone).ok()?.timestamp().as_second();
    u64::try_from(seconds).ok()?.checked_add(if end { length } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_those_of_openzfs() {
        let utc = |s: i64, form: &str| {
            Timestamp::from_second(s).unwrap().to_zoned(TimeZone::UTC).strftime(form).to_string()
        };
        assert_eq!(utc(1_795_218_190, "%a %b %e %k:%M %Y"), "Fri Nov 20 23:43 2026");
        assert_eq!(utc(1_793_500_386, "%a %b %e %H:%M:%S %Y"), "Sun Nov  1 02:33:06 2026");
        assert_eq!(utc(1_793_500_386, "%Y-%m-%d %k:%M:%S"), "2026-11-01  2:33:06");
    }

    #[test]
    fn times_are_in_the_zone_of_the_caller() {
        use_zone(Some("MST7MDT,M3.2.0,M11.1.0"));
        assert_eq!(stamp(1_161_371_917), "2006-10-20.13:18:37");
        use_zone(Some(""));
        assert_eq!(stamp(1_161_371_917), "2006-10-20.19:18:37");
        use_zone(None);
    }

    #[test]
    fn odd_moments_do_not_panic() {
        assert_eq!(date(u64::MAX), u64::MAX.to_string());
        assert_eq!(duration(2), "00:00:02");
        assert_eq!(duration(3 * 86_400 + 4 * 3600 + 5 * 60 + 6), "3 days 04:05:06");
    }

    #[test]
    fn dates_are_read_in_the_zone_of_the_user() {
        use_zone(Some("UTC"));
        assert_eq!(parse_date("2026-11-21 00:14", false), Some(1_795_220_040));
        assert_eq!(parse_date("2026-11-21 00:14", true), Some(1_795_220_100));
        assert_eq!(parse_date("2026-11-21", false), Some(1_795_219_200));
        assert_eq!(parse_date("2026-11-21", true), Some(1_795_305_600));
        assert_eq!(parse_date("2026-11-21 00:14:30", false), Some(1_795_220_040));
        assert_eq!(parse_date("2026-11-21T00:14", false), Some(1_795_219_200));
        for bad in ["", "2026", "2026-13-01", "1960-01-01"] {
            assert_eq!(parse_date(bad, false), None, "{bad}");
        }
        use_zone(Some("EST5"));
        assert_eq!(parse_date("2026-11-21 00:14", false), Some(1_795_220_040 + 5 * 3600));
        use_zone(None);
    }
}
