//! `zfs get`: properties, one a line.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::{Json, Lines};
use clikit::output::get::{GetColumn, GetFormat, GetRow, GetWidths};
use clikit::output::json::{JsonStyle, Members, document};
use clikit::output::row::{DatasetKind, DatasetRow, Prop, Source};
use clikit::output::value::width;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use serde_json::Map;
use zcommon::props::PropName;

use super::listing::Listing;
use super::rows::{Users, all_native, parse, word};
use super::select::{Selection, Types, walk};

/// Print properties of datasets.
///
/// `-d` limits the depth of recursion, as in OpenZFS, if its value is a number; otherwise it is a directory or device in
/// which to find the pool.
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    #[command(flatten)]
    pub(crate) lines: Lines,
    /// Include all descendants of the named datasets.
    #[arg(short = 'r')]
    pub recurse: bool,
    #[command(flatten)]
    pub(crate) json: Json,
    /// Columns to print, comma separated: name, property, value, received, source, all.
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Sources to print, comma separated: local, default, inherited, received, temporary, none.
    #[arg(short = 's', value_name = "SOURCE,…", value_delimiter = ',')]
    pub sources: Vec<String>,
    /// Types to print, comma separated: filesystem, volume, snapshot, bookmark, all.
    #[arg(short = 't', value_name = "TYPE,…")]
    pub types: Vec<String>,
    /// Properties, comma separated, or `all`.
    #[arg(value_name = "PROPERTY,…")]
    pub properties: String,
    /// Datasets (default: all).
    #[arg(value_name = "DATASET")]
    pub names: Vec<String>,
}

/// The sources that `-s` knows.
const SOURCES: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];

impl Verb for Get {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        let depth = self.source.take_depth()?;
        let format = self.format()?;
        let wanted = self.wanted()?;
        let selection = self.selection(depth)?;
        let found = walk(&self.source, &self.names, &selection, ctx)?;
        let users = if self.properties == "all" { Users::All } else { Users::Named };
        let mut listing = Listing::new(found, &wanted, users, &[], ctx)?;
        let words: Vec<String> = wanted.iter().map(word).collect();
        if self.json.json && listing.failed() {
            // Part of a document would pass for the whole.
        } else if self.json.json {
            self.print_json(ctx, &mut listing, &words, &format)?;
        } else {
            self.print_lines(ctx, &mut listing, &wanted, &words, &format)?;
        }
        Ok(if listing.failed() { Exit::FAILED } else { Exit::OK })
    }
}

impl Get {
    fn format(&self) -> Result<GetFormat, Failure> {
        let mut format = GetFormat { scripted: self.lines.scripted, ..GetFormat::default() };
        if let Some(bad) = self.sources.iter().find(|s| !SOURCES.contains(&s.as_str())) {
            return Err(Failure::usage(format!("invalid source '{bad}'")));
        }
        format.sources.clone_from(&self.sources);
        if self.fields.iter().any(|f| f == "all") {
            if self.fields.len() > 1 {
                return Err(Failure::usage("\"all\" conflicts with specific fields given to -o option"));
            }
            format.columns = GetColumn::ALL.to_vec();
        } else if !self.fields.is_empty() {
            let bad = |f: &String| Failure::usage(format!("invalid column name '{f}'"));
            let parse = |f: &String| GetColumn::parse(f).ok_or_else(|| bad(f));
            format.columns = self.fields.iter().map(parse).collect::<Result<_, _>>()?;
        }
        Ok(format)
    }

    fn wanted(&self) -> Result<Vec<PropName>, Failure> {
        let mut wanted = Vec::new();
        for word in self.properties.split(',') {
            match word {
                // Beside others it is no property.
                "all" if self.properties == "all" => wanted.extend(all_native().map(PropName::Native)),
                word => wanted.push(parse(word)?),
            }
        }
        Ok(wanted)
    }

