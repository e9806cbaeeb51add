//! Latencies, queues and sizes of a vdev's requests: `-l`, `-q`, `-w` and `-r` of `zpool iostat`.

use std::io::{self, Write};
use std::sync::atomic::Ordering;

use engine::vdev::leaf::Leaf;
use engine::vdev::stats::{Histogram, IoClass};
use zcommon::units::{nicenum, nicetime};

use super::iostat_columns::{ColumnGroup, count, print_header, time};

/// Least width of the column with the buckets.
const BUCKET_WIDTH: usize = 10;

/// Numbers of a vdev since the import, column by column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extended {
    /// Nanoseconds: in all, on the disk, in the queue.
    latencies: Vec<Vec<u64>>,
    /// Bytes: alone, and together with others.
    sizes: Vec<Vec<u64>>,
    /// Requests that wait, and that are on the disk, now.
    queues: Vec<u64>,
}

/// Which histograms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Latencies (`-w`).
    Latency,
    /// Request sizes (`-r`).
    Size,
}

fn of<const N: usize>(histogram: &Histogram<N>) -> Vec<u64> {
    histogram.counts().to_vec()
}

fn merged(a: &[Vec<u64>], b: &[Vec<u64>], with: impl Fn(u64, u64) -> u64) -> Vec<Vec<u64>> {
    let of = |a: &[u64], b: &[u64]| a.iter().zip(b).map(|(a, b)| with(*a, *b)).collect();
    a.iter().zip(b).map(|(a, b)| of(a, b)).collect()
}

impl Extended {
    /// The counters of one device.
    pub fn of(leaf: &Leaf) -> Self {
        let stats = &leaf.stats;
        let kinds = [false, true].map(|write| stats.kind(write));
        let mut this = Self::default();
        this.latencies.extend(kinds.iter().map(|kind| of(&kind.total)));
        this.latencies.extend(kinds.iter().map(|kind| of(&kind.disk)));
        let others = [IoClass::Scrub, IoClass::Trim, IoClass::RebuildRead];
        for class in IoClass::ALL.into_iter().chain(others).map(|class| stats.class(class)) {
            this.latencies.push(of(&class.queued));
            this.sizes.extend([of(&class.single), of(&class.joined)]);
            this.queues.extend([&class.waiting, &class.active].map(|n| n.load(Ordering::Relaxed)));
        }
        this
    }

    /// The sum for a vdev with several devices.
    pub fn plus(self, other: Self) -> Self {
        if self.queues.is_empty() {
            return other;
        }
        Self {
            latencies: merged(&self.latencies, &other.latencies, u64::saturating_add),
            sizes: merged(&self.sizes, &other.sizes, u64::saturating_add),
            queues: self.queues.iter().zip(other.queues).map(|(a, b)| a.saturating_add(b)).collect(),
        }
    }

    /// Counts since `before`; the queues have their present lengths.
    pub fn since(self, before: &Self) -> Self {
        if before.queues.is_empty() {
            return self;
        }
        Self {
            latencies: merged(&self.latencies, &before.latencies, u64::saturating_sub),
            sizes: merged(&self.sizes, &before.sizes, u64::saturating_sub),
            queues: self.queues,
        }
    }

    /// The cells of `-l`: average times.
    pub fn latency_cells(&self, literal: bool) -> impl Iterator<Item = String> {
        self.latencies.iter().map(move |histogram| time(average(histogram), literal))
    }

    /// The cells of `-q`.
    pub fn queue_cells(&self, literal: bool) -> impl Iterator<Item = String> {
        self.queues.iter().map(move |n| count(*n, literal))
    }
}

/// A bucket stands for its middle.
#[doc(alias = "single_histo_average")]
fn average(histogram: &[u64]) -> u64 {
    let middle = |bucket: usize| 3u64 << bucket.min(61) >> 1;
    let total = (0..).zip(histogram).map(|(bucket, n)| n.saturating_mul(middle(bucket)));
    let total = total.fold(0, u64::saturating_add);
    total.checked_div(histogram.iter().sum()).unwrap_or(0)
}

/// How a table of histograms looks.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// No header, tabs between columns.
    pub scripted: bool,
    /// Exact numbers.
    pub literal: bool,
    /// The column with the buckets is at least so wide.
    pub width: usize,
}

