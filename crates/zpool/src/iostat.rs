//! `zpool iostat`: how much is read and written, by pool and with `-v` by vdev.
//!
//! With `-l` and `-q` how long requests take and how many wait; with `-w` and `-r` histograms of times and sizes instead.
//!
//! Differs from OpenZFS: counts are those of devices, added up for vdevs that consist of several, so a mirror
//! shows the writes of both sides.

use std::collections::HashMap;
use std::io::{self, Write};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::repeat::{self, Repeat};
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use zcommon::vdev::VdevKind;
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;
use zutil::words;

use super::iostat_columns::{self as columns, ColumnGroup, count, print_header, print_rule};
use super::iostat_extended::{Extended, Form, Measure, print_histograms};
use super::prop::PoolView;
use super::scripts::Scripts;
use super::scripts::mark::Mark;
use super::vdev_names::VdevNames;

/// Least width of names.
const NAME_WIDTH: usize = 10;

/// Print I/O statistics of pools.
#[derive(Debug, Args)]
pub struct Iostat {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    /// Print no header, and separate columns by a single tab.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Print exact (parsable) numbers.
    #[arg(short = 'p')]
    pub literal: bool,
    /// Columns from the output of scripts for each device; without a name, list the scripts.
    #[arg(short = 'c', value_name = "SCRIPT,…", num_args = 0..=1, default_missing_value = "")]
    pub scripts: Vec<String>,
    /// Print statistics of the vdevs, too.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print average latencies.
    #[arg(short = 'l')]
    pub latency: bool,
    /// Print the lengths of the queues.
    #[arg(short = 'q')]
    pub queues: bool,
    /// Print latency histograms.
    #[arg(short = 'w')]
    pub latencies: bool,
    /// Print request size histograms.
    #[arg(short = 'r')]
    pub sizes: bool,
    /// Omit the first report, with the statistics since the import.
    #[arg(short = 'y')]
    pub skip_first: bool,
    /// Print the header only once.
    #[arg(short = 'n')]
    pub header_once: bool,
    #[command(flatten)]
    pub(crate) names: VdevNames,
    /// Pools, or a pool and vdevs of it, or vdevs (default: all imported pools); then an interval in seconds and a
    /// number of reports.
    #[arg(value_name = "POOL… | [POOL] VDEV… [INTERVAL [COUNT]]")]
    pub pools: Vec<String>,
    /// The words that are vdevs, which are shown instead of pools.
    #[arg(skip)]
    vdevs: Vec<String>,
}

/// Requests and bytes read, requests and bytes written, since the import; and the moment, in seconds since then.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    numbers: [u64; 4],
    at: f64,
}

/// The factor of the numbers of a histogram: requests per second since the last report; the first report has all requests
/// since the import.
fn histogram_scale(now: Counts, before: Option<Counts>) -> f64 {
    before.map_or(1.0, |before| now.scale(before))
}

impl Counts {
    /// Factor that converts counts since `before` to counts per second.
    fn scale(self, before: Self) -> f64 {
        1.0 / (self.at - before.at).max(1e-9)
    }

    /// Counts per second since `before`.
    fn since(self, before: Self) -> [u64; 4] {
        let scale = self.scale(before);
        let mut rates = self.numbers;
        for (rate, old) in rates.iter_mut().zip(before.numbers) {
            *rate = (rate.saturating_sub(old) as f64 * scale) as u64;
        }
        rates
    }
}

/// A vdev in a report: its name with its indentation, space if it has its own, and its operations.
struct Line {
    name: String,
    is_pool: bool,
    space: Option<(u64, u64)>,
    /// `None`: a heading.
    did: Option<Did>,
    /// A rule follows.
    ends: bool,
    /// Of a device that scripts are to be asked about.
    path: Option<String>,
}

/// Operations of a vdev since the last report.
struct Did {
    rates: [u64; 4],
    extended: Extended,
    scale: f64,
}

type Before = HashMap<u64, (Counts, Extended)>;

