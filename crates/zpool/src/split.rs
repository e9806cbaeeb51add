//! `zpool split`.
//!
//! Source of the messages: `zpool_do_split`, zpool_main.c; `zpool_vdev_split`, libzfs_pool.c; OpenZFS 2.4.

use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session;
use clikit::settings::{self, PoolSetting, When, of_pool};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use daemon::imported::Manner;
use daemon::ops::ImportPool;
use engine::Kind;
use engine::dsl::props::PropValue;
use engine::spa::OpenOptions;
use engine::spa::split::Split as Request;
use engine::vdev::config::AllocBias;
use zcommon::names::check_new_pool;
use zcommon::vdev::VdevKind;
use zfs::keys::LoadKey;
use zutil::names::vdev_name;
use zutil::tree::VdevNode;
use zutil::words;

use super::import_one::props_and_mount_options;
use super::layouts::Sections;
use super::simple::named;
use super::vdev_names::VdevNames;
use super::vdevs;

/// Words that stand for several devices.
const GROUPS: [&str; 8] = ["mirror", "raidz", "draid", "spare", "log", "cache", "special", "dedup"];

/// Split one device of each mirror of a pool into a new pool.
#[derive(Debug, Args)]
pub struct Split {
    #[command(flatten)]
    pub(crate) names: VdevNames,
    /// Only print the layout of the new pool.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Load the keys of the new pool (with -R).
    #[arg(short = 'l')]
    pub load_keys: bool,
    /// Import the new pool with this alternate root (default: leave it exported).
    #[arg(short = 'R', value_name = "ALTROOT")]
    pub root: Option<String>,
    /// Set a property of the new pool, or (with -R) mount options.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE|MNTOPTS")]
    pub options: Vec<String>,
    /// The pool.
    pub pool: String,
    /// Name of the new pool.
    pub newpool: String,
    /// Devices of the new pool, at most one of each mirror (default: the last one).
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
}

/// Settings of the new pool.
struct Wishes {
    stored: Vec<(String, PropValue)>,
    manner: Manner,
}

impl Split {
    fn cannot(&self, why: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("Unable to split {}: {why}", self.pool))
    }

    /// The properties, and the mount options.
    fn options(&self) -> (Vec<String>, Vec<String>) {
        props_and_mount_options(&self.options)
    }

    fn wishes(&self, props: &[String]) -> Result<Wishes, String> {
        let altroot = self.root.clone();
        let mut wishes = Wishes {
            stored: Vec::new(),
            manner: Manner { altroot, cached: false, cachefile: None, no_mount: false },
        };
        for (name, value) in settings::split(props)? {
            match of_pool(&name, &value, When::Import)? {
                PoolSetting::Stored(name, value) => wishes.stored.push((name, value)),
                PoolSetting::Altroot(root) => wishes.manner.altroot = Some(root),
                PoolSetting::Cachefile(path) => wishes.manner.set_cachefile(&path),
                PoolSetting::Readonly(false) => {}
                _ => return Err(format!("property '{name}' can only be set at import time")),
            }
        }
        Ok(wishes)
    }

    /// The guids of the devices that were named; 0 stands for a device of no mirror.
    #[doc(alias = "split_mirror_vdev")]
    fn named(&self, tree: &VdevNode, ctx: &Ctx) -> Result<Vec<u64>, Failure> {
        if let Some(word) = self.devices.iter().find(|word| GROUPS.contains(&word.as_str())) {
            return Err(Failure::failed(format!("Cannot use '{word}' as a device for splitting")));
        }
        let leaves = || tree.walk().filter(|vdev| vdev.is_leaf());
        let guid = |word: &String| {
            if let Some(leaf) = words::find(leaves(), word) {
                return Ok(leaf.guid);
            }
            // A device may be named by a link to the path that the pool has.
            let path = vdevs::find(word, ctx).map_err(|why| {
                let why = why.message().unwrap_or_default();
                Failure::failed(format!("{why}\nUnable to build a pool from the specified devices"))
            })?;
            let path = path.path.into_os_string().into_vec();
            Ok(leaves().find(|leaf| leaf.path.as_ref() == Some(&path)).map_or(0, |leaf| leaf.guid))
        };
        self.devices.iter().map(guid).collect()
    }

    /// The devices of the new pool, each with its class.
    #[doc(alias = "zpool_vdev_split")]
    fn choose(&self, tree: &VdevNode, ctx: &Ctx) -> Result<Vec<(AllocBias, VdevNode)>, Failure> {
        let guids = self.named(tree, ctx)?;
        let (mut chosen, mut found) = (Vec::new(), 0);
        for top in &tree.children {
            if top.is_log || matches!(top.kind, VdevKind::Hole | VdevKind::Indirect) {
                continue;
            }
            let Some(last) = top.children.last().filter(|_| top.kind == VdevKind::Mirror) else {
                return Err(self.cannot("Source pool must be composed only of mirrors\n"));
            };
            let named = top.children.iter().find(|leaf| guids.contains(&leaf.guid));
            found += usize::from(named.is_some());
            let class = match top.bias.as_deref() {
                Some("special") => AllocBias::Special,
                Some("dedup") => AllocBias::Dedup,
                _ => AllocBias::Normal,
            };
            chosen.push((class, named.unwrap_or(last).clone()));
        }
        match found == guids.len() {
            true => Ok(chosen),
            false => Err(self.cannot("Device list must include at most one disk from each mirror")),
        }
    }

    fn show(&self, chosen: &[(AllocBias, VdevNode)], ctx: &mut Ctx) -> Outcome {
        let mut sections = Sections::default();
        for (class, leaf) in chosen {
            sections.add(*class, vec![(0, vdev_name(leaf, self.names.style(), false))]);
        }
        writeln!(ctx.out, "would create '{}' with the following layout:\n", self.newpool)?;
        ctx.out.write_all(sections.text(&self.newpool).as_bytes())?;
        Ok(Exit::OK)
    }

    /// Imports the new pool and mounts its file systems.
    fn import(
        &self,
        guid: u64,
        paths: &[PathBuf],
        manner: Manner,
        options: &[String],
        ctx: &mut Ctx,
    ) -> Outcome {
        let candidate = zutil::import::candidates(paths).into_iter().find(|found| found.guid == guid);
        let missing = || Failure::cannot("open", &self.newpool, "no such pool");
        let new = ImportPool {
            candidate: candidate.ok_or_else(missing)?,
            rename: None,
            temporary: false,
            read_only: false,
            force: false,
            missing_log: false,
            open: OpenOptions::default(),
            manner,
            derived: None,
        };
        let imported = ctx.registry()?.import(new);
        drop(imported.map_err(|e| Failure::cannot("import", &self.newpool, e.what()))?);
        let keys = if self.load_keys { LoadKey::all_of(&self.newpool).run(ctx)? } else { Exit::OK };
        if zfs::mount::mount_pool(&self.newpool, options, ctx)? != Exit::OK {
            ctx.warn("Split was successful, but some datasets could not be mounted");
        }
        Ok(keys)
    }
}

