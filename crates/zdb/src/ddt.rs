//! `-D`: dedup tables; `-S`: the simulated table of dedup.

use std::io::{self, Write};

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome};
use engine::ddt::{DdtClass, DdtLog, DdtObject, DdtTable, Totals, tables};
use engine::zio::deflated;
use ondisk::ddt::{DdtHistogram, DdtKey, DdtLogHeader, DdtPhys, DdtStat};
use zcommon::units::nicenum;

use super::target::Session;

/// Tables and totals; `-DD` with a histogram, `-DDD` one for each table, `-DDDD` with the entries of
/// duplicates, `-DDDDD` with all.
pub fn run(session: &Session, ctx: &mut Ctx) -> Outcome {
    let pool = &session.pool;
    let mut notes = Vec::new();
    let all = tables(&pool.mos, &mut notes);
    for table in &all {
        print_table(session, table, ctx)?;
    }
    let tree = pool.tree();
    let totals = Totals::of(&all, &|bp| deflated(&tree, bp));
    let sum = totals.all();
    if sum.blocks == 0 {
        writeln!(ctx.out, "All DDTs are empty")?;
    } else {
        writeln!(ctx.out)?;
        if session.level('D') > 1 {
            writeln!(ctx.out, "DDT histogram (aggregated over all DDTs):")?;
            print_histogram(&totals.histogram, Some(&sum), &mut ctx.out)?;
        }
        ratio(&sum, &mut ctx.out)?;
    }
    notes.iter().for_each(|e| ctx.warn(format!("dedup tables: {e}")));
    Ok(if notes.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// ` [FLAT LOG]`, or nothing without flags.
fn flags(value: u64, names: &[(u64, &str)]) -> String {
    let mut words: Vec<&str> =
        names.iter().filter(|(bit, _)| value & bit != 0).map(|(_, name)| *name).collect();
    let known: u64 = names.iter().map(|(bit, _)| bit).sum();
    if value & !known != 0 {
        words.push("UNKNOWN");
    }
    if words.is_empty() { String::new() } else { format!(" [{}]", words.join(" ")) }
}

fn print_table(session: &Session, table: &DdtTable, ctx: &mut Ctx) -> Result<(), Failure> {
    let (name, version) = (table.checksum.name(), table.version);
    let kind = match version {
        0 => "LEGACY",
        1 => "FDT",
        _ => "UNKNOWN",
    };
    let flags = flags(table.flags, &[(1, "FLAT"), (2, "LOG")]);
    let bits = table.flags;
    writeln!(
        ctx.out,
        "DDT-{name}: version={version} [{kind}]; flags=0x{bits:02x}{flags}; rootobj={}",
        table.root
    )?;
    for store in &table.stores {
        print_store(session, table, store, ctx)?;
    }
    for log in &table.logs {
        print_log(session, table, log, ctx)?;
    }
    Ok(())
}

fn print_store(session: &Session, table: &DdtTable, store: &DdtObject, ctx: &mut Ctx) -> Result<(), Failure> {
    let (name, level) = (&store.name, session.level('D'));
    let (dspace, mspace) = (store.disk_bytes, store.memory_bytes);
    writeln!(ctx.out, "{name}: dspace={dspace}; mspace={mspace}; entries={}", store.count)?;
    if level < 3 {
        return Ok(());
    }
    writeln!(ctx.out, "{name}: object={}", store.object)?;
    if let Some(histogram) = &store.histogram {
        print_histogram(histogram, None, &mut ctx.out)?;
    }
    if level < 4 || (level < 5 && store.class == DdtClass::Unique) {
        return Ok(());
    }
    writeln!(ctx.out, "{name} contents:\n")?;
    for entry in store.entries() {
        match entry {
            Ok(entry) => print_entry(table, entry.cursor, &entry.key, &entry.phys, &mut ctx.out)?,
            Err(e) => ctx.warn(format!("{name}: {e}")),
        }
    }
    Ok(writeln!(ctx.out)?)
}

fn print_log(session: &Session, table: &DdtTable, log: &DdtLog, ctx: &mut Ctx) -> Result<(), Failure> {
    let name = format!("DDT-log-{}-{}", table.checksum.name(), log.number);
    let header = &log.header;
    let bits = header.flags();
    let known = [
        (u64::from(DdtLogHeader::FLAG_FLUSHING), "FLUSHING"),
        (u64::from(DdtLogHeader::FLAG_CHECKPOINT), "CHECKPOINT"),
    ];
    let flags = flags(u64::from(bits), &known);
    let (object, length, txg, count) = (log.object, header.length, header.first_txg, log.entries.len());
    writeln!(
        ctx.out,
        "{name}: flags=0x{bits:02x}{flags}; obj={object}; len={length}; txg={txg}; entries={count}"
    )?;
    if log.has_checkpoint() {
        let DdtKey { cksum: [a, b, c, d], prop } = header.checkpoint;
        writeln!(ctx.out, "    checkpoint: {a:016x}:{b:016x}:{c:016x}:{d:016x}:{prop:016x}")?;
    }
    if session.level('D') >= 4 {
        for (index, (key, entry)) in (0_u64..).zip(&log.entries) {
            print_entry(table, index, key, &entry.phys, &mut ctx.out)?;
        }
    }
    Ok(())
}

#[doc(alias = "dump_ddt_entry")]
fn print_entry(
    table: &DdtTable,
    index: u64,
    key: &DdtKey,
    phys: &[DdtPhys],
    out: &mut dyn Write,
) -> io::Result<()> {
    for one in phys {
        let variant = if table.is_flat() { 0 } else { one.variant };
        let bp = one.blkptr(key, table.checksum);
        writeln!(out, "index {index:x} refcnt {} phys {variant} {bp}", one.refcnt)?;
    }
    Ok(())
}

/// The table of buckets, with a line of totals when given.
#[doc(alias = "zpool_dump_ddt")]
pub fn print_histogram(
    histogram: &DdtHistogram,
    total: Option<&DdtStat>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let rule = "______________________________";
    writeln!(out)?;
    writeln!(out, "bucket{:>23}{:>33}{:10}", "allocated", "referenced", "")?;
    writeln!(out, "______   {rule}   {rule}")?;
    let heads = ["refcnt", "blocks", "LSIZE", "PSIZE", "DSIZE", "blocks", "LSIZE", "PSIZE", "DSIZE"];
    row(heads.map(str::to_owned), out)?;
    row(
        ["------", "------", "-----", "-----", "-----", "------", "-----", "-----", "-----"]
            .map(str::to_owned),
        out,
    )?;
    for (i, stat) in histogram.stat.iter().enumerate().filter(|(_, stat)| stat.blocks != 0) {
        stat_row(nicenum(1_u64 << (i & 63)).to_string(), stat, out)?;
    }
    if let Some(total) = total {
        stat_row("Total".to_owned(), total, out)?;
    }
    writeln!(out)
}

fn stat_row(name: String, s: &DdtStat, out: &mut dyn Write) -> io::Result<()> {
    let n = |value: u64| nicenum(value).to_string();
    let cells = [
        name,
        n(s.blocks),
        n(s.lsize),
        n(s.psize),
        n(s.dsize),
        n(s.ref_blocks),
        n(s.ref_lsize),
        n(s.ref_psize),
        n(s.ref_dsize),
    ];
    row(cells, out)
}

fn row([refcnt, a, b, c, d, e, f, g, h]: [String; 9], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{refcnt:>6}   {a:>6}   {b:>5}   {c:>5}   {d:>5}   {e:>6}   {f:>5}   {g:>5}   {h:>5}")
}

/// The line of ratios; nothing for an empty table.
#[doc(alias = "dump_dedup_ratio")]
pub fn ratio(sum: &DdtStat, out: &mut dyn Write) -> io::Result<()> {
    if sum.blocks == 0 {
        return Ok(());
    }
    let by = |a: u64, b: u64| a as f64 / b as f64;
    let dedup = by(sum.ref_dsize, sum.dsize);
    let compress = by(sum.ref_lsize, sum.ref_psize);
    let copies = by(sum.ref_dsize, sum.ref_psize);
    let whole = dedup * compress / copies;
    writeln!(
        out,
        "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, dedup * compress / copies = {whole:.2}\n"
    )
}
