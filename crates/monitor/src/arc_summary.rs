//! `arc_summary`: contents and efficiency of the cache, and the settings, in a report of a few pages.
//!
//! Differs from OpenZFS: lists only counters that exist here; sections on parts of the kernel module (`spl`), and
//! on counters that are not kept (`dmu`, `vdev`, `zil`), say so.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::time::clock;
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::memory::Limits;
use engine::memory::limits::LIMITS;

use super::kstat::{Arcstats, of_daemon};
use super::number::{bytes, hits, percent};

/// Characters of a line, and of the part before the last column.
const WIDTH: usize = 72;
const PERCENT_END: usize = 61;
/// Characters of the graph between its borders.
const GRAPH: i64 = 68;

/// Print a report on the contents and efficiency of the cache.
#[derive(Debug, Args)]
pub struct ArcSummary {
    /// Settings as NAME=VALUE.
    #[arg(short = 'a', long = "alternate")]
    pub alternate: bool,
    /// Describe the settings.
    #[arg(short = 'd', long = "description")]
    pub description: bool,
    /// Print only a graph of the cache's fill level.
    #[arg(short = 'g', long = "graph")]
    pub graph: bool,
    /// Print the section with this number (old form of -s).
    #[arg(short = 'p', long = "page", value_name = "PAGE")]
    pub page: Option<usize>,
    /// All counters and settings, unadorned.
    #[arg(short = 'r', long = "raw")]
    pub raw: bool,
    /// Print one section: arc, archits, dmu, l2arc, spl, tunables, vdev or zil.
    #[arg(short = 's', long = "section", value_name = "SECTION")]
    pub section: Option<String>,
}

/// Sections, in the order of their names.
const SECTIONS: [&str; 8] = ["arc", "archits", "dmu", "l2arc", "spl", "tunables", "vdev", "zil"];
/// The sections that were pages once, in the order of those.
const PAGES: [&str; 6] = ["arc", "archits", "l2arc", "dmu", "vdev", "tunables"];

impl ArcSummary {
    /// The process in which it runs.
    pub fn home(&self) -> Home {
        Home::Pools
    }
}

impl Verb for ArcSummary {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let registry = of_daemon(ctx)?;
        let (stats, limits) = (Arcstats::of(&registry), &registry.memory.limits);
        let mut page = Page::default();
        if self.graph {
            page.graph(&stats);
            ctx.out.write_all(page.0.as_bytes())?;
            return Ok(Exit::OK);
        }
        page.banner();
        // As in OpenZFS the old form counts only without the new one, and page 0 stands for none.
        let by_number =
            self.page.filter(|page| *page > 0 && self.section.is_none() && !self.raw).map(|page| {
                let section = PAGES.get(page - 1).map(|section| (*section).to_owned());
                section.ok_or_else(|| Failure::failed(format!("Error: Page \"{page}\" not supported")))
            });
        if by_number.is_some() {
            page.line("WARNING: Pages are deprecated, please use \"--section\"\n");
        }
        let wanted = by_number.transpose()?.or_else(|| self.section.clone());
        if let Some(unknown) = wanted.as_deref().filter(|wanted| !SECTIONS.contains(wanted)) {
            return Err(Failure::failed(format!("Error: Section \"{unknown}\" unknown")));
        }
        match wanted {
            _ if self.raw => page.raw(&stats, limits),
            Some(section) => self.section(&section, &stats, limits, &mut page),
            None => ["arc", "archits", "l2arc", "tunables"]
                .iter()
                .for_each(|section| self.section(section, &stats, limits, &mut page)),
        }
        ctx.out.write_all(page.0.as_bytes())?;
        Ok(Exit::OK)
    }
}

impl ArcSummary {
    fn section(&self, section: &str, stats: &Arcstats, limits: &Limits, page: &mut Page) {
        match section {
            "arc" => page.arc(stats),
            "archits" => page.accesses(stats),
            "l2arc" => page.l2arc(stats),
            "tunables" => page.tunables(limits, self.alternate, self.description),
            other => page.line(&format!("Nothing is counted here for {other}, skipping section\n")),
        }
    }
}

#[derive(Debug, Default)]
struct Page(String);

impl Page {
    fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    /// A name, a percentage if there is one, and a value at the right margin.
    fn row(&mut self, indent: usize, name: &str, percent: &str, value: &str) {
        let start = format!("{:indent$}{name}", "");
        let room = if percent.is_empty() { 0 } else { PERCENT_END.saturating_sub(start.len()) };
        let with_percent = format!("{start}{percent:>room$}");
        let room = WIDTH.saturating_sub(with_percent.len());
        self.line(&format!("{with_percent}{value:>room$}"));
    }

    fn heading(&mut self, name: &str, percent: &str, value: &str) {
        self.row(0, name, percent, value);
    }

    fn part(&mut self, name: &str, percent: &str, value: &str) {
        self.row(8, name, percent, value);
    }

