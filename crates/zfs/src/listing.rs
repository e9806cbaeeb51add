//! The rows of a listing in order, made a piece at a time.
//!
//! A listing of all properties of a hundred thousand snapshots is some gigabytes long, and its columns are as wide as its
//! widest value. So a listing is made twice, first to measure and then to print, and only the rows that fit into [`KEPT`]
//! are not made again. Between two pieces changes may reach the disk, see [`Ctx::breathe`]: a value may then be wider than
//! its column.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::output::row::DatasetRow;
use clikit::output::sort::{SortColumn, by_name, sort};
use clikit::parallel;
use clikit::verb::Failure;
use daemon::access::DelegatedUser;
use daemon::mounts::Hidden;
use zcommon::props::PropName;

use super::entry::Entry;
use super::prop::Props;
use super::rows::{Eyes, Users, row, word};
use super::select::Found;

/// Datasets for which changes wait together, at most and in the first piece.
const PIECE: usize = 256;
const FIRST_PIECE: usize = 16;
/// Bytes of the rows of a piece, as far as the piece before it tells: each dataset inherits user properties of up to 8 KiB.
const PIECE_BYTES: usize = 4 << 20;
/// Bytes of a value by which rows are sorted: as many as a name has at most. Rows whose values differ later only are sorted by name.
const KEY: usize = 256;
/// Bytes of the rows that are kept.
const KEPT: usize = 8 << 20;

/// Everything found, and the properties wanted of it.
#[derive(Debug)]
pub struct Listing {
    found: Found,
    wanted: Vec<(PropName, Arc<str>)>,
    users: Users,
    standing: BTreeMap<String, Hidden>,
    delegated: Option<DelegatedUser>,
    /// The first rows, their bytes, and the number of entries that they stand for.
    kept: (Vec<DatasetRow>, usize, usize),
    /// The names of the user properties of the rows made so far that were not named, in the order in which they are found.
    names: Vec<String>,
    /// Whether no row was made yet: the first time errors are reported.
    first: bool,
}

/// Of one entry: the row unless it is gone, names of user properties, and read errors.
struct Made {
    row: Option<DatasetRow>,
    names: Vec<String>,
    notes: Vec<String>,
}

impl Listing {
    /// Sorts what was found by these properties, and then by name.
    pub fn new(
        mut found: Found,
        wanted: &[PropName],
        users: Users,
        sort_by: &[SortColumn],
        ctx: &mut Ctx,
    ) -> Result<Self, Failure> {
        found.entries.sort_by(|a, b| by_name((&a.name, a.createtxg), (&b.name, b.createtxg)));
        let worded = |prop: &PropName| (prop.clone(), word(prop).into());
        let keys = sort_by.iter().filter_map(|by| PropName::parse(&by.property));
        let mut listing = Self {
            found,
            wanted: keys.map(|prop| worded(&prop)).collect(),
            users: Users::Named,
            standing: ctx.pools().iter().flat_map(|pool| pool.mounts.hidden()).collect(),
            delegated: ctx.session().ok().and_then(|session| session.delegated.clone()),
            kept: Default::default(),
            names: Vec::new(),
            first: true,
        };
        if !sort_by.is_empty() {
            listing.sort(sort_by, ctx)?;
        }
        listing.wanted = wanted.iter().map(worded).collect();
        listing.users = users;
        Ok(listing)
    }

    /// Whether something could not be opened.
    pub fn failed(&self) -> bool {
        self.found.failed
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.found.entries.is_empty()
    }

    /// The names of all user properties that were not named, in the order in which they are found, and what was found.
    pub fn into_user_names(mut self, ctx: &mut Ctx) -> Result<(Vec<String>, Found), Failure> {
        // The listing that follows reports the errors.
        self.first = false;
        self.each(ctx, |_, _, _| Ok(()))?;
        Ok((self.names, self.found))
    }

    fn sort(&mut self, sort_by: &[SortColumn], ctx: &mut Ctx) -> Result<(), Failure> {
        let mut rows = Vec::with_capacity(self.found.entries.len());
        let (mut start, mut len) = (0, FIRST_PIECE);
        while start < self.found.entries.len() {
            let made = self.piece(start..start + len, ctx)?;
            let bytes = made.iter().filter_map(|made| made.row.as_ref()).map(bytes_of).sum();
            (start, len) = (start + made.len(), next_piece(made.len(), bytes));
            rows.extend(made.into_iter().filter_map(|made| made.row).map(only_keys));
        }
        sort(&mut rows, sort_by);
        let places: Vec<(String, usize)> = rows.into_iter().map(|row| row.name).zip(0..).collect();
        let places: BTreeMap<String, usize> = places.into_iter().collect();
        self.found.entries.retain(|entry| places.contains_key(&*entry.name));
        self.found.entries.sort_by_key(|entry| places.get(&*entry.name).copied());
        Ok(())
    }

