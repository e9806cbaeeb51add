//! `zpool initialize` and `zpool trim`.

use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use engine::spa::sweep::{SweepCommand, SweepKind, TrimOptions};
use zcommon::units::parse_nicenum;
use zutil::tree::VdevNode;

use super::device::find;
use super::prop::is_trimmable;
use super::simple::named;
use super::wait::until;

/// Write to all free space of devices, so that thinly provisioned storage allocates all of it.
#[derive(Debug, Args)]
pub struct Initialize {
    /// Cancel the initialization.
    #[arg(short = 'c', long = "cancel")]
    pub cancel: bool,
    /// Suspend the initialization until it is started again.
    #[arg(short = 's', long = "suspend")]
    pub suspend: bool,
    /// Clear the initialization state, so that the devices can be initialized again.
    #[arg(short = 'u', long = "uninit")]
    pub uninit: bool,
    /// Wait until the initialization completes.
    #[arg(short = 'w', long = "wait")]
    pub wait: bool,
    /// Initialize all imported pools.
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    /// The pool, and devices of it (default: all of its devices).
    #[arg(value_name = "POOL [DEVICE ...]")]
    pub names: Vec<String>,
}

/// Trim the free space of devices.
#[derive(Debug, Args)]
pub struct Trim {
    /// Cancel the trim.
    #[arg(short = 'c', long = "cancel")]
    pub cancel: bool,
    /// Use secure TRIM, which makes the data unreadable.
    #[arg(short = 'd', long = "secure")]
    pub secure: bool,
    /// Bytes to trim per second on each device.
    #[arg(short = 'r', long = "rate", value_name = "RATE")]
    pub rate: Option<String>,
    /// Suspend the trim until it is started again.
    #[arg(short = 's', long = "suspend")]
    pub suspend: bool,
    /// Wait until the trim completes.
    #[arg(short = 'w', long = "wait")]
    pub wait: bool,
    /// Trim all imported pools.
    #[arg(short = 'a', long = "all")]
    pub all: bool,
    /// The pool, and devices of it (default: all of its devices).
    #[arg(value_name = "POOL [DEVICE ...]")]
    pub names: Vec<String>,
}

/// An operation, and its devices.
struct Work<'a> {
    kind: SweepKind,
    command: SweepCommand,
    options: TrimOptions,
    wait: bool,
    devices: &'a [String],
    /// A device that cannot be trimmed is skipped.
    is_lenient: bool,
}

const NOT_TRIMMED: &str = "trim operations are not supported by this device";

impl Verb for Initialize {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let given = [
            ('c', self.cancel, SweepCommand::Cancel),
            ('s', self.suspend, SweepCommand::Suspend),
            ('u', self.uninit, SweepCommand::Uninit),
        ];
        let command = one_of(&given)?;
        if self.all && !self.names.is_empty() {
            return Err(Failure::usage("-a cannot be combined with individual pools or vdevs"));
        }
        check_names(&self.names, self.all)?;
        if self.wait && command != SweepCommand::Start {
            return Err(Failure::usage("-w cannot be used with -c, -sor -u"));
        }
        let devices = self.names.get(1..).unwrap_or_default();
        let (kind, options) = (SweepKind::Initialize, TrimOptions::default());
        Work { kind, command, options, wait: self.wait, devices, is_lenient: false }
            .on_pools(self.names.first(), ctx)
    }
}

impl Verb for Trim {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let given = [('c', self.cancel, SweepCommand::Cancel), ('s', self.suspend, SweepCommand::Suspend)];
        let command = one_of(&given)?;
        for (letter, on) in [('d', self.secure), ('r', self.rate.is_some())] {
            if on && command != SweepCommand::Start {
                let what = format!("-{letter} cannot be combined with the -c or -s options");
                return Err(Failure::usage(what));
            }
        }
        let rate = self.rate.as_deref().map(|word| {
            parse_nicenum(word).map_err(|why| Failure::usage(format!("invalid value for rate: {why}")))
        });
        let rate = rate.transpose()?.unwrap_or(0);
        check_names(&self.names, self.all)?;
        if self.wait && command != SweepCommand::Start {
            return Err(Failure::usage("-w cannot be used with -c or -s options"));
        }
        if self.all && !self.names.is_empty() {
            return Err(Failure::usage("-a cannot be combined with individual zpools or vdevs"));
        }
        let devices = self.names.get(1..).unwrap_or_default();
        let options = TrimOptions { rate, partial: false, secure: self.secure };
        let (kind, is_lenient) = (SweepKind::Trim, devices.is_empty() && !self.secure);
        Work { kind, command, options, wait: self.wait, devices, is_lenient }
            .on_pools(self.names.first(), ctx)
    }
}

/// The pool; a failure is -1.
fn opened(name: &str, ctx: &mut Ctx) -> Result<Arc<Imported>, Failure> {
    named(name, ctx).map_err(|why| Failure::MinusOne(why.message().unwrap_or_default()))
}