/// The first bucket of sizes that is shown: 512 bytes.
const SECTOR_SHIFT: usize = 9;

/// Prints the histograms of one vdev; counts are multiplied by `scale`.
#[doc(alias = "print_iostat_histos")]
pub fn print_histograms(
    out: &mut dyn Write,
    (name, counts): (&str, &Extended),
    kind: Measure,
    scale: f64,
    form: Form,
) -> io::Result<()> {
    let (group, title, columns): (&ColumnGroup, _, _) = match kind {
        Measure::Latency => (&super::iostat_columns::LATENCIES, "latency", &counts.latencies),
        Measure::Size => (&super::iostat_columns::SIZES, "req_size", &counts.sizes),
    };
    let largest = columns.iter().flatten().copied().max().unwrap_or(0);
    let column = if form.literal { largest.to_string().len().max(5) } else { group.width(false) };
    let width = form.width.max(BUCKET_WIDTH).max(name.len());
    writeln!(out)?;
    if form.scripted {
        writeln!(out, "{name}")?;
    } else {
        print_header(out, &[(group, column)], (name, title), (width, false))?;
    }
    // No request is smaller than a sector.
    let first = if kind == Measure::Size { SECTOR_SHIFT } else { 0 };
    for bucket in first..columns.iter().map(Vec::len).max().unwrap_or(0) {
        let (exact, shown) = label(kind, bucket);
        if form.scripted {
            write!(out, "{exact}")?;
        } else {
            write!(out, "{shown:width$}")?;
        }
        for histogram in columns {
            let n = (histogram.get(bucket).copied().unwrap_or(0) as f64 * scale) as u64;
            let cell = count(n, form.literal);
            if form.scripted { write!(out, "\t{cell}")? } else { write!(out, "  {cell:>column$}")? }
        }
        writeln!(out)?;
    }
    if form.scripted {
        return Ok(());
    }
    writeln!(out, "{}", "-".repeat(width + (column + 2) * group.columns()))
}

/// A bucket's name: the end of its range in time, the beginning in size.
fn label(kind: Measure, bucket: usize) -> (u64, String) {
    let power = 1u64.checked_shl(u32::try_from(bucket).unwrap_or(u32::MAX)).unwrap_or(u64::MAX);
    match kind {
        Measure::Latency => {
            let end = power.saturating_mul(2).saturating_sub(1);
            (end, nicetime(end).to_string())
        }
        Measure::Size => (power, nicenum(power).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use engine::vdev::stats::{LATENCIES, SIZES};

    use super::*;

    #[test]
    fn averages_are_of_the_middles_of_buckets() {
        let mut histogram = vec![0; LATENCIES];
        (histogram[10], histogram[11]) = (1, 1);
        assert_eq!(average(&histogram), (1536 + 3072) / 2);
        assert_eq!(average(&vec![0; LATENCIES]), 0);
    }

    #[test]
    fn buckets_have_the_names_of_openzfs() {
        let times = [0, 1, 9, 19, 29, 36].map(|bucket| label(Measure::Latency, bucket).1);
        assert_eq!(times, ["1ns", "3ns", "1us", "1ms", "1s", "137s"]);
        assert_eq!([0, 9, 24].map(|bucket| label(Measure::Size, bucket).1), ["1", "512", "16M"]);
    }

    #[test]
    fn histograms_are_tables() {
        let mut counts = Extended { sizes: vec![vec![0; SIZES]; 14], ..Extended::default() };
        counts.sizes[3][12] = 40;
        let form = Form { scripted: true, literal: true, width: 0 };
        let mut out = Vec::new();
        print_histograms(&mut out, ("tank", &counts), Measure::Size, 0.5, form).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = text.lines().find(|line| line.starts_with("4096\t")).unwrap();
        assert_eq!(line, format!("4096\t0\t0\t0\t20{}", "\t0".repeat(10)));
        assert_eq!(text.lines().nth(2).map(|line| line.starts_with("512\t")), Some(true));
        assert_eq!(text.lines().count(), 2 + SIZES - SECTOR_SHIFT);
    }
}
