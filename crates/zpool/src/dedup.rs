//! The dedup tables in `zpool status -D`.
//!
//! Source: `print_dedup_stats`, zpool_main.c, OpenZFS 2.4.

use std::io::{self, Write};

use engine::ddt::{DdtTable, Totals, tables};
use engine::zio::deflated;
use ondisk::ddt::DdtStat;
use serde_json::{Map, Value, json};
use zcommon::props::ZpoolProp;
use zcommon::units::nicenum;
use zdb::ddt::print_histogram;

use super::json_form::JsonForm;
use super::prop::PoolView;

/// Bytes of an entry of a table's log in OpenZFS's memory, of a flat table and of any other.
#[doc(alias("DDT_LOG_ENTRY_FLAT_SIZE", "DDT_LOG_ENTRY_TRAD_SIZE"))]
const LOGGED: [u64; 2] = [144, 328];

/// How much there is, in all tables.
struct Size {
    entries: u64,
    disk: u64,
    memory: u64,
}

impl Size {
    #[doc(alias = "ddt_get_dedup_object_stats")]
    fn of(view: &PoolView<'_>, tables: &[DdtTable]) -> Self {
        let disk = view.native(ZpoolProp::DedupTableSize).and_then(|prop| prop.number).unwrap_or(0);
        let mut size = Self { entries: 0, disk, memory: 0 };
        let mut add = |entries: u64, memory: u64| {
            size.entries = size.entries.saturating_add(entries);
            size.memory = size.memory.saturating_add(memory);
        };
        for table in tables {
            let [flat, other] = LOGGED;
            let logged = if table.is_flat() { flat } else { other };
            table.stores.iter().for_each(|store| add(store.count, store.memory_bytes));
            for log in &table.logs {
                let entries = u64::try_from(log.entries.len()).unwrap_or(u64::MAX);
                add(entries, entries.saturating_mul(logged));
            }
        }
        size
    }
}

fn look(view: &PoolView<'_>) -> (Size, Totals) {
    // Read errors are reported elsewhere, not here.
    let tables = tables(&view.pool.mos, &mut Vec::new());
    let tree = view.pool.tree();
    (Size::of(view, &tables), Totals::of(&tables, &|bp| deflated(&tree, bp)))
}

/// Bytes of the tables that are cached; `None` for a pool that is not imported. A table may have shrunk since `memory` was
/// counted.
fn cached(view: &PoolView<'_>, memory: u64) -> Option<u64> {
    let cached = view.native(ZpoolProp::Dedupcached).and_then(|prop| prop.number)?;
    Some(cached.min(memory))
}

/// Lines behind the report. `level`: how often `-D` was given; twice also shows what is cached.
pub fn print(view: &PoolView<'_>, (level, literal): (u8, bool), out: &mut dyn Write) -> io::Result<()> {
    let (size, totals) = look(view);
    if size.entries == 0 {
        return writeln!(out, "\n dedup: no DDT entries");
    }
    let Size { entries, disk, memory } = size;
    let bytes = |n: u64| if literal { n.to_string() } else { nicenum(n).to_string() };
    let shown = (bytes(disk), bytes(memory));
    write!(out, "\n dedup: DDT entries {entries}, size {} on disk, {} in core", shown.0, shown.1)?;
    if let Some(cached) = Some(level).filter(|level| *level > 1).and_then(|_| cached(view, memory)) {
        let share = cached as f64 / memory.max(1) as f64 * 100.0;
        write!(out, ", {} cached ({share:.2}%)", bytes(cached))?;
    }
    writeln!(out)?;
    print_histogram(&totals.histogram, Some(&totals.all()), out)
}

/// The same for a pool's JSON. Less than `-DD` asks for no count of what is cached, which is then 0.
#[doc(alias = "dedup_stats_nvlist")]
pub fn object(view: &PoolView<'_>, level: u8, form: &JsonForm<'_>) -> Value {
    let (size, totals) = look(view);
    let stats = |stat: &DdtStat| {
        form.map([
            ("blocks", form.count(stat.blocks)),
            ("logical_size", form.bytes(stat.lsize)),
            ("physical_size", form.bytes(stat.psize)),
            ("deflated_size", form.bytes(stat.dsize)),
            ("ref_blocks", form.count(stat.ref_blocks)),
            ("ref_lsize", form.bytes(stat.ref_lsize)),
            ("ref_psize", form.bytes(stat.ref_psize)),
            ("ref_dsize", form.bytes(stat.ref_dsize)),
        ])
    };
    let buckets = totals.histogram.stat.iter().enumerate().filter(|(_, stat)| stat.blocks != 0);
    let buckets: Map<String, Value> = buckets.map(|(i, stat)| (i.to_string(), stats(stat).into())).collect();
    let mut all = form.map([("obj_count", form.count(size.entries))]);
    if size.entries == 0 {
        all.insert("ddt_object_stats".into(), json!({}));
        return all.into();
    }
    all.insert("dspace".into(), form.count(size.disk));
    all.insert("mspace".into(), form.count(size.memory));
    let cached = if level > 1 { cached(view, size.memory).unwrap_or(0) } else { 0 };
    all.insert("cspace".into(), form.count(cached));
    all.insert("ddt_stats".into(), json!({ "total": stats(&totals.all()), "histogram": buckets }));
    all.into()
}
