//! Verbs of `zpool` that are one call: `sync`, `reguid`, `upgrade`, `wait`, `labelclear`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use daemon::Imported;
use daemon::devices::{self, InUse};
use nvpair::NvList;
use ondisk::label::{LABEL_SIZE, LABELS, NVLIST_SIZE, PHYS_OFFSET, label_offset};
use zcommon::features::{FEATURES, Feature, of_openzfs_2_3};

use crate::ctx::Ctx;
use crate::verb::strerror;
use crate::verb::{Exit, Failure, Outcome, Verb};

pub(super) fn named(name: &str, ctx: &mut Ctx) -> Result<std::sync::Arc<Imported>, Failure> {
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

impl Verb for Sync {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let pools = if self.pools.is_empty() {
            ctx.pools()
        } else {
            self.pools.iter().map(|name| named(name, ctx)).collect::<Result<_, _>>()?
        };
        for pool in pools.iter().filter(|pool| !pool.is_read_only()) {
            pool.spa()?.sync().map_err(|e| Failure::cannot("sync", pool.name(), e.what()))?;
        }
        Ok(Exit::OK)
    }
}

/// Give a pool a new guid.
#[derive(Debug, Args)]
pub struct Reguid {
    /// The guid.
    #[arg(short = 'g', value_name = "GUID")]
    pub guid: Option<u64>,
    /// The pool.
    pub pool: String,
}

impl Verb for Reguid {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.guid.is_some() {
            return Err(Failure::failed("zpool reguid -g: not supported yet: a guid of one's choice"));
        }
        let pool = named(&self.pool, ctx)?;
        let cannot = |e: engine::Error| Failure::cannot("reguid", &self.pool, e.what());
        pool.spa().and_then(|spa| spa.reguid()).map_err(cannot)?;
        pool.look_again();
        ctx.registry()?.note(&pool)?;
        ctx.log(&pool)?;
        Ok(Exit::OK)
    }
}

/// Enable the features that a pool lacks.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// All pools.
    #[arg(short = 'a')]
    pub all: bool,
    /// List the features that this program knows.
    #[arg(short = 'v')]
    pub list: bool,
    /// A version.
    #[arg(short = 'V', value_name = "VERSION")]
    pub version: Option<u64>,
    /// Pools.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

impl Verb for Upgrade {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.list {
            return list_features(ctx);
        }
        if self.version.is_some() {
            return Err(Failure::failed("zpool upgrade -V: not supported yet: versions before 5000"));
        }
        let pools = match (self.all, self.pools.is_empty()) {
            (true, _) => ctx.pools(),
            (false, true) => return report(ctx),
            (false, false) => self.pools.iter().map(|name| named(name, ctx)).collect::<Result<_, _>>()?,
        };
        writeln!(ctx.out, "This system supports ZFS pool feature flags.\n")?;
        for pool in &pools {
            let name = pool.name();
            let missing = missing(pool)?;
            if missing.is_empty() {
                writeln!(ctx.out, "Pool '{name}' already has all supported and requested features enabled.")?;
                continue;
            }
            let cannot = |e: engine::Error| Failure::cannot("upgrade", &name, e.what());
            pool.spa().and_then(|spa| spa.enable_features(missing.clone())).map_err(cannot)?;
            ctx.log(pool)?;
            writeln!(ctx.out, "Enabled the following features on '{name}':")?;
            for feature in missing {
                writeln!(ctx.out, "  {}", feature.info().name)?;
            }
            writeln!(ctx.out)?;
        }
        Ok(Exit::OK)
    }
}

/// What each version of a pool brought, from 1 on.
const VERSIONS: [&str; 28] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

fn missing(pool: &Imported) -> Result<Vec<Feature>, Failure> {
    let view = pool.view()?;
    let lacks = |f: &Feature| view.features.count(f.info().guid).is_none();
    Ok(of_openzfs_2_3().into_iter().filter(lacks).collect())
}

fn list_features(ctx: &mut Ctx) -> Outcome {
    writeln!(ctx.out, "This system supports ZFS pool feature flags.\n")?;
    writeln!(ctx.out, "The following features are supported:\n")?;
    writeln!(ctx.out, "FEAT DESCRIPTION")?;
    writeln!(ctx.out, "-------------------------------------------------------------")?;
    for feature in FEATURES {
        let info = feature.info();
        let note = if info.read_only_compatible() { " (read-only compatible)" } else { "" };
        writeln!(ctx.out, "{:<37}{note}\n     {}", info.name, info.description)?;
    }
    writeln!(ctx.out, "\nThe following legacy versions are also supported:\n")?;
    writeln!(ctx.out, "VER  DESCRIPTION\n---  --------------------------------------------------------")?;
    for (version, what) in (1..).zip(VERSIONS) {
        writeln!(ctx.out, "{version:>2}   {what}")?;
    }
    writeln!(ctx.out, "\nFor more information on a particular version, including supported releases,")?;
    writeln!(ctx.out, "see the ZFS Administration Guide.\n")?;
    Ok(Exit::OK)
}

