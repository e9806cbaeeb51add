//! `zfs mount`, `zfs unmount`: which file systems are mounted where.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use daemon::Imported;
use daemon::mounts::Mounter;
use engine::dsl::{Dataset, DatasetKind};
use zcommon::props::ZfsProp;

use super::prop::{Node, Props};
use super::target::Target;
use crate::ctx::Ctx;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Mount file systems, or list those that are mounted.
#[derive(Debug, Args)]
pub struct Mount {
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Although the place has files.
    #[arg(short = 'O')]
    pub overlay: bool,
    /// Force.
    #[arg(short = 'f')]
    pub force: bool,
    /// Load keys that are needed.
    #[arg(short = 'l')]
    pub load_keys: bool,
    /// Say what is done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// With everything below.
    #[arg(short = 'R')]
    pub recurse: bool,
    /// Options, comma separated.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// The file system.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Verb for Mount {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.all {
            let mut exit = Exit::OK;
            for pool in ctx.pools() {
                exit = exit.worse(mount_pool(&pool.name(), ctx)?);
            }
            return Ok(exit);
        }
        if self.names.is_empty() {
            for pool in ctx.pools() {
                for (dataset, at) in pool.mounts.all() {
                    writeln!(ctx.out, "{dataset:<30}  {}", at.display())?;
                }
            }
            return Ok(Exit::OK);
        }
        for name in &self.names {
            let target = Target::of(name, ctx)?;
            mount_one(&target, &*mounter(ctx)?, &self.options, true)?;
        }
        Ok(Exit::OK)
    }
}

/// Unmount file systems.
#[derive(Debug, Args)]
pub struct Unmount {
    /// All file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Although files are open.
    #[arg(short = 'f')]
    pub force: bool,
    /// Forget keys that nobody needs any more.
    #[arg(short = 'u')]
    pub unload_keys: bool,
    /// A file system, or where it is mounted.
    #[arg(value_name = "FILESYSTEM|MOUNTPOINT")]
    pub names: Vec<String>,
}

impl Verb for Unmount {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.all {
            for pool in ctx.pools() {
                pool.mounts.unmount_all(self.force)?;
            }
            return Ok(Exit::OK);
        }
        if self.names.is_empty() {
            return Err(Failure::usage("missing filesystem argument"));
        }
        for name in &self.names {
            let (pool, dataset) = find(name, ctx)?;
            pool.mounts
                .unmount(&dataset, self.force)
                .map_err(|e| Failure::cannot("unmount", name, e.what()))?;
        }
        Ok(Exit::OK)
    }
}

fn find(name: &str, ctx: &mut Ctx) -> Result<(Arc<Imported>, String), Failure> {
    if name.starts_with('/') {
        for pool in ctx.pools() {
            let at = |(_, at): &(String, std::path::PathBuf)| at == Path::new(name);
            if let Some((dataset, _)) = pool.mounts.all().into_iter().find(at) {
                return Ok((pool, dataset));
            }
        }
        return Err(Failure::cannot("unmount", name, "not a ZFS filesystem"));
    }
    let target = Target::of(name, ctx)?;
    target.dataset()?;
    Ok((target.pool, name.to_owned()))
}

/// Mounts a file system that was just made, if its properties say so.
pub fn mount_created(name: &str, ctx: &mut Ctx) -> Outcome {
    let target = Target::of(name, ctx)?;
    mount_one(&target, &*mounter(ctx)?, &[], false)?;
    Ok(Exit::OK)
}

