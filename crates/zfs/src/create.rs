//! `zfs create`.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings::shape;
use clikit::settings::{self, When, of_dataset};
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::access::grant_at_creation;
use daemon::ops::FsShape;
use daemon::server::Caller;
use engine::dsl::props::PropValue;
use engine::dsl::props::zpl::file_system;
use engine::dsl::write::props::SettingSource;
use engine::dsl::write::{Encryption, Hooks, Tasks};
use engine::memory::Limit;
use ondisk::ObjsetType;
use ondisk::dsl::DslDataset;
use zcommon::names::{check_entity, check_nesting};
use zcommon::props::DatasetTypes;
use zcommon::units::parse_nicenum;
use zcommon::version::SPA_VERSION_REFQUOTA;
use zpl::CaseSensitivity;

use super::keys::encryption;
use super::mount::{mount_created, mount_new, not_mounted};
use super::prop::readable_without_key;
use super::quota;
use super::unheeded;

/// Default block size of a volume.
#[doc(alias = "ZVOL_DEFAULT_BLOCKSIZE")]
const VOLBLOCKSIZE: u64 = 16 << 10;

/// Create a file system or volume.
#[derive(Debug, Args)]
pub struct Create {
    /// Create missing parent datasets.
    #[arg(short = 'p')]
    pub parents: bool,
    /// Do not mount it.
    #[arg(short = 'u')]
    pub unmounted: bool,
    /// Leave it unmounted because the caller may not mount.
    #[arg(skip)]
    pub stays_unmounted: bool,
    /// Create a sparse volume, without a reservation.
    #[arg(short = 's')]
    pub sparse: bool,
    /// Create nothing; with -v, list the datasets.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Print the created datasets.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Print parsable output.
    #[arg(short = 'P')]
    pub parsable: bool,
    /// Create a volume of this size.
    #[arg(short = 'V', value_name = "SIZE")]
    pub volume: Option<String>,
    /// Block size of the volume.
    #[arg(short = 'b', value_name = "BLOCKSIZE")]
    pub block: Option<String>,
    /// Set a property; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// The new dataset.
    #[arg(value_name = "FILESYSTEM|VOLUME")]
    pub name: String,
}

/// The kind of dataset to create.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Filesystem(FsShape),
    Volume { size: u64, block: u64 },
}

/// Components that a dataset's name may have.
pub(super) fn most_nested(ctx: &Ctx) -> Result<usize, Failure> {
    let most = ctx.registry()?.memory.limits.get(Limit::Nesting);
    Ok(usize::try_from(most).unwrap_or(usize::MAX))
}

impl Verb for Create {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let cannot = |what: String| Failure::cannot("create", &self.name, what);
        check_entity(&self.name).map_err(|e| cannot(e.to_string()))?;
        if self.name.contains(['@', '#']) {
            let kind =
                if self.name.contains('@') { "snapshot delimiter '@'" } else { "bookmark delimiter '#'" };
            return Err(cannot(format!("{kind} is not expected here")));
        }
        let of_volume = self.sparse || self.block.is_some();
        if of_volume && self.volume.is_none() {
            return Err(Failure::usage("options '-s' and '-b' can only be used when creating a volume"));
        }
        if self.unmounted && self.volume.is_some() {
            return Err(Failure::usage("option '-u' can only be used when creating a filesystem"));
        }
        // A pool's own file system has no parents to make, and is there.
        if self.parents && self.is_there(ctx)? {
            return Ok(Exit::OK);
        }
        let Some((parent, _)) = self.name.rsplit_once('/') else {
            return Err(cannot("missing dataset name".to_owned()));
        };
        check_nesting(&self.name, most_nested(ctx)?).map_err(|e| cannot(e.to_string()))?;
        let pool_name = self.name.split('/').next().unwrap_or_default();
        if ctx.pool_of(&self.name).is_none() {
            return Err(cannot(ctx.why_no_pool_of(&self.name, format!("no such pool '{pool_name}'"))));
        }
        let target = Target::of(&self.name, ctx)?;
        if target.exists() {
            return Err(cannot("dataset already exists".to_owned()));
        }
        self.check_parent(parent, &target).map_err(cannot)?;
        let (kind, stored) = self.wishes(&target).map_err(cannot)?;
        self.report(&stored, &kind, ctx)?;
        if self.dry {
            return Ok(Exit::OK);
        }
        unheeded::tell(&self.name, &stored);
        let kept = stored.clone();
        let mut stored = stored;
        let secrets = std::sync::Arc::clone(&target.view.env.secrets);
        let encryption = encryption(&mut stored, &self.name, &*secrets, ctx).map_err(cannot)?;
        if self.parents {
            self.make_parents(&target, ctx)?;
        }
        let (quotas, stored) = quota::split(stored);
        quotas.iter().try_for_each(|(kind, who, _)| quota::resolve(*kind, who).map(drop)).map_err(cannot)?;
        if let Kind::Filesystem(shape) = &kind {
            let spa = target.pool.spa().map_err(|e| cannot(e.what().to_owned()))?;
            quota::check(&quotas, shape.version.unwrap_or_else(|| zpl::version_for(spa.version())))
                .map_err(cannot)?;
        }
        make(&self.name, &target, kind, stored, encryption, ctx)?;
        unheeded::remember(&Target::of(&self.name, ctx)?, &kept);
        for (kind, who, limit) in quotas {
            quota::set(&Target::of(&self.name, ctx)?, kind, &who, limit, ctx).map_err(cannot)?;
        }
        match kind {
            Kind::Filesystem(_) if !self.unmounted => mount_new(&self.name, ctx),
            Kind::Filesystem(_) if self.stays_unmounted => not_mounted(&self.name, ctx),
            _ => Ok(Exit::OK),
        }
    }
}

