//! `zpool list`: pools, one a line, and with `-v` their vdevs.

use std::io::{self, Write};

use clap::Args;
use engine::spa::space::VdevSpace;
use serde_json::{Map, Value};
use zcommon::props::ZpoolProp;
use zcommon::units::nicenum;
use zutil::import_listing::class_of;
use zutil::names::{NameStyle, vdev_name};
use zutil::tree::VdevNode;

use super::prop::{PoolView, dash};
use crate::ctx::Ctx;
use crate::output::json::{JsonStyle, document, print};
use crate::output::row::Prop;
use crate::output::table::Column;
use crate::output::value::width;
use crate::source::PoolSource;
use crate::verb::{Exit, Failure, Outcome, Verb};

const DEFAULT_COLUMNS: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// List pools.
#[derive(Debug, Args)]
pub struct List {
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
    /// Guids instead of names of vdevs.
    #[arg(short = 'g')]
    pub guids: bool,
    /// Where symbolic links lead.
    #[arg(short = 'L')]
    pub follow_links: bool,
    /// Whole paths of disks.
    #[arg(short = 'P')]
    pub full_paths: bool,
    /// Print JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// Numbers as numbers in JSON.
    #[arg(long = "json-int", requires = "json")]
    pub json_int: bool,
    /// Pools by guid in JSON.
    #[arg(long = "json-pool-key-guid", requires = "json")]
    pub json_pool_key_guid: bool,
    /// Properties to print, comma separated.
    #[arg(short = 'o', value_name = "PROPERTY,…", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Pools; all that are found, without any.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// A line of the list.
enum Line {
    /// A pool, with the columns asked for.
    Pool(Vec<String>),
    /// A vdev, indented, with the columns that vdevs have whatever is asked for.
    Vdev(String, Vec<String>),
}

/// The columns of vdevs.
const VDEV_COLUMNS: [ZpoolProp; 9] = [
    ZpoolProp::Size,
    ZpoolProp::Allocated,
    ZpoolProp::Free,
    ZpoolProp::Checkpoint,
    ZpoolProp::Expandsize,
    ZpoolProp::Fragmentation,
    ZpoolProp::Capacity,
    ZpoolProp::Dedupratio,
    ZpoolProp::Health,
];

/// With `-v` names have at least this width.
const NAME_WIDTH: usize = 9;

/// A column: the property that the user named.
struct Wanted {
    word: String,
    prop: Option<ZpoolProp>,
    column: Column,
}

impl Verb for List {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        // A list is made once: an interval makes no sense for pools that nobody changes.
        let _ = self.source.take_timestamp();
        let mut wanted = self.wanted();
        let mut lines: Vec<Line> = Vec::new();
        let mut pools = Map::new();
        let style = self.json_style();
        let exit = self.source.each(&self.pools, ctx, |pool, candidate, ctx| {
            let view = PoolView::new(pool, candidate, ctx);
            let props = named(&view, &wanted)?;
            let mut item = super::pool_object(&view, &style);
            let literal = self.literal || self.json_int;
            let values = wanted.iter().zip(&props).filter(|(w, _)| w.prop != Some(ZpoolProp::Name));
            let values = values.map(|(w, p)| (w.key(), style.prop(p, literal)));
            item.insert("properties".into(), Map::from_iter(values).into());
            pools.insert(super::pool_key(&view, &style), item.into());
            let cells = props.iter().map(|p| p.value(self.literal).to_owned()).collect();
            lines.push(Line::Pool(cells));
            if self.verbose {
                self.vdev_lines(&view, &mut lines);
            }
            Ok(Exit::OK)
        })?;
        if self.json {
            let mut doc = document(&ctx.command);
            doc.insert("pools".into(), pools.into());
            print(&mut *ctx.out, &Value::Object(doc))?;
        } else if !lines.is_empty() {
            self.print(&mut *ctx.out, &mut wanted, &lines)?;
        }
        Ok(exit)
    }
}

impl Wanted {
    fn key(&self) -> String {
        self.prop.map_or_else(|| self.word.clone(), |p| p.name().to_owned())
    }
}

