//! Verbs of `zpool` that are one call: `sync`, `freeze`, `reguid`, `labelclear`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use daemon::Imported;
use daemon::devices::{self, InUse};
use nvpair::NvList;
use ondisk::label::{LABEL_SIZE, LABELS, NVLIST_SIZE, PHYS_OFFSET, label_offset};

use crate::ctx::Ctx;
use crate::verb::strerror;
use crate::verb::{Exit, Failure, Outcome, Verb};

pub(super) fn named(name: &str, ctx: &mut Ctx) -> Result<Arc<Imported>, Failure> {
    ctx.pool(name).ok_or_else(|| Failure::cannot("open", name, "no such pool"))
}

/// Write what was changed so far.
#[derive(Debug, Args)]
pub struct Sync {
    /// Also when nothing was changed.
    #[arg(short = 'f')]
    pub force: bool,
    /// Pools; all that are imported, without any.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// These pools; all that are imported, without any.
pub(super) fn named_or_all(names: &[String], ctx: &mut Ctx) -> Result<Vec<Arc<Imported>>, Failure> {
    match names.is_empty() {
        true => Ok(ctx.pools()),
        false => names.iter().map(|name| named(name, ctx)).collect(),
    }
}

impl Verb for Sync {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pools = named_or_all(&self.pools, ctx)?;
        for pool in pools.iter().filter(|pool| !pool.is_read_only()) {
            pool.spa()?.sync_deferred().map_err(|e| Failure::cannot("sync", pool.name(), e.what()))?;
        }
        Ok(Exit::OK)
    }
}

/// Keep the state on disk until the next import: only intent logs are written, for tests of their replay.
#[derive(Debug, Args)]
pub struct Freeze {
    /// The pool.
    pub pool: String,
}

impl Verb for Freeze {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pool = named(&self.pool, ctx)?;
        let cannot = |e: engine::Error| Failure::cannot("freeze", &self.pool, e.what());
        pool.spa().and_then(|spa| spa.freeze()).map_err(cannot)?;
        Ok(Exit::OK)
    }
}

/// Give a pool a new guid.
#[derive(Debug, Args)]
pub struct Reguid {
    /// The guid.
    #[arg(short = 'g', value_name = "GUID", allow_hyphen_values = true)]
    pub guid: Option<String>,
    /// The pool.
    pub pool: String,
}

impl Verb for Reguid {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let guid = self.guid.as_deref().map(guid_of).transpose()?;
        let pool = named(&self.pool, ctx)?;
        if ctx.pools().iter().any(|other| Some(other.guid()) == guid) {
            return Err(Failure::cannot("reguid", &self.pool, "a pool with that guid already exists"));
        }
        let cannot = |e: engine::Error| Failure::cannot("reguid", &self.pool, e.what());
        pool.spa().and_then(|spa| spa.reguid(guid)).map_err(cannot)?;
        pool.look_again();
        ctx.registry()?.note(&pool);
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}

/// The guid of a user's word, as `strtoull` reads it; 0 is none.
fn guid_of(word: &str) -> Result<u64, Failure> {
    let (digits, negative) = word.strip_prefix('-').map_or((word, false), |digits| (digits, true));
    let number = digits.trim_start_matches('+').parse::<u64>().ok();
    let number = number.map(|n| if negative { n.wrapping_neg() } else { n }).filter(|n| *n != 0);
    number.ok_or_else(|| Failure::usage(format!("invalid GUID: {word}")))
}

/// Clear the labels of a device that is in no pool.
#[derive(Debug, Args)]
pub struct Labelclear {
    /// Although it was part of a pool.
    #[arg(short = 'f')]
    pub force: bool,
    /// The device.
    pub device: PathBuf,
}

impl Verb for Labelclear {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let word = self.device.display().to_string();
        if self.device.is_absolute()
            && let Err(e) = std::fs::metadata(&self.device)
        {
            return Err(Failure::failed(format!("failed to open {word}: {}", strerror(&e))));
        }
        let leaf = super::vdevs::find(&word, ctx)?;
        let shown = leaf.path.display();
        let not_cleared = || Failure::MinusOne(format!("failed to clear label for {shown}"));
        let is_member =
            |pool: &str| Failure::failed(format!("{shown} is a member (ACTIVE) of pool \"{pool}\""));
        if let Some(pool) = super::members::read_only_pool_of(&leaf.path, ctx) {
            return Err(is_member(&pool));
        }
        match devices::in_use(&leaf.path) {
            Some(InUse::Exported(pool)) if !self.force => return Err(refused(&shown, "exported", &pool)),
            Some(InUse::Active(pool)) if ctx.registry()?.get(&pool).is_some() => {
                return Err(is_member(&pool));
            }
            Some(InUse::Active(pool)) if !self.force => {
                return Err(refused(&shown, "potentially active", &pool));
            }
            Some(InUse::Spare(guid) | InUse::Cache(guid)) => {
                if let Some(pool) = super::members::aux_of(guid, ctx) {
                    return Err(is_member(&pool));
                }
            }
            _ => {}
        }
        let device = devices::open(&leaf.path).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::ResourceBusy => {
                Failure::failed(format!("{shown} is a member (ACTIVE) of an imported pool"))
            }
            _ => Failure::failed(format!("failed to open {shown}: {}", strerror(&e))),
        })?;
        let cleared = clear(&*device);
        match cleared.map_err(|e| Failure::failed(format!("failed to clear label for {shown}: {e}")))? {
            0 => Err(not_cleared()),
            _ => Ok(Exit::OK),
        }
    }
}

fn refused(shown: &dyn std::fmt::Display, state: &str, pool: &str) -> Failure {
    let what =
        format!("use '-f' to override the following error:\n{shown} is a member of {state} pool \"{pool}\"");
    Failure::failed(what)
}

/// Writes zeros over the labels there are, and counts them. Areas that are no label are left alone.
#[doc(alias = "zpool_clear_label")]
fn clear(device: &dyn blkdev::BlockDevice) -> std::io::Result<u32> {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(0);
    let zeros = vec![0; size(LABEL_SIZE)];
    let mut cleared = 0;
    for at in (0..LABELS).filter_map(|index| label_offset(device.geometry().size, index)) {
        let packed = blkdev::read_at(device, at + PHYS_OFFSET, size(NVLIST_SIZE))?;
        let is_label = NvList::decode_prefix(&packed).is_ok_and(|(list, _, _)| list.u64("state").is_some());
        if is_label {
            blkdev::write_at(device, at, &zeros)?;
            cleared += 1;
        }
    }
    blkdev::flush(device).map(|()| cleared)
}
