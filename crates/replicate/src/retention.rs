//! Which snapshots a rule keeps: `24h,7d,4w,12m,5y,3`.
//!
//! Each part keeps the newest snapshot of each of the last so many hours, days, weeks (from Monday), months or years that
//! have a snapshot at all, in UTC; a number alone keeps so many of the newest. A snapshot stays if any part keeps it. A
//! pause in which no snapshots are taken therefore lets nothing expire.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::time::{DAY, civil};

/// A span of time of which one snapshot is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Span {
    Each,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

const SPANS: [(&str, Span); 6] = [
    ("", Span::Each),
    ("h", Span::Hour),
    ("d", Span::Day),
    ("w", Span::Week),
    ("m", Span::Month),
    ("y", Span::Year),
];

impl Span {
    /// The number of the span that a time is in. `at` distinguishes snapshots of the same time.
    fn of(self, seconds: u64, at: usize) -> u64 {
        let days = seconds / DAY;
        let (year, month, _) = civil(days);
        match self {
            Span::Each => u64::try_from(at).unwrap_or(u64::MAX),
            Span::Hour => seconds / 3600,
            Span::Day => days,
            // 1970 began on a Thursday.
            Span::Week => (days + 3) / 7,
            Span::Month => year * 12 + month,
            Span::Year => year,
        }
    }
}

/// A retention rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule(Vec<(usize, Span)>);

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |part: &str| format!("'{part}': a retention rule is like 24h,7d,4w,12m,5y or 10");
        let mut parts = Vec::new();
        for part in text.split(',').map(str::trim) {
            let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit = part.get(digits.len()..).unwrap_or_default();
            let count = digits.parse().ok().filter(|&count| count > 0).ok_or_else(|| bad(part))?;
            let (_, span) = SPANS.iter().find(|(known, _)| *known == unit).ok_or_else(|| bad(part))?;
            parts.push((count, *span));
        }
        Ok(Self(parts))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (count, span)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let unit = SPANS.iter().find(|known| known.1 == *span).map_or("", |known| known.0);
            write!(f, "{comma}{count}{unit}")?;
        }
        Ok(())
    }
}

impl Rule {
    /// Whether each of the snapshots, given by their times in seconds since 1970, oldest first, is kept.
    pub fn keeps(&self, times: &[u64]) -> Vec<bool> {
        let mut kept = vec![false; times.len()];
        for (count, span) in &self.0 {
            let mut seen = BTreeSet::new();
            for (at, time) in times.iter().enumerate().rev() {
                if seen.len() >= *count {
                    break;
                }
                if seen.insert(span.of(*time, at))
                    && let Some(kept) = kept.get_mut(at)
                {
                    *kept = true;
                }
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(rule: &str, times: &[u64]) -> Vec<u64> {
        let keeps = rule.parse::<Rule>().unwrap().keeps(times);
        times.iter().zip(keeps).filter(|(_, keep)| *keep).map(|(time, _)| *time).collect()
    }

    #[test]
    fn each_part_keeps_the_newest_of_its_spans() {
        let hourly: Vec<u64> = (0..72).map(|hour| hour * 3600 + 60).collect();
        assert_eq!(kept("3", &hourly), &hourly[69..]);
        assert_eq!(kept("2h", &hourly), &hourly[70..]);
        assert_eq!(kept("2d", &hourly), [hourly[47], hourly[71]]);
        assert_eq!(kept("2h,3d", &hourly), [hourly[23], hourly[47], hourly[70], hourly[71]]);
        assert_eq!(kept("1y", &hourly), [hourly[71]]);
        // Two within an hour: the newer one stays.
        assert_eq!(kept("5h", &[100, 200, 4000]), [200, 4000]);
        // Nothing expires while nothing comes.
        assert_eq!(kept("2d", &[0, 1000 * DAY]), [0, 1000 * DAY]);
        // Thursday to Sunday are one week, Monday is the next.
        assert_eq!(kept("9w", &[0, 3 * DAY, 4 * DAY]), [3 * DAY, 4 * DAY]);
        assert_eq!(kept("9m", &[0, 30 * DAY, 31 * DAY]), [30 * DAY, 31 * DAY]);
    }

    #[test]
    fn rules_are_parsed_and_shown() {
        assert_eq!("24h, 7d,3".parse::<Rule>().unwrap().to_string(), "24h,7d,3");
        for bad in ["", "h", "0d", "7x", "7d,", "-1d"] {
            assert!(bad.parse::<Rule>().is_err(), "{bad}");
        }
    }
}
