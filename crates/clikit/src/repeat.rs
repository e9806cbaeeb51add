//! `zpool list 5 3`: the same report every five seconds, three times, and with `-T` the time before each.
//!
//! Differs from OpenZFS: the pools are found and opened anew each time, as an importing process may write to
//! them meanwhile.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::ctx::Ctx;
use crate::output::json::JsonStyle;
use crate::output::time::zoned_clock;
use crate::source::{PoolSource, Timestamp};
use crate::verb::{Exit, Failure, Outcome};

/// Interval of checks for an interrupt.
const POLL: Duration = Duration::from_millis(50);

/// Interval and number of reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repeat {
    interval: Option<Duration>,
    count: Option<u64>,
    timestamp: Option<Timestamp>,
}

/// The result of one report.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// The exit code, if it is the last one.
    pub exit: Exit,
    /// No other report follows, whatever the interval.
    pub is_last: bool,
}

impl Repeat {
    /// Takes interval and count off the end of the names, and `d` or `u` out of `-T`.
    #[doc(alias = "get_interval_count")]
    pub fn take(source: &mut PoolSource, names: &mut Vec<String>) -> Result<Self, Failure> {
        let timestamp = source.take_timestamp();
        if source.wanted_txg().is_err() {
            return Err(Failure::usage(""));
        }
        let Some(last) = take_number(names) else {
            return Ok(Self { interval: None, count: None, timestamp });
        };
        let (seconds, count) = match take_number(names) {
            Some(seconds) => (seconds, Some(last)),
            None => (last, None),
        };
        let interval = Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero());
        let zero = || Failure::usage("interval cannot be zero");
        // A count is whole, and at least one.
        let count = count.map(|n| (n >= 1.0).then_some(n as u64).ok_or_else(zero)).transpose()?;
        Ok(Self { interval: Some(interval.ok_or_else(zero)?), count, timestamp })
    }

    /// Whether there is more than one report.
    pub fn is_repeated(&self) -> bool {
        self.interval.is_some()
    }

    /// One report, without an interval.
    pub fn once(self) -> Self {
        Self { interval: None, count: None, ..self }
    }

    /// With one more report, for callers that omit the first.
    pub fn one_more(self) -> Self {
        Self { count: self.count.map(|count| count.saturating_add(1)), ..self }
    }

    /// Makes the report as often as requested, or until the user stops it. The stop is the ordinary end of a report that
    /// repeats and prints no message, as in OpenZFS, whose command ends by the signal. The argument of `report` tells whether
    /// it is the first one; `plain` is false for a report that prints its time by itself ([`Self::stamp`]), and for JSON, whose
    /// time is an entry of the document: [`Self::time`]. The last report gives the exit code.
    pub fn run(
        self,
        ctx: &mut Ctx,
        plain: bool,
        report: impl FnMut(&mut Ctx, bool) -> Result<Report, Failure>,
    ) -> Outcome {
        match self.reports(ctx, plain, report) {
            Err(Failure::Interrupted) if self.is_repeated() => Ok(Exit::INTERRUPTED),
            done => done,
        }
    }

    fn reports(
        self,
        ctx: &mut Ctx,
        plain: bool,
        mut report: impl FnMut(&mut Ctx, bool) -> Result<Report, Failure>,
    ) -> Outcome {
        let mut made = 0;
        loop {
            if plain {
                self.stamp(ctx)?;
            }
            let Report { exit, is_last } = report(ctx, made == 0)?;
            made += 1;
            let more = !is_last && self.count.is_none_or(|count| made < count);
            let Some(interval) = self.interval.filter(|_| more) else { return Ok(exit) };
            ctx.release();
            ctx.out.flush()?;
            sleep(interval, ctx)?;
        }
    }

    /// Prints the time as `-T` asks for it.
    pub fn stamp(&self, ctx: &mut Ctx) -> Result<(), Failure> {
        let now = now();
        match self.timestamp {
            Some(Timestamp::Date) => writeln!(ctx.out, "{}", zoned_clock(now))?,
            Some(Timestamp::Unix) => writeln!(ctx.out, "{now}")?,
            None => {}
        }
        Ok(())
    }

    /// The time as JSON has it; `None` when it was not asked for.
    pub fn time(&self, style: &JsonStyle) -> Option<Value> {
        Some(match self.timestamp? {
            _ if style.int => now().into(),
            Timestamp::Date => zoned_clock(now()).into(),
            Timestamp::Unix => now().to_string().into(),
        })
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Whether an interval ends these words: reports that repeat show pools that come later, so they run in a daemon even while
/// none is imported.
pub fn has_interval(words: &[String]) -> bool {
    take_number(&mut words.to_vec()).is_some()
}

/// The last name, if it is a number; no pool's name begins with a digit.
fn take_number(names: &mut Vec<String>) -> Option<f64> {
    let digits = |name: &String| name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = names.last().filter(|name| digits(name))?.parse().ok()?;
    names.pop();
    Some(number)
}

/// Waits, unless the user wants to stop.
pub fn sleep(interval: Duration, ctx: &Ctx) -> Result<(), Failure> {
    let end = Instant::now() + interval;
    loop {
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        match end.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => thread::sleep(left.min(POLL)),
            _ => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(words: &[&str]) -> (Option<(f64, Option<u64>)>, Vec<String>) {
        let mut names: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let repeat = Repeat::take(&mut PoolSource::default(), &mut names).unwrap();
        (repeat.interval.map(|i| (i.as_secs_f64(), repeat.count)), names)
    }

    #[test]
    fn numbers_behind_the_names_are_interval_and_count() {
        assert_eq!(take(&["tank"]), (None, vec!["tank".to_owned()]));
        assert_eq!(take(&["tank", "0.5"]), (Some((0.5, None)), vec!["tank".to_owned()]));
        assert_eq!(take(&["1", "3"]), (Some((1.0, Some(3))), vec![]));
        assert_eq!(take(&["tank", "1x"]).0, None);
        for bad in [["tank", "0"], ["1", "0"], ["0", "3"]] {
            let mut names: Vec<String> = bad.iter().map(|w| (*w).to_owned()).collect();
            assert!(Repeat::take(&mut PoolSource::default(), &mut names).is_err(), "{bad:?}");
        }
    }
}