impl Verb for Iostat {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        let histograms = self.histograms()?;
        let repeat = Repeat::take(&mut self.source, &mut self.pools)?;
        self.verbose |= !self.scripts.is_empty();
        self.take_vdevs(ctx);
        // Without an interval there is no other report than that since the import.
        let skip = self.skip_first && repeat.is_repeated();
        let repeat = if skip { repeat.one_more() } else { repeat };
        let repeat = if self.knows_none(ctx) { repeat.once() } else { repeat };
        let fails_without_pools = self.pools.is_empty() && !repeat.is_repeated();
        let mut before = HashMap::new();
        let (mut headed, mut pools_before) = (false, 0);
        repeat.run(ctx, false, |ctx, first| {
            let (lines, exit) = self.lines(&mut before, first, ctx)?;
            let pools = lines.iter().filter(|line| line.is_pool).count();
            // Other pools have a header of their own.
            headed &= pools == pools_before;
            pools_before = pools;
            if !lines.is_empty() {
                repeat.stamp(ctx)?;
            }
            let shown = !skip || !first;
            if shown && let Some(kind) = histograms {
                self.print_histograms(&mut *ctx.out, &lines, kind)?;
            } else if shown && !lines.is_empty() {
                self.print(&mut *ctx.out, &lines, !headed || (self.verbose && !self.header_once))?;
                headed = true;
            }
            if !self.scripts.is_empty() {
                write!(ctx.out, "{}", Mark::End.text())?;
            }
            let exit = if fails_without_pools && lines.is_empty() { exit.worse(Exit::FAILED) } else { exit };
            Ok(repeat::Report { exit, is_last: false })
        })
    }
}

impl Iostat {
    /// Scripts that add columns.
    pub fn scripts(&self) -> Option<Scripts> {
        Scripts::new("iostat", &self.scripts, false)
    }

    fn histograms(&self) -> Result<Option<Measure>, Failure> {
        match (self.latencies, self.sizes) {
            (true, true) => Err(Failure::usage("Only one of [-r|-w] can be passed at a time")),
            (true, _) | (_, true) if self.latency || self.queues || !self.scripts.is_empty() => {
                Err(Failure::usage("[-r|-w] isn't allowed with [-c|-l|-q]"))
            }
            (true, false) => Ok(Some(Measure::Latency)),
            (false, true) => Ok(Some(Measure::Size)),
            (false, false) => Ok(None),
        }
    }

    /// Separates vdevs from pools: behind one pool all are its vdevs, without one they may be of any.
    fn take_vdevs(&mut self, ctx: &mut Ctx) {
        let known = self.source.candidates(ctx);
        let is_pool =
            |word: &String| known.iter().any(|pool| pool.name == *word || word.parse() == Ok(pool.guid));
        let from = match self.pools.as_slice() {
            [first, second, ..] if is_pool(first) && !is_pool(second) => 1,
            [first, ..] if !is_pool(first) && !known.is_empty() => 0,
            _ => return,
        };
        self.vdevs = self.pools.split_off(from);
    }

    /// Whether pools are named and none of them is there.
    fn knows_none(&self, ctx: &mut Ctx) -> bool {
        !self.pools.is_empty() && self.known(ctx).is_empty()
    }

    /// The named pools that are there.
    fn known(&self, ctx: &mut Ctx) -> Vec<String> {
        let known = self.source.candidates(ctx);
        let is_there =
            |word: &&String| known.iter().any(|pool| pool.name == **word || word.parse() == Ok(pool.guid));
        self.pools.iter().filter(is_there).cloned().collect()
    }

    /// The lines of a report. Later reports pass over named pools that have gone since the first one, until they are back.
    #[doc(alias = "pool_list_refresh")]
    fn lines(&self, before: &mut Before, first: bool, ctx: &mut Ctx) -> Result<(Vec<Line>, Exit), Failure> {
        let mut lines = Vec::new();
        let mut missing: Vec<&String> = self.vdevs.iter().collect();
        let pools = if first { self.pools.clone() } else { self.known(ctx) };
        if pools.is_empty() && !self.pools.is_empty() {
            ctx.warn("no pools available");
            return Ok((lines, Exit::OK));
        }
        let exit = self.source.each(&pools, ctx, |pool, candidate, ctx| {
            let view = PoolView::new(pool, candidate, ctx);
            let named: Vec<&VdevNode> =
                self.vdevs.iter().filter_map(|word| words::find(vdevs_of(&view), word)).collect();
            missing.retain(|word| words::find(vdevs_of(&view), word).is_none());
            let (names, scripts) = (self.names.style(), !self.scripts.is_empty());
            let mut report = Report { view: &view, names, scripts, before, lines: Vec::new() };
            match self.vdevs.as_slice() {
                [] => report.pool(self.verbose),
                _ => tops_of(&view).for_each(|top| report.chosen(top, &named, 2)),
            }
            lines.append(&mut report.lines);
            Ok(Exit::OK)
        })?;
        if let Some(word) = missing.first() {
            return Err(self.unknown(word));
        }
        let pools = lines.iter().filter(|line: &&Line| line.is_pool).count();
        if let Some(last) = lines.last_mut().filter(|_| pools > 1 || self.verbose || !self.vdevs.is_empty()) {
            last.ends = true;
        }
        Ok((lines, exit))
    }

