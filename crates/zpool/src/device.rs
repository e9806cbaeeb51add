//! Verbs of `zpool` on single devices: `offline`, `online`, `clear`.
//!
//! Differs from OpenZFS: `online -e` uses the size of files and partitions, and does not make a partition
//! larger.

use std::io::Write;
use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{self, Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::Kind;
use zcommon::health::Health;
use zcommon::vdev::VdevState;
use zutil::tree::VdevNode;
use zutil::words;

use super::import::REWINDS;
use super::simple::{named, named_or_retried};

/// Take devices out of use.
#[derive(Debug, Args)]
pub struct Offline {
    /// Fault the devices.
    #[arg(short = 'f')]
    pub fault: bool,
    /// Turn off the power of the devices' slots.
    #[arg(long)]
    pub power: bool,
    /// Take the devices offline until the pool is exported.
    #[arg(short = 't')]
    pub temporary: bool,
    /// The pool.
    pub pool: String,
    /// The devices.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<String>,
}

/// Bring devices online.
#[derive(Debug, Args)]
pub struct Online {
    /// Expand the device to use all available space.
    #[arg(short = 'e')]
    pub expand: bool,
    /// Turn on the power of the devices' slots first.
    #[arg(long)]
    pub power: bool,
    /// The pool.
    pub pool: String,
    /// The devices.
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<String>,
}

/// Clear the errors of devices, and open faulted devices again.
#[derive(Debug, Args)]
pub struct Clear {
    /// Rewind to an older state if the newest cannot be opened.
    #[arg(short = 'F')]
    pub rewind: bool,
    /// With -F: only check whether a rewind would help.
    #[arg(short = 'n')]
    pub dry: bool,
    /// With -F: try all older states. A pool that is imported has no need of it.
    #[arg(short = 'X', hide = true)]
    pub extreme: bool,
    /// Turn on the power of the devices' slots first. As in OpenZFS, a slot without that control is no error.
    #[arg(long = "power")]
    pub power: bool,
    /// The pool.
    pub pool: String,
    /// A device of the pool (default: all).
    pub device: Option<String>,
}

/// The power of slots is not switched by this build; `zpool status --power` shows it.
const NO_POWER: &str = "Power control not supported";

/// Returns the vdev of a pool that a word means; `None` if there is none, or if the word is the end of several paths.
pub fn find(pool: &Imported, word: &str) -> Option<VdevNode> {
    let config = pool.config();
    let tree = config.nvlist("vdev_tree").and_then(VdevNode::from_config)?;
    words::find(tree.walk().skip(1), word).cloned()
}

/// The guid of the device that a word means.
fn device(pool: &Imported, verb: &str, word: &str) -> Result<u64, Failure> {
    let cannot = |what: &str| cannot(verb, word, what);
    if let Some(vdev) = find(pool, word) {
        return Ok(vdev.guid);
    }
    let facts = pool.view().ok().and_then(|view| zutil::load::facts(&view));
    match facts.is_some_and(|facts| words::find(facts.spares.iter(), word).is_some()) {
        true => Err(cannot("device is reserved as a hot spare")),
        // Its config may have other paths than its devices have now.
        false if pool.is_read_only() => Err(cannot("pool is read-only")),
        false if verb == "online" => {
            Err(Failure::failed(format!("couldn't find device \"{word}\" in pool \"{}\"", pool.name())))
        }
        false => Err(cannot("no such device in pool")),
    }
}

/// In the words of libzfs, which has no quotes around devices.
fn cannot(verb: &str, word: &str, what: &str) -> Failure {
    Failure::failed(format!("cannot {verb} {word}: {what}"))
}

fn why(e: &engine::Error) -> String {
    match e.kind() {
        Kind::Suspended => clikit::session::suspended(e),
        _ => e.what().to_owned(),
    }
}

/// Runs an operation for each device, and reports failures; updates the pool's history and the cache file.
fn each(
    devices: &[String],
    pool: &Arc<Imported>,
    ctx: &mut Ctx,
    mut work: impl FnMut(&str, &mut Ctx) -> Result<(), Failure>,
) -> Outcome {
    let mut done = false;
    let exit = verb::each(devices, ctx, |word, ctx| {
        work(word, ctx)?;
        done = true;
        Ok(())
    })?;
    if done {
        ctx.registry()?.note(pool);
        ctx.log(pool)?;
    }
    Ok(exit)
}

impl Verb for Offline {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.power && (self.fault || self.temporary) {
            return Err(Failure::usage("-f and -t are incompatible with --power"));
        }
        if self.power {
            return Err(Failure::failed(NO_POWER));
        }
        let pool = named(&self.pool, ctx)?;
        let verb = if self.fault { "fault" } else { "offline" };
        each(&self.devices, &pool, ctx, |word, _| {
            // Differs from OpenZFS: -t is not heeded, a cache device stays offline until it is brought back.
            if let Some(guid) = cache(&pool, word).filter(|_| !self.fault) {
                let done = pool.spa().and_then(|spa| spa.caches().offline(guid));
                return done.map_err(|e| cannot(verb, word, &why(&e)));
            }
            let guid = device(&pool, verb, word)?;
            let done = pool.spa().and_then(|spa| match self.fault {
                true => spa.disks().fault(guid, self.temporary),
                false => spa.disks().offline(guid, self.temporary),
            });
            done.map_err(|e| cannot(verb, word, &why(&e)))
        })
    }
}

