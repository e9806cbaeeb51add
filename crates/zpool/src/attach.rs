//! `zpool attach`, `zpool replace` and `zpool detach`.
//!
//! Source of the messages: `zpool_do_attach_or_replace`, zpool_main.c; `zpool_vdev_attach`,
//! `zpool_vdev_detach`, libzfs_pool.c; OpenZFS 2.4.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::settings::{PoolSetting, When, of_pool};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::Imported;
use daemon::lending::Loan;
use engine::Kind;
use engine::spa::WaitActivity;
use engine::spa::attach::{Attach as Request, NewDevice};
use engine::spa::layout::VdevSpec;
use engine::vdev::config::AllocBias;
use nvpair::NvList;
use zcommon::health::Health;
use zcommon::vdev::VdevAux;
use zutil::tree::VdevNode;
use zutil::words;

use super::device::find;
use super::simple::named;
use super::vdevs::{self, Group, Objections, Silenced, Vdevs};

/// Attach a device to a device of a pool.
#[derive(Debug, Args)]
pub struct Attach {
    #[command(flatten)]
    pub(crate) how: How,
    /// The pool.
    pub pool: String,
    /// The device, or raidz vdev, to attach to.
    pub device: String,
    /// The new device.
    #[arg(value_name = "NEW-DEVICE")]
    pub new_device: String,
}

/// Replace a device of a pool by another.
#[derive(Debug, Args)]
pub struct Replace {
    #[command(flatten)]
    pub(crate) how: How,
    /// The pool.
    pub pool: String,
    /// The device to replace.
    pub device: String,
    /// The new device (default: the device that is now at the path of the old one).
    #[arg(value_name = "NEW-DEVICE")]
    pub new_device: Option<String>,
}

/// Detach a device from a mirror.
#[derive(Debug, Args)]
pub struct Detach {
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
}

/// The common part of attach and replace.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// Force the use of the device, even if it appears to be in use.
    #[arg(short = 'f')]
    force: bool,
    /// Reconstruct sequentially (mirrors and draid), without verifying checksums; a scrub verifies them afterwards.
    #[arg(short = 's')]
    sequential: bool,
    /// Wait until the new device is filled.
    #[arg(short = 'w')]
    wait: bool,
    /// Set `ashift=N`.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    props: Vec<String>,
}

impl Verb for Attach {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let line = Line { pool: &self.pool, old: &self.device, new: &self.new_device, replacing: false };
        line.run(&self.how, ctx)
    }
}

impl Verb for Replace {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let new = self.new_device.as_ref().unwrap_or(&self.device);
        let line = Line { pool: &self.pool, old: &self.device, new, replacing: true };
        line.run(&self.how, ctx)
    }
}

/// One command line.
struct Line<'a> {
    pool: &'a str,
    old: &'a str,
    new: &'a str,
    replacing: bool,
}

