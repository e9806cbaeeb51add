//! The tables of `zfs get` and `zpool get`: a line for each property of each dataset.

use std::borrow::Borrow;
use std::io::{self, Write};

use super::row::{Source, source_word};

/// A column of `get`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetColumn {
    /// Dataset or pool.
    Name,
    /// Property name.
    Property,
    /// Effective value.
    Value,
    /// Received value.
    Received,
    /// Source of the value.
    Source,
}

impl GetColumn {
    /// The columns printed without `-o`.
    pub const DEFAULT: [GetColumn; 4] =
        [GetColumn::Name, GetColumn::Property, GetColumn::Value, GetColumn::Source];

    /// The columns of `-o all`.
    pub const ALL: [GetColumn; 5] =
        [GetColumn::Name, GetColumn::Property, GetColumn::Value, GetColumn::Received, GetColumn::Source];

    /// Parses a word of `-o`.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.header().eq_ignore_ascii_case(word))
    }

    fn header(self) -> &'static str {
        match self {
            GetColumn::Name => "NAME",
            GetColumn::Property => "PROPERTY",
            GetColumn::Value => "VALUE",
            GetColumn::Received => "RECEIVED",
            GetColumn::Source => "SOURCE",
        }
    }
}

/// A property of one dataset or pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetRow {
    /// Dataset or pool.
    pub name: String,
    /// Property name.
    pub property: String,
    /// Effective value.
    pub value: String,
    /// Received value.
    pub received: Option<String>,
    /// Source of the value.
    pub source: Source,
}

/// The columns and sources to print, and their format.
#[derive(Debug, Clone)]
pub struct GetFormat {
    /// The columns, in order.
    pub columns: Vec<GetColumn>,
    /// The words of `-s`; empty prints every source.
    pub sources: Vec<String>,
    /// `-H`: no header, tabs.
    pub scripted: bool,
}

impl Default for GetFormat {
    fn default() -> Self {
        Self { columns: GetColumn::DEFAULT.to_vec(), sources: Vec::new(), scripted: false }
    }
}

/// Widths of the columns; call [`GetWidths::fit`] with every row (also those that `-s` hides, as OpenZFS does).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetWidths {
    /// The longest dataset name.
    pub name: usize,
    /// The longest property name.
    pub property: usize,
    /// The longest value, or the longest that a property may ever have.
    pub value: usize,
    /// The longest received value.
    pub received: usize,
}

impl Default for GetWidths {
    fn default() -> Self {
        let width = |c: GetColumn| c.header().len();
        Self {
            name: width(GetColumn::Name),
            property: width(GetColumn::Property),
            value: width(GetColumn::Value),
            received: width(GetColumn::Received),
        }
    }
}

impl GetWidths {
    /// Widens the columns for a row.
    pub fn fit(&mut self, row: &GetRow) {
        self.name = self.name.max(row.name.len());
        self.property = self.property.max(row.property.len());
        self.value = self.value.max(row.value.len());
        self.received = self.received.max(row.received.as_ref().map_or(0, String::len));
    }

    fn of(&self, column: GetColumn) -> usize {
        match column {
            GetColumn::Name => self.name,
            GetColumn::Property => self.property,
            GetColumn::Value => self.value,
            GetColumn::Received => self.received,
            // A source may contain a dataset name, so the column grows with the names.
            GetColumn::Source if self.name > GetColumn::Name.header().len() => {
                self.name + "inherited from".len()
            }
            GetColumn::Source => GetColumn::Source.header().len(),
        }
    }
}

impl GetFormat {
    /// Whether a column is printed.
    pub fn has(&self, column: GetColumn) -> bool {
        self.columns.contains(&column)
    }

    /// Prints the rows with the requested sources. Without rows there is no header.
    pub fn print(
        &self,
        out: &mut dyn Write,
        widths: &GetWidths,
        rows: impl IntoIterator<Item = impl Borrow<GetRow>>,
    ) -> io::Result<()> {
        self.print_some(out, widths, &mut false, rows)
    }

