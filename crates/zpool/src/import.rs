//! `zpool import`: the pools that could be imported, as OpenZFS lists them; and, of each, the moments
//! that can be opened. Importing itself: [`super::import_one`].
//!
//! Differs from OpenZFS: pools are listed in the order of their names; remarks on devices go to the log, and
//! with `--moments` to standard error; `--moments`, `--rebuild`, `-g`, `-L` and `-P` are additions.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::table::{Column, Table};
use clikit::output::time;
use clikit::session::Home;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::env::Env;
use engine::spa::{ImportSource, OpenOptions, OpenPurpose};
use zutil::PoolCandidate;
use zutil::import_listing::{Listing, ListingOptions, LoadOutcome};
use zutil::import_status::system_hostid;
use zutil::names::printable;

use super::vdev_names::VdevNames;

/// Bytes of cache while a pool's metadata is looked at.
const CACHE: u64 = 64 << 20;

/// Import pools, or list the importable ones
#[derive(Debug, Args)]
pub struct Import {
    /// Search for devices in this directory, or use this device or file; may be repeated
    #[arg(short = 'd', value_name = "DIR|DEVICE")]
    pub device: Vec<PathBuf>,

    /// Import the pools that this cache file lists, from the devices that it names
    #[arg(short = 'c', value_name = "CACHEFILE", conflicts_with = "device")]
    pub cachefile: Option<PathBuf>,

    /// Import or list destroyed pools only
    #[arg(short = 'D')]
    pub destroyed: bool,

    /// Force the import, even if the pool appears to be in use by another system
    #[arg(short = 'f')]
    pub force: bool,

    /// Allow a missing log device; the most recent synchronous writes are lost
    #[arg(short = 'm')]
    pub missing_log: bool,

    /// Do not mount file systems
    #[arg(short = 'N')]
    pub no_mount: bool,

    /// Rewind to an older state if the newest cannot be opened, at most by the few transaction groups whose blocks are kept
    #[arg(short = 'F')]
    pub rewind: bool,

    /// With -F: only check whether a rewind would help; with --rebuild: only print the planned repairs
    #[arg(short = 'n')]
    pub dry: bool,

    /// With -F: try all older states; all blocks of a state are read first, which may take hours
    #[arg(short = 'X')]
    pub extreme: bool,

    /// Rewind to the newest state at or before this transaction group
    #[arg(short = 'T', value_name = "TXG")]
    pub txg: Option<u64>,

    /// Rewind to the pool's checkpoint, for good unless the pool is imported read-only
    #[arg(long)]
    pub rewind_to_checkpoint: bool,

    /// Rebuild space maps, and damaged dedup and clone tables, from the pool's blocks; with -n, only list the damage
    #[arg(long, alias = "rebuild-space", requires = "pool", conflicts_with = "rewind_to_checkpoint")]
    pub rebuild: bool,

    /// With --rebuild: give up everything that unreadable blocks refer to
    #[arg(long, requires = "rebuild")]
    pub accept_unreadable: bool,

    /// Load the keys of encrypted datasets, and prompt for those that are not available otherwise
    #[arg(short = 'l')]
    pub load_keys: bool,

    /// Alternate root: a directory that is prepended to all mount points
    #[arg(short = 'R', value_name = "ROOT")]
    pub root: Option<String>,

    /// Use the new name until the pool is exported
    #[arg(short = 't')]
    pub temporary: bool,

    /// Set a property of the pool, or an option of its mounts; may be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub options: Vec<String>,

    #[command(flatten)]
    pub(crate) names: VdevNames,

    /// Search the default directories (also without this option, unless -d is given)
    #[arg(short = 's')]
    pub scan: bool,

    /// Import all pools that are found
    #[arg(short = 'a')]
    pub all: bool,

    /// Without effect, as in OpenZFS.
    #[arg(short = 'C', hide = true)]
    pub no_cache: bool,

