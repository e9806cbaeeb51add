//! Tables of figures: as text, as lines for scripts, and as JSON.

use std::io::{self, Write};

use clikit::output::json::JsonStyle;
use clikit::output::table::{Column, Table};
use serde_json::{Map, Value, json};
use zcommon::units::nicebytes;

use super::stats::Figure;

/// The unit of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second; shown in units of 10^6 bytes.
    Speed,
    /// Operations per second.
    Rate,
    /// Bytes.
    Bytes,
    /// A number of devices.
    Count,
    /// Logical bytes by bytes on disk.
    Ratio,
}

impl Unit {
    /// The unit of the numbers in `-H` and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Speed => "B/s",
            Self::Rate => "1/s",
            Self::Bytes => "B",
            Self::Count => "devices",
            Self::Ratio => "ratio",
        }
    }

    /// A value for readers, with its unit if the heading does not name it.
    pub fn nice(self, value: f64) -> String {
        match self {
            Self::Speed => short(value / 1e6),
            Self::Rate | Self::Count => short(value),
            Self::Bytes => nicebytes(value as u64).to_string(),
            Self::Ratio => format!("{value:.2}x"),
        }
    }

    /// A value as a number: whole, or two digits for ratios.
    pub fn exact(self, value: f64) -> String {
        if self == Self::Ratio { format!("{value:.2}") } else { format!("{value:.0}") }
    }
}

/// Three significant digits below 100, none behind the point above.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 || v == v.trunc() => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cell {
    /// A measurement.
    Measured(Figure),
    /// A property of the layout or of the written bytes.
    Known(f64),
    /// It could not be measured or is not known.
    Missing,
}

impl From<Option<Figure>> for Cell {
    fn from(figure: Option<Figure>) -> Self {
        figure.map_or(Self::Missing, Self::Measured)
    }
}

/// One table.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Its word for `--table` and JSON.
    pub name: &'static str,
    /// Its heading.
    pub title: String,
    /// The names of the columns that identify the measurement.
    pub keys: Vec<&'static str>,
    /// The names and units of the others.
    pub columns: Vec<(&'static str, Unit)>,
    /// A row: keys, then cells.
    pub rows: Vec<(Vec<String>, Vec<Cell>)>,
}

impl Results {
    /// The cells of one column, with the row's keys.
    pub fn measured(&self, column: usize) -> impl Iterator<Item = (String, &Figure)> {
        self.rows.iter().filter_map(move |(keys, cells)| match cells.get(column)? {
            Cell::Measured(figure) => Some((keys.join(" "), figure)),
            _ => None,
        })
    }

    /// Prints the table for readers: medians, half the range of the runs in percent, and limits.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn print(&self, out: &mut dyn Write, literal: bool) -> io::Result<()> {
        writeln!(out, "{}", self.title)?;
        let heading = |(name, unit): &(&'static str, Unit)| match unit {
            Unit::Speed if !literal => format!("{} MB/s", name.to_uppercase()),
            Unit::Speed => format!("{} B/s", name.to_uppercase()),
            Unit::Rate => format!("{}/s", name.to_uppercase()),
            _ => name.to_uppercase(),
        };
        let keys = self.keys.iter().map(|key| Column::new(key.to_uppercase(), false));
        let rest = self.columns.iter().map(|column| Column::new(heading(column), true));
        let mut table = Table::new(keys.chain(rest).collect());
        for (keys, cells) in &self.rows {
            let units = self.columns.iter().map(|(_, unit)| *unit);
            let cells = cells.iter().zip(units).map(|(cell, unit)| text(cell, unit, literal));
            table.push(keys.iter().cloned().chain(cells).collect());
        }
        table.print(out, false)
    }

    /// Prints one line for each cell, with tabs: table, keys (joined by commas), column, unit, median, slowest and fastest run,
    /// limit.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn print_lines(&self, out: &mut dyn Write, literal: bool) -> io::Result<()> {
        for (keys, cells) in &self.rows {
            for ((column, unit), cell) in self.columns.iter().zip(cells) {
                let shown = |value| if literal { unit.exact(value) } else { unit.nice(value) };
                let [median, min, max, limit] = match cell {
                    Cell::Measured(f) => {
                        [shown(f.median), shown(f.min), shown(f.max), f.limit.word().to_owned()]
                    }
                    Cell::Known(value) => [shown(*value), shown(*value), shown(*value), String::new()],
                    Cell::Missing => ["-", "-", "-", ""].map(str::to_owned),
                };
                let limit = if limit.is_empty() { "-".to_owned() } else { limit };
                let unit = match unit {
                    Unit::Speed if !literal => "MB/s",
                    unit => unit.word(),
                };
                let keys = keys.join(",");
                writeln!(out, "{}\t{keys}\t{column}\t{unit}\t{median}\t{min}\t{max}\t{limit}", self.name)?;
            }
        }
        Ok(())
    }

    /// The rows as JSON.
    pub fn json(&self, style: &JsonStyle) -> Value {
        let number = |unit: Unit, value: f64| style.text(&unit.exact(value));
        let cell = |unit: Unit, cell: &Cell| match cell {
            Cell::Measured(f) => json!({
                "median": number(unit, f.median), "min": number(unit, f.min), "max": number(unit, f.max),
                "runs": style.number(f.runs as u64), "unit": unit.word(), "limit": f.limit.word(),
            }),
            Cell::Known(value) => number(unit, *value),
            Cell::Missing => Value::Null,
        };
        let row = |(keys, cells): &(Vec<String>, Vec<Cell>)| {
            let mut map: Map<String, Value> =
                self.keys.iter().zip(keys).map(|(name, key)| ((*name).to_owned(), json!(key))).collect();
            let cells = self.columns.iter().zip(cells);
            map.extend(cells.map(|((name, unit), one)| ((*name).replace(' ', "_"), cell(*unit, one))));
            Value::from(map)
        };
        self.rows.iter().map(row).collect()
    }
}