    /// The same in several parts: `begun` is set once the header is printed.
    pub fn print_some(
        &self,
        out: &mut dyn Write,
        widths: &GetWidths,
        begun: &mut bool,
        rows: impl IntoIterator<Item = impl Borrow<GetRow>>,
    ) -> io::Result<()> {
        for row in rows {
            let row = row.borrow();
            if !self.wants(&row.source) {
                continue;
            }
            if !std::mem::replace(begun, true) && !self.scripted {
                self.print_line(out, widths, |c| c.header().to_owned())?;
            }
            self.print_line(out, widths, |c| cell(row, c))?;
        }
        Ok(())
    }

    /// Whether `-s` includes this source.
    pub fn wants(&self, source: &Source) -> bool {
        self.sources.is_empty() || self.sources.iter().any(|s| s == source_word(source))
    }

    fn print_line(
        &self,
        out: &mut dyn Write,
        widths: &GetWidths,
        cell: impl Fn(GetColumn) -> String,
    ) -> io::Result<()> {
        let last = self.columns.len().saturating_sub(1);
        for (i, &column) in self.columns.iter().enumerate() {
            let text = cell(column);
            match (i == last, self.scripted) {
                (true, _) => write!(out, "{text}")?,
                (false, true) => write!(out, "{text}\t")?,
                (false, false) => {
                    let pad = widths.of(column).saturating_sub(text.len());
                    write!(out, "{text}{:pad$}  ", "")?;
                }
            }
        }
        writeln!(out)
    }
}

fn cell(row: &GetRow, column: GetColumn) -> String {
    match column {
        GetColumn::Name => row.name.clone(),
        GetColumn::Property => row.property.clone(),
        GetColumn::Value => row.value.clone(),
        GetColumn::Received => row.received.clone().unwrap_or_else(|| "-".to_owned()),
        GetColumn::Source => row.source.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, property: &str, value: &str, source: Source) -> GetRow {
        GetRow { name: name.into(), property: property.into(), value: value.into(), received: None, source }
    }

    fn print(format: &GetFormat, rows: &[GetRow]) -> String {
        let mut widths = GetWidths::default();
        rows.iter().for_each(|r| widths.fit(r));
        let mut out = Vec::new();
        format.print(&mut out, &widths, rows).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_as_wide_as_names_and_values() {
        let rows = [
            row("tank/home", "compression", "lz4", Source::Inherited("tank".into())),
            row("tank", "used", "10.2M", Source::None),
        ];
        assert_eq!(
            print(&GetFormat::default(), &rows),
            "NAME       PROPERTY     VALUE  SOURCE\n\
             tank/home  compression  lz4    inherited from tank\n\
             tank       used         10.2M  -\n"
        );
        let scripted = GetFormat { scripted: true, ..GetFormat::default() };
        assert_eq!(
            print(&scripted, &rows),
            "tank/home\tcompression\tlz4\tinherited from tank\ntank\tused\t10.2M\t-\n"
        );
    }

    #[test]
    fn sources_filter_rows_and_an_empty_table_has_no_header() {
        let rows = [row("t", "a", "1", Source::Local), row("t", "b", "2", Source::Default)];
        let local = GetFormat {
            sources: vec!["local".into()],
            columns: vec![GetColumn::Value, GetColumn::Source, GetColumn::Received],
            ..GetFormat::default()
        };
        assert_eq!(print(&local, &rows), "VALUE  SOURCE  RECEIVED\n1      local   -\n");
        let none = GetFormat { sources: vec!["received".into()], ..GetFormat::default() };
        assert_eq!(print(&none, &rows), "");
    }

    #[test]
    fn words_name_columns() {
        assert_eq!(GetColumn::parse("received"), Some(GetColumn::Received));
        assert_eq!(GetColumn::parse("all"), None);
    }
}