/// Mounts all file systems of a pool, parents first.
pub fn mount_pool(pool: &str, ctx: &mut Ctx) -> Outcome {
    let root = Target::of(pool, ctx)?;
    let failures = mount_below(&root, &*mounter(ctx)?)?;
    failures.iter().for_each(|why| ctx.warn(why));
    Ok(if failures.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// Mounts a file system and all below it, parents first, as their properties say; gives what could not be mounted.
pub fn mount_below(root: &Target, mounter: &dyn Mounter) -> Result<Vec<String>, Failure> {
    let mut failures = Vec::new();
    for dir in root.tree()? {
        let target = Target { name: dir.name.clone(), ..root.clone() };
        if let Err(failure) = mount_one(&target, mounter, &[], false) {
            failures.push(failure.message().unwrap_or_default().to_owned());
        }
    }
    Ok(failures)
}

fn mounter(ctx: &mut Ctx) -> Result<Arc<dyn Mounter>, Failure> {
    ctx.registry()?.mounter().ok_or_else(|| Failure::failed("this process can't mount"))
}

/// Mounts one file system. `asked`: it was named, so what keeps it from being mounted is an error.
fn mount_one(target: &Target, mounter: &dyn Mounter, options: &[String], asked: bool) -> Result<(), Failure> {
    let name = &target.name;
    let dataset = target.dataset()?;
    let cannot = |what: &str| Failure::cannot("mount", name, what);
    if target.pool.mounts.at(name).is_some() {
        return if asked { Err(cannot("filesystem already mounted")) } else { Ok(()) };
    }
    let Some(at) = place_of(&dataset, asked).map_err(|what| cannot(&what))? else {
        return Ok(());
    };
    let mount = mounter.mount(&target.pool, name, Path::new(&at), options).map_err(|e| cannot(e.what()))?;
    target.pool.mounts.note(name, at.into(), mount);
    Ok(())
}

/// Where a file system belongs; `None` when it is not to be mounted by itself.
#[doc(alias = "zfs_is_mountable")]
pub fn place_of(dataset: &Dataset, asked: bool) -> Result<Option<String>, String> {
    if dataset.kind().map_err(|e| e.to_string())? != DatasetKind::Filesystem {
        return if asked { Err("not a filesystem".to_owned()) } else { Ok(None) };
    }
    let node = Node::Dataset(dataset.clone(), DatasetKind::Filesystem);
    let props = Props::new(&node, 0);
    let value = |prop: ZfsProp| props.native(prop).map(|p| p.value(true).to_owned()).unwrap_or_default();
    let (at, can) = (value(ZfsProp::Mountpoint), value(ZfsProp::Canmount));
    match (at.as_str(), can.as_str()) {
        ("none", _) if asked => Err("no mountpoint set".to_owned()),
        ("legacy", _) if asked => Err("legacy mountpoint\nuse mount(8) to mount this filesystem".to_owned()),
        (_, "off") if asked => Err("'canmount' property is set to 'off'".to_owned()),
        ("none" | "legacy", _) | (_, "off") => Ok(None),
        (_, "noauto") if !asked => Ok(None),
        _ => Ok(Some(at)),
    }
}

/// Mounted file systems at and below a dataset, parents first.
pub fn mounted_below(pool: &Imported, dataset: &str) -> Vec<String> {
    let below =
        |name: &str| name.strip_prefix(dataset).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let all = pool.mounts.all().into_iter().map(|(name, _)| name);
    all.filter(|name| below(name)).collect()
}

/// Does something while these file systems are not mounted, and mounts them again where they belong then.
pub fn with_unmounted<T>(
    target: &Target,
    names: &[String],
    force: bool,
    ctx: &mut Ctx,
    work: impl FnOnce(&mut Ctx) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut unmounted = Vec::new();
    for name in names.iter().rev().filter(|name| target.pool.mounts.at(name).is_some()) {
        let done = target.pool.mounts.unmount(name, force);
        done.map_err(|e| Failure::cannot("unmount", name, e.what()))?;
        unmounted.push(name);
    }
    let done = work(ctx);
    for name in unmounted.into_iter().rev() {
        mount_created(name, ctx)?;
    }
    done
}

/// File systems at and below a dataset that are not mounted by themselves, as their properties are now.
pub fn waiting_below(target: &Target) -> Result<Vec<String>, Failure> {
    let dirs = target.tree()?;
    let _quiet = target.pool.quiet();
    let waits = |dir: &engine::dsl::Dir| {
        let place = dir.head().ok().map(|head| place_of(&head, false));
        matches!(place, Some(Ok(None)))
    };
    Ok(dirs.into_iter().filter(waits).map(|dir| dir.name).collect())
}
