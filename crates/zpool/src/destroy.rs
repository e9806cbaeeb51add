//! `zpool destroy`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::mounts::CANNOT_UNMOUNT;
use engine::Kind;
use zfs::remount::Left;

/// Destroy a pool.
#[derive(Debug, Args)]
pub struct Destroy {
    /// Forcibly unmount active file systems.
    #[arg(short = 'f')]
    pub force: bool,
    /// The pool.
    pub pool: String,
}

impl Verb for Destroy {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let registry = ctx.registry()?;
        if self.pool.contains('/') {
            let what = "cannot destroy '{}': use 'zfs destroy' to destroy a dataset";
            return Err(Failure::failed(what.replace("{}", &self.pool)));
        }
        let pool = ctx.pool(&self.pool).ok_or_else(|| ctx.no_pool(&self.pool))?;
        if !pool.is_read_only() {
            // For `zpool import -D`.
            let _ = ctx.log(&pool);
        }
        // One that was imported read-only is let go as it is, as in OpenZFS: its disks know nothing of it.
        let (name, left) = (pool.name(), Left::by_pool(&pool));
        drop(pool);
        ctx.release();
        registry.destroy(&name, self.force).map_err(|e| gone("destroy", &name, &e))?;
        left.remove();
        Ok(Exit::OK)
    }
}

const SUSPENDED: &str = "pool I/O is currently suspended\n\
    'zpool clear' resumes the pool; 'zpool export -f' lets go of it, and leaves its disks as they are.";

/// OpenZFS' message for a pool that can't be exported or destroyed.
pub fn gone(action: &str, pool: &str, e: &engine::Error) -> Failure {
    match e.kind() {
        _ if e.what().starts_with(CANNOT_UNMOUNT) && action == "destroy" => {
            Failure::failed(format!("{}\ncould not destroy '{pool}': could not unmount datasets", e.what()))
        }
        _ if e.what().starts_with(CANNOT_UNMOUNT) => Failure::failed(e.what()),
        Kind::NotFound => Failure::no_pool(pool),
        Kind::Busy => Failure::cannot(action, pool, "pool is busy"),
        Kind::Suspended if action == "destroy" => Failure::cannot(action, pool, SUSPENDED),
        _ => Failure::cannot(action, pool, e.what()),
    }
}