impl Create {
    /// Whether a dataset of that name and kind exists.
    #[doc(alias = "zfs_dataset_exists")]
    fn is_there(&self, ctx: &mut Ctx) -> Result<bool, Failure> {
        if ctx.pool_of(&self.name).is_none() {
            return Ok(false);
        }
        let target = Target::of(&self.name, ctx)?;
        let wanted = match self.volume {
            Some(_) => DatasetTypes::VOLUME,
            None => DatasetTypes::FILESYSTEM,
        };
        Ok(target.exists() && target.types()? == wanted)
    }

    #[doc(alias = "check_parents")]
    fn check_parent(&self, parent: &str, target: &Target) -> Result<(), String> {
        match target.view.dsl.dataset(parent).and_then(|parent| parent.kind()) {
            Ok(engine::dsl::DatasetKind::Filesystem) => Ok(()),
            Ok(engine::dsl::DatasetKind::Volume) => Err("parent is not a filesystem".to_owned()),
            Err(_) if self.parents => Ok(()),
            Err(_) => Err("parent does not exist".to_owned()),
        }
    }

    fn wishes(&self, target: &Target) -> Result<(Kind, Vec<(String, PropValue)>), String> {
        let mut stored = Vec::new();
        let mut fs = FsShape::default();
        let Some(size) = &self.volume else {
            for (name, value) in settings::split(&self.props)? {
                let (name, value) = of_dataset(&name, &value, DatasetTypes::FILESYSTEM, When::New)?;
                shape(&mut fs, &mut stored, name, value)?;
            }
            return Ok((Kind::Filesystem(fs), stored));
        };
        let size = parse_nicenum(size).map_err(|e| format!("bad volume size '{size}': {e}"))?;
        let mut block = VOLBLOCKSIZE;
        let block_prop = self.block.as_ref().map(|block| format!("volblocksize={block}"));
        let words: Vec<String> = self.props.iter().cloned().chain(block_prop).collect();
        for (name, value) in settings::split(&words)? {
            let (name, value) = of_dataset(&name, &value, DatasetTypes::VOLUME, When::New)?;
            match (name.as_str(), value.number()) {
                ("volblocksize", Some(n)) => block = n,
                ("volsize", _) => {}
                _ => shape(&mut fs, &mut stored, name, value)?,
            }
        }
        let size = size.checked_next_multiple_of(block).ok_or("volume size is too large")?;
        zvol::check(size, block).map_err(|e| e.what().to_owned())?;
        if block != VOLBLOCKSIZE {
            stored.push(("volblocksize".to_owned(), PropValue::Number(block)));
        }
        let spa = target.pool.spa().map_err(|e| e.what().to_owned())?;
        let reservation = reservation_of(spa.version());
        let named = stored.iter().position(|(name, _)| name == reservation);
        let auto = named.and_then(|at| stored.get(at)).is_some_and(|(_, v)| v.number() == Some(u64::MAX));
        let copies = stored.iter().find(|(name, _)| name == "copies").and_then(|(_, v)| v.number());
        if auto && let Some(at) = named {
            stored.remove(at);
        }
        if auto || (named.is_none() && !self.sparse) {
            let bytes = zvol::reservation(spa, size, block, copies.unwrap_or(1));
            stored.push((reservation.to_owned(), PropValue::Number(bytes)));
        }
        Ok((Kind::Volume { size, block }, stored))
    }

    fn report(&self, stored: &[(String, PropValue)], kind: &Kind, ctx: &mut Ctx) -> Result<(), Failure> {
        if !self.verbose && !self.parsable {
            return Ok(());
        }
        let word = if self.dry { "would create" } else { "create" };
        match self.parsable {
            true if self.parents => writeln!(ctx.out, "create_ancestors\t{0}\ncreate\t{0}", self.name)?,
            true => writeln!(ctx.out, "create\t{}", self.name)?,
            false if self.parents => writeln!(ctx.out, "{word} ancestors of {0}\n{word} {0}", self.name)?,
            false => writeln!(ctx.out, "{word} {}", self.name)?,
        }
        // As the user put it, where the user did.
        let given = settings::split(&self.props).unwrap_or_default();
        let shown = |name: &str, value: &PropValue| match (given.iter().find(|(word, _)| word == name), value)
        {
            (Some((_, word)), _) => word.clone(),
            (None, PropValue::Number(n)) => n.to_string(),
            (None, PropValue::Text(text)) => text.clone(),
        };
        let size = match kind {
            Kind::Volume { size, .. } => Some(("volsize".to_owned(), PropValue::Number(*size))),
            Kind::Filesystem(_) => None,
        };
        for (name, value) in stored.iter().chain(&size) {
            match self.parsable {
                true => writeln!(ctx.out, "property\t{name}\t{}", shown(name, value))?,
                false => writeln!(ctx.out, "\t{name}={}", shown(name, value))?,
            }
        }
        Ok(())
    }

