//! `zfs mount`, `zfs unmount`: which file systems are mounted where.

use std::cmp::Reverse;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::output::json::{document, print};
use clikit::target::{NOT_OF_THIS_TYPE, Target};
use clikit::verb::{Exit, Failure, Outcome, Verb, each};
use daemon::mounts::{Made, Mounter, Stays, at_once, rounds};
use daemon::{Imported, Registry};
use engine::dsl::{Dataset, DatasetKind};
use serde_json::{Value, json};
use zcommon::props::{DatasetTypes, ZfsProp};

use super::incomplete::{Asked, may_mount};
use super::keys::{load_key_of, unload_key_of};
use super::prop::{Node, Props};
use super::remount::{mount_again, unmount_all};

/// Interval and number of checks for the end of a mount.
const ENDING: Duration = Duration::from_millis(10);
const ENDING_ROUNDS: usize = 100;
/// Mounts that are made before they are noted.
const NOTED: usize = 32;
/// Mount points that are the business of mount(8) and umount(8).
pub(super) const LEGACY: &str = "legacy";
/// Option by which a place may have files.
const OVERLAY: &str = "overlay";

/// Mount file systems, or list the mounted ones.
#[derive(Debug, Args)]
pub struct Mount {
    /// Mount all file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Mount although the directory is not empty.
    #[arg(short = 'O')]
    pub overlay: bool,
    /// Force.
    #[arg(short = 'f')]
    pub force: bool,
    /// Load the keys of encrypted file systems.
    #[arg(short = 'l')]
    pub load_keys: bool,
    /// Print the progress.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Mount all descendants, too.
    #[arg(short = 'R')]
    pub recurse: bool,
    /// List the mounted file systems as JSON.
    #[arg(short = 'j', long = "json")]
    pub json: bool,
    /// Mount options, comma separated.
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// The file system.
    #[arg(value_name = "FILESYSTEM")]
    pub names: Vec<String>,
}

impl Verb for Mount {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.names.is_empty() && self.recurse {
            return Err(Failure::usage("no dataset provided"));
        }
        if self.names.is_empty() && !self.all {
            return match !self.options.is_empty() {
                true => Err(Failure::usage("missing filesystem argument (specify -a for all)")),
                false => list(self.json, ctx),
            };
        }
        if self.json {
            return Err(Failure::usage("too many arguments"));
        }
        let name = match self.names.as_slice() {
            [] if self.all => None,
            [name] if !self.all => Some(name),
            [name, ..] if self.recurse && !self.all => Some(name),
            [] => return Err(Failure::usage("missing dataset argument")),
            _ => return Err(Failure::usage("too many arguments")),
        };
        let options = self.options();
        match name {
            Some(name) if !self.recurse => self.one(name, &options, ctx),
            Some(_) => {
                let tops = self.names.iter().map(|name| file_system(name, ctx)).collect::<Result<_, _>>()?;
                self.many(tops, &options, ctx)
            }
            None => {
                let names: Vec<String> = ctx.all_pools().iter().map(|pool| pool.name()).collect();
                let tops = names.iter().map(|name| Target::of(name, ctx)).collect::<Result<_, _>>()?;
                self.many(tops, &options, ctx)
            }
        }
    }
}

/// The root of a tree that is mounted.
fn file_system(name: &str, ctx: &mut Ctx) -> Result<Target, Failure> {
    let found = Target::head_of(name, ctx).and_then(|target| Ok((target.types()?, target)));
    match found.map_err(|e| Failure::usage(e.message().unwrap_or_default()))? {
        (DatasetTypes::FILESYSTEM, target) => Ok(target),
        _ => Err(Failure::usage(format!("cannot open '{name}': {NOT_OF_THIS_TYPE}"))),
    }
}

