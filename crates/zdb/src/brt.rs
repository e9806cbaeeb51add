//! `-T`: cloned blocks.

use std::io::Write;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Outcome};
use engine::brt::{BrtTable, table};
use zcommon::features::Feature;

use super::target::Session;
use super::text::{Numbers, histogram};

/// Totals; `-TT` of each vdev, `-TTT` with histograms, `-TTTT` every entry.
pub fn run(session: &Session, ctx: &mut Ctx) -> Outcome {
    let (pool, level) = (&session.pool, session.level('T'));
    let numbers = Numbers { exact: session.options.parsable() };
    match pool.features.count(Feature::BlockCloning.info().guid) {
        None => {
            writeln!(ctx.out, "BRT: unsupported on this pool")?;
            return Ok(Exit::OK);
        }
        Some(0) => {
            writeln!(ctx.out, "BRT: empty")?;
            return Ok(Exit::OK);
        }
        Some(_) => {}
    }
    let mut exit = Exit::OK;
    let mut tables = Vec::new();
    for top in &pool.tree().config.children {
        match table(&pool.mos, top.id) {
            Ok(found) => tables.push((top.id, found)),
            Err(e) => {
                ctx.warn(format!("clone table of vdev {}: {e}", top.id));
                exit = Exit::FAILED;
            }
        }
    }
    let sum = |of: fn(&BrtTable) -> u64| {
        tables.iter().filter_map(|(_, t)| t.as_ref()).map(of).fold(0_u64, u64::wrapping_add)
    };
    let (used, saved) = (sum(|t| t.head.usedspace), sum(|t| t.head.savedspace));
    let ratio = u128::from(used).saturating_add(u128::from(saved)) * 100;
    let ratio = ratio.checked_div(u128::from(used)).unwrap_or(100);
    writeln!(
        ctx.out,
        "BRT: used {}; saved {}; ratio {}.{:02}x",
        numbers.bytes(used),
        numbers.bytes(saved),
        ratio / 100,
        ratio % 100
    )?;
    if level < 2 {
        return Ok(exit);
    }
    for (id, table) in &tables {
        let Some(table) = table else {
            writeln!(ctx.out, "BRT: vdev {id}: empty")?;
            continue;
        };
        let head = &table.head;
        let (count, used) = (numbers.count(head.totalcount), numbers.bytes(head.usedspace));
        let saved = numbers.bytes(head.savedspace);
        writeln!(ctx.out, "BRT: vdev {id}: refcnt {count}; used {used}; saved {saved}")?;
    }
    if level >= 4 {
        writeln!(ctx.out, "\n{:<16} {:<10}", "DVA", "REFCNT")?;
    }
    for table in tables.iter().filter_map(|(_, table)| table.as_ref()).filter(|_| level >= 3) {
        if entries(table, level, ctx)? != Exit::OK {
            exit = Exit::FAILED;
        }
    }
    Ok(exit)
}

fn entries(table: &BrtTable, level: u32, ctx: &mut Ctx) -> Outcome {
    let mut exit = Exit::OK;
    let mut counts = [0_u64; 65];
    for entry in table.entries() {
        match entry {
            Ok(entry) if level >= 4 => {
                let dva = format!("{}:{:x}", table.vdev, entry.offset);
                writeln!(ctx.out, "{dva:<16} {:<10}", entry.refcnt)?;
            }
            Ok(entry) => {
                let bits = usize::try_from(u64::BITS - entry.refcnt.leading_zeros()).unwrap_or(0);
                counts.iter_mut().skip(bits).take(1).for_each(|n| *n += 1);
            }
            Err(e) => {
                ctx.warn(format!("clone table of vdev {}: {e}", table.vdev));
                exit = Exit::FAILED;
            }
        }
    }
    if level < 4 {
        writeln!(ctx.out, "\nBRT: vdev {}: DVAs with 2^n refcnts:", table.vdev)?;
        histogram(&mut ctx.out, &counts, 0)?;
    }
    Ok(exit)
}