impl Verb for Online {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.power {
            return Err(Failure::failed(NO_POWER));
        }
        let pool = named_or_retried(&self.pool, ctx)?;
        let verb = if self.expand { "expand" } else { "online" };
        let mut failed = false;
        let exit = each(&self.devices, &pool, ctx, |word, ctx| {
            if failed {
                return Ok(());
            }
            if let Some(guid) = cache(&pool, word) {
                if self.expand {
                    return Err(cannot(verb, word, "cannot expand cache devices"));
                }
                let done = pool.spa().and_then(|spa| spa.caches().online(guid));
                done.map_err(|e| cannot(verb, word, &why(&e)))?;
                ctx.registry()?.open_aux(&pool);
                return Ok(());
            }
            let guid = device(&pool, "online", word)?;
            let cannot = |e: engine::Error| cannot(verb, word, &why(&e));
            let spa = pool.spa().map_err(cannot)?;
            if let Some(vdev) = find(&pool, word).filter(|vdev| !vdev.is_leaf()) {
                return reopen(&pool, &vdev).map_err(cannot);
            }
            let before = spa.pool.tree().leaf(guid).map(|leaf| leaf.health());
            let is_out = |health: &Health| !health.is_readable() && health.state != VdevState::Faulted;
            let reopened = before.filter(is_out).map(|_| pool.reopen(guid));
            let health = spa.disks().online(guid, reopened, self.expand).map_err(cannot)?;
            if health.state != VdevState::Healthy {
                let worked = before.is_some_and(|before| before.is_readable());
                if pool.is_ahead(guid) {
                    writeln!(ctx.out, "{}", later_state(word))?;
                    return Ok(());
                }
                remains_faulty(word, health, self.expand.then_some(worked), ctx)?;
                failed = self.expand && worked;
            }
            Ok(())
        })?;
        Ok(if failed { Exit::FAILED } else { exit })
    }
}

/// Opens the devices below a vdev again that could not be opened.
#[doc(alias = "vdev_reopen")]
fn reopen(pool: &Imported, vdev: &VdevNode) -> engine::Result<()> {
    let spa = pool.spa()?;
    let tree = spa.pool.tree();
    let leaves = vdev.walk().filter_map(|vdev| tree.leaf(vdev.guid));
    let gone = leaves.filter(|leaf| leaf.health().state == VdevState::CantOpen);
    spa.disks().reopen(gone.map(|leaf| (leaf.guid, pool.reopen(leaf.guid))).collect())
}

/// The guid of the cache device that a word means.
fn cache(pool: &Imported, word: &str) -> Option<u64> {
    let view = pool.view().ok()?;
    let facts = zutil::load::facts(&view)?;
    words::find(facts.l2cache.iter(), word).map(|vdev| vdev.guid)
}

/// Warns of devices out of use that have a later state of the pool.
pub fn warn_of_later_states(pool: &Imported, leaves: &[u64], ctx: &mut Ctx) -> std::io::Result<()> {
    let tree = match pool.spa() {
        Ok(spa) => spa.pool.tree(),
        Err(_) => return Ok(()),
    };
    for leaf in leaves.iter().filter(|guid| pool.is_ahead(**guid)).filter_map(|guid| tree.leaf(*guid)) {
        writeln!(ctx.out, "{}", later_state(&leaf.path))?;
    }
    Ok(())
}

/// Why a device is not taken back, and what can be done.
fn later_state(word: &str) -> String {
    format!(
        "warning: device '{word}' has a later state of the pool, which another system wrote, and is not used\n\
         use 'zpool labelclear -f' and 'zpool replace' to give up that state and copy the device anew"
    )
}

/// Warns that a device that was brought online is not healthy; with `expand`, also whether it worked before.
fn remains_faulty(word: &str, health: Health, expand: Option<bool>, ctx: &mut Ctx) -> std::io::Result<()> {
    writeln!(ctx.out, "warning: device '{word}' onlined, but remains in faulted state")?;
    let advice = match health.state {
        VdevState::Faulted => "use 'zpool clear' to restore a faulted device",
        _ => "use 'zpool replace' to replace devices that are no longer present",
    };
    writeln!(ctx.out, "{advice}")?;
    let Some(worked) = expand else { return Ok(()) };
    let what = if worked { "error" } else { "warning" };
    writeln!(ctx.out, "{what}: failed to expand usable space on unhealthy device '{word}'")
}

impl Verb for Clear {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if (self.dry || self.extreme) && !self.rewind {
            return Err(Failure::usage(REWINDS));
        }
        let pool = named_or_retried(&self.pool, ctx)?;
        if self.dry {
            // It is imported, so nothing has to be gone back to.
            return Ok(Exit::OK);
        }
        let cannot = |name: &str, what: &str| cannot("clear errors for", name, what);
        let spa = pool.spa().map_err(|e| cannot(&self.pool, e.what()))?;
        pool.resume().map_err(|e| cannot(&self.pool, e.what()))?;
        let tree = spa.pool.tree();
        let guids: Vec<u64> = match &self.device {
            None => tree.leaves().map(|leaf| leaf.guid).collect(),
            Some(word) => {
                let found = find(&pool, word).ok_or_else(|| cannot(word, "no such device in pool"))?;
                found.walk().filter(|vdev| vdev.is_leaf()).map(|vdev| vdev.guid).collect()
            }
        };
        let mut devices = Vec::new();
        for leaf in guids.into_iter().filter_map(|guid| tree.leaf(guid)) {
            let health = leaf.health();
            let is_out = !health.is_readable() && health.state != VdevState::Offline;
            devices.push((leaf.guid, is_out.then(|| pool.reopen(leaf.guid))));
        }
        let name = self.device.as_deref().unwrap_or(&self.pool);
        let reopened: Vec<u64> =
            devices.iter().filter(|(_, new)| new.is_some()).map(|(guid, _)| *guid).collect();
        spa.disks().clear(devices).map_err(|e| cannot(name, &why(&e)))?;
        warn_of_later_states(&pool, &reopened, ctx)?;
        ctx.registry()?.open_aux(&pool);
        ctx.registry()?.note(&pool);
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}
