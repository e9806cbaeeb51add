//! `zpool create`.

use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings::{self, PoolSetting, TOO_OLD, When, of_dataset, of_pool, shape};
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::imported::Manner;
use daemon::ops::{CreatePool, FsShape};
use daemon::registry::BEING_IMPORTED;
use engine::dsl::props::PropValue;
use engine::dsl::write::Cipher;
use engine::vdev::config::AllocBias;
use zcommon::features::{FEATURES, Feature};
use zcommon::names::check_new_pool;
use zcommon::props::{DatasetTypes, PropName, VdevProp, ZpoolProp};
use zfs::keys::encryption;
use zfs::quota;
use zfs::unheeded;

use super::layouts::Sections;
use super::vdevs::{self, Objections, Silenced, Vdevs};

/// The version of pools with features.
const FEATURES_VERSION: u64 = 5000;

/// The property with a name for one import.
const TNAME: &str = "tname";

/// Create a pool.
#[derive(Debug, Args)]
pub struct Create {
    /// Force the use of vdevs, even if they appear to be in use or specify a conflicting replication level.
    #[arg(short = 'f')]
    pub force: bool,
    /// Print the layout of the pool without creating it.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Enable only the features that are set explicitly.
    #[arg(short = 'd')]
    pub bare: bool,
    /// Set a property of the pool; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub pool_props: Vec<String>,
    /// Set a property of the root file system; may be repeated.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    pub fs_props: Vec<String>,
    /// Mount point of the root file system.
    #[arg(short = 'm', value_name = "MOUNTPOINT")]
    pub mountpoint: Option<String>,
    /// Alternate root: a directory that is prepended to all mount points.
    #[arg(short = 'R', value_name = "ROOT")]
    pub root: Option<String>,
    /// A temporary name until the pool is exported.
    #[arg(short = 't', value_name = "TNAME")]
    pub tname: Option<String>,
    /// The new pool.
    pub pool: String,
    /// The vdevs.
    #[arg(value_name = "VDEV", required = true)]
    pub vdevs: Vec<String>,
}

/// Settings from the properties.
#[derive(Debug)]
struct Wishes {
    version: u64,
    features: Vec<Feature>,
    stored: Vec<(String, PropValue)>,
    ashift: Option<u32>,
    manner: Manner,
    fs: FsShape,
    fs_props: Vec<(String, PropValue)>,
    /// Features that are enabled although the compatibility set does not have them.
    excess: Vec<Feature>,
}

impl Verb for Create {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let cannot = |what: String| Failure::cannot("create", &self.pool, what);
        if self.pool.contains('/') {
            return Err(Failure::failed(format!(
                "cannot create '{}': invalid character '/' in pool name\nuse 'zfs create' to create a dataset",
                self.pool
            )));
        }
        self.check_words(ctx)?;
        let tname = self.tname().map_err(cannot)?;
        let name = tname.as_ref().unwrap_or(&self.pool).clone();
        if name.contains('/') {
            return Err(Failure::failed(format!(
                "cannot create '{name}': invalid character '/' in temporary name\nuse 'zfs create' to create a dataset",
            )));
        }
        let wishes = self.wishes().map_err(cannot)?;
        let found = vdevs::parse(&self.vdevs, ctx)?;
        self.check(&name, &wishes, &found, ctx)?;
        if self.dry {
            writeln!(ctx.out, "would create '{}' with the following layout:\n", self.pool)?;
            let mut sections = Sections::default();
            sections.add_new(&found);
            ctx.out.write_all(sections.text(&self.pool).as_bytes())?;
            return Ok(Exit::OK);
        }
        if ctx.is_coming(&name) {
            return Err(cannot(BEING_IMPORTED.to_owned()));
        }
        if ctx.registry()?.get(&name).is_some() {
            return Err(cannot("pool already exists".to_owned()));
        }
        for feature in &wishes.excess {
            let feature = feature.info().name;
            ctx.warn(format_args!(
                "Warning: feature \"{feature}\" enabled but is not in specified 'compatibility' feature set."
            ));
        }
        unheeded::tell(&name, &wishes.fs_props);
        let mut wishes = wishes;
        let (quotas, fs_props) = quota::split(std::mem::take(&mut wishes.fs_props));
        wishes.fs_props = fs_props;
        // Errors must be found before the pool exists.
        quotas.iter().try_for_each(|(kind, who, _)| quota::resolve(*kind, who).map(drop)).map_err(cannot)?;
        let version = wishes.fs.version.unwrap_or_else(|| zpl::version_for(wishes.version));
        quota::check(&quotas, version).map_err(cannot)?;
        let secrets = ctx.registry()?.env()?.secrets;
        let encryption = encryption(&mut wishes.fs_props, &name, &*secrets, ctx).map_err(cannot)?;
        // Nothing is above it whose key it could inherit.
        if encryption.key.is_none() && matches!(encryption.cipher, Cipher::Suite(_)) {
            return Err(cannot("Keyformat required for new encryption root.".to_owned()));
        }
        let spec = vdevs::open(&found, wishes.ashift, ("create", &self.pool), ctx)?;
        let session = ctx.session()?;
        let new = CreatePool {
            name: name.clone(),
            label_name: tname.map(|_| self.pool.clone()),
            spec,
            version: wishes.version,
            features: wishes.features,
            pool_props: wishes.stored,
            fs_props: wishes.fs_props,
            fs: wishes.fs,
            encryption,
            manner: wishes.manner,
            caller: session.caller,
            command: session.line.clone(),
        };
        session.registry.create(new).map_err(|e| cannot(reason(&e)))?;
        for (kind, who, limit) in quotas {
            quota::set(&Target::of(&name, ctx)?, kind, &who, limit, ctx).map_err(cannot)?;
        }
        zfs::mount::mount_created(&name, ctx)
    }
}