    /// The title of the report, with its time.
    fn banner(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let machine = rustix::system::uname();
        let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let version = concat!("aquifer-", env!("CARGO_PKG_VERSION"));
        let system = format!("{} {}", word(machine.sysname()), word(machine.release()));
        let node = format!("Machine: {} ({})", word(machine.nodename()), word(machine.machine()));
        self.line("");
        self.line(&"-".repeat(WIDTH));
        self.heading("ZFS Subsystem Report", "", &clock(now));
        self.heading(&system, "", version);
        self.heading(&node, "", version);
        self.line("");
    }

    fn arc(&mut self, stats: &Arcstats) {
        let of = |name: &str| stats.get(name);
        let (most, size) = (of("c_max"), of("size"));
        let grows = if of("arc_no_grow") == 0 { "HEALTHY" } else { "THROTTLED" };
        self.heading("ARC status:", "", grows);
        self.part("Total memory size:", "", &bytes(of("memory_all_bytes")));
        let targets = [
            ("Min target size:", "c_min", most),
            ("Max target size:", "c_max", of("memory_all_bytes")),
            ("Target size (adaptive):", "c", most),
            ("Current size:", "size", most),
        ];
        for (name, value, whole) in targets {
            self.part(name, &percent(of(value), whole), &bytes(of(value)));
        }
        self.part("Free memory size:", "", &bytes(of("memory_free_bytes")));
        self.part("Available memory size:", "", &bytes(of("memory_available_bytes")));
        self.line("");
        self.heading("ARC structural breakdown (current size):", "", &bytes(size));
        for (name, value) in [("Block size:", "uncompressed_size"), ("Header size:", "hdr_size")] {
            self.part(name, &percent(of(value), size), &bytes(of(value)));
        }
        let blocks = of("uncompressed_size");
        self.line("");
        self.heading("ARC types breakdown:", "", &bytes(blocks));
        for (name, value) in [("Data size:", "data_size"), ("Metadata size:", "metadata_size")] {
            self.part(name, &percent(of(value), blocks), &bytes(of(value)));
        }
        self.line("");
        self.heading("ARC states breakdown:", "", &bytes(blocks));
        for (name, key) in [("MFU", "mfu"), ("MRU", "mru")] {
            for kind in ["data", "metadata"] {
                let value = of(&format!("{key}_{kind}"));
                self.part(&format!("{name} {kind} size:"), &percent(value, blocks), &bytes(value));
                let ghost = of(&format!("{key}_ghost_{kind}"));
                self.part(&format!("{name} ghost {kind} size:"), "", &bytes(ghost));
            }
        }
        self.line("");
        self.heading("Changed and not yet written (beside the cache):", "", &bytes(of("anon_size")));
        self.line("");
        self.line("ARC hash breakdown:");
        self.part("Elements:", "", &hits(of("hash_elements")));
        self.part("Elements max:", "", &hits(of("hash_elements_max")));
        self.line("");
        self.line("ARC misc:");
        self.part("Deleted:", "", &hits(of("deleted")));
        self.line("");
    }

    fn accesses(&mut self, stats: &Arcstats) {
        let of = |name: &str| stats.get(name);
        let all = of("hits") + of("iohits") + of("misses");
        self.heading("ARC total accesses:", "", &hits(all));
        for (name, key) in
            [("Total hits:", "hits"), ("Total I/O hits:", "iohits"), ("Total misses:", "misses")]
        {
            self.part(name, &percent(of(key), all), &hits(of(key)));
        }
        for family in ["demand_data", "demand_metadata", "prefetch_data", "prefetch_metadata"] {
            let name = family.replace('_', " ");
            let kinds = [("hits", "hits"), ("I/O hits", "iohits"), ("misses", "misses")];
            let kinds = kinds.map(|(word, key)| (word, of(&format!("{family}_{key}"))));
            let whole = kinds.iter().map(|(_, count)| count).sum();
            self.line("");
            self.heading(&format!("ARC {name} accesses:"), &percent(whole, all), &hits(whole));
            let mut title = name.clone();
            title.get_mut(..1).into_iter().for_each(str::make_ascii_uppercase);
            for (word, count) in kinds {
                self.part(&format!("{title} {word}:"), &percent(count, whole), &hits(count));
            }
        }
        let ahead = of("predictive_prefetch");
        let (hit, joined) = (of("demand_hit_predictive_prefetch"), of("demand_iohit_predictive_prefetch"));
        let unused = (ahead - hit - joined).max(0);
        self.line("");
        self.heading("ARC predictive prefetches:", "", &hits(ahead));
        self.part("Demand hits after predictive:", &percent(hit, ahead), &hits(hit));
        self.part("Demand I/O hits after predictive:", &percent(joined, ahead), &hits(joined));
        self.part("Never demanded after predictive:", &percent(unused, ahead), &hits(unused));
        self.line("");
        self.line("ARC states hits of all accesses:");
        let states = [
            ("Most frequently used (MFU):", "mfu_hits"),
            ("Most recently used (MRU):", "mru_hits"),
            ("Most frequently used (MFU) ghost:", "mfu_ghost_hits"),
            ("Most recently used (MRU) ghost:", "mru_ghost_hits"),
        ];
        for (name, key) in states {
            self.part(name, &percent(of(key), all), &hits(of(key)));
        }
        self.line("");
    }