/// `zfs mount` without words. Mounted snapshots are not listed.
fn list(as_json: bool, ctx: &mut Ctx) -> Outcome {
    let mut all: Vec<(String, PathBuf)> = ctx.all_pools().iter().flat_map(|pool| pool.mounts.all()).collect();
    all.retain(|(dataset, _)| !dataset.contains('@'));
    if !as_json {
        all.iter().try_for_each(|(dataset, at)| writeln!(ctx.out, "{dataset:<30}  {}", at.display()))?;
        return Ok(Exit::OK);
    }
    let of = |(dataset, at): (String, PathBuf)| {
        let item = json!({ "filesystem": dataset, "mountpoint": at.to_string_lossy() });
        (dataset, item)
    };
    let mut document = document(&ctx.command);
    document.insert("datasets".to_owned(), Value::Object(all.into_iter().map(of).collect()));
    print(&mut *ctx.out, &Value::Object(document))?;
    Ok(Exit::OK)
}

impl Mount {
    fn options(&self) -> Vec<String> {
        let overlay = self.overlay.then(|| OVERLAY.to_owned());
        self.options.iter().cloned().chain(overlay).collect()
    }

    fn one(&self, name: &str, options: &[String], ctx: &mut Ctx) -> Outcome {
        let target = Target::head_of(name, ctx)?;
        if options.iter().any(|option| option == "remount") {
            let others: Vec<String> = options.iter().filter(|option| *option != "remount").cloned().collect();
            let done = target.pool.mounts.remount(name, &others);
            return done.map(|()| Exit::OK).map_err(|e| Failure::cannot("mount", name, e.what()));
        }
        if self.load_keys {
            load_key_of(&target, ctx)?;
        }
        let asked = if self.force { Asked::Forced } else { Asked::ByName };
        mount_one(&target, &*mounter(ctx)?, options, asked)?;
        Ok(Exit::OK)
    }

    fn many(&self, tops: Vec<Target>, options: &[String], ctx: &mut Ctx) -> Outcome {
        let mut all = Vec::new();
        for top in &tops {
            for dir in top.tree()? {
                all.push(Target { name: dir.name, ..top.clone() });
            }
        }
        if ctx.is_delegated() {
            return refuse_all(&all, ctx);
        }
        let mut exit = Exit::OK;
        if self.load_keys {
            for target in &all {
                if let Err(failure) = load_key_of(target, ctx) {
                    ctx.warn(failure.message().unwrap_or_default());
                    exit = Exit::FAILED;
                }
            }
        }
        let failures = mount_sorted(all, &*mounter(ctx)?, options);
        failures.iter().for_each(|why| ctx.warn(why));
        Ok(if failures.is_empty() { exit } else { Exit::FAILED })
    }
}

/// Refuses each mount that `zfs mount -a` of a user without the right to mount would make.
fn refuse_all(all: &[Target], ctx: &mut Ctx) -> Outcome {
    let mut exit = Exit::OK;
    for target in all {
        let dataset = target.dataset()?;
        let is_due = target.pool.mounts.at(&target.name).is_none()
            && may_mount(target, &dataset, Asked::No)?
            && place_of(&dataset, Asked::No).is_ok_and(|place| place.is_some())
            && !lacks_key(target);
        if is_due {
            ctx.warn(clikit::refused::mount(&target.name).message().unwrap_or_default());
            exit = Exit::FAILED;
        }
    }
    Ok(exit)
}

/// Unmount file systems.
#[derive(Debug, Args)]
pub struct Unmount {
    /// Unmount all file systems.
    #[arg(short = 'a')]
    pub all: bool,
    /// Close a detached file system (umount -l) although files are open. Otherwise this has no effect, as on Linux.
    #[arg(short = 'f')]
    pub force: bool,
    /// Unload the keys of encryption roots that are unmounted.
    #[arg(short = 'u')]
    pub unload_keys: bool,
    /// A file system, or its mount point.
    #[arg(value_name = "FILESYSTEM|MOUNTPOINT")]
    pub names: Vec<String>,
}