    /// Without effect, as in OpenZFS.
    #[arg(short = 'E', hide = true)]
    pub ephemeral: bool,

    /// List the states that each pool can be opened at (with -T TXG of other verbs), newest first
    #[arg(long)]
    pub moments: bool,

    /// The pool to import, by name or guid; with --moments, the pool to examine
    pub pool: Option<String>,

    /// A new name for the pool
    #[arg(value_name = "NEWPOOL")]
    pub new_name: Option<String>,
}

/// The refusal of options that change a rewind, without one.
pub(super) const REWINDS: &str = "-n or -X only meaningful with -F";

impl Verb for Import {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.all && self.pool.is_some() {
            return Err(Failure::usage("too many arguments"));
        }
        if self.home() == Home::Daemon {
            return self.import(ctx);
        }
        if (self.dry || self.extreme) && !self.rewind {
            return Err(Failure::usage(REWINDS));
        }
        let env = Env::system(CACHE)?;
        let mut pools = self.found(ctx)?;
        let imported: Vec<u64> = ctx.all_pools().iter().map(|pool| pool.guid()).collect();
        let is_fresh = |pool: &PoolCandidate| !imported.contains(&pool.guid) && !ctx.is_coming(&pool.name);
        pools.retain(|pool| self.wants(pool) && is_fresh(pool));
        if pools.is_empty() {
            return self.nothing(ctx);
        }
        for (count, pool) in pools.iter().enumerate() {
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            if count > 0 {
                writeln!(ctx.out)?;
            }
            let notes = pool.notes.iter().map(|note| printable(&note.to_string()));
            notes.for_each(|note| self.note(ctx, &format!("note: {note}")));
            if self.moments { moments(ctx, &env, pool)? } else { self.list(ctx, &env, pool)? }
        }
        Ok(Exit::OK)
    }
}

impl Import {
    /// The daemon imports, as it knows the imported pools.
    pub fn home(&self) -> Home {
        match () {
            () if self.moments => Home::Here,
            () if self.all || self.pool.is_some() => Home::Daemon,
            () => Home::Pools,
        }
    }

    /// The pools on the devices that are searched.
    pub(super) fn found(&self, ctx: &mut Ctx) -> Result<Vec<PoolCandidate>, Failure> {
        let here = |path: &PathBuf| ctx.session.as_ref().map_or_else(|| path.clone(), |s| s.path(path));
        if let Some(file) = self.cachefile.as_ref().map(here) {
            return daemon::cached::cached_in(&file).map_err(|e| {
                Failure::failed(format!("failed to open cache file: {}", clikit::verb::strerror(&e)))
            });
        }
        let found = zutil::discover(&self.device.iter().map(here).collect::<Vec<_>>());
        if self.home() != Home::Daemon {
            for skipped in &found.skipped {
                self.note(ctx, &format!("{}: {}", skipped.path.display(), skipped.why));
            }
        }
        let mut found = zutil::search(&found.devices);
        // Devices of the daemon's cache file may lie where no search looks.
        if self.device.is_empty()
            && let Ok(registry) = ctx.registry()
        {
            let cached = registry.failed().into_values().map(|pool| pool.candidate());
            let cached = cached.filter(|pool| !pool.members.is_empty());
            let fresh: Vec<_> =
                cached.filter(|pool| found.iter().all(|other| other.guid != pool.guid)).collect();
            found.extend(fresh);
        }
        Ok(found)
    }

    /// Reports a remark: to the user with `--moments`, else to the log. Programs that parse OpenZFS' list
    /// take a line on standard error for a failure.
    fn note(&self, ctx: &mut Ctx, text: &str) {
        match ctx.session {
            _ if self.moments => ctx.warn(text),
            Some(_) => eprintln!("zpool import: {text}"),
            None => {}
        }
    }

