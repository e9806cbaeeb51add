//! The tables of `zfs list` and `zpool list`.
//!
//! Two spaces separate columns; a column is as wide as its header, or as the widest value it may ever hold (numbers
//! of five characters, the longest word of an enumeration), or else as its widest value. Numbers are right-aligned.
//! A left-aligned last column is not padded. Widths count bytes, as printf does.

use std::io::{self, Write};

/// A column before its rows are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The heading, in capitals.
    pub header: String,
    /// Right-aligned.
    pub right: bool,
    /// The minimum width of the column.
    pub width: usize,
    /// The width stays fixed even if a value is longer, as in OpenZFS for properties of bounded width.
    pub fixed: bool,
}

impl Column {
    /// A column as wide as its widest value.
    pub fn new(header: impl Into<String>, right: bool) -> Self {
        let header = header.into();
        Self { width: header.len(), header, right, fixed: false }
    }

    /// Widens the column for a value.
    pub fn fit(&mut self, value: &str) {
        if !self.fixed {
            self.width = self.width.max(value.len());
        }
    }
}

/// Columns and rows, printed at the end, when widths are known.
#[derive(Debug, Clone, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row, one cell for each column.
    pub fn push(&mut self, row: Vec<String>) {
        self.fit(&row);
        self.rows.push(row);
    }

    /// Widens the columns for a row that is printed later by [`Table::print_row`] and not kept.
    pub fn fit(&mut self, row: &[String]) {
        self.columns.iter_mut().zip(row).for_each(|(column, cell)| column.fit(cell));
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints header and rows; `scripted` (`-H`) omits the header and separates cells by tabs.
    pub fn print(&self, out: &mut dyn Write, scripted: bool) -> io::Result<()> {
        self.print_header(out, scripted)?;
        self.rows.iter().try_for_each(|row| self.print_row(out, scripted, row))
    }

    /// Prints the header, unless `scripted`.
    pub fn print_header(&self, out: &mut dyn Write, scripted: bool) -> io::Result<()> {
        if scripted {
            return Ok(());
        }
        self.print_line(out, self.columns.iter().map(|c| c.header.as_str()))
    }

    /// Prints one row.
    pub fn print_row(&self, out: &mut dyn Write, scripted: bool, row: &[String]) -> io::Result<()> {
        if scripted {
            return writeln!(out, "{}", row.join("\t"));
        }
        self.print_line(out, row.iter().map(String::as_str))
    }

    fn print_line<'a>(&self, out: &mut dyn Write, cells: impl Iterator<Item = &'a str>) -> io::Result<()> {
        let last = self.columns.len().saturating_sub(1);
        for (i, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let gap = if i == 0 { "" } else { "  " };
            let pad = column.width.saturating_sub(cell.len());
            match column.right {
                true => write!(out, "{gap}{:pad$}{cell}", "")?,
                false if i == last => write!(out, "{gap}{cell}")?,
                false => write!(out, "{gap}{cell}{:pad$}", "")?,
            }
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &Table, scripted: bool) -> String {
        let mut out = Vec::new();
        table.print(&mut out, scripted).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_stand_right_and_the_last_text_is_not_padded() {
        let used = Column { width: 5, fixed: true, ..Column::new("USED", true) };
        let mut t = Table::new(vec![Column::new("NAME", false), used, Column::new("MOUNTPOINT", false)]);
        t.push(vec!["tank".into(), "10.2M".into(), "/tank".into()]);
        t.push(vec!["tank/longer".into(), "96K".into(), "-".into()]);
        assert_eq!(
            text(&t, false),
            "NAME          USED  MOUNTPOINT\ntank         10.2M  /tank\ntank/longer    96K  -\n"
        );
        assert_eq!(text(&t, true), "tank\t10.2M\t/tank\ntank/longer\t96K\t-\n");
    }

    #[test]
    fn a_last_column_of_numbers_is_padded() {
        let mut t = Table::new(vec![Column::new("NAME", false), Column::new("USED", true)]);
        t.push(vec!["a".into(), "1K".into()]);
        assert_eq!(text(&t, false), "NAME  USED\na       1K\n");
    }
}