impl Line<'_> {
    fn cannot(&self, why: impl std::fmt::Display) -> Failure {
        Failure::MinusOne(match self.replacing {
            true => format!("cannot replace {} with {}: {why}", self.old, self.new),
            false => format!("cannot attach {} to {}: {why}", self.new, self.old),
        })
    }

    fn run(&self, how: &How, ctx: &mut Ctx) -> Outcome {
        let ashift = ashift(&how.props)?;
        let pool = named(self.pool, ctx)?;
        let old = target(&pool, self.old).map_err(|why| self.cannot(why))?;
        let spa = Arc::clone(pool.spa().map_err(|e| self.cannot(e.what()))?);
        let spare = spare_named(&spa, self.new).map_err(|e| self.cannot(e.what()))?;
        let path = old.path.as_deref().map(|path| Path::new(OsStr::from_bytes(path)).to_owned());
        let mut in_place =
            InPlace { pool: &pool, guid: old.guid, path: path.unwrap_or_default(), before: None };
        let (device, loan) = match spare {
            Some(entry) => self.spare(&pool, &entry, ctx)?,
            None => (self.fresh(&mut in_place, &old, how, ashift, ctx)?, None),
        };
        let request =
            Request { target: old.guid, device, replacing: self.replacing, sequential: how.sequential };
        spa.disks().attach(request).map_err(|e| match e.kind() {
            Kind::Suspended => self.cannot(clikit::session::suspended(&e)),
            _ => self.cannot(e.what()),
        })?;
        drop(loan);
        in_place.before = None;
        drop(in_place);
        drop(spa);
        changed(&pool, ctx)?;
        drop(pool);
        if how.wait { self.wait(ctx) } else { Ok(Exit::OK) }
    }

    /// A hot spare of the pool, which no other pool takes while the loan is held.
    fn spare(
        &self,
        pool: &Imported,
        entry: &NvList,
        ctx: &Ctx,
    ) -> Result<(NewDevice, Option<Loan>), Failure> {
        let guid = entry.u64("guid").unwrap_or(0);
        if entry.str("type") == Some("dspare") {
            return Ok((NewDevice::Spare { guid, device: None }, None));
        }
        let path = Path::new(entry.str("path").unwrap_or_default());
        let busy = || self.cannot(format!("{} is busy", self.new));
        let loan = ctx.registry()?.spare_for(pool, guid, path).ok_or_else(busy)?;
        Ok((NewDevice::Spare { guid, device: Some(Arc::clone(&loan.device)) }, Some(loan)))
    }

    /// A device of no pool.
    fn fresh(
        &self,
        in_place: &mut InPlace<'_>,
        old: &VdevNode,
        how: &How,
        ashift: Option<u32>,
        ctx: &mut Ctx,
    ) -> Result<NewDevice, Failure> {
        // Without a new device the path of the old one counts, whatever word it was named by.
        let own = old.path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
        let word = own.clone().filter(|_| self.new == self.old).unwrap_or_else(|| self.new.to_owned());
        let group = Group {
            kind: vdevs::Kind::Single,
            class: AllocBias::Normal,
            leaves: vec![vdevs::find(&word, ctx)?],
        };
        let found = Vdevs { tops: vec![group], ..Vdevs::default() };
        let silenced = Silenced { in_use: how.force, replication: true };
        if let Some(failure) = Objections::of(&found, silenced, ctx, None).failure(how.force) {
            return Err(failure);
        }
        let action = if self.replacing { "replace" } else { "attach" };
        let is_held = Cell::new(false);
        let open = || {
            vdevs::open_as(&found, ashift, ctx, &|why| match why {
                vdevs::NotOpened::Held => {
                    is_held.set(true);
                    self.cannot(format!("{} is busy", self.new))
                }
                vdevs::NotOpened::TooSmall => self.cannot("device is too small"),
                vdevs::NotOpened::Other(why) => Failure::failed(why),
            })
        };
        let is_same = self.replacing && own.as_deref() == Some(word.as_str());
        let spec = match open() {
            Err(_) if is_held.get() && is_same && in_place.begin() => open()?,
            opened => opened?,
        };
        let leaf = spec.tops.into_iter().find_map(|top| match top.vdev {
            VdevSpec::Leaf(leaf) => Some(leaf),
            _ => None,
        });
        let nothing = || Failure::cannot(action, in_place.pool.name(), "new device must be a single disk");
        Ok(NewDevice::Fresh { leaf: leaf.ok_or_else(nothing)?, ashift })
    }

    fn wait(&self, ctx: &mut Ctx) -> Outcome {
        let works: &[WaitActivity] = match self.replacing {
            true => &[WaitActivity::Replace],
            false => &[WaitActivity::RaidzExpand, WaitActivity::Resilver],
        };
        super::wait::until(self.pool, ctx, |spa| {
            works.iter().try_fold(true, |over, work| Ok(over && spa.background().left(*work)?.is_none()))
        })?;
        Ok(Exit::OK)
    }
}

/// A device that is replaced by what stands at its own path now, while the pool still holds it open: it goes offline for the
/// replacement, and is online again when that fails.
///
/// Differs from OpenZFS, which opens the device a second time.
struct InPlace<'a> {
    pool: &'a Imported,
    guid: u64,
    path: PathBuf,
    /// Its state before it went offline.
    before: Option<Health>,
}