impl Verb for Unmount {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        match self.names.as_slice() {
            [] if self.all => {
                let mut all = Vec::new();
                for pool in ctx.all_pools() {
                    let mounts = pool.mounts.numbered();
                    all.extend(mounts.into_iter().map(|(number, name)| (number, Arc::clone(&pool), name)));
                }
                all.sort_by_key(|(number, ..)| Reverse(*number));
                self.all_of(&all, ctx)
            }
            [] => Err(Failure::usage("missing filesystem argument")),
            [name] if !self.all => {
                let (pool, dataset, at) = find(name, ctx)?;
                self.below(&pool, &dataset, &at, ctx)
            }
            _ => Err(Failure::usage("too many arguments")),
        }
    }
}

impl Unmount {
    /// All mounts of all pools, by number, as far as they are the business of `-a`. Keys are forgotten one by one, so then
    /// mounts go one by one.
    fn all_of(&self, all: &[(u64, Arc<Imported>, String)], ctx: &mut Ctx) -> Outcome {
        if self.unload_keys {
            return each(all, ctx, |(_, pool, name), ctx| match is_for_all(&Target::of(name, ctx)?)? {
                true => self.one(pool, name, ctx),
                false => Ok(()),
            });
        }
        let mut exit = Exit::OK;
        // A pool whose mounts came later may be mounted in another one.
        let mut pools: Vec<&Arc<Imported>> = Vec::new();
        for (_, pool, _) in all {
            if !pools.iter().any(|known| Arc::ptr_eq(known, pool)) {
                pools.push(pool);
            }
        }
        for pool in pools {
            let mut names = Vec::new();
            for (_, _, name) in all.iter().filter(|(_, of, _)| Arc::ptr_eq(of, pool)) {
                if is_for_all(&Target::of(name, ctx)?)? {
                    names.push(name.clone());
                }
            }
            for stays in pool.mounts.unmount_many(&names, false, false) {
                ctx.warn(cannot_unmount(&stays).message().unwrap_or_default());
                exit = Exit::FAILED;
            }
        }
        Ok(exit)
    }

    /// Unmounts a file system and those below it, wherever they are mounted, but snapshots and `legacy` ones, which their users
    /// manage, only below its mount point; after a failure the others are mounted as before.
    #[doc(alias("zfs_unmountall", "zfs_iter_mounted"))]
    fn below(&self, pool: &Arc<Imported>, dataset: &str, at: &Path, ctx: &mut Ctx) -> Outcome {
        let mut names = Vec::new();
        for name in pool.mounts.below(dataset, Path::new("/")) {
            let is_inside = pool.mounts.at(&name).is_some_and(|place| place.starts_with(at));
            if is_inside || (!name.contains('@') && mountpoint(&Target::of(&name, ctx)?)? != LEGACY) {
                names.push(name);
            }
        }
        if !self.unload_keys && !self.force {
            unmount_all(&Target::of(dataset, ctx)?, &names, false, ctx)?;
            return Ok(Exit::OK);
        }
        names.iter().try_for_each(|name| self.one(pool, name, ctx))?;
        Ok(Exit::OK)
    }

    fn one(&self, pool: &Arc<Imported>, name: &String, ctx: &mut Ctx) -> Result<(), Failure> {
        // As on Linux: a file system in use stays mounted, forced or not, unless it is nowhere to be seen.
        if let Err(failure) = unmount(pool, name, false) {
            if !self.force || standing(&Target::of(name, ctx)?) != Standing::Detached {
                return Err(failure);
            }
            unmount(pool, name, true)?;
        }
        if self.unload_keys
            && let Err(failure) = unload_key_of(&Target::of(name, ctx)?)
        {
            let again = mount_again(std::slice::from_ref(name), ctx);
            again.iter().for_each(|why| ctx.warn(why.message().unwrap_or_default()));
            return Err(failure);
        }
        Ok(())
    }
}

/// Unmounts a file system. As in OpenZFS a failure names the mount point, which the user has to check.
#[doc(alias = "unmount_one")]
pub fn unmount(pool: &Imported, name: &str, force: bool) -> Result<(), Failure> {
    let place = pool.mounts.at(name).unwrap_or_else(|| PathBuf::from(name));
    pool.mounts.unmount(name, force).map_err(|e| Failure::cannot("unmount", place.display(), e.what()))
}