impl Verb for Split {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let (props, options) = self.options();
        if self.root.is_none() && !options.is_empty() {
            return Err(Failure::usage("setting mntopts is only valid when importing the pool"));
        }
        if self.root.is_none() && self.load_keys {
            return Err(Failure::usage("loading keys is only valid when importing the pool"));
        }
        if let Some(root) = self.root.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(self.cannot(format!("bad alternate root '{root}'")));
        }
        settings::split_beside_root(&props, self.root.as_deref()).map_err(Failure::usage)?;
        let pool = named(&self.pool, ctx)?;
        check_new_pool(&self.newpool).map_err(|why| self.cannot(why))?;
        let wishes = self.wishes(&props).map_err(|why| self.cannot(why))?;
        let tree = zutil::load::facts(&*pool.view()?).map(|facts| facts.tree);
        let tree = tree.ok_or_else(|| self.cannot("Source pool is missing vdev tree"))?;
        let chosen = self.choose(&tree, ctx)?;
        if self.dry {
            return self.show(&chosen, ctx);
        }
        if ctx.registry()?.get(&self.newpool).is_some() {
            return Err(self.cannot("pool already exists"));
        }
        let leaves = chosen.iter().map(|(_, leaf)| leaf.guid).collect();
        let request = Request { name: self.newpool.clone(), leaves, props: wishes.stored };
        let done = pool.spa().and_then(|spa| spa.vdevs().split(request));
        let guid = done.map_err(|e| match (e.kind(), e.what()) {
            (Kind::Suspended, _) => self.cannot(session::suspended(&e)),
            (Kind::Busy, what) if what != "currently discarding checkpoint" => self.cannot("pool is busy"),
            (_, what) => self.cannot(what),
        })?;
        pool.look_again();
        ctx.registry()?.note(&pool);
        ctx.log(&pool)?;
        drop(pool);
        if self.root.is_none() {
            return Ok(Exit::OK);
        }
        let path = |leaf: &VdevNode| {
            PathBuf::from(std::ffi::OsStr::from_bytes(leaf.path.as_deref().unwrap_or_default()))
        };
        let paths: Vec<PathBuf> = chosen.iter().map(|(_, leaf)| path(leaf)).collect();
        self.import(guid, &paths, wishes.manner, &options, ctx)
    }
}