fn text(cell: &Cell, unit: Unit, literal: bool) -> String {
    let shown = |value| if literal { unit.exact(value) } else { unit.nice(value) };
    match cell {
        Cell::Measured(figure) => {
            let spread = if figure.runs > 1 { format!(" +-{:.0}%", figure.spread()) } else { String::new() };
            let limit = figure.limit.word();
            let limit = if limit.is_empty() { String::new() } else { format!(" {limit}") };
            format!("{}{spread}{limit}", shown(figure.median))
        }
        Cell::Known(value) => shown(*value),
        Cell::Missing => "-".to_owned(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::stats::Limit;

    /// A table of two rows.
    pub fn example() -> Results {
        let figure =
            |median| Figure { median, min: median * 0.9, max: median * 1.1, runs: 3, limit: Limit::Cpu };
        Results {
            name: "layouts",
            title: "Layouts".to_owned(),
            keys: vec!["layout"],
            columns: vec![("write", Unit::Speed), ("cold read", Unit::Speed), ("capacity", Unit::Bytes)],
            rows: vec![
                (
                    vec!["stripe".to_owned()],
                    vec![Cell::Measured(figure(123.4e6)), Cell::Missing, Cell::Known(1073741824.0)],
                ),
                (
                    vec!["<raidz1>".to_owned()],
                    vec![Cell::Measured(figure(2.5e6)), Cell::Measured(figure(20e6)), Cell::Missing],
                ),
            ],
        }
    }

    #[test]
    fn tables_have_units_spread_and_limits() {
        let mut out = Vec::new();
        example().print(&mut out, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
        let words = |at: usize| lines[at].iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>();
        assert_eq!(words(0), ["Layouts"]);
        assert_eq!(words(1), ["LAYOUT", "WRITE MB/s", "COLD READ MB/s", "CAPACITY"]);
        assert_eq!(words(2), ["stripe", "123 +-10% cpu", "-", "1G"]);
        assert_eq!(words(3), ["<raidz1>", "2.50 +-10% cpu", "20 +-10% cpu", "-"]);
        assert!(text.lines().skip(1).all(|line| line.len() == text.lines().nth(1).unwrap().len()), "{text}");
        let mut out = Vec::new();
        example().print_lines(&mut out, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("layouts\tstripe\twrite\tB/s\t123400000\t111060000\t135740000\tcpu\n"),
            "{text}"
        );
        assert!(text.contains("layouts\tstripe\tcold read\tB/s\t-\t-\t-\t-\n"), "{text}");
    }

    #[test]
    fn json_has_numbers_as_asked() {
        let of = |int| example().json(&JsonStyle { int, ..JsonStyle::default() });
        let plain = of(false);
        assert_eq!(plain[0]["write"]["median"], json!("123400000"));
        assert_eq!(plain[0]["write"]["limit"], json!("cpu"));
        assert_eq!((&plain[0]["cold_read"], &plain[0]["capacity"]), (&Value::Null, &json!("1073741824")));
        assert_eq!(of(true)[1]["write"]["median"], json!(2_500_000));
    }
}
