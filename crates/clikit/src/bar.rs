//! Progress of long work that runs in the daemon: a line on the client's terminal that is drawn over itself.
//!
//! The text is this program's own; names of others do not reach it ([`crate::clean`] is not in between).

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use zcommon::units::nicebytes;

/// Interval of drawing.
const INTERVAL: Duration = Duration::from_millis(200);
/// Clears the line.
const CLEAR: &str = "\r\x1b[K";

/// A line of progress; nothing without a terminal.
#[derive(Debug)]
pub struct Bar {
    to: Option<File>,
    label: String,
    started: Instant,
    drawn: Option<Instant>,
}

impl Bar {
    /// A line on terminal `to`.
    pub fn new(to: Option<File>) -> Self {
        Self { to, label: String::new(), started: Instant::now(), drawn: None }
    }

    /// Shows `done` of `total` bytes (0: unknown) of the work called `label`.
    pub fn show(&mut self, label: &str, done: u64, total: u64) {
        if self.label != label {
            (self.label, self.started, self.drawn) = (label.to_owned(), Instant::now(), None);
        }
        let is_due = self.drawn.is_none_or(|drawn| drawn.elapsed() >= INTERVAL);
        if let Some(to) = self.to.as_mut().filter(|_| is_due) {
            self.drawn = Some(Instant::now());
            let line = line(label, done, total, self.started.elapsed());
            // A terminal that is gone shows nothing.
            let _ = write!(to, "{CLEAR}{line}");
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if let Some(to) = self.to.as_mut().filter(|_| self.drawn.is_some()) {
            let _ = write!(to, "{CLEAR}");
        }
        self.drawn = None;
    }
}

/// `dedup: finding [=====>    ] 43% of 12.1G, 0:31 left`
fn line(label: &str, done: u64, total: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 24;
    if total == 0 {
        return format!("{label}: {}", nicebytes(done));
    }
    let part = |of: u64| {
        let share = u128::from(done.min(total)) * u128::from(of) / u128::from(total);
        usize::try_from(share).unwrap_or(0)
    };
    let bar = format!("{:=<1$}", "", part(WIDTH));
    let rate = done as f64 / elapsed.as_secs_f64().max(0.001);
    let left = (total.saturating_sub(done) as f64 / rate.max(1.0)).min(1e7) as u64;
    let time = match left / 3600 {
        0 => format!("{}:{:02}", left / 60, left % 60),
        hours => format!("{hours}:{:02}:{:02}", left / 60 % 60, left % 60),
    };
    format!("{label} [{bar:<24}] {:>3}% of {}, {time} left", part(100), nicebytes(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_share_and_time_left() {
        let text = line("dedup: finding", 1 << 30, 4 << 30, Duration::from_secs(10));
        assert_eq!(text, "dedup: finding [======                  ]  25% of 4G, 0:30 left");
        assert_eq!(line("x", 2048, 0, Duration::from_secs(1)), "x: 2K");
        assert!(line("x", 1, 4 << 30, Duration::from_secs(1)).contains("  0% of 4G, 2777:46:40 left"));
    }
}