fn named(view: &PoolView<'_>, wanted: &[Wanted]) -> Result<Vec<Prop>, Failure> {
    let bad = |word: &str| Failure::usage(format!("bad property list: invalid property '{word}'"));
    wanted.iter().map(|w| view.named(&w.word).map(|(_, p)| p).ok_or_else(|| bad(&w.word))).collect()
}

impl List {
    fn json_style(&self) -> JsonStyle {
        JsonStyle { int: self.json_int, pool_key_guid: self.json_pool_key_guid, ..JsonStyle::default() }
    }

    fn wanted(&self) -> Vec<Wanted> {
        let words: Vec<String> = match self.columns.is_empty() {
            true => DEFAULT_COLUMNS.split(',').map(str::to_owned).collect(),
            false => self.columns.clone(),
        };
        let column = |word: String| {
            let prop = ZpoolProp::from_user(&word);
            let column = match prop.map(|p| p.info()) {
                Some(info) => {
                    let (width, fixed) = width(info);
                    let header = info.column.to_owned();
                    Column { header, right: info.right_aligned, width, fixed: fixed && !self.literal }
                }
                None => Column::new(word.to_uppercase(), false),
            };
            Wanted { word, prop, column }
        };
        words.into_iter().map(column).collect()
    }

    fn print(&self, out: &mut dyn Write, wanted: &mut [Wanted], lines: &[Line]) -> io::Result<()> {
        for line in lines {
            match line {
                Line::Pool(cells) => wanted.iter_mut().zip(cells).for_each(|(w, cell)| w.column.fit(cell)),
                Line::Vdev(name, _) => wanted.iter_mut().take(1).for_each(|w| w.column.fit(name)),
            }
        }
        if let Some(first) = wanted.first_mut().filter(|_| self.verbose) {
            first.column.width = first.column.width.max(NAME_WIDTH);
        }
        if !self.scripted {
            let headers: Vec<String> = wanted.iter().map(|w| w.column.header.clone()).collect();
            self.print_line(out, wanted, &headers)?;
        }
        let width = wanted.first().map_or(0, |w| w.column.width);
        lines.iter().try_for_each(|line| match line {
            Line::Pool(cells) => self.print_line(out, wanted, cells),
            Line::Vdev(name, cells) => self.print_vdev(out, name, cells, width),
        })
    }

    fn print_vdev(&self, out: &mut dyn Write, name: &str, cells: &[String], width: usize) -> io::Result<()> {
        if self.scripted {
            return writeln!(out, "\t{}\t{}", name.trim_start(), cells.join("\t"));
        }
        write!(out, "{name:width$}")?;
        for (cell, prop) in cells.iter().zip(VDEV_COLUMNS) {
            let (column, _) = crate::output::value::width(prop.info());
            write!(out, "  {cell:>column$}")?;
        }
        writeln!(out)
    }

