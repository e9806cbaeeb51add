//! The report as tables.

use std::io::{self, Write};

use clikit::ctx::Ctx;
use clikit::output::table::{Column, Table};
use engine::scan::account::ClassUse;
use engine::scan::space::SpaceRange;
use engine::scan::stats::Row;
use engine::scan::verify::{Remedy, Report};
use engine::spa::Pool;
use zcommon::units::{nicebytes, nicenum};

use super::places::{Line, Places};
use super::{Findings, Verify};

/// Maximum number of listed ranges of leaked or doubly used space.
const MAX_RUNS: usize = 20;

/// Prints damage, space and totals.
pub(super) fn print(verify: &Verify, pool: &Pool, findings: &Findings, ctx: &mut Ctx) -> io::Result<()> {
    let Findings { report, places, logs } = findings;
    let parsable = verify.parsable;
    let out = &mut ctx.out;
    if !places.lines.is_empty() {
        damage(verify, places).print(out, verify.scripted)?;
        writeln!(out)?;
    }
    for (at, error) in &report.account.unreadable {
        writeln!(out, "unreadable, with all below it: {at} {error}")?;
    }
    for log in logs {
        writeln!(out, "intent log of {}: {}", log.dataset, log.why)?;
    }
    for damage in &report.derived {
        writeln!(out, "damaged {}: {}", damage.what, damage.why)?;
    }
    if !report.derived.is_empty() {
        let name = &pool.name;
        writeln!(
            out,
            "to derive it anew from the pool's blocks: 'zpool export {name}', 'zpool import --rebuild {name}'"
        )?;
    }
    for (leaf, absent) in &report.absent {
        let what = if absent.stale { "lacks writes" } else { "is missing" };
        let name = pool.tree().leaf_name(*leaf, 0);
        writeln!(out, "{name} {what}: {} blocks have less redundancy", absent.blocks)?;
    }
    space(report, parsable, out)?;
    if !verify.scripted {
        writeln!(out)?;
    }
    totals(report, parsable).print(out, verify.scripted)?;
    if !verify.scripted {
        writeln!(out)?;
    }
    sums(report, parsable, verify.scripted, out)?;
    verdict(pool, findings, out)
}

fn damage(verify: &Verify, places: &Places) -> Table {
    let headers = ["DATASET", "FILE", "WHAT", "FROM", "TO", "BLOCKS", "VDEV", "REPAIRABLE FROM"];
    let columns = headers.iter().map(|h| Column::new(*h, matches!(*h, "FROM" | "TO" | "BLOCKS")));
    let mut table = Table::new(columns.collect());
    places.lines.iter().for_each(|line| table.push(row(verify, line)));
    table
}

fn row(verify: &Verify, line: &Line) -> Vec<String> {
    let number = |n: u64| if verify.parsable { n.to_string() } else { format!("0x{n:x}") };
    let remedy = match line.remedy {
        Remedy::Lost => "-".to_owned(),
        other => other.name().to_owned(),
    };
    vec![
        line.dataset.clone(),
        line.file.escape_debug().to_string().replace("\\'", "'"),
        line.level.clone(),
        number(line.start),
        number(line.end),
        line.blocks.to_string(),
        line.vdevs.join(" "),
        remedy,
    ]
}

fn space(report: &Report, parsable: bool, out: &mut dyn Write) -> io::Result<()> {
    let account = &report.account;
    for note in &account.notes {
        writeln!(out, "space: {note}")?;
    }
    let Some(findings) = &account.space else { return Ok(()) };
    let mut list = |what: &str, runs: &[SpaceRange], bytes: u64| -> io::Result<()> {
        for run in runs.iter().take(MAX_RUNS) {
            writeln!(out, "{what}: vdev {}, offset 0x{:x}, size {}", run.vdev, run.offset, run.size)?;
        }
        if runs.len() > MAX_RUNS {
            let all = if parsable { bytes.to_string() } else { nicebytes(bytes).to_string() };
            writeln!(out, "{what}: {} more; {all} in all", runs.len() - MAX_RUNS)?;
        }
        Ok(())
    };
    list("leaked space", &findings.leaked, findings.leaked_bytes)?;
    list("space used twice", &findings.doubled, findings.doubled_bytes)?;
    list("space used but not allocated", &findings.unallocated, findings.unallocated_bytes)?;
    if findings.is_clean() && account.balances() {
        writeln!(out, "No leaks (block sum matches space maps exactly)")?;
    } else if !account.balances() {
        let (found, alloc) = (account.total_found(), account.total_alloc());
        writeln!(
            out,
            "blocks take {found} bytes, space maps say {alloc} ({} leaked)",
            alloc.saturating_sub(found)
        )?;
    }
    Ok(())
}

