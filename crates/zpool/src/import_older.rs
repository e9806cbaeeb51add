//! Older states of a pool whose newest state cannot be opened: the newest older state that can, how much
//! older it is, and which files changed since.
//!
//! The changes are found as far as the states that do not open can be read: of these, the newest whose meta object set opens
//! names the datasets' roots, which are compared with those of the state that opens. The output is bounded.
//!
//! An addition to OpenZFS, printed below its listing of such a pool.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::output::time;
use clikit::verb::Failure;
use engine::dmu::Objset;
use engine::dsl::Dataset;
use engine::env::Env;
use engine::spa::{ImportSource, OpenOptions, OpenPurpose, Pool, Reach};
use engine::zio::Form;
use ondisk::ObjectType;
use ondisk::dsl::DslDataset;
use zfs::diff::changes::{Side, of_object};
use zpl::Filesystem;
use zpl::differences::changed_objects;
use zutil::PoolCandidate;
use zutil::names::printable;

/// Changed files that are named.
const MAX_CHANGES: usize = 50;

/// Prints the newest older state that opens for that purpose, if the newest does not.
pub(super) fn say(
    candidate: &PoolCandidate,
    env: &Env,
    purpose: OpenPurpose,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let source = zutil::import::source(candidate);
    let options = OpenOptions { reach: Reach::Extreme, force: true, purpose, ..OpenOptions::default() };
    let Ok(pool) = engine::spa::open(env, source.clone(), options) else { return Ok(()) };
    let Some(rewind) = &pool.rewind else { return Ok(()) };
    let at = |txg: u64| source.uberblocks.iter().find(|u| u.uberblock.txg == txg).map(|u| u.uberblock);
    let Some(opened) = at(rewind.opened) else { return Ok(()) };
    // A state without uberblock has no time.
    let newest = at(rewind.newest);
    let why = rewind.failed.first().map(|(_, why)| printable(&why.to_string())).unwrap_or_default();
    let when = newest.map(|newest| format!(", {},", time::clock(newest.timestamp))).unwrap_or_default();
    writeln!(ctx.out, "newest: The state of txg {}{when} cannot be opened:\n\t{why}", rewind.newest)?;
    let lost = match newest {
        Some(newest) => format!("It is {} older.", age(newest.timestamp.saturating_sub(opened.timestamp))),
        None => format!("It lacks the changes of up to {} txgs.", rewind.newest - opened.txg),
    };
    writeln!(
        ctx.out,
        " older: The state of txg {}, {}, can be opened. {lost}",
        opened.txg,
        time::clock(opened.timestamp)
    )?;
    changes(&pool, &source, ctx)?;
    let name = printable(&candidate.name);
    // Without -X a rewind ends before states whose blocks may be overwritten.
    let safe = OpenOptions { reach: Reach::Safe, ..options };
    let is_safe = engine::spa::open(env, source.clone(), safe).is_ok();
    let extreme = if is_safe { "" } else { "X" };
    writeln!(
        ctx.out,
        "\tUse 'zpool import -o readonly=on -T {txg} {name}' to look at it, and\n\t'zpool import -F{extreme} {name}' or \
         'zpool import -T {txg} {name}' to go back to it for good.",
        txg = opened.txg
    )?;
    Ok(())
}

fn age(seconds: u64) -> String {
    match seconds {
        1 => "1 second".to_owned(),
        0..=120 => format!("{seconds} seconds"),
        121..=7200 => format!("{} minutes", (seconds + 30) / 60),
        _ => format!("{} hours", (seconds + 1800) / 3600),
    }
}

/// Names files that are not the same in the newest state that can be read in part.
fn changes(pool: &Arc<Pool>, source: &ImportSource, ctx: &mut Ctx) -> Result<(), Failure> {
    let mut newer: Vec<_> = source.uberblocks.iter().map(|found| found.uberblock).collect();
    newer.retain(|uberblock| uberblock.txg > pool.uberblock.txg);
    newer.sort_by_key(|uberblock| std::cmp::Reverse(uberblock.txg));
    let found = newer.iter().find_map(|uberblock| {
        let mos = Objset::open(&pool.arc, 0, &uberblock.rootbp, Form::Logical).ok()?;
        let roots = roots(&mos);
        (!roots.is_empty()).then_some((uberblock.txg, roots))
    });
    let Some((txg, roots)) = found else {
        writeln!(
            ctx.out,
            "\tWhich files changed since cannot be told: nothing of the newer states can be read."
        )?;
        return Ok(());
    };
    let (heads, mut lines) = (heads(pool), Vec::new());
    for (number, phys) in roots {
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        let Some(old) = heads.get(&number).filter(|old| !old.phys.bp.same_block(&phys.bp)) else { continue };
        let mut new = old.clone();
        new.phys.bp = phys.bp;
        compare(old, &new, &mut lines);
        if lines.len() > MAX_CHANGES {
            break;
        }
    }
    if lines.is_empty() {
        writeln!(ctx.out, "\tUp to txg {txg} no readable file changed.")?;
        return Ok(());
    }
    writeln!(ctx.out, "\tReadable files that changed up to txg {txg}:")?;
    for line in lines.iter().take(MAX_CHANGES) {
        writeln!(ctx.out, "\t    {line}")?;
    }
    if lines.len() > MAX_CHANGES {
        writeln!(ctx.out, "\t    and more")?;
    }
    Ok(())
}

/// The datasets that a meta object set names, as far as it can be read: object number, and content.
fn roots(mos: &Arc<Objset>) -> Vec<(u64, DslDataset)> {
    let objects = mos.objects().filter_map(Result::ok);
    let datasets = objects.filter(|object| object.dnode.bonustype == ObjectType::DSL_DATASET);
    let roots = datasets.filter_map(|object| {
        let phys = DslDataset::from_bytes(object.dnode.bonus()).ok()?;
        (!phys.is_snapshot() && !phys.bp.is_hole()).then_some((object.number, phys))
    });
    roots.collect()
}

/// The heads of all datasets by object number.
fn heads(pool: &Arc<Pool>) -> HashMap<u64, Dataset> {
    let Ok(root) = pool.dsl.root() else { return HashMap::new() };
    let heads = pool.dsl.walk(root).filter_map(|dir| dir.ok()?.head().ok());
    heads.map(|head| (head.number, head)).collect()
}

/// Adds a line for each change of a file system; for other datasets, and where the names can't be read, one line in all.
fn compare(old: &Dataset, new: &Dataset, lines: &mut Vec<String>) {
    let name = printable(&old.name);
    let before = lines.len();
    let both = Filesystem::open_committed(old).and_then(|old| Ok((old, Filesystem::open_committed(new)?)));
    if let Ok((old_fs, new_fs)) = both {
        let objects = changed_objects(&old_fs.objset, &new_fs.objset);
        let sides = (Side::new(old_fs), Side::new(new_fs));
        for number in objects.filter_map(Result::ok) {
            for change in of_object(&sides.0, &sides.1, number) {
                let path = printable(&String::from_utf8_lossy(&change.path));
                lines.push(format!("{}\t{name}:{path}", change.sign));
            }
            if lines.len() > MAX_CHANGES {
                return;
            }
        }
    }
    if lines.len() == before {
        lines.push(format!("M\t{name}"));
    }
}