    fn wants(&self, pool: &PoolCandidate) -> bool {
        let named =
            self.pool.as_ref().is_none_or(|wanted| *wanted == pool.name || wanted.parse() == Ok(pool.guid));
        named && pool.is_destroyed() == self.destroyed
    }

    /// OpenZFS counts a search without a find as a success.
    fn nothing(&self, ctx: &mut Ctx) -> Outcome {
        if let Some(pool) = &self.pool {
            return Err(Failure::cannot("import", pool, ctx.why_no_pool_of(pool, "no such pool available")));
        }
        if !ctx.tell_coming() {
            ctx.warn("no pools available to import");
        }
        Ok(Exit::OK)
    }

    fn list(&self, ctx: &mut Ctx, env: &Env, pool: &PoolCandidate) -> Result<(), Failure> {
        let names = self.names.style();
        let outcome = zutil::load::load(env, pool);
        let options = ListingOptions { names, hostid: system_hostid() };
        write!(ctx.out, "{}", Listing::new(pool, &outcome, options))?;
        match outcome {
            LoadOutcome::Corrupt => super::import_older::say(pool, env, OpenPurpose::Read, ctx),
            _ => Ok(()),
        }
    }
}

/// Prints which states of a pool its uberblocks lead to, and whether each still opens.
fn moments(ctx: &mut Ctx, env: &Env, pool: &PoolCandidate) -> Result<(), Failure> {
    let source = zutil::import::source(pool);
    let right = |header: &str| Column::new(header, true);
    let left = |header: &str| Column::new(header, false);
    let mut table = Table::new(vec![right("TXG"), left("TIME"), right("COPIES"), left("OPENS")]);
    let mut seen = BTreeSet::new();
    for found in &source.uberblocks {
        if ctx.interrupt.is_set() {
            return Err(Failure::Interrupted);
        }
        let uberblock = &found.uberblock;
        // Slots of one txg differ in their multihost fields only; the first is the best.
        if seen.insert(uberblock.txg) {
            table.push(vec![
                uberblock.txg.to_string(),
                time::clock(uberblock.timestamp),
                found.copies.to_string(),
                opens(env, &source, uberblock.txg),
            ]);
        }
    }
    writeln!(ctx.out, "pool: {} ({})", printable(&pool.name), pool.guid)?;
    table.print(&mut *ctx.out, false)?;
    Ok(())
}

fn opens(env: &Env, source: &ImportSource, txg: u64) -> String {
    let options = OpenOptions { txg: Some(txg), ..OpenOptions::default() };
    match engine::spa::open(env, source.clone(), options) {
        Ok(pool) => match engine::spa::overtaken(source, &pool) {
            Some(why) => format!("in part: {why}"),
            None => "yes".to_owned(),
        },
        Err(err) => format!("no: {err}"),
    }
}

#[cfg(test)]
mod tests {
    use clikit::testing;
    use clikit::verb::Exit;

    use crate::Zpool;

    #[test]
    fn nothing_found_is_said_and_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let run = testing::run::<Zpool>(&["zpool", "import", "-d", dir.path().to_str().unwrap()]);
        assert_eq!((run.exit, run.out.as_str()), (Exit::OK, ""));
        assert_eq!(run.err, "no pools available to import\n");
    }

    #[test]
    fn devices_that_can_not_be_opened_are_told_of_with_moments_only() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device");
        let device = device.to_str().unwrap();
        assert_eq!(
            testing::run::<Zpool>(&["zpool", "import", "-d", device]).err,
            "no pools available to import\n"
        );
        let told = testing::run::<Zpool>(&["zpool", "import", "-d", device, "--moments"]).err;
        assert!(told.starts_with(&format!("{device}: ")), "{told}");
    }

    #[test]
    fn moments_of_no_pool_are_none() {
        let run = testing::run::<Zpool>(&["zpool", "import", "-d", "/nowhere", "--moments", "tank"]);
        assert!(run.err.contains("cannot import 'tank': no such pool available"), "{}", run.err);
    }
}
