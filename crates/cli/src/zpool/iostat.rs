//! `zpool iostat`: how much is read and written, by pool and with `-v` by vdev.
//!
//! Differs from OpenZFS: counts are those of devices, added up for vdevs that consist of several, so a mirror shows what
//! both sides wrote; `-l`, `-q`, `-r`, `-w` and `-c` are not there.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::Ordering;

use clap::Args;
use engine::vdev::leaf::LeafTraffic;
use zcommon::units::nicenum;
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;

use super::prop::PoolView;
use super::repeat::Repeat;
use super::vdev_names::VdevNames;
use crate::ctx::Ctx;
use crate::source::PoolSource;
use crate::verb::{Exit, Outcome, Verb};

/// Least width of names, and the width of every other column.
const NAME_WIDTH: usize = 10;
const WIDTH: usize = 5;
/// Columns behind the name.
const COLUMNS: usize = 6;

/// Print how much is read and written.
#[derive(Debug, Args)]
pub struct Iostat {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// No header, tabs between columns.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    pub literal: bool,
    /// List the vdevs, too.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Leave out the report of the time since the import.
    #[arg(short = 'y')]
    pub skip_first: bool,
    /// Print the header once only.
    #[arg(short = 'n')]
    pub header_once: bool,
    #[command(flatten)]
    pub(crate) names: VdevNames,
    /// Pools; all that are imported, without any. Numbers behind them: every so many seconds, so many times.
    #[arg(value_name = "POOL… [INTERVAL [COUNT]]")]
    pub pools: Vec<String>,
}

/// Requests and bytes read, requests and bytes written, since the import; and the moment, in seconds since then.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    numbers: [u64; 4],
    at: f64,
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        let mut numbers = self.numbers;
        numbers.iter_mut().zip(other.numbers).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        Self { numbers, at: self.at.max(other.at) }
    }

    /// A second's worth of what came since `before`.
    fn since(self, before: Self) -> [u64; 4] {
        let seconds = (self.at - before.at).max(1e-9);
        let mut rates = self.numbers;
        for (rate, old) in rates.iter_mut().zip(before.numbers) {
            *rate = (rate.saturating_sub(old) as f64 / seconds) as u64;
        }
        rates
    }
}

/// A line: its name with its indentation, space if the vdev has its own, and what it did.
struct Line {
    name: String,
    space: Option<(u64, u64)>,
    /// `None`: a heading.
    rates: Option<[u64; 4]>,
    /// A rule follows.
    ends: bool,
}

impl Verb for Iostat {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        let repeat = Repeat::take(&mut self.source, &mut self.pools)?;
        // Without an interval there is no other report than that since the import.
        let skip = self.skip_first && repeat.is_repeated();
        let repeat = if skip { repeat.one_more() } else { repeat };
        let mut before = HashMap::new();
        let mut headed = false;
        repeat.run(ctx, true, |ctx, first| {
            let (lines, exit) = self.lines(&mut before, ctx)?;
            let shown = !skip || !first;
            if shown && !lines.is_empty() {
                self.print(&mut *ctx.out, &lines, !headed || (self.verbose && !self.header_once))?;
                headed = true;
            }
            Ok(exit)
        })
    }
}

impl Iostat {
    fn lines(
        &self,
        before: &mut HashMap<u64, Counts>,
        ctx: &mut Ctx,
    ) -> Result<(Vec<Line>, Exit), crate::verb::Failure> {
        let mut lines = Vec::new();
        let exit = self.source.each(&self.pools, ctx, |pool, candidate, ctx| {
            let view = PoolView::new(pool, candidate, ctx);
            let mut report = Report { view: &view, names: self.names.style(), before, lines: Vec::new() };
            report.pool(self.verbose);
            lines.append(&mut report.lines);
            Ok(Exit::OK)
        })?;
        let pools = lines.iter().filter(|line| !line.name.starts_with(' ') && line.space.is_some()).count();
        if let Some(last) = lines.last_mut().filter(|_| pools > 1 || self.verbose) {
            last.ends = true;
        }
        Ok((lines, exit))
    }

    fn print(&self, out: &mut dyn Write, lines: &[Line], header: bool) -> io::Result<()> {
        let width = lines.iter().map(|line| line.name.len()).fold(NAME_WIDTH, usize::max);
        if header && !self.scripted {
            print_header(out, width)?;
        }
        lines.iter().try_for_each(|line| self.print_line(out, line, width))
    }

    fn print_line(&self, out: &mut dyn Write, line: &Line, width: usize) -> io::Result<()> {
        let cells = self.cells(line);
        if self.scripted {
            return writeln!(out, "{}\t{}", line.name.trim_start(), cells.join("\t"));
        }
        write!(out, "{:width$}", line.name)?;
        cells.iter().try_for_each(|cell| write!(out, "  {cell:>WIDTH$}"))?;
        writeln!(out)?;
        if line.ends { print_rule(out, width) } else { Ok(()) }
    }

