//! `-b`, `-c`: counts and checks every block of the pool.
//!
//! Differs from OpenZFS: unreadable metadata is reported on standard error; a block that is used twice, or used and
//! not allocated, is a line of its own where OpenZFS aborts; a deduplicated or cloned block is read once.

mod histogram;
mod table;

use std::io::{self, Write};

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Outcome};
use engine::Kind;
use engine::scan::account::{Account, ClassUse, WalkEvent};
use engine::scan::space::{Findings, SpaceRange};
use engine::scan::stats::Sums;
use engine::scan::verify::{Report, VerifyOptions, VerifyScope, verify};
use engine::scan::{ReferenceKind, Visit};
use engine::vdev::plan::Depth;
use ondisk::indirect::IndirectMapping;
use zcommon::units::nicenum;

use super::target::Session;

/// Leaks were found.
const LEAKS: Exit = Exit(2);
/// Blocks failed their checksums.
const ERRORS: Exit = Exit(3);
/// errno of a checksum failure (`EBADE`), as in OpenZFS on Linux.
const ECKSUM: i32 = 52;
const EIO: i32 = 5;

/// The zdb options relevant here.
#[derive(Debug, Clone, Copy)]
struct Want {
    blocks: u32,
    checksums: u32,
    leaks: bool,
    parsable: bool,
}

impl Want {
    fn number(self, n: u64) -> String {
        if self.parsable { n.to_string() } else { nicenum(n).to_string() }
    }
}

/// Counts (`-b`…) and checks (`-c`, `-cc`) the blocks of the session's pool.
pub fn run_blocks(session: &Session, ctx: &mut Ctx) -> Outcome {
    let want = Want {
        blocks: session.level('b'),
        checksums: session.level('c'),
        leaks: !session.options.has('L'),
        parsable: session.options.parsable(),
    };
    heading(want, &mut ctx.out)?;
    let which = match want.checksums {
        0 => VerifyScope::None,
        1 => VerifyScope::Metadata,
        _ => VerifyScope::All,
    };
    let stop = ctx.interrupt.flag();
    let options =
        VerifyOptions { which, depth: Depth::First, leaks: want.leaks, ..VerifyOptions::new(&stop) };
    let mut printed = Ok(());
    let report = {
        let out = &mut ctx.out;
        let mut tell = |event: &WalkEvent<'_>| {
            if want.blocks >= 5 && printed.is_ok() {
                printed = pointer(event, out);
            }
        };
        verify(&session.pool, &options, &mut |_| (), &mut tell)
    };
    printed?;
    for (_, error) in &report.account.unreadable {
        ctx.warn(error);
    }
    for note in &report.account.notes {
        ctx.warn(note);
    }
    errors(want, &report, &mut ctx.out)?;
    let leaks = space(want, &report.account, &mut ctx.out)?;
    let total = report.account.stats.total();
    if total.count == 0 {
        return Ok(LEAKS);
    }
    totals(&report.account, &total, &mut ctx.out)?;
    details(session, want, &report.account, &total, &mut ctx.out)?;
    writeln!(ctx.out)?;
    Ok(if leaks {
        LEAKS
    } else if report.failed.is_empty() {
        Exit::OK
    } else {
        ERRORS
    })
}

fn heading(want: Want, out: &mut dyn Write) -> io::Result<()> {
    let (c, leaks) = (want.checksums, want.leaks);
    let part = |on: bool, text: &'static str| if on { text } else { "" };
    writeln!(
        out,
        "\nTraversing all blocks {}{}{}{}{}...\n",
        part(c > 0 || leaks, "to verify "),
        part(c == 1, "metadata "),
        part(c > 0, "checksums "),
        part(c > 0 && leaks, "and verify "),
        part(leaks, "nothing leaked "),
    )
}

/// The line of `-bbbbb` for each pointer.
fn pointer(event: &WalkEvent<'_>, out: &mut dyn Write) -> io::Result<()> {
    let line = |visit: &Visit<'_>, out: &mut dyn Write| {
        if visit.origin == ReferenceKind::Deferred {
            return writeln!(out, "[deferred free] {}", visit.bp);
        }
        let at = &visit.at;
        writeln!(
            out,
            "objset {} object {} level {} offset 0x{:x} {}",
            at.objset,
            at.object,
            at.level,
            visit.offset(),
            visit.bp
        )
    };
    match event {
        WalkEvent::Block(visit, _) | WalkEvent::Hole(visit) if visit.bp.logical_birth() > 0 => {
            line(visit, out)
        }
        _ => Ok(()),
    }
}

fn errors(want: Want, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if report.failed.is_empty() {
        return Ok(());
    }
    let (mut checksum, mut other) = (0, 0);
    for (request, error) in &report.failed {
        let errno = if error.kind() == Kind::Checksum { ECKSUM } else { EIO };
        *if errno == ECKSUM { &mut checksum } else { &mut other } += 1;
        let at = &request.at;
        let bp = if want.blocks >= 2 { request.bp.to_string() } else { String::new() };
        writeln!(
            out,
            "zdb_blkptr_cb: Got error {errno} reading <{}, {}, {}, {:x}> {bp} -- skipping",
            at.objset, at.object, at.level, at.blkid
        )?;
    }
    writeln!(out, "\nError counts:\n\n\t{:>5}  count", "errno")?;
    for (errno, count) in [(EIO, other), (ECKSUM, checksum)].into_iter().filter(|(_, n)| *n > 0) {
        writeln!(out, "\t{errno:>5}  {count}")?;
    }
    Ok(())
}