    /// The failure for a word that is neither a pool nor a vdev.
    fn unknown(&self, word: &str) -> Failure {
        let Some(pool) = self.pools.first() else {
            return Failure::failed("Unable to parse pools/vdevs list.\n");
        };
        Failure::usage(format!(
            "Expected either a list of pools, or list of vdevs in \"{pool}\", but got:\n\t{word} (unknown)\n"
        ))
    }

    /// The groups of columns, each with the width of its columns.
    fn layout(&self) -> Vec<(&'static ColumnGroup, usize)> {
        let groups =
            [(true, &columns::DEFAULT), (self.latency, &columns::LATENCY), (self.queues, &columns::QUEUES)];
        let shown = groups.into_iter().filter(|(shown, _)| *shown);
        shown.map(|(_, group)| (group, group.width(self.literal))).collect()
    }

    fn print(&self, out: &mut dyn Write, lines: &[Line], header: bool) -> io::Result<()> {
        let width = lines.iter().map(|line| line.name.len()).fold(NAME_WIDTH, usize::max);
        let layout = self.layout();
        if header && !self.scripted {
            let title = if self.vdevs.is_empty() { "pool" } else { "vdev" };
            print_header(out, &layout, ("", title), (width, !self.scripts.is_empty()))?;
        }
        lines.iter().try_for_each(|line| {
            self.print_line(out, line, (&layout, width))?;
            if line.ends && !self.scripted {
                print_rule(out, &layout, (width, !self.scripts.is_empty()))
            } else {
                Ok(())
            }
        })
    }

    fn print_line(
        &self,
        out: &mut dyn Write,
        line: &Line,
        (layout, width): (columns::Layout<'_>, usize),
    ) -> io::Result<()> {
        let widths: Vec<usize> = layout.iter().flat_map(|(group, w)| vec![*w; group.columns()]).collect();
        let mut cells = self.cells(line);
        cells.resize(widths.len(), "-".to_owned());
        let more = line.path.as_ref().map(|path| Mark::Leaf(path.clone()).text()).unwrap_or_default();
        if self.scripted && line.did.is_none() {
            return writeln!(out);
        }
        if self.scripted {
            return writeln!(out, "{}\t{}{more}", line.name.trim_start(), cells.join("\t"));
        }
        write!(out, "{:width$}", line.name)?;
        cells.iter().zip(widths).try_for_each(|(cell, w)| write!(out, "  {cell:>w$}"))?;
        writeln!(out, "{more}")
    }

    /// The cells behind the name, as far as they have values.
    fn cells(&self, line: &Line) -> Vec<String> {
        // A vdev without space of its own has 0, for a script that reads exact numbers.
        let none = if self.scripted && self.literal { "0" } else { "-" };
        let dash = || none.to_owned();
        let count = |n: u64| count(n, self.literal);
        let mut cells =
            line.space.map_or([dash(), dash()], |(used, free)| [count(used), count(free)]).to_vec();
        let Some(did) = &line.did else { return cells };
        let [reads, read, writes, written] = did.rates;
        cells.extend([reads, writes, read, written].map(count));
        if self.latency {
            cells.extend(did.extended.latency_cells(self.literal));
        }
        if self.queues {
            cells.extend(did.extended.queue_cells(self.literal));
        }
        cells
    }

    fn print_histograms(&self, out: &mut dyn Write, lines: &[Line], kind: Measure) -> io::Result<()> {
        let width = lines.iter().map(|line| line.name.trim_start().len()).fold(NAME_WIDTH, usize::max);
        let form = Form { scripted: self.scripted, literal: self.literal, width };
        let vdevs = lines.iter().filter_map(|line| Some((line.name.trim_start(), line.did.as_ref()?)));
        for (name, did) in vdevs {
            print_histograms(out, (name, &did.extended), kind, did.scale, form)?;
        }
        Ok(())
    }
}

/// One pool's lines.
struct Report<'a, 'v> {
    view: &'a PoolView<'v>,
    names: NameStyle,
    /// Scripts are to be asked.
    scripts: bool,
    before: &'a mut Before,
    lines: Vec<Line>,
}

impl Report<'_, '_> {
    fn pool(&mut self, verbose: bool) {
        let view = self.view;
        let space = Some((view.space.allocated(), view.space.size().saturating_sub(view.space.allocated())));
        let did = Some(self.did(&view.tree));
        let name = view.pool.name.clone();
        self.lines.push(Line { name, is_pool: true, space, did, ends: false, path: None });
        if !verbose {
            return;
        }
        let of = |class: Option<&str>| -> Vec<&VdevNode> {
            // A removed vdev is listed unless it had a class.
            let is_left_out =
                |kind| kind == VdevKind::Hole || (kind == VdevKind::Indirect && class.is_some());
            let tops = view.tree.children.iter();
            tops.filter(|v| !is_left_out(v.kind) && class_of(v) == class).collect()
        };
        of(None).into_iter().for_each(|top| self.vdev(top, 2));
        for class in ["dedup", "special", "logs"] {
            let vdevs = of(Some(class));
            if !vdevs.is_empty() {
                let name = class.to_owned();
                self.lines.push(Line {
                    name,
                    is_pool: false,
                    space: None,
                    did: None,
                    ends: false,
                    path: None,
                });
                vdevs.into_iter().for_each(|top| self.vdev(top, 2));
            }
        }
        self.cache();
    }

