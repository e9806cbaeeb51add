//! The columns of `zpool iostat`: their headings, widths and rules.
//!
//! Source: zpool_main.c, OpenZFS 2.3 (`iostat_top_labels`, `print_iostat_labels`).

use std::io::{self, Write};

use zcommon::units::{nicenum, nicetime};

use super::scripts::mark::Mark;

/// A group of columns that one option shows.
#[derive(Debug)]
pub struct ColumnGroup {
    /// Headings, each with the number of columns that it is over.
    top: &'static [(&'static str, usize)],
    /// The columns.
    bottom: &'static [&'static str],
    /// Width of a column with exact numbers.
    exact: usize,
}

/// Width of a column with numbers for people.
const WIDTH: usize = 5;

/// The columns that are always shown.
pub const DEFAULT: ColumnGroup = ColumnGroup {
    top: &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
    bottom: &["alloc", "free", "read", "write", "read", "write"],
    exact: 15,
};

/// `-l`.
pub const LATENCY: ColumnGroup = ColumnGroup {
    top: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
        ("scrub", 1),
        ("trim", 1),
        ("rebuild", 1),
    ],
    bottom: &["read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait"],
    exact: 10,
};

/// `-q`.
pub const QUEUES: ColumnGroup = ColumnGroup {
    top: &[
        ("syncq_read", 2),
        ("syncq_write", 2),
        ("asyncq_read", 2),
        ("asyncq_write", 2),
        ("scrubq_read", 2),
        ("trimq_write", 2),
        ("rebuildq_write", 2),
    ],
    bottom: &[
        "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ",
        "pend", "activ",
    ],
    exact: 6,
};

/// `-w`.
pub const LATENCIES: ColumnGroup = ColumnGroup {
    top: &[("total_wait", 2), ("disk_wait", 2), ("syncq_wait", 2), ("asyncq_wait", 2)],
    bottom: &["read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim", "rebuild"],
    exact: 10,
};

/// `-r`.
pub const SIZES: ColumnGroup = ColumnGroup {
    top: &[
        ("sync_read", 2),
        ("sync_write", 2),
        ("async_read", 2),
        ("async_write", 2),
        ("scrub", 2),
        ("trim", 2),
        ("rebuild", 2),
    ],
    bottom: &[
        "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg",
    ],
    exact: 6,
};

impl ColumnGroup {
    /// Width of its columns.
    #[doc(alias = "default_column_width")]
    pub fn width(&self, literal: bool) -> usize {
        if literal { self.exact } else { WIDTH }
    }

    /// Number of its columns.
    pub fn columns(&self) -> usize {
        self.bottom.len()
    }
}

/// Groups side by side, each with the width of its columns.
pub type Layout<'a> = &'a [(&'a ColumnGroup, usize)];

fn heading(out: &mut dyn Write, word: &str, (columns, width): (usize, usize)) -> io::Result<()> {
    let room = width * columns + 2 * (columns - 1);
    let left = (room / columns).saturating_sub(word.len() / columns);
    let right = room.saturating_sub(left + word.len());
    write!(out, "  {:left$}{word}{:right$}", "", "")
}

/// The three lines above the first: `title` stands over the names, which take `width`; `corner` above it. `scripts` add
/// columns.
#[doc(alias = "print_iostat_header_impl")]
pub fn print_header(
    out: &mut dyn Write,
    layout: Layout<'_>,
    (corner, title): (&str, &str),
    (width, scripts): (usize, bool),
) -> io::Result<()> {
    write!(out, "{corner:width$}")?;
    for (group, column) in layout {
        group.top.iter().try_for_each(|(word, columns)| heading(out, word, (*columns, *column)))?;
    }
    write!(out, "\n{title:width$}")?;
    for (group, column) in layout {
        group.bottom.iter().try_for_each(|word| heading(out, word, (1, *column)))?;
    }
    writeln!(out, "{}", if scripts { Mark::Heads.text() } else { String::new() })?;
    print_rule(out, layout, (width, scripts))
}

/// A line of dashes below each column.
#[doc(alias = "print_iostat_separator")]
pub fn print_rule(
    out: &mut dyn Write,
    layout: Layout<'_>,
    (width, scripts): (usize, bool),
) -> io::Result<()> {
    write!(out, "{}", "-".repeat(width))?;
    for (group, column) in layout {
        (0..group.columns()).try_for_each(|_| write!(out, "  {}", "-".repeat(*column)))?;
    }
    writeln!(out, "{}", if scripts { Mark::Rule.text() } else { String::new() })
}

/// A count.
pub fn count(n: u64, literal: bool) -> String {
    if literal { n.to_string() } else { nicenum(n).to_string() }
}

/// Nanoseconds; nothing is a dash.
pub fn time(n: u64, literal: bool) -> String {
    if literal && n > 0 { n.to_string() } else { nicetime(n).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(group: &ColumnGroup, corner: &str, title: &str) -> String {
        let mut out = Vec::new();
        print_header(&mut out, &[(group, WIDTH)], (corner, title), (10, false)).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// As in zpool-iostat(8).
    #[test]
    fn headers_are_those_people_know() {
        let want = "              capacity     operations     bandwidth \n\
                    pool        alloc   free   read  write   read  write\n\
                    ----------  -----  -----  -----  -----  -----  -----\n";
        assert_eq!(header(&DEFAULT, "", "pool"), want);
        let want = "tank         total_wait     disk_wait    syncq_wait    asyncq_wait\n\
                    latency      read  write   read  write   read  write   read  write  scrub   trim  rebuild\n\
                    ----------  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----  -----\n";
        assert_eq!(header(&LATENCIES, "tank", "latency"), want);
        let want = "              sync_read    sync_write    async_read    async_write      scrub         trim         \
                    rebuild  \n\
                    req_size      ind    agg    ind    agg    ind    agg    ind    agg    ind    agg    ind    agg    \
                    ind    agg\n";
        assert!(header(&SIZES, "", "req_size").starts_with(want), "{}", header(&SIZES, "", "req_size"));
    }

    #[test]
    fn numbers_are_for_people_or_exact() {
        assert_eq!(
            [time(0, true), time(0, false), time(1500, true), time(1500, false)],
            ["-", "-", "1500", "1us"]
        );
        assert_eq!([count(0, true), count(20480, false)], ["0", "20K"]);
    }
}