    fn selection(&self, depth: Option<u32>) -> Result<Selection, Failure> {
        let types = if self.types.is_empty() { Types::ALL } else { Types::parse(&self.types)? };
        let recurse = self.recurse || depth.is_some();
        let mut selection = Selection { types, recurse, depth, snapshots_by_pool: false };
        if types.is_leaves_only() && !self.names.is_empty() && !recurse {
            selection.recurse = true;
            selection.depth = Some(1);
        }
        Ok(selection)
    }

    /// One line a property; with `all`, only those that the dataset has. `users`: of user properties that were not named.
    fn lines(&self, row: &DatasetRow, words: &[String], users: &[String]) -> Vec<GetRow> {
        let all = self.properties == "all";
        let shown = |name: &str, prop: Option<&Prop>| prop.is_some_and(|prop| !is_news(row, name, prop));
        let names = words.iter().chain(users);
        let present =
            names.map(|name| (row.props.get(name), name)).filter(|(prop, name)| !all || shown(name, *prop));
        present.map(|(prop, name)| self.line(row, name.clone(), prop)).collect()
    }

    fn print_lines(
        &self,
        ctx: &mut Ctx,
        listing: &mut Listing,
        wanted: &[PropName],
        words: &[String],
        format: &GetFormat,
    ) -> Result<(), Failure> {
        let mut widths = widths(wanted, words);
        // All user properties must be known before the first row, in the order in which they are found.
        if !format.scripted || self.properties == "all" {
            listing.each(ctx, |_, row, users| {
                self.lines(row, words, users).iter().for_each(|line| widths.fit(line));
                Ok(())
            })?;
        }
        let mut begun = false;
        listing.each(ctx, |ctx, row, users| {
            Ok(format.print_some(&mut *ctx.out, &widths, &mut begun, self.lines(row, words, users))?)
        })
    }

    fn line(&self, row: &DatasetRow, property: String, prop: Option<&Prop>) -> GetRow {
        // A request for numbers means exact ones.
        let literal = self.lines.literal || self.json.json_int;
        GetRow {
            name: row.name.clone(),
            property,
            value: prop.map_or("-", |p| p.value(literal)).to_owned(),
            received: prop.and_then(|p| p.received(literal)).map(str::to_owned),
            source: prop.map_or(Source::None, |p| p.source.clone()),
        }
    }

    fn print_json(
        &self,
        ctx: &mut Ctx,
        listing: &mut Listing,
        words: &[String],
        format: &GetFormat,
    ) -> Result<(), Failure> {
        let style = JsonStyle { int: self.json.json_int, ..JsonStyle::default() };
        if self.properties == "all" {
            listing.each(ctx, |_, _, _| Ok(()))?;
        }
        let mut datasets = Members::begin(&mut *ctx.out, &document(&ctx.command), "datasets")?;
        listing.each(ctx, |ctx, row, users| {
            let mut props = Map::new();
            for line in self.lines(row, words, users).iter().filter(|l| format.wants(&l.source)) {
                let received = line.received.as_deref().filter(|_| format.has(GetColumn::Received));
                let value = style.valued(&line.value, &line.source, received);
                props.insert(line.property.clone(), value);
            }
            if props.is_empty() {
                return Ok(());
            }
            let mut item = style.dataset(row);
            item.insert("properties".into(), props.into());
            Ok(datasets.print(&mut *ctx.out, &row.name, &item.into())?)
        })?;
        Ok(datasets.end(&mut *ctx.out)?)
    }
}

/// Volumes have `special_small_blocks` since OpenZFS 2.4. `all` lists it only once it is set: the listing of a pool of an
/// older release stays the same.
fn is_news(row: &DatasetRow, name: &str, prop: &Prop) -> bool {
    row.kind == DatasetKind::Volume && name == "special_small_blocks" && prop.source == Source::Default
}

/// Columns are as wide as the widest value that a property of bounded width may have, used or not.
fn widths(wanted: &[PropName], words: &[String]) -> GetWidths {
    let mut widths = GetWidths::default();
    for (prop, word) in wanted.iter().zip(words) {
        widths.property = widths.property.max(word.len());
        if let PropName::Native(p) = prop {
            widths.value = widths.value.max(width(p.info()).0);
        }
    }
    widths
}