    fn cache(&mut self) {
        let view = self.view;
        let vdevs = view.facts.as_ref().map(|facts| facts.l2cache.as_slice()).unwrap_or_default();
        if !vdevs.is_empty() {
            let name = "cache".to_owned();
            self.lines.push(Line { name, is_pool: false, space: None, did: None, ends: false, path: None });
            vdevs.iter().for_each(|vdev| self.vdev(vdev, 2));
        }
    }

    /// The requested vdevs at and below a vdev.
    fn chosen(&mut self, vdev: &VdevNode, named: &[&VdevNode], depth: usize) {
        if named.iter().any(|named| named.guid == vdev.guid) {
            self.line(vdev, depth);
        }
        vdev.children.iter().for_each(|child| self.chosen(child, named, depth + 2));
    }

    fn vdev(&mut self, vdev: &VdevNode, depth: usize) {
        self.line(vdev, depth);
        vdev.children.iter().for_each(|child| self.vdev(child, depth + 2));
    }

    fn line(&mut self, vdev: &VdevNode, depth: usize) {
        let sizes = self.view.sizes.get(vdev.guid);
        let space = (sizes.size > 0).then(|| (sizes.allocated, sizes.size.saturating_sub(sizes.allocated)));
        let name = format!("{:depth$}{}", "", vdev_name(vdev, self.names, true));
        let did = Some(self.did(vdev));
        let path =
            vdev.path.as_deref().filter(|_| self.scripts).map(|path| String::from_utf8_lossy(path).into());
        self.lines.push(Line { name, is_pool: false, space, did, ends: false, path });
    }

    /// Operations of a vdev since the last report.
    fn did(&mut self, vdev: &VdevNode) -> Did {
        let (counts, extended) = self.counts(vdev);
        let counts = Counts { at: self.view.imported_for().unwrap_or(1.0), ..counts };
        let before = self.before.insert(vdev.guid, (counts, extended.clone()));
        // A pool that was imported again since the last report counts from its import.
        let before = before.filter(|(before, _)| before.at <= counts.at);
        let scale = histogram_scale(counts, before.as_ref().map(|(before, _)| *before));
        let before = before.unwrap_or_default();
        Did { rates: counts.since(before.0), extended: extended.since(&before.1), scale }
    }

    fn counts(&self, vdev: &VdevNode) -> (Counts, Extended) {
        let leaves = vdev.walk().filter_map(|vdev| self.view.leaf(vdev.guid));
        let extended = leaves.fold(Extended::default(), |sum, leaf| sum.plus(Extended::of(&leaf)));
        (Counts { numbers: self.view.traffic_of(vdev), at: 0.0 }, extended)
    }
}

/// The top-level vdevs of a pool, and its cache devices.
fn tops_of<'a>(view: &'a PoolView<'_>) -> impl Iterator<Item = &'a VdevNode> {
    view.tree.children.iter().chain(view.facts.iter().flat_map(|facts| &facts.l2cache))
}

/// All vdevs of a pool that have operations of their own.
fn vdevs_of<'a>(view: &'a PoolView<'_>) -> impl Iterator<Item = &'a VdevNode> {
    tops_of(view).flat_map(|top| top.walk())
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
    fn the_first_histogram_has_all_requests_since_the_import() {
        let now = Counts { numbers: [0; 4], at: 600.0 };
        assert_eq!(histogram_scale(now, None), 1.0);
        assert_eq!(histogram_scale(now, Some(Counts { at: 598.0, ..now })), 0.5);
    }
}
