//! `zfs list`: datasets, one a line.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::listing::SortKeys;
use clikit::listing::{Json, Lines};
use clikit::output::json::{JsonStyle, Members, document};
use clikit::output::row::DatasetRow;
use clikit::output::sort::SortColumn;
use clikit::output::table::{Column, Table};
use clikit::output::value::width;
use clikit::source::PoolSource;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use serde_json::Map;
use zcommon::props::{PropName, ZfsProp};

use super::listing::Listing;
use super::rows::{Users, list_columns, sort_column, word};
use super::select::{Selection, Types, walk};

const DEFAULT_COLUMNS: &str = "name,used,available,referenced,mountpoint";

/// List datasets with their properties.
///
/// `-d` limits the depth of recursion, as in OpenZFS, if its value is a number; otherwise it is a directory or device in
/// which to find the pool.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    pub(crate) source: PoolSource,
    #[command(flatten)]
    pub(crate) lines: Lines,
    /// Include all descendants of the named datasets.
    #[arg(short = 'r')]
    pub recurse: bool,
    #[command(flatten)]
    pub(crate) json: Json,
    /// Properties to print, comma separated, or `all`, `space`.
    #[arg(short = 'o', value_name = "PROPERTY,…")]
    pub columns: Vec<String>,
    #[command(flatten)]
    pub(crate) sort: SortKeys,
    /// Types to print, comma separated: filesystem, volume, snapshot, bookmark, all.
    #[arg(short = 't', value_name = "TYPE,…")]
    pub types: Vec<String>,
    /// Datasets (default: all).
    #[arg(value_name = "DATASET")]
    pub names: Vec<String>,
}

impl Verb for List {
    fn run(mut self, ctx: &mut Ctx) -> Outcome {
        let depth = self.source.take_depth()?;
        let sort_by = self.sort.keys.iter().map(|(property, reverse)| sort_column(property, *reverse));
        let sort_by: Vec<SortColumn> = sort_by.collect::<Result<_, _>>()?;
        let columns = self.columns()?;
        let selection = self.selection(depth)?;
        let mut found = walk(&self.source, &self.names, &selection, ctx)?;
        let mut columns = columns;
        if self.columns.iter().any(|c| c == "all") {
            // User properties come behind the native ones.
            let listing = Listing::new(found, &[], Users::All, &[], ctx)?;
            let (names, again) = listing.into_user_names(ctx)?;
            found = again;
            columns.extend(names.into_iter().map(PropName::User));
        }
        let mut listing = Listing::new(found, &columns, Users::Named, &sort_by, ctx)?;
        if self.json.json && listing.failed() {
            // Part of a document would pass for the whole.
        } else if self.json.json {
            self.print_json(ctx, &mut listing, &columns)?;
        } else if listing.is_empty() {
            if !listing.failed() && !self.lines.scripted {
                ctx.warn("no datasets available");
            }
        } else {
            self.print_table(ctx, &mut listing, &columns)?;
        }
        Ok(if listing.failed() { Exit::FAILED } else { Exit::OK })
    }
}

impl List {
    fn columns(&self) -> Result<Vec<PropName>, Failure> {
        let default = [DEFAULT_COLUMNS.to_owned()];
        list_columns(if self.columns.is_empty() { &default } else { &self.columns })
    }

    fn selection(&self, depth: Option<u32>) -> Result<Selection, Failure> {
        let mut types = if self.types.is_empty() { Types::DATASETS } else { Types::parse(&self.types)? };
        if self.types.is_empty() && self.columns.iter().any(|c| c == "space") {
            types.snapshot = false;
        }
        let mut selection = Selection {
            types,
            recurse: self.recurse || depth.is_some(),
            depth,
            snapshots_by_pool: self.types.is_empty(),
        };
        if types.is_leaves_only() && !self.names.is_empty() && !selection.recurse {
            selection.recurse = true;
            selection.depth = Some(1);
        }
        Ok(selection)
    }

    fn print_table(&self, ctx: &mut Ctx, listing: &mut Listing, columns: &[PropName]) -> Result<(), Failure> {
        let mut table = Table::new(columns.iter().map(|c| column(c, self.lines.literal)).collect());
        let words: Vec<String> = columns.iter().map(word).collect();
        let cell = |row: &DatasetRow, word: &String| {
            row.props.get(word).map_or("-", |p| p.value(self.lines.literal)).to_owned()
        };
        let cells = |row: &DatasetRow| words.iter().map(|word| cell(row, word)).collect::<Vec<_>>();
        let scripted = self.lines.scripted;
        if !scripted {
            listing.each(ctx, |_, row, _| {
                table.fit(&cells(row));
                Ok(())
            })?;
        }
        table.print_header(&mut *ctx.out, scripted)?;
        listing.each(ctx, |ctx, row, _| Ok(table.print_row(&mut *ctx.out, scripted, &cells(row))?))
    }

    fn print_json(&self, ctx: &mut Ctx, listing: &mut Listing, columns: &[PropName]) -> Result<(), Failure> {
        let style = JsonStyle { int: self.json.json_int, ..JsonStyle::default() };
        // A request for numbers means exact ones.
        let literal = self.lines.literal || self.json.json_int;
        let words: Vec<String> = columns.iter().map(word).filter(|name| name != "name").collect();
        let mut datasets = Members::begin(&mut *ctx.out, &document(&ctx.command), "datasets")?;
        listing.each(ctx, |ctx, row, _| {
            let mut props = Map::new();
            for name in &words {
                let dash = clikit::output::row::Source::None;
                let value = row.props.get(name);
                let value = value.map_or_else(
                    || style.valued("-", &dash, None),
                    |p| style.valued(p.value(literal), &p.source, None),
                );
                props.insert(name.clone(), value);
            }
            let mut item = style.dataset(row);
            item.insert("properties".into(), props.into());
            Ok(datasets.print(&mut *ctx.out, &row.name, &item.into())?)
        })?;
        Ok(datasets.end(&mut *ctx.out)?)
    }
}

/// The column of a property before its values are known.
fn column(prop: &PropName, literal: bool) -> Column {
    match prop {
        PropName::Native(p) => {
            let info = p.info();
            let (width, fixed) = width(info);
            let right = info.right_aligned && *p != ZfsProp::Name;
            Column { header: info.column.to_owned(), right, width, fixed: fixed && !literal }
        }
        PropName::User(name) => Column::new(name.to_uppercase(), false),
        quota => Column::new(word(quota).to_uppercase(), true),
    }
}