fn report(ctx: &mut Ctx) -> Outcome {
    writeln!(ctx.out, "This system supports ZFS pool feature flags.\n")?;
    writeln!(ctx.out, "All pools are formatted using feature flags.\n")?;
    let mut some = false;
    for pool in ctx.pools() {
        let missing = missing(&pool)?;
        if missing.is_empty() {
            continue;
        }
        if !some {
            some = true;
            writeln!(
                ctx.out,
                "\nSome supported features are not enabled on the following pools. Once a\nfeature is enabled the pool may become incompatible with software\nthat does not support the feature. See zpool-features(7) for details.\n\nNote that the pool 'compatibility' feature can be used to inhibit\nfeature upgrades.\n"
            )?;
            writeln!(ctx.out, "POOL  FEATURE\n---------------")?;
        }
        writeln!(ctx.out, "{}", pool.name())?;
        for feature in missing {
            writeln!(ctx.out, "      {}", feature.info().name)?;
        }
    }
    if !some {
        writeln!(ctx.out, "Every feature flags pool has all supported and requested features enabled.")?;
    }
    Ok(Exit::OK)
}

/// Wait until something is done.
#[derive(Debug, Args)]
pub struct Wait {
    /// Activities, comma separated.
    #[arg(short = 't', value_name = "ACTIVITY,…", value_delimiter = ',')]
    pub activities: Vec<String>,
    /// The pool.
    pub pool: String,
    /// Report every so many seconds.
    pub interval: Option<f64>,
}

/// What can be waited for.
const ACTIVITIES: [&str; 9] =
    ["discard", "free", "initialize", "replace", "remove", "resilver", "scrub", "trim", "raidz_expand"];

impl Verb for Wait {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if let Some(bad) = self.activities.iter().find(|a| !ACTIVITIES.contains(&a.as_str())) {
            return Err(Failure::usage(format!("invalid activity '{bad}'")));
        }
        // Of all of them only freeing takes place without a verb that this build lacks.
        let frees = self.activities.is_empty() || self.activities.iter().any(|a| a == "free");
        loop {
            let pool = named(&self.pool, ctx)?;
            let spa = pool.spa()?;
            let view = spa.datasets.view();
            let waiting = frees && is_freeing(&view)?;
            if !waiting {
                return Ok(Exit::OK);
            }
            if ctx.interrupt.is_set() {
                return Err(Failure::Interrupted);
            }
            spa.sync()?;
            drop(pool);
            ctx.release();
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether destroyed datasets are still being freed.
fn is_freeing(view: &engine::dsl::write::MosView<'_>) -> Result<bool, Failure> {
    let directory = ondisk::names::MOS_DIRECTORY_OBJECT;
    Ok(view.zap_word(directory, ondisk::names::mos::BPTREE_OBJ)?.is_some())
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
        let leaf = super::vdevs::find(&word, ctx)?;
        let shown = leaf.path.display();
        match devices::in_use(&leaf.path) {
            None if zutil::discover::probe(&leaf.path).ok().flatten().is_none() => {
                return Err(Failure::failed(format!("failed to check state for {shown}")));
            }
            Some(InUse::Exported(pool)) if !self.force => return Err(refused(&shown, "exported", &pool)),
            Some(InUse::Active(pool)) if !self.force => {
                return Err(refused(&shown, "potentially active", &pool));
            }
            Some(InUse::Spare(guid) | InUse::Cache(guid)) => {
                if let Some(pool) = super::vdevs::aux_of(guid, ctx) {
                    return Err(Failure::failed(format!("{shown} is a member (ACTIVE) of pool \"{pool}\"")));
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
            0 => Err(Failure::failed(format!("failed to clear label for {shown}"))),
            _ => Ok(Exit::OK),
        }
    }
}

fn refused(shown: &dyn std::fmt::Display, state: &str, pool: &str) -> Failure {
    let what =
        format!("use '-f' to override the following error:\n{shown} is a member of {state} pool \"{pool}\"");
    Failure::failed(what)
}

/// Writes zeros over the labels there are, and counts them. What is no label is left alone.
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