/// OpenZFS' message for a pool of logs, cache devices or spares only.
#[doc(alias = "check_replication")]
const NO_ORDINARY_VDEV: &str = "invalid vdev specification\nthe following errors must be manually repaired:\n\
                                at least one general top-level vdev must be specified";

/// OpenZFS' message when the pool could not be created.
fn reason(e: &engine::Error) -> String {
    match e.kind() {
        engine::Kind::Exists => "pool already exists".to_owned(),
        _ => why(e),
    }
}

impl Create {
    /// Refuses vdevs, names and settings that cannot make a pool.
    fn check(&self, name: &str, wishes: &Wishes, found: &Vdevs, ctx: &mut Ctx) -> Result<(), Failure> {
        let objections = Objections::of(found, Silenced::all(self.force), ctx, None);
        if let Some(failure) = objections.failure(self.force) {
            return Err(failure);
        }
        for name in [self.pool.as_str(), name] {
            let bad =
                |what| Failure::cannot("create", name, format!("{what}\npool name may have been omitted"));
            check_new_pool(name).map_err(bad)?;
        }
        if !found.tops.iter().any(|top| top.class == AllocBias::Normal) {
            return Err(Failure::failed(NO_ORDINARY_VDEV));
        }
        wishes.check_mountpoint(&self.pool)?;
        if wishes.fs.version.is_some_and(|version| zpl::pool_version_for(version) > wishes.version) {
            return Err(Failure::cannot("create", &self.pool, TOO_OLD));
        }
        Ok(())
    }

    /// Refuses unknown properties, before any other check.
    #[doc(alias = "add_prop_list")]
    fn check_words(&self, ctx: &mut Ctx) -> Result<(), Failure> {
        let props = settings::split(&self.pool_props).unwrap_or_default();
        for (name, value) in &props {
            let of_vdev = VdevProp::from_user(name).is_some();
            let known = of_vdev || ZpoolProp::from_user(name).is_some();
            if !known && !name.starts_with("feature@") {
                let what = format!("property '{name}' is not a valid pool or vdev property");
                return Err(Failure::failed(what));
            }
            if name == "ashift" && value.parse().is_ok_and(|n: u64| n != 0 && !(9..=16).contains(&n)) {
                let what = "only values between 9 and 16 are allowed.";
                return Err(Failure::failed(format!("invalid 'ashift={value}' property: {what}")));
            }
        }
        check_version(&props)?;
        if let Some((_, files)) = props.iter().find(|(name, _)| name == "compatibility") {
            clikit::compatibility::load_or_tell(files, ctx)?;
        }
        for (name, _) in settings::split(&self.fs_props()).unwrap_or_default() {
            if PropName::parse(&name).is_none() {
                return Err(Failure::failed(format!("property '{name}' is not a valid filesystem property")));
            }
        }
        Ok(())
    }

    /// The properties of the root file system. Of several mount points the last one counts.
    fn fs_props(&self) -> Vec<String> {
        let is_mountpoint = |word: &&String| word.starts_with("mountpoint=");
        let last = self.fs_props.iter().rfind(is_mountpoint);
        self.fs_props.iter().filter(|word| !is_mountpoint(word)).chain(last).cloned().collect()
    }

    /// The name for this import only: `-t`, or the property `tname`.
    fn tname(&self) -> Result<Option<String>, String> {
        let props = settings::split(&self.pool_props)?;
        let said = props.into_iter().find(|(name, _)| name == TNAME).map(|(_, value)| value);
        match (&self.tname, said) {
            (Some(_), Some(_)) => Err(format!("property '{TNAME}' specified multiple times")),
            (Some(name), None) => Ok(Some(name.clone())),
            (None, said) => Ok(said),
        }
    }

