//! `zpool create`.

use std::io::Write;

use clap::Args;
use daemon::ops::{CreatePool, FsShape};
use daemon::registry::Manner;
use engine::dsl::props::PropValue;
use zcommon::features::{Feature, of_openzfs_2_3};
use zcommon::names::check_new_pool;
use zcommon::props::DatasetTypes;
use zpl::CaseSensitivity;

use super::vdevs::{self, Objections};
use crate::ctx::Ctx;
use crate::session::why;
use crate::settings::{self, PoolSetting, When, of_dataset, of_pool, tell_unheeded};
use crate::verb::{Exit, Failure, Outcome, Verb};
use crate::zfs::keys::encryption;

/// The version of pools with features.
const FEATURES_VERSION: u64 = 5000;

/// Create a pool.
#[derive(Debug, Args)]
pub struct Create {
    /// Although devices seem to be in use, or protect less than others.
    #[arg(short = 'f')]
    pub force: bool,
    /// Show what would be made.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Enable no features but those that are asked for.
    #[arg(short = 'd')]
    pub bare: bool,
    /// A property of the pool; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub pool_props: Vec<String>,
    /// A property of its root file system; may be repeated.
    #[arg(short = 'O', value_name = "PROPERTY=VALUE")]
    pub fs_props: Vec<String>,
    /// Where its root file system is mounted.
    #[arg(short = 'm', value_name = "MOUNTPOINT")]
    pub mountpoint: Option<String>,
    /// A folder that all mount points are below.
    #[arg(short = 'R', value_name = "ROOT")]
    pub root: Option<String>,
    /// Another name for as long as it is imported.
    #[arg(short = 't', value_name = "TNAME")]
    pub tname: Option<String>,
    /// Its name.
    pub pool: String,
    /// Its vdevs.
    #[arg(value_name = "VDEV", required = true)]
    pub vdevs: Vec<String>,
}

/// What the properties ask for.
#[derive(Debug)]
struct Wishes {
    version: u64,
    features: Vec<Feature>,
    stored: Vec<(String, PropValue)>,
    ashift: Option<u32>,
    manner: Manner,
    fs: FsShape,
    fs_props: Vec<(String, PropValue)>,
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
        if self.tname.is_some() {
            return Err(Failure::failed("zpool create -t: not supported yet: a name of its own on disk"));
        }
        let wishes = self.wishes().map_err(cannot)?;
        let found = vdevs::parse(&self.vdevs, ctx)?;
        if let Some(failure) = Objections::of(&found, self.force, ctx, None).failure(self.force) {
            return Err(failure);
        }
        check_new_pool(&self.pool).map_err(|e| cannot(e.to_string()))?;
        wishes.check_mountpoint(&self.pool)?;
        if self.dry {
            writeln!(ctx.out, "would create '{}' with the following layout:\n", self.pool)?;
            ctx.out.write_all(vdevs::layouts(&found, &self.pool).as_bytes())?;
            return Ok(Exit::OK);
        }
        if ctx.registry()?.get(&self.pool).is_some() {
            return Err(cannot("pool already exists".to_owned()));
        }
        tell_unheeded(&wishes.fs_props, ctx);
        let mut wishes = wishes;
        let secrets = ctx.registry()?.env()?.secrets;
        let encryption = encryption(&mut wishes.fs_props, &self.pool, &*secrets, ctx).map_err(cannot)?;
        let spec = vdevs::open(&found, wishes.ashift, "create", &self.pool)?;
        let session = ctx.session()?;
        let new = CreatePool {
            name: self.pool.clone(),
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
        crate::zfs::mount::mount_created(&self.pool, ctx)
    }
}

/// What OpenZFS says when the pool could not be made.
fn reason(e: &engine::Error) -> String {
    match e.kind() {
        engine::Kind::Exists => "pool already exists".to_owned(),
        _ => why(e),
    }
}

impl Create {
    fn wishes(&self) -> Result<Wishes, String> {
        let mut wishes = Wishes {
            version: FEATURES_VERSION,
            features: if self.bare { Vec::new() } else { of_openzfs_2_3() },
            stored: Vec::new(),
            ashift: None,
            manner: Manner {
                altroot: self.root.clone(),
                cached: self.root.is_none(),
                cachefile: None,
                no_mount: false,
            },
            fs: FsShape::default(),
            fs_props: Vec::new(),
        };
        if let Some(root) = self.root.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(format!("bad alternate root '{root}'"));
        }
        let props = settings::split(&self.pool_props)?;
        if let Some((_, files)) = props.iter().find(|(name, _)| name == "compatibility") {
            let allowed = settings::compatible(files)?;
            wishes.features.retain(|feature| allowed.contains(feature));
        }
        for (name, value) in props {
            wishes.take(of_pool(&name, &value, When::New)?);
        }
        for (name, value) in settings::split(&self.fs_props)? {
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
        match std::fs::read_dir(&place).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Err(Failure::failed(format!("mountpoint '{place}' exists and is not empty\n{hint}"))),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::failed(format!("mountpoint '{place}' : {}\n{hint}", crate::verb::strerror(&e))))
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, setting: PoolSetting) {
        match setting {
            PoolSetting::Stored(name, value) => self.stored.push((name, value)),
            PoolSetting::Enable(feature) if !self.features.contains(&feature) => self.features.push(feature),
            PoolSetting::Disable(feature) => {
                self.features.retain(|f| *f != feature && !f.depends_on(feature));
            }
            PoolSetting::Enable(_) | PoolSetting::Readonly(_) => {}
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

/// Puts what is fixed at creation aside; the rest is a setting.
pub fn shape(
    fs: &mut FsShape,
    settings: &mut Vec<(String, PropValue)>,
    name: String,
    value: PropValue,
) -> Result<(), String> {
    let number = value.number().unwrap_or(0);
    match name.as_str() {
        "normalization" => {
            fs.normalization = number;
        }
        "utf8only" => fs.utf8only = Some(number != 0),
        "casesensitivity" => {
            fs.case = match number {
                0 => CaseSensitivity::Sensitive,
                1 => CaseSensitivity::Insensitive,
                _ => CaseSensitivity::Mixed,
            }
        }
        "version" if number == 5 => {}
        "version" => return Err(format!("file systems of version {number} can't be made by this build")),
        _ => settings.push((name, value)),
    }
    match (fs.normalization, fs.utf8only) {
        (1.., Some(false)) => Err("'utf8only' must be set 'on' if normalization chosen".to_owned()),
        _ => Ok(()),
    }
}