    /// Calls `use_row` for each row in order, with the names of the user properties met so far that were not named.
    pub fn each(
        &mut self,
        ctx: &mut Ctx,
        mut use_row: impl FnMut(&mut Ctx, &DatasetRow, &[String]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut start, mut len) = (self.kept.2, FIRST_PIECE);
        for row in &self.kept.0 {
            use_row(ctx, row, &self.names)?;
        }
        while start < self.found.entries.len() {
            let made = self.piece(start..start + len, ctx)?;
            let (done, end) = (made.len(), start + made.len());
            let mut rows = Vec::with_capacity(done);
            for Made { row, names, notes } in made {
                if self.first {
                    self.report(ctx, row.as_ref(), &notes);
                }
                let new = |name: &String| !self.names.contains(name);
                let mut seen = HashSet::new();
                let new: Vec<_> = names.into_iter().filter(|n| seen.insert(n.clone())).filter(new).collect();
                self.names.extend(new);
                rows.extend(row);
            }
            for row in &rows {
                use_row(ctx, row, &self.names)?;
            }
            let bytes = rows.iter().map(bytes_of).sum();
            self.keep(start..end, bytes, rows);
            (start, len) = (end, next_piece(done, bytes));
        }
        self.first = false;
        Ok(())
    }

    fn report(&mut self, ctx: &mut Ctx, row: Option<&DatasetRow>, notes: &[String]) {
        match row {
            Some(row) => notes.iter().for_each(|note| ctx.warn(format!("{}: {note}", row.name))),
            None => {
                self.found.failed |= !notes.is_empty();
                notes.iter().for_each(|note| ctx.warn(note.clone()));
            }
        }
    }

    /// Keeps the rows of these entries, if those before are kept and there is space.
    fn keep(&mut self, range: Range<usize>, more: usize, rows: Vec<DatasetRow>) {
        let (kept, bytes, entries) = &mut self.kept;
        if *entries == range.start && *bytes + more <= KEPT {
            *bytes += more;
            *entries = range.end;
            kept.extend(rows);
        }
    }

    fn piece(&self, range: Range<usize>, ctx: &mut Ctx) -> Result<Vec<Made>, Failure> {
        if range.start > 0 {
            ctx.breathe();
        }
        let end = range.end.min(self.found.entries.len());
        let entries = self.found.entries.get(range.start..end).unwrap_or_default();
        parallel::map(entries, &ctx.interrupt, |entry| self.make(entry)).ok_or(Failure::Interrupted)
    }

    fn make(&self, entry: &Entry) -> Made {
        let none = |notes| Made { row: None, names: Vec::new(), notes };
        let Some(pool) = self.found.pools.get(entry.pool) else { return none(Vec::new()) };
        let node = match entry.open(&pool.pool) {
            Ok(Some(node)) => node,
            Ok(None) => return none(Vec::new()),
            Err(e) => return none(vec![format!("cannot open '{}': {e}", entry.name)]),
        };
        let props = Props::new(&node, pool.usable).mounted(self.standing.get(&*entry.name).cloned());
        let eyes = self.delegated.as_ref().map(|delegated| Eyes { delegated, pool: &pool.pool });
        let (row, names) = row(&props, &node, &self.wanted, self.users, eyes);
        Made { row: Some(row), names, notes: props.take_notes() }
    }
}

/// A row as far as its order depends on it.
fn only_keys(mut row: DatasetRow) -> DatasetRow {
    row.props.shorten(KEY);
    row
}

fn bytes_of(row: &DatasetRow) -> usize {
    size_of::<DatasetRow>() + row.name.len() + row.props.bytes()
}

/// Datasets of the next piece, after one of `done` datasets whose rows took `bytes`.
fn next_piece(done: usize, bytes: usize) -> usize {
    let fitting = PIECE_BYTES / (bytes / done.max(1)).max(1);
    fitting.clamp(1, PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_short_where_rows_are_long() {
        assert_eq!(next_piece(16, 16 * 4000), PIECE);
        assert_eq!(next_piece(16, 16 * (1 << 20)), 4);
        assert_eq!(next_piece(4, 4 * (64 << 20)), 1);
        assert_eq!(next_piece(0, 0), PIECE, "no row, as all are gone");
    }
}
