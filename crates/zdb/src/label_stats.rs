//! The space usage of a label's configuration, by type of value and by leaf vdev.

use std::io::{self, Write};

use nvpair::{NvList, NvPair, NvValue};
use ondisk::label::NVLIST_SIZE;

/// The counters.
#[derive(Default)]
struct Stats {
    integers: Kind,
    strings: Kind,
    booleans: Kind,
    lists: u64,
    leaves: u64,
    leaf_total: usize,
    leaf_largest: usize,
    /// Numbers of the types without a counter.
    skipped: Vec<i32>,
}

#[derive(Default)]
struct Kind {
    count: u64,
    bytes: usize,
}

impl Kind {
    fn add(&mut self, pair: &NvPair) {
        let empty = packed_len(&NvList::new());
        let mut one = NvList::new();
        one.push(pair.name.clone(), pair.value.clone());
        self.count += 1;
        self.bytes += packed_len(&one).saturating_sub(empty);
    }
}

fn packed_len(list: &NvList) -> usize {
    list.encode_xdr().map_or(0, |bytes| bytes.len())
}

impl Stats {
    fn collect(&mut self, list: &NvList) {
        self.lists += 1;
        for pair in list {
            match &pair.value {
                NvValue::String(_) => self.strings.add(pair),
                NvValue::Uint64(_) => self.integers.add(pair),
                NvValue::Boolean => self.booleans.add(pair),
                NvValue::List(child) => self.collect(child),
                NvValue::ListArray(children) => {
                    for child in children {
                        self.collect(child);
                        // OpenZFS counts replacing and spare vdevs among the leaves.
                        let size = packed_len(child);
                        self.leaves += 1;
                        self.leaf_total += size;
                        self.leaf_largest = self.leaf_largest.max(size);
                    }
                }
                other => self.skipped.push(other.data_type() as i32),
            }
        }
    }
}

/// Prints the statistics of a configuration; `level` is the number of `-l` options.
#[doc(alias = "dump_nvlist_stats")]
pub fn print(config: &NvList, level: u32, out: &mut dyn Write) -> io::Result<()> {
    let mut stats = Stats::default();
    stats.collect(config);
    let room = usize::try_from(NVLIST_SIZE).unwrap_or(0);
    let total = packed_len(config).max(1);
    let percent = |part: usize, of: usize| 100.0 * part as f64 / of as f64;
    let free = room.saturating_sub(total);
    writeln!(out, "\n\nZFS Label NVList Config Stats:")?;
    writeln!(out, "  {total} bytes used, {free} bytes free (using {:>4.1}%)\n", percent(total, room))?;
    for number in &stats.skipped {
        writeln!(out, "skip type {number}!")?;
    }
    let counted =
        [("integers:", &stats.integers), ("strings:", &stats.strings), ("booleans:", &stats.booleans)];
    for (name, kind) in counted {
        let share = percent(kind.bytes, total);
        writeln!(out, "{name:>12} {:>4} {:>6} bytes ({share:>5.2}%)", kind.count, kind.bytes)?;
    }
    let sum: usize = counted.iter().map(|(_, kind)| kind.bytes).sum();
    let rest = total.saturating_sub(sum);
    let share = percent(rest, total);
    writeln!(out, "{:>12} {:>4} {rest:>6} bytes ({share:>5.2}%)\n", "nvlists:", stats.lists)?;
    if stats.leaves > 0 {
        let average = stats.leaf_total / usize::try_from(stats.leaves).unwrap_or(1).max(1);
        writeln!(out, "{:>12} {:>4} {average:>6} bytes average", "leaf vdevs:", stats.leaves)?;
        writeln!(out, "{:>24} bytes largest", stats.leaf_largest)?;
        if level >= 3 && average > 0 {
            writeln!(out, "  space for {} additional leaf vdevs", free / average)?;
        }
    }
    writeln!(out)
}
