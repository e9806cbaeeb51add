//! Progress of a long verb: a bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval of plain lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Bytes done out of bytes expected. Frequent calls from one thread are cheap; drawing is rate-limited.
#[derive(Debug)]
pub struct Progress {
    how: How,
    total: u64,
    done: u64,
    started: Instant,
}

#[derive(Debug)]
enum How {
    Quiet,
    Bar(ProgressBar),
    Lines { label: String, last: Instant },
}

impl Progress {
    /// A progress over `total` bytes (0: unknown), drawn on standard error.
    pub fn bytes(label: &str, total: u64, quiet: bool) -> Self {
        let how = if quiet {
            How::Quiet
        } else if io::stderr().is_terminal() {
            How::Bar(bar(label, total))
        } else {
            How::Lines { label: label.to_owned(), last: Instant::now() }
        };
        Self { how, total, done: 0, started: Instant::now() }
    }

    /// Counts `bytes` more as done.
    pub fn add(&mut self, bytes: u64) {
        self.set(self.done.saturating_add(bytes));
    }

    /// Sets the bytes done.
    pub fn set(&mut self, done: u64) {
        self.done = done;
        match &mut self.how {
            How::Quiet => {}
            How::Bar(bar) => bar.set_position(done),
            How::Lines { label, last } if last.elapsed() >= LINE_INTERVAL => {
                *last = Instant::now();
                let line = plain_line(label, done, self.total, self.started.elapsed());
                let _ = writeln!(io::stderr(), "{line}");
            }
            How::Lines { .. } => {}
        }
    }

    /// Corrects the expected bytes.
    pub fn set_total(&mut self, total: u64) {
        self.total = total;
        if let How::Bar(bar) = &self.how {
            bar.set_length(total);
        }
    }

    /// Shows the current item beside the bar.
    pub fn message(&mut self, what: &str) {
        if let How::Bar(bar) = &self.how {
            bar.set_message(what.to_owned());
        }
    }

    /// Prints a line without breaking the bar.
    pub fn println(&self, line: &str) {
        match &self.how {
            How::Bar(bar) => bar.suspend(|| {
                let _ = writeln!(io::stderr(), "{line}");
            }),
            _ => {
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
    }

    /// Bytes done so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Removes the bar; the verb's own final output follows.
    pub fn finish(&mut self) {
        if let How::Bar(bar) = &self.how {
            bar.finish_and_clear();
        }
        self.how = How::Quiet;
    }
}

fn bar(label: &str, total: u64) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let (bar, template) = if total == 0 {
        let template = "{prefix} {spinner} {binary_bytes} {binary_bytes_per_sec} {elapsed} {wide_msg}";
        (ProgressBar::with_draw_target(None, target), template)
    } else {
        let template = "{prefix} {bar:24} {percent:>3}% {binary_bytes}/{binary_total_bytes} \
                        {binary_bytes_per_sec} {eta} left {wide_msg}";
        (ProgressBar::with_draw_target(Some(total), target), template)
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_prefix(label.to_owned());
    bar
}

/// `verify: 1.25 GiB of 6.00 GiB (20%), 512.00 MiB/s, 0:09 left`
fn plain_line(label: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let head = format!("{label}: {}", indicatif::BinaryBytes(done));
    let speed = format!("{}/s", indicatif::BinaryBytes(rate as u64));
    if total == 0 {
        return format!("{head}, {speed}");
    }
    let percent = (done as f64 * 100.0 / total as f64).min(100.0) as u64;
    let left = total.saturating_sub(done) as f64 / rate.max(1.0);
    let left = indicatif::HumanDuration(Duration::from_secs_f64(left.min(1e9)));
    format!("{head} of {} ({percent}%), {speed}, {left} left", indicatif::BinaryBytes(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_have_rate_and_time_left() {
        let line = plain_line("verify", 1 << 30, 4 << 30, Duration::from_secs(2));
        assert_eq!(line, "verify: 1.00 GiB of 4.00 GiB (25%), 512.00 MiB/s, 6 seconds left");
        assert_eq!(plain_line("x", 2048, 0, Duration::from_secs(1)), "x: 2.00 KiB, 2.00 KiB/s");
    }
}