fn totals(report: &Report, parsable: bool) -> Table {
    let number = |n: u64| if parsable { n.to_string() } else { nicenum(n).to_string() };
    let headers = ["TYPE", "BLOCKS", "LSIZE", "PSIZE", "ASIZE"];
    let columns = headers.iter().enumerate().map(|(i, h)| Column::new(*h, i > 0));
    let mut table = Table::new(columns.collect());
    let stats = &report.account.stats;
    let mut push = |name: &str, sums: &engine::scan::stats::Sums| {
        let numbers = [sums.count, sums.lsize, sums.psize, sums.asize].map(number);
        table.push(std::iter::once(name.to_owned()).chain(numbers).collect());
    };
    for row in Row::all() {
        let sums = stats.sum(|r, _| r == row);
        if sums.count > 0 {
            push(row.name(), &sums);
        }
    }
    push("Total", &stats.total());
    table
}

fn sums(report: &Report, parsable: bool, scripted: bool, out: &mut dyn Write) -> io::Result<()> {
    let account = &report.account;
    let number = |n: u64| if parsable { n.to_string() } else { nicenum(n).to_string() };
    let mut line = |name: &str, value: String| {
        if scripted { writeln!(out, "{name}\t{value}") } else { writeln!(out, "{name:<20} {value:>14}") }
    };
    let (stats, total) = (&account.stats, account.stats.total());
    line("bp count", number(total.count))?;
    line("ganged count", number(total.gangs))?;
    line("bp logical", number(total.lsize))?;
    line("bp physical", number(total.psize))?;
    line("bp allocated", number(total.asize))?;
    line("bp deduped", number(stats.dedup_asize))?;
    line("bp cloned", number(stats.clone_asize))?;
    let classes = &account.classes;
    let all: [(&str, ClassUse); 5] = [
        ("normal class used", classes.normal),
        ("special class used", classes.special),
        ("dedup class used", classes.dedup),
        ("log class used", classes.log),
        ("embedded log used", classes.embedded_log),
    ];
    for (name, class) in all.into_iter().filter(|(_, class)| class.present) {
        line(name, number(u64::try_from(class.alloc).unwrap_or(0)))?;
    }
    line("blocks read", number(report.blocks_read))?;
    line("bytes read", number(report.bytes_read))
}

fn verdict(pool: &Pool, findings: &Findings, out: &mut dyn Write) -> io::Result<()> {
    let Findings { report, logs, .. } = findings;
    let name = &pool.name;
    if report.more_lines {
        writeln!(out, "{name}: there is more damage than could be listed")?;
    }
    if report.account.stopped {
        writeln!(out, "{name}: stopped; what was read till then is shown")?;
    }
    if !logs.is_empty() {
        writeln!(out, "{name}: intent logs of {} datasets cannot be read whole", logs.len())?;
    }
    let unreadable = report.account.unreadable_count;
    match (report.lost_blocks, report.repairable_blocks) {
        (0, 0) if unreadable > 0 => writeln!(out, "{name}: {unreadable} metadata blocks cannot be read"),
        (0, 0) if report.is_damaged() => writeln!(out, "{name}: all blocks are readable"),
        (0, 0) if report.account.stopped || !logs.is_empty() => Ok(()),
        (0, 0) => writeln!(out, "{name}: all is well"),
        (0, n) => writeln!(out, "{name}: {n} damaged blocks, all of which redundancy covers"),
        (lost, n) => writeln!(out, "{name}: {lost} blocks are lost, {n} more are damaged and repairable"),
    }
}