pub(super) fn cannot_unmount(stays: &Stays) -> Failure {
    Failure::cannot("unmount", stays.at.display(), stays.why.what())
}

/// A mounted file system, by its name or its place.
fn find(name: &str, ctx: &mut Ctx) -> Result<(Arc<Imported>, String, PathBuf), Failure> {
    let legacy = || {
        let what = "legacy mountpoint\nuse umount(8) to unmount this filesystem";
        Failure::cannot("unmount", name, what)
    };
    if name.starts_with('/') {
        for pool in ctx.pools() {
            let dataset = pool.mounts.mounted_at(Path::new(name));
            if let Some((dataset, at)) = dataset.and_then(|name| pool.mounts.at(&name).map(|at| (name, at))) {
                let is_legacy = mountpoint(&Target::of(&dataset, ctx)?)? == LEGACY;
                return if is_legacy { Err(legacy()) } else { Ok((pool, dataset, at)) };
            }
        }
        return Err(Failure::cannot("unmount", name, "not a ZFS filesystem"));
    }
    let target = Target::of(name, ctx)?;
    if target.types()? == DatasetTypes::VOLUME {
        return Err(Failure::cannot("open", name, "operation not applicable to datasets of this type"));
    }
    if mountpoint(&target)? == LEGACY {
        return Err(legacy());
    }
    let at = target.pool.mounts.at(name);
    let at = at.ok_or_else(|| Failure::cannot("unmount", name, "not currently mounted"))?;
    Ok((target.pool, name.to_owned(), at))
}

/// The value of the property `mountpoint`.
pub(super) fn mountpoint(target: &Target) -> Result<String, Failure> {
    property(target, ZfsProp::Mountpoint)
}

pub(super) fn property(target: &Target, prop: ZfsProp) -> Result<String, Failure> {
    let node = Node::Dataset(target.dataset()?, DatasetKind::Filesystem);
    let _quiet = target.pool.quiet();
    let found = Props::new(&node, 0).native(prop);
    Ok(found.map(|found| found.value(true).to_owned()).unwrap_or_default())
}

/// Whether `zfs unmount -a` is about a mount. Legacy mounts are not, and neither are those that `zfs mount
/// -a` does not mount.
fn is_for_all(target: &Target) -> Result<bool, Failure> {
    let by_hand = target.name.contains('@') || mountpoint(target)? == LEGACY;
    Ok(!by_hand && property(target, ZfsProp::Canmount)? != "noauto")
}

/// Mounts a file system that was just made, if its properties allow it. One whose key is not loaded waits for
/// it.
pub fn mount_created(name: &str, ctx: &mut Ctx) -> Outcome {
    let target = Target::of(name, ctx)?;
    if lacks_key(&target) {
        return Ok(Exit::OK);
    }
    mount_one(&target, &*mounter(ctx)?, &[], Asked::No)?;
    Ok(Exit::OK)
}

/// As [`mount_created`], at the end of a command that made the file system. The command has succeeded even if the mount fails.
#[doc(alias = "zfs_mount_and_share")]
pub fn mount_new(name: &str, ctx: &mut Ctx) -> Outcome {
    if let Err(failure) = mount_created(name, ctx) {
        ctx.warn(failure.message().unwrap_or_default());
        ctx.warn("filesystem successfully created, but not mounted");
    }
    Ok(Exit::OK)
}

/// Tells a user that may not mount that a file system has been made and is not mounted.
#[doc(alias = "zfs_mount_delegation_check")]
pub fn not_mounted(name: &str, ctx: &mut Ctx) -> Outcome {
    if property(&Target::of(name, ctx)?, ZfsProp::Canmount)? == "on" {
        ctx.warn("filesystem successfully created, but it may only be mounted by root");
    }
    Ok(Exit::OK)
}

/// Mounts all file systems of a pool, parents first.
pub fn mount_pool(pool: &str, options: &[String], ctx: &mut Ctx) -> Outcome {
    let root = Target::of(pool, ctx)?;
    let failures = mount_sorted(below(&root)?, &*mounter(ctx)?, options);
    failures.iter().for_each(|why| ctx.warn(why));
    Ok(if failures.is_empty() { Exit::OK } else { Exit::FAILED })
}