impl InPlace<'_> {
    /// Takes the device offline; `false` if it is not in use, or the pool cannot do without it. One with too many errors is
    /// in use, too.
    fn begin(&mut self) -> bool {
        let Ok(spa) = self.pool.spa() else { return false };
        let health = spa.pool.tree().leaf(self.guid).map(|leaf| leaf.health());
        self.before =
            health.filter(|health| health.is_readable() && spa.disks().offline(self.guid, true).is_ok());
        self.before.is_some()
    }
}

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        if let Ok(spa) = self.pool.spa()
            && let Some(before) = self.before
        {
            // Whatever its labels are by now, it is the device that the pool used: the next txg writes them again.
            let device =
                daemon::devices::open(&self.path).map_err(|_| Health::cant_open(VdevAux::OpenFailed));
            let is_back = spa.disks().online(self.guid, Some(device), false);
            if before != Health::ONLINE && is_back.is_ok_and(|health| health == Health::ONLINE) {
                let _ = spa.disks().restore_health(self.guid, before);
            }
        }
    }
}

impl Verb for Detach {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pool = named(&self.pool, ctx)?;
        let cannot = |why: &str| Failure::MinusOne(format!("cannot detach {}: {why}", self.device));
        let vdev = target(&pool, &self.device).map_err(|why| cannot(&why))?;
        let spa = pool.spa().map_err(|e| cannot(e.what()))?;
        let spares = pool.spares();
        spa.disks().detach(vdev.guid).map_err(|e| match e.kind() {
            Kind::Suspended => cannot(&clikit::session::suspended(&e)),
            _ => cannot(e.what()),
        })?;
        changed(&pool, ctx)?;
        // A spare that has become an ordinary disk is lost to the other pools.
        let kept = pool.spares();
        let gone: Vec<u64> = spares.into_iter().filter(|guid| !kept.contains(guid)).collect();
        ctx.registry()?
            .unlist_spares(&pool, &gone)
            .map_err(|e| Failure::failed(format!("the spare remains in a list of spares: {e}")))?;
        Ok(Exit::OK)
    }
}

/// Updates the imported pool, the cache file and the history after a change of vdevs.
fn changed(pool: &Arc<Imported>, ctx: &mut Ctx) -> Result<(), Failure> {
    pool.look_again();
    ctx.registry()?.note(pool);
    ctx.log(pool)
}

fn ashift(props: &[String]) -> Result<Option<u32>, Failure> {
    let mut ashift = None;
    for prop in props {
        let (name, value) =
            prop.split_once('=').ok_or_else(|| Failure::usage("missing '=' for -o option"))?;
        if name != "ashift" {
            return Err(Failure::usage(""));
        }
        let setting = of_pool(name, value, When::New).map_err(Failure::usage)?;
        if let PoolSetting::Ashift(shift) = setting {
            ashift = u32::try_from(shift).ok().filter(|shift| *shift != 0);
        }
    }
    Ok(ashift)
}

/// The vdev that a word means, or why it can't be meant.
fn target(pool: &Imported, word: &str) -> Result<VdevNode, String> {
    if let Some(vdev) = find(pool, word) {
        return Ok(vdev);
    }
    let facts = pool.view().ok().and_then(|view| zutil::load::facts(&view));
    let has = |list: fn(&zutil::import_listing::MosFacts) -> &Vec<VdevNode>| {
        facts.as_ref().is_some_and(|facts| words::find(list(facts).iter(), word).is_some())
    };
    Err(match () {
        () if has(|facts| &facts.spares) => "device is reserved as a hot spare",
        () if has(|facts| &facts.l2cache) => "device is in use as a cache",
        () if pool.is_read_only() => "pool is read-only",
        () => "no such device in pool",
    }
    .to_owned())
}

/// The hot spare of the pool that a word means.
#[doc(alias = "is_spare")]
fn spare_named(spa: &engine::spa::Spa, word: &str) -> engine::Result<Option<NvList>> {
    let entries = spa.spares().entries()?;
    let spares: Vec<VdevNode> = entries.iter().filter_map(VdevNode::from_config).collect();
    let guid = words::find(spares.iter(), word).map(|spare| spare.guid);
    Ok(entries.into_iter().find(|entry| guid.is_some() && entry.u64("guid") == guid))
}
