//! The columns of `arcstat`: names, widths, and their counters.

use super::kstat::Arcstats;
use super::number::narrow;

/// Kinds of reads, by the prefixes of their counters' names.
type Family = &'static [&'static str];

const DATA: Family = &["demand_data"];
const METADATA: Family = &["demand_metadata"];
const DEMAND: Family = &["demand_data", "demand_metadata"];
const AHEAD_DATA: Family = &["prefetch_data"];
const AHEAD_METADATA: Family = &["prefetch_metadata"];
const AHEAD: Family = &["prefetch_data", "prefetch_metadata"];
const ALL_METADATA: Family = &["demand_metadata", "prefetch_metadata"];
const ALL: Family = &["demand_data", "demand_metadata", "prefetch_data", "prefetch_metadata"];

/// The content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// The time of day.
    Time,
    /// Reads a second with this result: `hits`, `iohits`, `misses`.
    Reads(Family, &'static str),
    /// All reads a second.
    AllReads(Family),
    /// Share of reads with this result.
    Share(Family, &'static str),
    /// Events a second.
    Rate(&'static str),
    /// Bytes a second.
    BytesRate(&'static str),
    /// Bytes now.
    Bytes(&'static str),
    /// A number now.
    Level(&'static str),
    /// Share of the blocks' bytes now.
    Part(&'static str),
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    pub name: &'static str,
    pub about: &'static str,
    shows: Shows,
}

const fn col(name: &'static str, shows: Shows, about: &'static str) -> Column {
    Column { name, about, shows }
}

use Shows::{AllReads, Bytes, BytesRate, Level, Part, Rate, Reads, Share, Time};

/// All columns, in the order of `-a`.
pub(super) const COLUMNS: &[Column] = &[
    col("time", Time, "Time"),
    col("hits", Reads(ALL, "hits"), "Reads answered from memory, a second"),
    col("iohs", Reads(ALL, "iohits"), "Reads that joined one under way, a second"),
    col("miss", Reads(ALL, "misses"), "Reads that went to a device, a second"),
    col("read", AllReads(ALL), "All reads, a second"),
    col("hit%", Share(ALL, "hits"), "Percentage answered from memory"),
    col("ioh%", Share(ALL, "iohits"), "Percentage that joined a read under way"),
    col("miss%", Share(ALL, "misses"), "Percentage that went to a device"),
    col("dhit", Reads(DEMAND, "hits"), "Demand hits a second"),
    col("dioh", Reads(DEMAND, "iohits"), "Demand I/O hits a second"),
    col("dmis", Reads(DEMAND, "misses"), "Demand misses a second"),
    col("dh%", Share(DEMAND, "hits"), "Demand hit percentage"),
    col("di%", Share(DEMAND, "iohits"), "Demand I/O hit percentage"),
    col("dm%", Share(DEMAND, "misses"), "Demand miss percentage"),
    col("ddhit", Reads(DATA, "hits"), "Demand data hits a second"),
    col("ddioh", Reads(DATA, "iohits"), "Demand data I/O hits a second"),
    col("ddmis", Reads(DATA, "misses"), "Demand data misses a second"),
    col("ddh%", Share(DATA, "hits"), "Demand data hit percentage"),
    col("ddi%", Share(DATA, "iohits"), "Demand data I/O hit percentage"),
    col("ddm%", Share(DATA, "misses"), "Demand data miss percentage"),
    col("dmhit", Reads(METADATA, "hits"), "Demand metadata hits a second"),
    col("dmioh", Reads(METADATA, "iohits"), "Demand metadata I/O hits a second"),
    col("dmmis", Reads(METADATA, "misses"), "Demand metadata misses a second"),
    col("dmh%", Share(METADATA, "hits"), "Demand metadata hit percentage"),
    col("dmi%", Share(METADATA, "iohits"), "Demand metadata I/O hit percentage"),
    col("dmm%", Share(METADATA, "misses"), "Demand metadata miss percentage"),
    col("phit", Reads(AHEAD, "hits"), "Prefetch hits a second"),
    col("pioh", Reads(AHEAD, "iohits"), "Prefetch I/O hits a second"),
    col("pmis", Reads(AHEAD, "misses"), "Prefetch misses a second"),
    col("ph%", Share(AHEAD, "hits"), "Prefetch hit percentage"),
    col("pi%", Share(AHEAD, "iohits"), "Prefetch I/O hit percentage"),
    col("pm%", Share(AHEAD, "misses"), "Prefetch miss percentage"),
    col("pdhit", Reads(AHEAD_DATA, "hits"), "Prefetch data hits a second"),
    col("pdioh", Reads(AHEAD_DATA, "iohits"), "Prefetch data I/O hits a second"),
    col("pdmis", Reads(AHEAD_DATA, "misses"), "Prefetch data misses a second"),
    col("pdh%", Share(AHEAD_DATA, "hits"), "Prefetch data hit percentage"),
    col("pdi%", Share(AHEAD_DATA, "iohits"), "Prefetch data I/O hit percentage"),
    col("pdm%", Share(AHEAD_DATA, "misses"), "Prefetch data miss percentage"),
    col("pmhit", Reads(AHEAD_METADATA, "hits"), "Prefetch metadata hits a second"),
    col("pmioh", Reads(AHEAD_METADATA, "iohits"), "Prefetch metadata I/O hits a second"),
    col("pmmis", Reads(AHEAD_METADATA, "misses"), "Prefetch metadata misses a second"),
    col("pmh%", Share(AHEAD_METADATA, "hits"), "Prefetch metadata hit percentage"),
    col("pmi%", Share(AHEAD_METADATA, "iohits"), "Prefetch metadata I/O hit percentage"),
    col("pmm%", Share(AHEAD_METADATA, "misses"), "Prefetch metadata miss percentage"),
    col("mhit", Reads(ALL_METADATA, "hits"), "Metadata hits a second"),
    col("mioh", Reads(ALL_METADATA, "iohits"), "Metadata I/O hits a second"),
    col("mmis", Reads(ALL_METADATA, "misses"), "Metadata misses a second"),
    col("mread", AllReads(ALL_METADATA), "Metadata reads a second"),
    col("mh%", Share(ALL_METADATA, "hits"), "Metadata hit percentage"),
    col("mi%", Share(ALL_METADATA, "iohits"), "Metadata I/O hit percentage"),
    col("mm%", Share(ALL_METADATA, "misses"), "Metadata miss percentage"),
    col("arcsz", Bytes("size"), "Bytes in the cache"),
    col("size", Bytes("size"), "Bytes in the cache"),
    col("c", Bytes("c"), "Bytes that the cache may have now"),
    col("mfu", Rate("mfu_hits"), "Hits of blocks seen again, a second"),
    col("mru", Rate("mru_hits"), "Hits of blocks seen once, a second"),
    col("mfug", Rate("mfu_ghost_hits"), "Reads of blocks seen again that had left, a second"),
    col("mrug", Rate("mru_ghost_hits"), "Reads of blocks seen once that had left, a second"),
    col("unc", Rate("uncached_hits"), "Hits of blocks that the page cache has as well, a second"),
    col("eskip", Rate("evict_skip"), "Blocks passed over when room is made, a second (there are none)"),
    col("el2skip", Rate("evict_l2_skip"), "The same for second-level writes, a second (there are none)"),
    col(
        "el2cach",
        BytesRate("evict_l2_cached"),
        "Bytes that left and stay on the second level (there are none)",
    ),
    col("mtxmis", Rate("mutex_miss"), "Blocks passed over because of a held lock, a second (there are none)"),
    col("dread", AllReads(DEMAND), "Demand reads a second"),
    col("ddread", AllReads(DATA), "Demand data reads a second"),
    col("dmread", AllReads(METADATA), "Demand metadata reads a second"),
    col("pread", AllReads(AHEAD), "Prefetch reads a second"),
    col("pdread", AllReads(AHEAD_DATA), "Prefetch data reads a second"),
    col("pmread", AllReads(AHEAD_METADATA), "Prefetch metadata reads a second"),
    col("l2hits", Rate("l2_hits"), "Second-level hits a second"),
    col("l2miss", Rate("l2_misses"), "Second-level misses a second"),
    col("l2asize", Bytes("l2_asize"), "Allocated bytes of the second level"),
    col("l2size", Bytes("l2_size"), "Bytes of the second level"),
    col("l2bytes", BytesRate("l2_read_bytes"), "Bytes read from the second level, a second"),
    col("l2wbytes", BytesRate("l2_write_bytes"), "Bytes written to the second level, a second"),
    col("grow", Level("arc_no_grow"), "1 while the cache has to stay below its limit"),
    col("need", Bytes("arc_need_free"), "Bytes that the machine is short of"),
    col("free", Bytes("memory_free_bytes"), "Bytes of memory that are available"),
    col("avail", Bytes("memory_available_bytes"), "The same without those that are to stay free"),
    col("hdrsz", Bytes("hdr_size"), "Bytes of the headers of blocks"),
    col("datasz", Bytes("data_size"), "Bytes of data"),
    col("datasz%", Part("data_size"), "Percentage of data"),
    col("metasz", Bytes("metadata_size"), "Bytes of metadata"),
    col("metasz%", Part("metadata_size"), "Percentage of metadata"),
    col("anosz", Bytes("anon_size"), "Bytes changed and not yet written (beside the cache)"),
    col("mfusz", Bytes("mfu_size"), "Bytes of blocks seen again"),
    col("mfusz%", Part("mfu_size"), "Percentage of blocks seen again"),
    col("mfuda", Bytes("mfu_data"), "Bytes of data seen again"),
    col("mfuda%", Part("mfu_data"), "Percentage of data seen again"),
    col("mfume", Bytes("mfu_metadata"), "Bytes of metadata seen again"),
    col("mfume%", Part("mfu_metadata"), "Percentage of metadata seen again"),
    col("mfugsz", Bytes("mfu_ghost_size"), "Bytes of blocks seen again that left and are remembered"),
    col("mfugd", Bytes("mfu_ghost_data"), "The same of data"),
    col("mfugm", Bytes("mfu_ghost_metadata"), "The same of metadata"),
    col("mrusz", Bytes("mru_size"), "Bytes of blocks seen once"),
    col("mrusz%", Part("mru_size"), "Percentage of blocks seen once"),
    col("mruda", Bytes("mru_data"), "Bytes of data seen once"),
    col("mruda%", Part("mru_data"), "Percentage of data seen once"),
    col("mrume", Bytes("mru_metadata"), "Bytes of metadata seen once"),
    col("mrume%", Part("mru_metadata"), "Percentage of metadata seen once"),
    col("mrugsz", Bytes("mru_ghost_size"), "Bytes of blocks seen once that left and are remembered"),
    col("mrugd", Bytes("mru_ghost_data"), "The same of data"),
    col("mrugm", Bytes("mru_ghost_metadata"), "The same of metadata"),
    col("uncsz", Bytes("uncached_size"), "Bytes of blocks that the page cache has as well"),
];

/// The columns shown without `-f`, and with `-x`.
pub(super) const USUAL: &str = "time,read,ddread,ddh%,dmread,dmh%,pread,ph%,size,c,avail";
pub(super) const EXTENDED: &str = "time,mfu,mru,mfug,mrug,unc,eskip,mtxmis,dread,pread,read";

/// Two samples of the counters, and the time between them.
#[derive(Debug)]
pub(super) struct Span {
    pub before: Arcstats,
    pub after: Arcstats,
    pub seconds: f64,
    pub clock: String,
}

impl Span {
    fn delta(&self, name: &str) -> f64 {
        (self.after.get(name) - self.before.get(name)) as f64
    }

    fn reads(&self, family: Family, kind: &str) -> f64 {
        family.iter().map(|of| self.delta(&format!("{of}_{kind}"))).sum()
    }

    fn all_reads(&self, family: Family) -> f64 {
        ["hits", "iohits", "misses"].iter().map(|kind| self.reads(family, kind)).sum()
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

impl Column {
    pub(super) fn named(name: &str) -> Option<Self> {
        COLUMNS.iter().find(|column| column.name == name).copied()
    }

    /// Characters of the column.
    pub(super) fn width(&self) -> usize {
        match self.name {
            "time" => 8,
            "size" | "c" | "need" | "free" => 5,
            // Two letters and a percent sign: numbers up to 100 fit.
            name if name.len() == 3 && name.ends_with('%') => 3,
            name => name.len().max(4),
        }
    }

    fn value(&self, span: &Span) -> f64 {
        let caches = || (span.after.get("mru_size") + span.after.get("mfu_size")) as f64;
        match self.shows {
            Time => 0.0,
            Reads(family, kind) => span.reads(family, kind) / span.seconds,
            AllReads(family) => span.all_reads(family) / span.seconds,
            Share(family, kind) => share(span.reads(family, kind), span.all_reads(family)),
            Rate(name) | BytesRate(name) => span.delta(name) / span.seconds,
            Bytes(name) | Level(name) => span.after.get(name) as f64,
            Part(name) => share(span.after.get(name) as f64, caches()),
        }
    }

    fn scale(&self) -> Option<f64> {
        match self.shows {
            Bytes(_) | BytesRate(_) => Some(1024.0),
            Reads(..) | AllReads(_) | Rate(_) => Some(1000.0),
            Time | Share(..) | Level(_) | Part(_) => None,
        }
    }

    /// The cell; `raw`: whole numbers without letters.
    pub(super) fn cell(&self, span: &Span, raw: bool) -> String {
        match (self.shows, raw) {
            (Time, _) => span.clock.clone(),
            (_, true) => format!("{:.0}", self.value(span).trunc()),
            (_, false) => narrow(self.value(span), self.width(), self.scale()),
        }
    }
}