/// Mounts a file system and all below it according to their properties; returns the failures.
pub fn mount_below(root: &Target, mounter: &dyn Mounter) -> Result<Vec<String>, Failure> {
    Ok(mount_sorted(below(root)?, mounter, &[]))
}

fn below(root: &Target) -> Result<Vec<Target>, Failure> {
    Ok(root.tree()?.into_iter().map(|dir| Target { name: dir.name, ..root.clone() }).collect())
}

/// Mounts file systems by place, so that none hides another; returns the failures. Those whose key is not
/// loaded wait for it.
fn mount_sorted(all: Vec<Target>, mounter: &dyn Mounter, options: &[String]) -> Vec<String> {
    let mut failures = Vec::new();
    let mut placed = Vec::new();
    for target in all {
        match target.dataset().map(|dataset| place_of(&dataset, Asked::No).ok().flatten()) {
            Ok(Some(place)) if !lacks_key(&target) => placed.push((PathBuf::from(place), target)),
            Ok(_) => {}
            Err(failure) => failures.push(failure),
        }
    }
    placed.sort_by(|a, b| a.0.cmp(&b.0));
    let places: Vec<&Path> = placed.iter().map(|(place, _)| place.as_path()).collect();
    for round in rounds(&places) {
        let together: Vec<&Target> = round.into_iter().filter_map(|at| Some(&placed.get(at)?.1)).collect();
        failures.extend(mount_together(&together, mounter, options, Asked::No));
    }
    failures.iter().filter_map(Failure::message).collect()
}

/// Mounts file systems with disjoint mount points; returns the failures.
pub(super) fn mount_together(
    together: &[&Target],
    mounter: &dyn Mounter,
    options: &[String],
    asked: Asked,
) -> Vec<Failure> {
    let mut failures = Vec::new();
    for some in together.chunks(NOTED) {
        let done = at_once(some, |target| make_one(target, mounter, options, asked));
        let mut noted: Vec<(&Arc<Imported>, Vec<Made>)> = Vec::new();
        for (target, done) in some.iter().zip(done) {
            match (done, noted.last_mut()) {
                (Ok(Some(made)), Some((pool, all))) if Arc::ptr_eq(pool, &target.pool) => all.push(made),
                (Ok(Some(made)), _) => noted.push((&target.pool, vec![made])),
                (Ok(None), _) => {}
                (Err(failure), _) => failures.push(failure),
            }
        }
        noted.into_iter().for_each(|(pool, made)| pool.mounts.note_all(made));
    }
    failures
}

/// Whether the dataset is encrypted and its key is not loaded.
pub(super) fn lacks_key(target: &Target) -> bool {
    let root = target.dir().ok().and_then(|dir| target.view.dsl.keys.root_of(&dir).ok().flatten());
    root.is_some_and(|root| !target.view.dsl.keys.is_loaded(&root))
}

pub(super) fn mounter(ctx: &mut Ctx) -> Result<Arc<dyn Mounter>, Failure> {
    ctx.registry()?.mounter().ok_or_else(|| Failure::failed("this process can't mount"))
}

/// A mount of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Nowhere,
    AtItsPlace,
    /// Another process has detached it (`umount -l`), and files are still open.
    Detached,
}

/// Whether it is mounted. Waits for an unmount that is under way.
pub(super) fn stands(target: &Target) -> bool {
    standing(target) != Standing::Nowhere
}

fn standing(target: &Target) -> Standing {
    for _ in 0..ENDING_ROUNDS {
        if target.pool.mounts.at(&target.name).is_none() {
            return Standing::Nowhere;
        }
        if !target.pool.mounts.is_detached(&target.name) {
            return Standing::AtItsPlace;
        }
        std::thread::sleep(ENDING);
    }
    Standing::Detached
}