    fn wishes(&self) -> Result<Wishes, String> {
        let temporary = self.tname()?.is_some();
        let mut wishes = Wishes {
            version: FEATURES_VERSION,
            features: if self.bare { Vec::new() } else { FEATURES.to_vec() },
            stored: Vec::new(),
            ashift: None,
            manner: Manner {
                altroot: self.root.clone(),
                // A pool with a name of its own would come back with it.
                cached: self.root.is_none() && !temporary,
                cachefile: None,
                no_mount: false,
            },
            fs: FsShape::default(),
            fs_props: Vec::new(),
            excess: Vec::new(),
        };
        if let Some(root) = self.root.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(format!("bad alternate root '{root}'"));
        }
        let props = settings::split_beside_root(&self.pool_props, self.root.as_deref())?;
        let files = props.iter().find(|(name, _)| name == "compatibility").map_or("off", |(_, files)| files);
        let allowed = clikit::compatibility::compatible(files)?;
        wishes.features.retain(|feature| allowed.contains(feature));
        for (name, value) in props.into_iter().filter(|(name, _)| name != TNAME) {
            let setting = of_pool(&name, &value, When::New)?;
            if let PoolSetting::Enable(feature) = &setting
                && !allowed.contains(feature)
            {
                wishes.excess.push(*feature);
            }
            wishes.take(setting);
        }
        wishes.add_needed();
        for (name, value) in settings::split(&self.fs_props())? {
            let (name, value) = of_dataset(&name, &value, DatasetTypes::FILESYSTEM, When::New)?;
            shape(&mut wishes.fs, &mut wishes.fs_props, name, value)?;
        }
        if let Some(mountpoint) = &self.mountpoint {
            let (name, value) = of_dataset("mountpoint", mountpoint, DatasetTypes::FILESYSTEM, When::New)?;
            wishes.fs_props.push((name, value));
        }
        Ok(wishes)
    }
}

impl Wishes {
    /// Refuses a mount point that has files.
    fn check_mountpoint(&self, pool: &str) -> Result<(), Failure> {
        let own = self.fs_props.iter().rfind(|(name, _)| name == "mountpoint").and_then(|(_, v)| v.text());
        let place = match own {
            Some("none" | "legacy") => return Ok(()),
            Some(path) => path.to_owned(),
            None => format!("/{pool}"),
        };
        let root = self.manner.altroot.as_deref().unwrap_or_default().trim_end_matches('/');
        let place = format!("{root}{place}");
        let hint = "use '-m' option to provide a different default";
        // It may lie in a file system that this process serves.
        match zfuse::mount_helper::is_empty_folder(std::path::Path::new(&place)) {
            Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                Err(Failure::failed(format!("mountpoint '{place}' exists and is not empty\n{hint}")))
            }
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::failed(format!("mountpoint '{place}' : {}\n{hint}", clikit::verb::strerror(&e))))
            }
            _ => Ok(()),
        }
    }

    /// Enables the features that others depend on, whatever was asked for.
    #[doc(alias = "feature_enable_sync")]
    fn add_needed(&mut self) {
        let is_needed = |feature: &Feature| self.features.iter().any(|other| other.depends_on(*feature));
        let needed = FEATURES.iter().filter(|feature| is_needed(feature)).copied();
        let missing: Vec<_> = needed.filter(|feature| !self.features.contains(feature)).collect();
        self.features.extend(missing);
    }

    fn take(&mut self, setting: PoolSetting) {
        match setting {
            PoolSetting::Stored(name, value) => self.stored.push((name, value)),
            PoolSetting::Enable(feature) if !self.features.contains(&feature) => self.features.push(feature),
            PoolSetting::Disable(feature) => self.features.retain(|known| *known != feature),
            PoolSetting::Enable(_) | PoolSetting::Readonly(_) | PoolSetting::NoEffect => {}
            PoolSetting::Version(version) => {
                self.version = version;
                if version != FEATURES_VERSION {
                    self.features.clear();
                }
            }
            PoolSetting::Ashift(n) => {
                self.ashift = u32::try_from(n).ok().filter(|n| *n != 0);
                self.stored.push(("ashift".to_owned(), PropValue::Number(n)));
            }
            PoolSetting::Altroot(root) => {
                self.manner.altroot = Some(root);
                self.manner.cached = false;
            }
            PoolSetting::Cachefile(path) => self.manner.set_cachefile(&path),
        }
    }
}

/// Refuses `version` beside features, and beside a set of features.
#[doc(alias = "add_prop_list")]
fn check_version(props: &[(String, String)]) -> Result<(), Failure> {
    let has = |is: &dyn Fn(&str) -> bool| props.iter().any(|(name, _)| is(name));
    if !has(&|name| name == "version") {
        return Ok(());
    }
    if has(&|name| name.starts_with("feature@")) {
        let what = "'feature@' and 'version' properties cannot be specified together";
        return Err(Failure::failed(what));
    }
    match props.iter().any(|(name, value)| name == "compatibility" && value != "legacy") {
        true => Err(Failure::failed(
            "when 'version' is specified, the 'compatibility' feature may only be set to 'legacy'",
        )),
        false => Ok(()),
    }
}