    fn print_line(&self, out: &mut dyn Write, wanted: &[Wanted], cells: &[String]) -> io::Result<()> {
        let last = wanted.len().saturating_sub(1);
        for (i, (wanted, cell)) in wanted.iter().zip(cells).enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            let pad = wanted.column.width.saturating_sub(cell.len());
            match (self.scripted, wanted.column.right) {
                (true, _) => write!(out, "{}{cell}", if i == 0 { "" } else { "\t" })?,
                (false, true) => write!(out, "{gap}{:pad$}{cell}", "")?,
                (false, false) if i == last => write!(out, "{gap}{cell}")?,
                (false, false) => write!(out, "{gap}{cell}{:pad$}", "")?,
            }
        }
        writeln!(out)
    }

    fn vdev_lines(&self, view: &PoolView<'_>, lines: &mut Vec<Line>) {
        let shown = |v: &&VdevNode| !matches!(v.kind.as_str(), "hole" | "indirect");
        for top in view.tree.children.iter().filter(shown).filter(|v| class_of(v).is_none()) {
            self.vdev_line(view, top, 2, lines);
        }
        for class in ["dedup", "special", "logs"] {
            let tops = view.tree.children.iter().filter(shown).filter(|v| class_of(v) == Some(class));
            self.section(view, class, &tops.collect::<Vec<_>>(), lines);
        }
        if let Some(facts) = &view.facts {
            self.section(view, "cache", &facts.l2cache.iter().collect::<Vec<_>>(), lines);
            self.section(view, "spare", &facts.spares.iter().collect::<Vec<_>>(), lines);
        }
    }

    /// A heading with dashes, and the vdevs below it.
    fn section(&self, view: &PoolView<'_>, name: &str, vdevs: &[&VdevNode], lines: &mut Vec<Line>) {
        if vdevs.is_empty() {
            return;
        }
        lines.push(Line::Vdev(name.to_owned(), vec!["-".to_owned(); VDEV_COLUMNS.len()]));
        vdevs.iter().for_each(|v| self.vdev_line(view, v, 2, lines));
    }

    fn vdev_line(&self, view: &PoolView<'_>, vdev: &VdevNode, depth: usize, lines: &mut Vec<Line>) {
        let style =
            NameStyle { guids: self.guids, full_paths: self.full_paths, follow_links: self.follow_links };
        let name = format!("{:depth$}{}", "", vdev_name(vdev, style, true));
        let is_top = view.tree.children.iter().any(|top| top.guid == vdev.guid);
        let space = view.space.vdevs.iter().find(|s| is_top && s.id == vdev.id);
        let cells = VDEV_COLUMNS.map(|prop| self.vdev_cell(view, vdev, prop, space));
        lines.push(Line::Vdev(name, cells.to_vec()));
        vdev.children.iter().for_each(|child| self.vdev_line(view, child, depth + 2, lines));
    }

    /// What is known of one vdev; space is that of top-level vdevs, the size also that of devices.
    #[doc(alias = "print_list_stats")]
    fn vdev_cell(
        &self,
        view: &PoolView<'_>,
        vdev: &VdevNode,
        prop: ZpoolProp,
        space: Option<&VdevSpace>,
    ) -> String {
        use ZpoolProp as P;
        let number = |n: u64| if self.literal { n.to_string() } else { nicenum(n).to_string() };
        let nonzero = |n: u64| if n == 0 { "-".to_owned() } else { number(n) };
        let device =
            view.pool.tree().leaf(vdev.guid).and_then(|leaf| leaf.device().map(|d| d.geometry().size));
        let of_space = match (prop, space) {
            (P::Size, Some(s)) => device.map_or_else(|| Some(number(s.size())), |n| Some(number(n))),
            (P::Size, None) => device.map(number),
            (P::Allocated, Some(s)) => Some(number(s.allocated())),
            (P::Free, Some(s)) => Some(number(s.size().saturating_sub(s.allocated()))),
            (P::Checkpoint, Some(s)) => Some(nonzero(s.checkpoint)),
            (P::Fragmentation, Some(s)) => {
                s.fragmentation().map(|n| if self.literal { n.to_string() } else { format!("{n}%") })
            }
            (P::Capacity, Some(s)) => Some(self.capacity(s)),
            (P::Health, _) => Some(self.health(view, vdev).to_owned()),
            _ => None,
        };
        of_space.unwrap_or_else(|| dash().nice)
    }

    /// Percent with as many decimals as fit.
    fn capacity(&self, space: &VdevSpace) -> String {
        let parts = space.allocated().saturating_mul(10_000).checked_div(space.size()).unwrap_or(0);
        let percent = parts as f64 / 100.0;
        match parts {
            _ if self.literal => (parts / 100).to_string(),
            0..1000 => format!("{percent:.2}%"),
            1000..10_000 => format!("{percent:.1}%"),
            _ => format!("{percent:.0}%"),
        }
    }

    fn health(&self, view: &PoolView<'_>, vdev: &VdevNode) -> &'static str {
        let is_spare = view.facts.as_ref().is_some_and(|f| f.spares.iter().any(|s| s.guid == vdev.guid));
        match vdev.health.name() {
            "ONLINE" if is_spare => "AVAIL",
            name => name,
        }
    }
}