/// Mounts one file system. `asked`: it was named, so an obstacle to mounting it is an error.
fn mount_one(
    target: &Target,
    mounter: &dyn Mounter,
    options: &[String],
    asked: Asked,
) -> Result<(), Failure> {
    let made = make_one(target, mounter, options, asked)?;
    target.pool.mounts.note_all(made.into_iter().collect());
    Ok(())
}

/// The kernel offers no way back to a detached mount, and a second connection would not see what the first one caches.
const DETACHED: &str = "it was detached (umount -l) while in use: close its files, or use 'zfs unmount -f'";

/// Mounts one file system, which the caller notes.
fn make_one(
    target: &Target,
    mounter: &dyn Mounter,
    options: &[String],
    how: Asked,
) -> Result<Option<Made>, Failure> {
    let asked = how.by_name();
    let name = &target.name;
    let dataset = target.dataset()?;
    let cannot = |what: &str| Failure::cannot("mount", name, what);
    match standing(target) {
        Standing::Nowhere => {}
        _ if !asked => return Ok(None),
        Standing::AtItsPlace => return Err(cannot("filesystem already mounted")),
        Standing::Detached => return Err(cannot(DETACHED)),
    }
    if asked && matches!(dataset.kind(), Ok(DatasetKind::Volume)) {
        return Err(Failure::cannot("open", name, "operation not applicable to datasets of this type"));
    }
    if !may_mount(target, &dataset, how)? {
        return Ok(None);
    }
    let Some(at) = place_of(&dataset, how).map_err(|what| cannot(&what))? else {
        return Ok(None);
    };
    if lacks_key(target) {
        return Err(cannot("encryption key not loaded"));
    }
    let mount = mounter.mount(&target.pool, name, Path::new(&at), options).map_err(|e| cannot(e.what()))?;
    Ok(Some(Made { dataset: name.clone(), at: at.into(), mount }))
}

/// Where a file system belongs; `None` when it is not to be mounted by itself.
///
/// # Errors
/// OpenZFS's reason, for a file system that was named.
#[doc(alias("zfs_is_mountable", "share_mount_one"))]
pub fn place_of(dataset: &Dataset, how: Asked) -> Result<Option<String>, String> {
    let asked = how.by_name();
    if dataset.kind().map_err(|e| e.to_string())? != DatasetKind::Filesystem {
        return if asked { Err("not a filesystem".to_owned()) } else { Ok(None) };
    }
    let node = Node::Dataset(dataset.clone(), DatasetKind::Filesystem);
    let props = Props::new(&node, 0);
    let value = |prop: ZfsProp| props.native(prop).map(|p| p.value(true).to_owned()).unwrap_or_default();
    // Its mount point and its files are in the hands of the container.
    if value(ZfsProp::Zoned) == "on" {
        return if asked { Err("dataset is exported to a local zone".to_owned()) } else { Ok(None) };
    }
    let (at, can) = (value(ZfsProp::Mountpoint), value(ZfsProp::Canmount));
    match (at.as_str(), can.as_str()) {
        ("none", _) if asked => Err("no mountpoint set".to_owned()),
        ("legacy", _) if asked => Err("legacy mountpoint\nuse mount(8) to mount this filesystem".to_owned()),
        (_, "off") if asked => Err("'canmount' property is set to 'off'".to_owned()),
        ("none" | "legacy", _) | (_, "off") => Ok(None),
        (_, "noauto") if how == Asked::No => Ok(None),
        // Snapshots have no such property.
        _ if !at.starts_with('/') => Err("no mountpoint set".to_owned()),
        _ => Ok(Some(at)),
    }
}

/// Mounts the file systems of a pool that the daemon has imported by itself. Returns what failed.
pub fn mount_imported(pool: &Arc<Imported>, registry: &Registry) -> Vec<String> {
    let Some(mounter) = registry.mounter() else { return Vec::new() };
    let mounted =
        pool.view().map_err(Failure::from).and_then(|view| mount_below(&Target::root(pool, view), &*mounter));
    mounted.unwrap_or_else(|why| vec![format!("{}: {}", pool.name(), why.message().unwrap_or_default())])
}
