//! `zpool import --rebuild`: reports damaged space maps and tables of a pool, and derives them from its
//! blocks.
//!
//! Additions to OpenZFS: `--rebuild` (`--rebuild-space`), `--accept-unreadable`.

use std::io::Write;
use std::time::{Duration, Instant};

use clikit::ctx::Ctx;
use clikit::verb::Failure;
use engine::Kind;
use engine::scan::account::WINDOW_SECTORS;
use engine::scan::damage::{Damage, assess, which};
use engine::scan::rebuild::{Progress, RebuildOptions, cost, survey};
use engine::spa::rebuild::{Derived, RebuildTables};
use engine::spa::{OpenOptions, OpenPurpose, Pool};
use zcommon::units::nicenum;
use zutil::PoolCandidate;
use zutil::names::printable;

use super::import::Import;

/// Time between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Damaged objects that are listed.
const MAX_LISTED: usize = 20;

impl Import {
    /// Reports the steps of a rebuild, or walks the pool and returns the derived structures. `None` after a
    /// dry run.
    pub(super) fn derive(
        &self,
        candidate: &PoolCandidate,
        ctx: &mut Ctx,
    ) -> Result<Option<Derived>, Failure> {
        let cannot = |e: engine::Error| match e.kind() {
            Kind::Interrupted => Failure::Interrupted,
            _ => Failure::cannot("import", &candidate.name, e),
        };
        let env = ctx.registry()?.env()?;
        let options = OpenOptions { purpose: OpenPurpose::Rebuild, ..self.state() };
        let opened = engine::spa::open(&env, zutil::import::source(candidate), options);
        if matches!(&opened, Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Checksum | Kind::Io))
            && !self.rewind
        {
            super::import_older::say(candidate, &env, OpenPurpose::Rebuild, ctx)?;
        }
        let pool = opened.map_err(cannot)?;
        let stop = ctx.interrupt.flag();
        let damage = assess(&pool, &stop);
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        let which = which(&pool, &damage);
        list(&damage, ctx)?;
        if self.dry {
            self.say_cost(&pool, which, ctx)?;
            return Ok(None);
        }
        let options =
            RebuildOptions { which, window: WINDOW_SECTORS, accept: self.accept_unreadable, stop: &stop };
        let mut last = Instant::now();
        let derived = survey(&pool, &options, &mut |now: Progress| {
            if last.elapsed() >= TELL_EVERY {
                last = Instant::now();
                ctx.err_line(&format!(
                    "rebuild: {} blocks of {} walked, pass {} of {}",
                    now.blocks,
                    nicenum(now.bytes),
                    now.pass,
                    now.passes
                ));
            }
        });
        derived.map(Some).map_err(cannot)
    }

    fn say_cost(&self, pool: &Pool, which: RebuildTables, ctx: &mut Ctx) -> Result<(), Failure> {
        let cost = cost(pool, WINDOW_SECTORS).map_err(|e| Failure::cannot("import", &pool.name, e))?;
        let passes = if cost.passes == 1 { "1 pass".to_owned() } else { format!("{} passes", cost.passes) };
        writeln!(ctx.out, "would write anew: {}", scope(cost.metaslabs, which))?;
        writeln!(
            ctx.out,
            "cost: {passes} over the pointers to all blocks of all datasets and snapshots; up to {} of memory for each pass",
            nicenum(cost.bitmaps)
        )?;
        let name = printable(&pool.name);
        writeln!(ctx.out, "Nothing was written. To do it, use 'zpool import --rebuild {name}'.")?;
        Ok(())
    }
}

fn scope(metaslabs: u64, which: RebuildTables) -> String {
    let mut all = format!("the space maps of {metaslabs} metaslabs and their log");
    if which.dedup {
        all.push_str(", dedup tables");
    }
    if which.clones {
        all.push_str(", clone tables");
    }
    if which.freeing {
        all.push_str(", lists of blocks to be freed (empty: what they list becomes free)");
    }
    all
}

fn list(damage: &[Damage], ctx: &mut Ctx) -> Result<(), Failure> {
    if damage.is_empty() {
        writeln!(
            ctx.out,
            "no space map, log of space maps, dedup table, clone table or list of blocks to be freed is damaged"
        )?;
        return Ok(());
    }
    writeln!(ctx.out, "damaged:")?;
    for Damage { what, why } in damage.iter().take(MAX_LISTED) {
        writeln!(ctx.out, "\t{}: {}", printable(&what.to_string()), printable(&why.to_string()))?;
    }
    if damage.len() > MAX_LISTED {
        writeln!(ctx.out, "\tand {} more", damage.len() - MAX_LISTED)?;
    }
    ctx.out.flush()?;
    Ok(())
}
