//! `zpool remove`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::spa::{ActivityCommand, WaitActivity};
use zcommon::units::nicenum;
use zutil::words;

use super::device;
use super::simple::named;
use super::wait::until_done;

/// Remove devices from a pool: spares, cache and log devices at once, disks and mirrors by copying their data.
#[derive(Debug, Args)]
pub struct Remove {
    /// Only print the memory that the mapping of the removed device would take.
    #[arg(short = 'n')]
    pub dry: bool,
    /// With -n: print exact (parsable) numbers.
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Cancel the removal in progress; the copied blocks are freed.
    #[arg(short = 's')]
    pub stop: bool,
    /// Wait until the removal completes.
    #[arg(short = 'w')]
    pub wait: bool,
    /// The pool.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
    /// The devices.
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
}

/// The guid of the vdev, spare or cache device that a word means.
fn find(pool: &Imported, word: &str) -> Option<u64> {
    if let Some(vdev) = device::find(pool, word) {
        return Some(vdev.guid);
    }
    let facts = pool.view().ok().and_then(|view| zutil::load::facts(&view))?;
    let aux = facts.spares.iter().chain(&facts.l2cache);
    words::find(aux, word).map(|vdev| vdev.guid)
}

fn cannot(word: &str, what: &str) -> Failure {
    Failure::failed(format!("cannot remove {word}: {what}"))
}

fn why(e: &engine::Error) -> String {
    match e.kind() {
        engine::Kind::Suspended => session::suspended(e),
        _ => e.what().to_owned(),
    }
}

impl Remove {
    fn stop(&self, name: &str, ctx: &mut Ctx) -> Outcome {
        let pool = named(name, ctx)?;
        let cannot = |e: engine::Error| Failure::failed(format!("cannot cancel removal: {}", why(&e)));
        pool.spa()
            .and_then(|spa| spa.background().command(WaitActivity::Remove, ActivityCommand::Cancel))
            .map_err(cannot)?;
        pool.look_again();
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }

    /// Prints the memory that a mapping would take.
    fn print_memory(&self, pool: &Imported, word: &str, ctx: &mut Ctx) -> Result<(), Failure> {
        let guid = find(pool, word).ok_or_else(|| cannot(word, "no such device in pool"))?;
        let memory = pool.spa().and_then(|spa| spa.removal().memory(guid));
        let bytes = memory.map_err(|e| cannot(word, &why(&e)))?;
        match self.parsable {
            true => writeln!(ctx.out, "{word} {bytes}")?,
            false => {
                writeln!(ctx.out, "Memory that will be used after removing {word}: {}", nicenum(bytes))?;
            }
        }
        Ok(())
    }

    fn remove(&self, pool: &Imported, word: &str) -> Result<(), Failure> {
        let guid = find(pool, word).ok_or_else(|| cannot(word, "no such device in pool"))?;
        pool.spa().and_then(|spa| spa.removal().remove(guid)).map_err(|e| cannot(word, &why(&e)))
    }
}

impl Verb for Remove {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let name = self.pool.as_ref().ok_or_else(|| Failure::usage("missing pool name argument"))?;
        if self.stop && self.dry {
            return Err(Failure::usage(
                "invalid option combination: stop_removal and noop are mutually exclusive",
            ));
        }
        if self.wait && self.dry {
            return Err(Failure::usage("invalid option combination: -w cannot be used with -n"));
        }
        if self.stop && self.wait {
            return Err(Failure::usage("invalid option combination: -w cannot be used with -s"));
        }
        if self.stop {
            if !self.devices.is_empty() {
                return Err(Failure::usage("too many arguments"));
            }
            return self.stop(name, ctx);
        }
        if self.devices.is_empty() {
            return Err(Failure::usage("missing device"));
        }
        let pool = named(name, ctx)?;
        if self.dry {
            self.devices.iter().try_for_each(|word| self.print_memory(&pool, word, ctx))?;
            return Ok(Exit::OK);
        }
        let exit = clikit::verb::each(&self.devices, ctx, |word, _| self.remove(&pool, word))?;
        pool.look_again();
        ctx.registry()?.note(&pool);
        if exit != Exit::OK {
            return Ok(exit);
        }
        ctx.log(&pool)?;
        drop(pool);
        if self.wait {
            until_done(name, ctx, WaitActivity::Remove)?;
            let pool = named(name, ctx)?;
            pool.look_again();
            ctx.registry()?.note(&pool);
        }
        Ok(Exit::OK)
    }
}