/// Prints leaks and double use; returns whether there are any.
fn space(want: Want, account: &Account, out: &mut dyn Write) -> io::Result<bool> {
    if !want.leaks {
        return Ok(false);
    }
    if let Some(findings) = &account.space {
        runs(findings, out)?;
    }
    let (found, alloc) = (account.total_found(), account.total_alloc());
    if account.balances() {
        writeln!(out, "\n\tNo leaks (block sum matches space maps exactly)")?;
    } else {
        let difference = alloc.saturating_sub(found);
        writeln!(out, "block traversal size {found} != alloc {alloc} (leaked {difference})")?;
    }
    let clean = account.space.as_ref().is_none_or(Findings::is_clean);
    Ok(!clean || !account.balances())
}

fn runs(findings: &Findings, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = |what: &str, runs: &[SpaceRange]| -> io::Result<()> {
        for run in runs {
            writeln!(out, "{what}: vdev {}, offset 0x{:x}, size {}", run.vdev, run.offset, run.size)?;
        }
        Ok(())
    };
    lines("leaked space", &findings.leaked)?;
    lines("space used twice", &findings.doubled)?;
    lines("space used but not allocated", &findings.unallocated)
}

fn totals(account: &Account, total: &Sums, out: &mut dyn Write) -> io::Result<()> {
    let stats = &account.stats;
    let average = |n: u64| n.checked_div(total.count).unwrap_or(0);
    let compression = |n: u64| total.lsize as f64 / n as f64;
    writeln!(out, "\n\t{:<16} {:>14}", "bp count:", total.count)?;
    writeln!(out, "\t{:<16} {:>14}", "ganged count:", total.gangs)?;
    writeln!(out, "\t{:<16} {:>14}      avg: {:>6}", "bp logical:", total.lsize, average(total.lsize))?;
    for (what, bytes) in [("bp physical:", total.psize), ("bp allocated:", total.asize)] {
        let (average, ratio) = (average(bytes), compression(bytes));
        writeln!(out, "\t{what:<16} {bytes:>14}      avg: {average:>6}     compression: {ratio:>6.2}")?;
    }
    let dedup = stats.dedup_asize as f64 / total.asize as f64 + 1.0;
    let (saved, blocks) = (stats.dedup_asize, stats.dedup_blocks);
    writeln!(out, "\t{:<16} {saved:>14}    ref>1: {blocks:>6}   deduplication: {dedup:>6.2}", "bp deduped:")?;
    let (saved, blocks) = (stats.clone_asize, stats.clone_blocks);
    writeln!(out, "\t{:<16} {saved:>14}    count: {blocks:>6}", "bp cloned:")?;
    let classes = &account.classes;
    class(out, "Normal class:", classes.normal)?;
    for (name, one) in [
        ("Special class", classes.special),
        ("Dedup class", classes.dedup),
        ("Embedded log class", classes.embedded_log),
    ] {
        if one.present {
            class(out, name, one)?;
        }
    }
    Ok(())
}

fn class(out: &mut dyn Write, name: &str, class: ClassUse) -> io::Result<()> {
    // C prints this for zero out of zero.
    let used = match class.space {
        0 => "-nan".to_owned(),
        space => format!("{:.2}", 100.0 * class.alloc as f64 / space as f64),
    };
    writeln!(out, "\t{name:<16} {:>14}     used: {used:>5}%", class.alloc)
}

fn details(
    session: &Session,
    want: Want,
    account: &Account,
    total: &Sums,
    out: &mut dyn Write,
) -> io::Result<()> {
    for kind in 0..=u8::MAX {
        let of_kind = account.stats.embedded.iter().filter(|((k, _), _)| *k == kind);
        let sizes: Vec<(u64, u64)> = of_kind.map(|((_, size), n)| (*size, *n)).collect();
        let count: u64 = sizes.iter().map(|(_, n)| n).sum();
        if count == 0 {
            continue;
        }
        writeln!(out, "\n\tadditional, non-pointer bps of type {kind}: {count:>10}")?;
        if want.blocks >= 3 {
            writeln!(out, "\t number of (compressed) bytes:  number of bps")?;
            histogram::stars(&sizes, out)?;
        }
    }
    if total.ditto_same_vdev != 0 {
        writeln!(out, "\tDittoed blocks on same vdev: {}", total.ditto_same_vdev)?;
    }
    if total.ditto_same_metaslab != 0 {
        writeln!(out, "\tDittoed blocks in same metaslab: {}", total.ditto_same_metaslab)?;
    }
    for (vdev, segments) in mappings(session) {
        // zdb prints "in memory" but counts entries.
        let memory = want.number(segments);
        writeln!(out, "\tindirect vdev id {vdev} has {segments} segments ({memory} in memory)")?;
    }
    if want.blocks >= 2 {
        table::print(want, &account.stats, out)?;
        histogram::sizes(want, &account.stats, out)?;
    }
    Ok(())
}

/// Numbers of the vdevs that were removed or are being removed, with the segments of their mappings.
fn mappings(session: &Session) -> Vec<(u64, u64)> {
    let tree = session.pool.tree();
    let with_mapping = tree.config.children.iter().filter(|config| config.indirect_object != 0);
    let count = |number: u64| {
        let object = session.pool.mos.object(number).ok()?;
        Some(IndirectMapping::from_bytes(object.dnode.bonus()).ok()?.num_entries)
    };
    with_mapping.filter_map(|config| Some((config.id, count(config.indirect_object)?))).collect()
}