    /// Creates missing parents, the highest first.
    #[doc(alias = "zfs_create_ancestors")]
    fn make_parents(&self, target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
        make_ancestors(&self.name, target, !self.unmounted, ctx)
    }
}

/// Makes the file systems above `name` that are missing.
pub fn make_ancestors(name: &str, target: &Target, mount: bool, ctx: &mut Ctx) -> Result<(), Failure> {
    let ends: Vec<usize> = name.match_indices('/').map(|(at, _)| at).collect();
    for above in ends.into_iter().filter_map(|end| name.get(..end)) {
        if target.view.dsl.dataset(above).is_ok() {
            continue;
        }
        make(above, target, Kind::Filesystem(FsShape::default()), Vec::new(), Encryption::default(), ctx)?;
        if mount {
            mount_created(above, ctx)?;
        }
    }
    Ok(())
}

/// The properties in the master node of the file system above a new one.
fn above(name: &str, ctx: &mut Ctx) -> BTreeMap<&'static str, u64> {
    let read = |parent: &str, ctx: &mut Ctx| {
        let target = Target::of(parent, ctx).ok()?;
        let dataset = target.dataset().ok()?;
        let _quiet = target.pool.quiet();
        file_system(&readable_without_key(&dataset).ok()?).ok()
    };
    name.rsplit_once('/').and_then(|(parent, _)| read(parent, ctx)).unwrap_or_default()
}

/// The property that reserves a volume's space in pools of this version.
#[doc(alias = "zfs_which_resv_prop")]
pub(super) fn reservation_of(pool: u64) -> &'static str {
    if pool >= SPA_VERSION_REFQUOTA { "refreservation" } else { "reservation" }
}

fn make(
    name: &str,
    target: &Target,
    kind: Kind,
    stored: Vec<(String, PropValue)>,
    encryption: Encryption,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let caller = ctx.session()?.caller;
    let kind = match kind {
        Kind::Filesystem(shape) => Kind::Filesystem(shape.below(&above(name, ctx))),
        volume => volume,
    };
    if let Kind::Filesystem(FsShape { version: Some(version), .. }) = kind {
        super::version::check(target, version).map_err(|what| Failure::cannot("create", name, what))?;
    }
    let (wanted, env) = (name.to_owned(), target.view.env.clone());
    let made = ctx.change(&target.pool, move |tasks, spa| {
        let (wall, seed) = (env.clock.wall(), env.guid());
        let objset = match kind {
            Kind::Filesystem(_) => ObjsetType::Zfs,
            Kind::Volume { .. } => ObjsetType::Zvol,
        };
        let flags = match kind {
            Kind::Filesystem(FsShape { case: Some(CaseSensitivity::Insensitive), .. }) => {
                DslDataset::FLAG_CI_DATASET
            }
            _ => 0,
        };
        tasks.create_encrypted(&wanted, objset, flags, encryption, &mut |live, tx| match kind {
            Kind::Filesystem(shape) => {
                let mut fs = shape.new_fs(caller, wall, seed, spa.version());
                fs.projects = spa.features.is_enabled(zcommon::features::Feature::ProjectQuota);
                fs.count_objects = spa.features.is_enabled(zcommon::features::Feature::UserobjAccounting);
                zpl::write::create_fs(&live.objset, tx, &fs)
            }
            Kind::Volume { size, block } => zvol::create(&live.objset, tx, size, block, seed),
        })?;
        furnish(tasks, &wanted, &stored, caller)
    });
    made.map_err(|e| Failure::cannot("create", name, why(&e)))
}

/// Sets the properties of a new dataset and the permissions of its creator. Destroys the dataset when one is refused.
#[doc(alias = "zfs_ioc_create")]
pub fn furnish(
    tasks: &Tasks<'_>,
    name: &str,
    stored: &[(String, PropValue)],
    caller: Caller,
) -> engine::Result<()> {
    let settings: Vec<_> = stored.iter().map(|(name, value)| (name.as_str(), Some(value.clone()))).collect();
    let set = || if settings.is_empty() { Ok(()) } else { tasks.set(name, &settings, SettingSource::Local) };
    let done = grant_at_creation(tasks, name, caller.uid).and_then(|()| set());
    done.inspect_err(|_| {
        // The caller learns of the first failure.
        let _ = tasks.destroy(name, false);
    })
}
