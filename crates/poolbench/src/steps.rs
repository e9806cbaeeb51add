//! Progress over the measurements: a bar on a terminal, plain lines elsewhere.

use std::io::Write;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::meter::Meter;

/// Interval of plain lines.
const LINES: Duration = Duration::from_secs(10);

/// Runs done out of all runs.
#[derive(Debug)]
pub struct Steps {
    bar: Option<ProgressBar>,
    clock: Meter,
    started: Duration,
    said: Duration,
    done: u64,
    total: u64,
}

impl Steps {
    /// Progress over `total` runs on standard error.
    pub fn new(total: u64, terminal: bool) -> Self {
        let bar = terminal.then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10));
            let template = "bench {bar:24} {pos}/{len} {eta} left  {wide_msg}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let clock = Meter::default();
        let now = clock.now();
        Self { bar, started: now, said: now, clock, done: 0, total }
    }

    /// A run ended: `what` was measured, at `rate`.
    pub fn step(&mut self, what: &str, rate: &str) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{what}: {rate}"));
            bar.set_position(self.done);
            return;
        }
        let now = self.clock.now();
        if now.saturating_sub(self.said) >= LINES || self.done == self.total {
            self.said = now;
            let left = left(self.done, self.total, now.saturating_sub(self.started));
            // A closed standard error is ignored.
            let _ = writeln!(
                std::io::stderr(),
                "bench: {}/{} runs, {what}: {rate}, {} left",
                self.done,
                self.total,
                HumanDuration(left)
            );
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn left(done: u64, total: u64, elapsed: Duration) -> Duration {
    let each = elapsed.as_secs_f64() / done.max(1) as f64;
    Duration::from_secs_f64((each * total.saturating_sub(done) as f64).min(1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_that_of_the_runs_left() {
        assert_eq!(left(1, 4, Duration::from_secs(2)), Duration::from_secs(6));
        assert_eq!(left(0, 0, Duration::ZERO), Duration::ZERO);
        assert_eq!(left(5, 5, Duration::from_secs(2)), Duration::ZERO);
    }
}