    fn l2arc(&mut self, stats: &Arcstats) {
        let of = |name: &str| stats.get(name);
        let errors = of("l2_writes_error") + of("l2_cksum_bad") + of("l2_io_error");
        if of("l2_size") == 0 && of("l2_log_blk_count") == 0 {
            return self.line("L2ARC not detected, skipping section\n");
        }
        self.heading("L2ARC status:", "", if errors > 0 { "DEGRADED" } else { "HEALTHY" });
        let counts = [
            ("Low memory aborts:", "l2_abort_lowmem"),
            ("Free on write:", "l2_free_on_write"),
            ("R/W clashes:", "l2_rw_clash"),
            ("Bad checksums:", "l2_cksum_bad"),
            ("Read errors:", "l2_io_error"),
            ("Write errors:", "l2_writes_error"),
        ];
        counts.iter().for_each(|(name, key)| self.part(name, "", &hits(of(key))));
        self.line("");
        let size = of("l2_size");
        self.heading("L2ARC size (adaptive):", "", &bytes(size));
        let sizes = [
            ("Compressed:", "l2_asize"),
            ("Header size:", "l2_hdr_size"),
            ("MFU allocated size:", "l2_mfu_asize"),
            ("MRU allocated size:", "l2_mru_asize"),
            ("Prefetch allocated size:", "l2_prefetch_asize"),
            ("Data (buffer content) allocated size:", "l2_bufc_data_asize"),
            ("Metadata (buffer content) allocated size:", "l2_bufc_metadata_asize"),
        ];
        for (at, (name, key)) in sizes.into_iter().enumerate() {
            let whole = if at < 2 { size } else { of("l2_asize") };
            self.part(name, &percent(of(key), whole), &bytes(of(key)));
        }
        self.line("");
        let all = of("l2_hits") + of("l2_misses");
        self.heading("L2ARC breakdown:", "", &hits(all));
        for (name, key) in [("Hit ratio:", "l2_hits"), ("Miss ratio:", "l2_misses")] {
            self.part(name, &percent(of(key), all), &hits(of(key)));
        }
        self.line("");
        self.line("L2ARC I/O:");
        self.part("Reads:", "", &bytes(of("l2_read_bytes")));
        self.part("Writes:", "", &bytes(of("l2_write_bytes")));
        self.line("");
        self.line("L2ARC evicts:");
        self.part("L1 cached:", "", &hits(of("l2_evict_l1cached")));
        self.part("While reading:", "", &hits(of("l2_evict_reading")));
        self.line("");
    }

    fn tunables(&mut self, limits: &Limits, alternate: bool, description: bool) {
        self.line("Tunables:");
        for info in LIMITS {
            if description {
                self.line(&format!("\n        # {}", info.about));
            }
            let value = limits.get(info.limit).to_string();
            match alternate {
                true => self.line(&format!("        {}={value}", info.name)),
                false => self.part(info.name, "", &value),
            }
        }
        self.line("");
    }

    fn raw(&mut self, stats: &Arcstats, limits: &Limits) {
        self.line("ARCSTATS:");
        let mut all: Vec<_> = stats.iter().collect();
        all.sort_unstable();
        all.into_iter().for_each(|(name, value)| self.part(name, "", &value.to_string()));
        self.line("");
        self.tunables(limits, false, false);
    }

    /// Data, metadata and headers as shares of the limit.
    fn graph(&mut self, stats: &Arcstats) {
        let of = |name: &str| stats.get(name);
        let most = of("c_max").max(1);
        let (size, data, meta) = (of("size"), of("data_size"), of("metadata_size"));
        let head = format!(
            "    ARC: {} ({}) Data: {} Meta: {}",
            bytes(size),
            percent(size, most),
            bytes(data),
            bytes(meta)
        );
        let cells =
            |part: i64| usize::try_from(i128::from(part) * i128::from(GRAPH) / i128::from(most)).unwrap_or(0);
        let bar = "D".repeat(cells(data)) + &"M".repeat(cells(meta)) + &"O".repeat(cells(of("hdr_size")));
        let width = usize::try_from(GRAPH).unwrap_or(0);
        let border = format!("    +{}+", "-".repeat(width));
        self.line(&head);
        self.line(&border);
        self.line(&format!("    |{bar:<width$.width$}|"));
        self.line(&border);
    }
}
