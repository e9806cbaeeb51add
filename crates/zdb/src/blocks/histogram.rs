//! Histograms: stars for small numbers, and the table of block sizes.

use std::io::{self, Write};

use engine::scan::stats::{BlockStats, SizeHistogram};

use super::Want;

/// Stars of the longest bar.
const WIDTH: u64 = 40;

/// A bar for each slot from the first to the last non-empty one. `slots` are sorted.
#[doc(alias = "dump_histogram")]
pub fn stars(slots: &[(u64, u64)], out: &mut dyn Write) -> io::Result<()> {
    let (Some((first, _)), Some((last, _))) = (slots.first(), slots.last()) else { return Ok(()) };
    let most = slots.iter().map(|(_, n)| *n).max().unwrap_or(0).max(WIDTH);
    let mut known = slots.iter().peekable();
    for slot in *first..=*last {
        let count = known.next_if(|(s, _)| *s == slot).map_or(0, |(_, n)| *n);
        let bar = WIDTH - (most - count) * WIDTH / most;
        let bar = "*".repeat(usize::try_from(bar).unwrap_or(0));
        writeln!(out, "\t\t\t{slot:>3}: {count:>6} {bar}")?;
    }
    Ok(())
}

/// The table of block sizes by powers of two.
#[doc(alias = "dump_size_histograms")]
pub fn sizes(want: Want, stats: &BlockStats, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nBlock Size Histogram")?;
    if want.parsable {
        writeln!(out, "\nblock\tpsize\t\t\tlsize\t\t\t  asize")?;
        writeln!(out, "size\t{}", "Count\tSize\tCum.\t".repeat(3))?;
    } else {
        writeln!(out, "\n{:>7}   {:<7}              {:<7}              asize", "block", "psize", "lsize")?;
        writeln!(out, "{:>7} {}", "size", format!("{:>7}{:>7}{:>7}", "Count", "Size", "Cum.").repeat(3))?;
    }
    let kinds: [&SizeHistogram; 3] = [&stats.psizes, &stats.lsizes, &stats.asizes];
    let mut sums = [0_u64; 3];
    for bin in 9..=24 {
        let size = want.number(1 << bin);
        if want.parsable {
            write!(out, "{size}")?
        } else {
            write!(out, "{size:>7}:")?
        }
        for (kind, sum) in kinds.iter().zip(&mut sums) {
            let get = |map: &std::collections::BTreeMap<u32, u64>| map.get(&bin).copied().unwrap_or(0);
            let (count, bytes) = (get(&kind.count), get(&kind.bytes));
            *sum += bytes;
            for n in [count, bytes, *sum].map(|n| want.number(n)) {
                if want.parsable { write!(out, "\t{n}")? } else { write!(out, "{n:>7}")? }
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
