//! `zpool list`: pools, one a line, and with `-v` their vdevs.

use std::io::{self, Write};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::Lines;
use clikit::listing::PoolJson;
use clikit::output::json::{JsonStyle, document, print};
use clikit::output::row::{Prop, Source};
use clikit::output::table::Column;
use clikit::output::value::width;
use clikit::repeat::{Repeat, Report};
use clikit::source::{PoolSource, Seen};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use serde_json::{Map, Value};
use zcommon::features::FEATURES;
use zcommon::props::ZpoolProp;

use super::list_vdevs::VdevCells;
use super::prop::{PoolView, dash, is_of_feature};
use super::unavailable::Absent;
use super::vdev_names::VdevNames;

const DEFAULT_COLUMNS: &str =
    "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// List pools.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    #[command(flatten)]
    pub(crate) lines: Lines,
    /// List the vdevs, too.
    #[arg(short = 'v')]
    pub verbose: bool,
    #[command(flatten)]
    pub(crate) names: VdevNames,
    #[command(flatten)]
    pub(crate) json: PoolJson,
    /// Properties to print, comma separated.
    #[arg(short = 'o', value_name = "PROPERTY,…", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Pools (default: all that are found); then an interval in seconds and a number of reports.
    #[arg(value_name = "POOL… [INTERVAL [COUNT]]")]
    pub pools: Vec<String>,
}

/// A line of the list.
pub enum Line {
    /// A pool, with the columns asked for.
    Pool(Vec<String>),
    /// The heading of a class of vdevs.
    Class(&'static str),
    /// A vdev, indented, with the columns asked for except its name.
    Vdev(String, Vec<String>),
}

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
        let repeat = Repeat::take(&mut self.source, &mut self.pools)?;
        let plain = !self.json.style.json;
        repeat.run(ctx, plain, |ctx, first| self.once(ctx, first, repeat))
    }
}

impl List {
    fn once(&self, ctx: &mut Ctx, first: bool, repeat: Repeat) -> Result<Report, Failure> {
        let mut wanted = self.wanted();
        let mut lines: Vec<Line> = Vec::new();
        let mut pools = Map::new();
        let style = self.json_style();
        let is_plain = !self.lines.scripted && !self.json.style.json;
        let none = |ctx: &mut Ctx| {
            if is_plain {
                writeln!(ctx.out, "no pools available")?;
            }
            Ok(())
        };
        let exit = self.source.each_known(&self.pools, ctx, none, |seen, ctx| {
            let (pool, candidate) = match seen {
                Seen::Pool(pool, candidate) => (pool, candidate),
                Seen::Unavailable(name, pool) => {
                    let pool = Absent::new(name, pool);
                    let cells: Vec<String> = wanted.iter().map(|w| absent(&pool, name, w)).collect();
                    let values = wanted.iter().zip(&cells).filter(|(w, _)| w.prop != Some(ZpoolProp::Name));
                    let values =
                        values.map(|(w, text)| (w.key(), style.prop(&Prop::text(text, Source::None), false)));
                    let mut item = pool.object(&style);
                    item.insert("properties".into(), Map::from_iter(values).into());
                    pools.insert(pool.key(&style), item.into());
                    lines.push(Line::Pool(cells));
                    return Ok(Exit::OK);
                }
            };
            let view = PoolView::new(pool, candidate, ctx);
            let props = named(&view, &wanted)?;
            let mut item = super::pool_object(&view, &style);
            let literal = self.lines.literal || self.json.style.json_int;
            let values = wanted.iter().zip(&props).filter(|(w, _)| w.prop != Some(ZpoolProp::Name));
            let values = values.map(|(w, p)| (w.key(), style.prop(p, literal)));
            item.insert("properties".into(), Map::from_iter(values).into());
            let cells = props.iter().map(|p| p.value(self.lines.literal).to_owned()).collect();
            lines.push(Line::Pool(cells));
            if self.verbose {
                let columns = wanted.iter().filter(|w| w.prop != Some(ZpoolProp::Name));
                let columns = columns.map(|w| (w.key(), w.prop)).collect();
                let vdevs = VdevCells { view: &view, names: self.names.style(), literal, columns };
                item.insert("vdevs".into(), vdevs.json(&style).into());
                vdevs.lines(&mut lines);
            }
            pools.insert(super::pool_key(&view, &style), item.into());
            Ok(Exit::OK)
        })?;
        let is_last = lines.is_empty();
        if self.json.style.json {
            let mut doc = document(&ctx.command);
            doc.insert("pools".into(), pools.into());
            doc.extend(repeat.time(&style).map(|time| ("time".to_owned(), time)));
            print(&mut *ctx.out, &Value::Object(doc))?;
        } else if !lines.is_empty() {
            self.print(&mut *ctx.out, &mut wanted, &lines, first)?;
        }
        Ok(Report { exit, is_last })
    }
}

impl Wanted {
    fn key(&self) -> String {
        self.prop.map_or_else(|| self.word.clone(), |p| p.name().to_owned())
    }
}

/// The properties that a word of `-o` stands for.
fn columns_of(word: &str) -> Vec<String> {
    if word != "all" {
        return vec![word.to_owned()];
    }
    let native = ZpoolProp::ALL.iter().filter(|prop| prop.info().visible && **prop != ZpoolProp::Name);
    let features = FEATURES.iter().map(|feature| format!("feature@{}", feature.info().name));
    let native = native.map(|prop| prop.name().to_owned());
    std::iter::once("name".to_owned()).chain(native).chain(features).collect()
}