fn one_of(given: &[(char, bool, SweepCommand)]) -> Result<SweepCommand, Failure> {
    let mut given = given.iter().filter(|(_, on, _)| *on);
    match (given.next(), given.next()) {
        (_, Some((letter, ..))) => {
            Err(Failure::usage(format!("-{letter} cannot be combined with other options")))
        }
        (Some((_, _, command)), None) => Ok(*command),
        (None, None) => Ok(SweepCommand::Start),
    }
}

fn check_names(names: &[String], all: bool) -> Result<(), Failure> {
    match names.is_empty() && !all {
        true => Err(Failure::usage("missing pool name argument")),
        false => Ok(()),
    }
}

impl Work<'_> {
    fn verb(&self) -> &'static str {
        match self.kind {
            SweepKind::Initialize => "initialize",
            SweepKind::Trim => "trim",
        }
    }

    fn on_pools(&self, name: Option<&String>, ctx: &mut Ctx) -> Outcome {
        let pools = match name {
            // A failure is -1 there.
            Some(name) => vec![opened(name, ctx)?],
            None => ctx.all_pools(),
        };
        let (mut waited, mut exit) = (Vec::new(), Exit::OK);
        for pool in &pools {
            match self.on_pool(pool, ctx) {
                Ok(leaves) => waited.push((pool.name().to_owned(), leaves)),
                // One of all pools that fails leaves the others.
                Err(Failure::MinusOne(why)) if name.is_none() => {
                    ctx.warn(why);
                    exit = Exit::FAILED;
                }
                Err(failure) => return Err(failure),
            }
        }
        drop(pools);
        if self.wait {
            for (name, leaves) in waited {
                until(&name, ctx, |spa| Ok(spa.free_space().left(self.kind, &leaves).is_none()))?;
            }
        }
        Ok(exit)
    }

    /// Does it; returns the guids of the devices.
    fn on_pool(&self, pool: &Arc<Imported>, ctx: &mut Ctx) -> Result<Vec<u64>, Failure> {
        let failed = |e: engine::Error| Failure::MinusOne(format!("operation failed: {}", e.what()));
        let spa = pool.spa().map_err(failed)?;
        let (mut refused, mut leaves) = (Vec::new(), Vec::new());
        let mut untrimmed = 0;
        let named = self.leaves(pool, &mut refused);
        let whole = named.len();
        for (name, vdev) in named {
            let device = || spa.pool.tree().leaf(vdev.guid).and_then(|leaf| leaf.device());
            let can = match (self.kind, self.options.secure) {
                (SweepKind::Initialize, _) => true,
                (SweepKind::Trim, true) => device().is_some_and(|device| device.trim_support().erase),
                (SweepKind::Trim, false) => is_trimmable(&vdev),
            };
            match can {
                true => leaves.push((name, vdev.guid)),
                false => {
                    untrimmed += 1;
                    if !self.is_lenient {
                        refused.push((name, NOT_TRIMMED));
                    }
                }
            }
        }
        if self.is_lenient && whole > 0 && untrimmed == whole {
            let what = format!("cannot trim: no devices in pool support trim operations: {NOT_TRIMMED}");
            return Err(Failure::MinusOne(what));
        }
        let mut guids: Vec<u64> = leaves.iter().map(|(_, guid)| *guid).collect();
        // A device that is not found, and nothing is done.
        if refused.iter().all(|(_, why)| *why != "no such device in pool") {
            let done =
                spa.free_space().sweep(self.kind, self.command, self.options, &guids).map_err(failed)?;
            for (name, guid) in &leaves {
                if let Some(why) = done.get(guid) {
                    refused.push((name.clone(), why.what(self.kind)));
                }
            }
            guids.retain(|guid| !done.contains_key(guid));
            if !guids.is_empty() {
                ctx.log(pool)?;
            }
        }
        if refused.is_empty() {
            return Ok(guids);
        }
        let verb = self.verb();
        let lines: Vec<String> =
            refused.iter().map(|(name, why)| format!("cannot {verb} '{name}': {why}")).collect();
        Err(Failure::MinusOne(lines.join("\n")))
    }

    /// The devices that are meant, with the names for messages.
    #[doc(alias = "zpool_collect_leaves")]
    fn leaves(
        &self,
        pool: &Arc<Imported>,
        refused: &mut Vec<(String, &'static str)>,
    ) -> Vec<(String, VdevNode)> {
        let path = |vdev: &VdevNode| {
            let path = vdev.path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
            path.unwrap_or_else(|| vdev.guid.to_string())
        };
        if self.devices.is_empty() {
            let config = pool.config();
            let Some(tree) = config.nvlist("vdev_tree").and_then(VdevNode::from_config) else {
                return Vec::new();
            };
            let leaves = tree.walk().skip(1).filter(|vdev| vdev.is_leaf() && vdev.path.is_some());
            return leaves.map(|vdev| (path(vdev), vdev.clone())).collect();
        }
        let mut found = Vec::new();
        for word in self.devices {
            match find(pool, word) {
                Some(vdev) if vdev.is_leaf() => found.push((word.clone(), vdev)),
                Some(_) => refused.push((word.clone(), "invalid device")),
                None => refused.push((word.clone(), "no such device in pool")),
            }
        }
        found
    }
}
