//! The table of blocks by type, and with `-bbb` by level.

use std::io::{self, Write};

use engine::scan::stats::{BlockStats, Row, Sums};

use super::{Want, histogram};

/// Prints the table.
pub fn print(want: Want, stats: &BlockStats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType")?;
    let all = stats.total().asize;
    for row in Row::all().map(Some).chain([None]) {
        let of_row = |r: Row| row.is_none_or(|row| row == r);
        let name = row.map_or("Total", Row::name);
        let total = stats.sum(|r, _| of_row(r));
        if total.asize == 0 {
            writeln!(out, "{0:>6}\t{0:>5}\t{0:>5}\t{0:>5}\t{0:>5}\t{0:>5}\t{0:>6}\t{name}", "-")?;
            continue;
        }
        if want.blocks >= 3 {
            levels(want, stats, &of_row, name, &total, all, out)?;
        }
        line(want, &total, all, name, out)?;
        extras(want, &total, out)?;
    }
    line(want, &stats.metadata(), all, "Metadata Total", out)
}

fn levels(
    want: Want,
    stats: &BlockStats,
    of_row: &dyn Fn(Row) -> bool,
    name: &str,
    total: &Sums,
    all: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    for level in (0..32).rev() {
        let sums = stats.sum(|r, l| of_row(r) && l == level);
        if sums.asize == 0 || (level == 0 && sums.asize == total.asize) {
            continue;
        }
        line(want, &sums, all, &format!("    L{level} {name}"), out)?;
        extras(want, &sums, out)?;
    }
    Ok(())
}

fn line(want: Want, sums: &Sums, all: u64, name: &str, out: &mut dyn Write) -> io::Result<()> {
    let average = sums.asize.checked_div(sums.count).unwrap_or(0);
    let columns = [sums.lsize, sums.psize, sums.asize, average].map(|n| format!("{:>5}", want.number(n)));
    let count = want.number(sums.count);
    let ratio = sums.lsize as f64 / sums.psize as f64;
    let share = 100.0 * sums.asize as f64 / all as f64;
    writeln!(out, "{count:>6}\t{}\t{ratio:>5.2}\t{share:>6.2}\t{name}", columns.join("\t"))
}

fn extras(want: Want, sums: &Sums, out: &mut dyn Write) -> io::Result<()> {
    if want.blocks >= 3 && sums.gangs > 0 {
        writeln!(out, "\t number of ganged blocks: {}", want.number(sums.gangs))?;
    }
    if want.blocks >= 4 {
        writeln!(out, "psize (in 512-byte sectors): number of blocks")?;
        let slots: Vec<(u64, u64)> =
            sums.psize_histogram.iter().map(|(slot, n)| (u64::from(*slot), *n)).collect();
        histogram::stars(&slots, out)?;
    }
    Ok(())
}