/// The cell of a pool that is not imported: little of it is known.
fn absent(pool: &Absent, name: &str, wanted: &Wanted) -> String {
    match wanted.prop {
        Some(ZpoolProp::Name) => name.to_owned(),
        Some(ZpoolProp::Health) => pool.state().to_owned(),
        Some(ZpoolProp::Guid) => pool.guid().to_string(),
        _ => "-".to_owned(),
    }
}

fn named(view: &PoolView<'_>, wanted: &[Wanted]) -> Result<Vec<Prop>, Failure> {
    let bad = |word: &str| Failure::usage(format!("bad property list: invalid property '{word}'"));
    let one = |w: &Wanted| match view.named(&w.word) {
        Some((_, prop)) => Ok(prop),
        None if is_of_feature(&w.word) => Ok(dash()),
        None => Err(bad(&w.word)),
    };
    wanted.iter().map(one).collect()
}

/// The heading of a class, with a dash below each other column.
fn print_class(out: &mut dyn Write, name: &str, wanted: &[Wanted]) -> io::Result<()> {
    let is_last = wanted.len() == 1;
    for (i, wanted) in wanted.iter().enumerate() {
        let width = wanted.column.width;
        match i {
            0 if is_last => write!(out, "{name}")?,
            0 => write!(out, "{name:width$}")?,
            _ => write!(out, "  {:>width$}", "-")?,
        }
    }
    writeln!(out)
}

/// The line of a vdev: the cells of native properties have the least width of their column, whatever the pools' cells take.
fn print_vdev(out: &mut dyn Write, name: &str, cells: &[String], wanted: &[Wanted]) -> io::Result<()> {
    let width = wanted.first().map_or(0, |w| w.column.width);
    write!(out, "{name:width$}")?;
    let columns = wanted.iter().filter(|w| w.prop != Some(ZpoolProp::Name));
    for (cell, wanted) in cells.iter().zip(columns) {
        let column = wanted.prop.map_or(0, |prop| clikit::output::value::width(prop.info()).0);
        write!(out, "  {cell:>column$}")?;
    }
    writeln!(out)
}

impl List {
    fn json_style(&self) -> JsonStyle {
        JsonStyle {
            int: self.json.style.json_int,
            pool_key_guid: self.json.json_pool_key_guid,
            ..JsonStyle::default()
        }
    }

    fn wanted(&self) -> Vec<Wanted> {
        let words: Vec<String> = match self.columns.is_empty() {
            true => DEFAULT_COLUMNS.split(',').map(str::to_owned).collect(),
            false => self.columns.iter().flat_map(|word| columns_of(word)).collect(),
        };
        let column = |word: String| {
            let prop = ZpoolProp::from_user(&word);
            let column = match prop.map(|p| p.info()) {
                Some(info) => {
                    let (width, fixed) = width(info);
                    let header = info.column.to_owned();
                    Column { header, right: info.right_aligned, width, fixed: fixed && !self.lines.literal }
                }
                None => Column::new(word.to_uppercase(), false),
            };
            Wanted { word, prop, column }
        };
        words.into_iter().map(column).collect()
    }

    fn print(
        &self,
        out: &mut dyn Write,
        wanted: &mut [Wanted],
        lines: &[Line],
        first: bool,
    ) -> io::Result<()> {
        for line in lines {
            match line {
                Line::Pool(cells) => wanted.iter_mut().zip(cells).for_each(|(w, cell)| w.column.fit(cell)),
                Line::Class(name) => wanted.iter_mut().take(1).for_each(|w| w.column.fit(name)),
                Line::Vdev(name, _) => wanted.iter_mut().take(1).for_each(|w| w.column.fit(name)),
            }
        }
        if let Some(first) = wanted.first_mut().filter(|_| self.verbose) {
            first.column.width = first.column.width.max(NAME_WIDTH);
        }
        if !self.lines.scripted && (first || self.verbose) {
            let headers: Vec<String> = wanted.iter().map(|w| w.column.header.clone()).collect();
            self.print_line(out, wanted, &headers)?;
        }
        lines.iter().try_for_each(|line| match line {
            Line::Pool(cells) => self.print_line(out, wanted, cells),
            // OpenZFS prints headings for people even where all else is for programs.
            Line::Class(name) => print_class(out, name, wanted),
            Line::Vdev(name, cells) if self.lines.scripted => {
                let cells = cells.iter().map(|cell| format!("\t{cell}"));
                writeln!(out, "\t{}{}", name.trim_start(), cells.collect::<String>())
            }
            Line::Vdev(name, cells) => print_vdev(out, name, cells, wanted),
        })
    }

    fn print_line(&self, out: &mut dyn Write, wanted: &[Wanted], cells: &[String]) -> io::Result<()> {
        let last = wanted.len().saturating_sub(1);
        for (i, (wanted, cell)) in wanted.iter().zip(cells).enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            let pad = wanted.column.width.saturating_sub(cell.len());
            match (self.lines.scripted, wanted.column.right) {
                (true, _) => write!(out, "{}{cell}", if i == 0 { "" } else { "\t" })?,
                (false, true) => write!(out, "{gap}{:pad$}{cell}", "")?,
                (false, false) if i == last => write!(out, "{gap}{cell}")?,
                (false, false) => write!(out, "{gap}{cell}{:pad$}", "")?,
            }
        }
        writeln!(out)
    }
}