    fn cells(&self, line: &Line) -> Vec<String> {
        let dash = || "-".to_owned();
        let count = |n: u64| if self.literal { n.to_string() } else { nicenum(n).to_string() };
        let space = line.space.map_or([dash(), dash()], |(used, free)| [count(used), count(free)]);
        let rates = line.rates.map_or([dash(), dash(), dash(), dash()], |[reads, read, writes, written]| {
            [count(reads), count(writes), count(read), count(written)]
        });
        space.into_iter().chain(rates).collect()
    }
}

/// One pool's lines.
struct Report<'a, 'v> {
    view: &'a PoolView<'v>,
    names: NameStyle,
    before: &'a mut HashMap<u64, Counts>,
    lines: Vec<Line>,
}

impl Report<'_, '_> {
    fn pool(&mut self, verbose: bool) {
        let view = self.view;
        let space = (view.space.allocated(), view.space.size().saturating_sub(view.space.allocated()));
        let rates = self.rates(&view.tree);
        let name = view.pool.name.clone();
        self.lines.push(Line { name, space: Some(space), rates: Some(rates), ends: false });
        if !verbose {
            return;
        }
        let of = |class: Option<&str>| -> Vec<&VdevNode> {
            let tops = view.tree.children.iter();
            tops.filter(|v| !matches!(v.kind.as_str(), "hole" | "indirect") && class_of(v) == class).collect()
        };
        of(None).into_iter().for_each(|top| self.vdev(top, 2));
        for class in ["dedup", "special", "logs"] {
            let vdevs = of(Some(class));
            if !vdevs.is_empty() {
                self.lines.push(Line { name: class.to_owned(), space: None, rates: None, ends: false });
                vdevs.into_iter().for_each(|top| self.vdev(top, 2));
            }
        }
    }

    fn vdev(&mut self, vdev: &VdevNode, depth: usize) {
        let sizes = self.view.sizes.get(vdev.guid);
        let space = (sizes.size > 0).then(|| (sizes.allocated, sizes.size.saturating_sub(sizes.allocated)));
        let name = format!("{:depth$}{}", "", vdev_name(vdev, self.names, true));
        let rates = Some(self.rates(vdev));
        self.lines.push(Line { name, space, rates, ends: false });
        vdev.children.iter().for_each(|child| self.vdev(child, depth + 2));
    }

    /// What a vdev did since it was looked at the last time.
    fn rates(&mut self, vdev: &VdevNode) -> [u64; 4] {
        let now = Counts { at: self.view.imported_for().unwrap_or(1.0), ..self.counts(vdev) };
        let before = self.before.insert(vdev.guid, now).unwrap_or_default();
        now.since(before)
    }

    fn counts(&self, vdev: &VdevNode) -> Counts {
        let tree = self.view.pool.tree();
        let pair = |t: &LeafTraffic| [&t.count, &t.bytes].map(|n| n.load(Ordering::Relaxed));
        let leaves = vdev.walk().filter_map(|vdev| tree.leaf(vdev.guid));
        leaves.fold(Counts::default(), |sum, leaf| {
            let ([reads, read], [writes, written]) = (pair(&leaf.reads), pair(&leaf.writes));
            sum.plus(Counts { numbers: [reads, read, writes, written], at: 0.0 })
        })
    }
}

#[doc(alias("print_iostat_labels", "print_iostat_header"))]
fn print_header(out: &mut dyn Write, width: usize) -> io::Result<()> {
    const LABELS: [&str; 3] = ["capacity", "operations", "bandwidth"];
    write!(out, "{:width$}", "")?;
    for label in LABELS {
        let room = 2 * WIDTH + 2 - label.len();
        let (left, right) = (room.div_ceil(2), room / 2);
        write!(out, "  {:left$}{label}{:right$}", "", "")?;
    }
    writeln!(out)?;
    write!(out, "{:width$}", "pool")?;
    ["alloc", "free", "read", "write", "read", "write"]
        .iter()
        .try_for_each(|word| write!(out, "  {word:>WIDTH$}"))?;
    writeln!(out)?;
    print_rule(out, width)
}

#[doc(alias = "print_iostat_separator")]
fn print_rule(out: &mut dyn Write, width: usize) -> io::Result<()> {
    write!(out, "{}", "-".repeat(width))?;
    (0..COLUMNS).try_for_each(|_| write!(out, "  {}", "-".repeat(WIDTH)))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let first = Counts { numbers: [10, 4096, 0, 0], at: 2.0 };
        assert_eq!(first.since(Counts::default()), [5, 2048, 0, 0]);
        let second = Counts { numbers: [10, 4096, 6, 600], at: 5.0 };
        assert_eq!(second.since(first), [0, 0, 2, 200]);
    }

    #[test]
    fn the_header_is_the_one_people_know() {
        let mut out = Vec::new();
        print_header(&mut out, NAME_WIDTH).unwrap();
        let want = "              capacity     operations     bandwidth \n\
                    pool        alloc   free   read  write   read  write\n\
                    ----------  -----  -----  -----  -----  -----  -----\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
