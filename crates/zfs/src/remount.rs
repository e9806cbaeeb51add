//! File systems that are unmounted for a change of properties or names, and mounted again after it.
//!
//! Source: libzfs_changelist.c, OpenZFS 2.4.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clikit::ctx::Ctx;
use clikit::output::row::Source;
use clikit::target::Target;
use clikit::verb::Failure;
use daemon::Imported;
use daemon::mounts::{at_once, rounds};
use engine::dsl::DatasetKind;
use zcommon::props::ZfsProp;

use super::incomplete::Asked;
use super::mount::{cannot_unmount, lacks_key, mount_together, mounter, mountpoint, place_of, stands};
use super::prop::{Node, Props};

/// Mounted file systems at and below a dataset, in the order in which they can be unmounted.
pub fn mounted_below(pool: &Imported, dataset: &str) -> Vec<String> {
    pool.mounts.below(dataset, Path::new("/"))
}

/// The same without snapshots.
pub fn mounted_heads(target: &Target) -> Vec<String> {
    let mut mounted = mounted_below(&target.pool, &target.name);
    mounted.retain(|name| !name.contains('@'));
    mounted
}

/// The mounted file systems at and below a dataset whose mount points follow from the dataset's, in the order in which they can
/// be unmounted.
#[doc(alias = "changelist_gather")]
pub fn mounted_followers(target: &Target) -> Result<Vec<String>, Failure> {
    let followers: HashSet<String> = followers(target)?.into_iter().collect();
    let mut mounted = mounted_heads(target);
    mounted.retain(|name| followers.contains(name));
    Ok(mounted)
}

/// Unmounted file systems at and below a dataset whose mount points follow from the dataset's.
pub fn waiting_followers(target: &Target) -> Result<Vec<String>, Failure> {
    Ok(unmounted(target, followers(target)?))
}

/// The datasets among `names` that are not mounted.
pub fn unmounted(target: &Target, mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| target.pool.mounts.at(name).is_none());
    names
}

/// A dataset and those below it that inherit its mount point, parents first: none below a dataset with its own.
#[doc(alias = "change_one")]
fn followers(target: &Target) -> Result<Vec<String>, Failure> {
    let dirs = target.tree()?;
    let _quiet = target.pool.quiet();
    let mut found: HashSet<&str> = HashSet::new();
    for dir in &dirs {
        let follows_parent = || dir.name.rsplit_once('/').is_some_and(|(parent, _)| found.contains(parent));
        let inherits = || {
            let Ok(head) = dir.head() else { return false };
            let node = Node::Dataset(head, DatasetKind::Filesystem);
            let source = Props::new(&node, 0).native(ZfsProp::Mountpoint).map(|prop| prop.source);
            !matches!(source, Some(Source::Local | Source::Received))
        };
        if dir.name == target.name || (follows_parent() && inherits()) {
            found.insert(&dir.name);
        }
    }
    Ok(dirs
        .iter()
        .map(|dir| dir.name.as_str())
        .filter(|name| found.contains(name))
        .map(str::to_owned)
        .collect())
}

/// Folders that mounts leave behind: those of default mount points, which follow from a dataset's name.
///
/// Whether we made such a folder isn't known; as in OpenZFS it goes when it is empty.
#[derive(Debug, Default)]
#[doc(alias = "remove_mountpoint")]
pub struct Left(Vec<(PathBuf, usize)>);

impl Left {
    /// By these file systems as they are now.
    pub fn by<'a>(target: &Target, names: impl IntoIterator<Item = &'a String>) -> Self {
        let folder = |name: &String| {
            let dataset = Target { name: name.clone(), ..target.clone() }.dataset().ok()?;
            let _quiet = target.pool.quiet();
            let at = PathBuf::from(place_of(&dataset, Asked::ByName).ok().flatten()?);
            let node = Node::Dataset(dataset.clone(), DatasetKind::Filesystem);
            let source = Props::new(&node, 0).native(ZfsProp::Mountpoint)?.source;
            let inherited = crate::fuse::inherited(&dataset, &at);
            matches!(source, Source::Default | Source::Inherited(_)).then_some((at, inherited))
        };
        Self(names.into_iter().filter(|name| !name.contains('@')).filter_map(folder).collect())
    }

    /// By all that is mounted of a pool; nothing is asked of one that is suspended.
    pub fn by_pool(pool: &Arc<Imported>) -> Self {
        if pool.spa().is_ok_and(|spa| spa.is_suspended()) {
            return Self::default();
        }
        let Ok(view) = pool.view() else { return Self::default() };
        Self::by(&Target::root(pool, view), pool.mounts.all().iter().map(|(name, _)| name))
    }

    /// Removes the empty folders. Remaining ones are no failure.
    pub fn remove(mut self) {
        self.0.sort_by_key(|(at, _)| Reverse(at.components().count()));
        let places: Vec<&Path> = self.0.iter().map(|(at, _)| at.as_path()).collect();
        for round in rounds(&places) {
            let together: Vec<_> = round.into_iter().filter_map(|at| self.0.get(at)).collect();
            at_once(&together, |(at, inherited)| drop(zfuse::mount_helper::remove_folder(at, *inherited)));
        }
    }
}

/// The result of work, and why file systems could not be mounted after it.
pub type Moved<T> = (T, Vec<Failure>);

/// As [`with_unmounted`], where they may belong to other places then, and file systems that are not mounted (`waiting`) may
/// have a place then. A parent is mounted before its children, whichever of them were mounted.
pub fn with_moved<T>(
    target: &Target,
    names: &[String],
    waiting: &[String],
    ctx: &mut Ctx,
    work: impl FnOnce(&mut Ctx) -> Result<T, Failure>,
) -> Result<Moved<T>, Failure> {
    let left = Left::by(target, names);
    let unmounted = unmount_all(target, names, false, ctx)?;
    match work(ctx) {
        Ok(done) => {
            left.remove();
            Ok((done, mount_all(&unmounted, waiting, ctx)))
        }
        Err(failure) => {
            warn(&mount_again(&unmounted, ctx), ctx);
            Err(failure)
        }
    }
}

/// Does something while these file systems, deepest places first, are not mounted, and mounts them again where they belong then.
pub fn with_unmounted<T>(
    target: &Target,
    names: &[String],
    force: bool,
    ctx: &mut Ctx,
    work: impl FnOnce(&mut Ctx) -> Result<T, Failure>,
) -> Result<Moved<T>, Failure> {
    let unmounted = unmount_all(target, names, force, ctx)?;
    let done = work(ctx);
    let failures = mount_again(&unmounted, ctx);
    match done {
        Ok(done) => Ok((done, failures)),
        Err(failure) => {
            warn(&failures, ctx);
            Err(failure)
        }
    }
}

/// Unmounts those of the file systems that are mounted; returns them in an order in which they can be mounted again.
///
/// # Errors
/// The first one that stays. The others are mounted as before.
#[doc(alias = "changelist_prefix")]
pub fn unmount_all(
    target: &Target,
    names: &[String],
    force: bool,
    ctx: &mut Ctx,
) -> Result<Vec<String>, Failure> {
    let mounts = &target.pool.mounts;
    let mut mounted: Vec<String> = names.iter().filter(|name| mounts.at(name).is_some()).cloned().collect();
    let stay = mounts.unmount_many(&mounted, force, true);
    mounted.reverse();
    match stay.first() {
        None => Ok(mounted),
        Some(stays) => {
            let failures = mount_again(&mounted, ctx);
            warn(&failures, ctx);
            Err(cannot_unmount(stays))
        }
    }
}

/// Mounts file systems that were mounted, parents before those below them, where they belong now; returns the failures.
/// Those that are gone, whose key is not loaded, or whose properties exclude a mount are passed over, and so are snapshots, which
/// have no place of their own.
pub fn mount_again(names: &[String], ctx: &mut Ctx) -> Vec<Failure> {
    mount_all(names, &[], ctx)
}

/// As [`mount_again`], together with file systems that were not mounted (`others`).
#[doc(alias = "changelist_postfix")]
fn mount_all(names: &[String], others: &[String], ctx: &mut Ctx) -> Vec<Failure> {
    let mut found = Vec::new();
    for (names, asked) in [(names, Asked::Again), (others, Asked::No)] {
        for name in names.iter().filter(|name| !name.contains('@')) {
            match Target::of(name, ctx) {
                Ok(target) => found.push((target, asked)),
                Err(failure) => return vec![failure],
            }
        }
    }
    found.retain(|(target, _)| target.exists() && !lacks_key(target));
    mount_in_rounds(&found, ctx).unwrap_or_else(|failure| vec![failure])
}

fn mount_in_rounds<'a>(all: &'a [(Target, Asked)], ctx: &mut Ctx) -> Result<Vec<Failure>, Failure> {
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let place = |one: &'a (Target, Asked)| Ok((PathBuf::from(mountpoint(&one.0)?), one));
    let mut placed: Vec<(PathBuf, &(Target, Asked))> =
        all.iter().map(place).collect::<Result<_, Failure>>()?;
    // A place sorts before those below it; those that share one keep their order.
    placed.sort_by(|(a, _), (b, _)| a.cmp(b));
    let places: Vec<&Path> = placed.iter().map(|(place, _)| place.as_path()).collect();
    let (mounter, mut failures) = (mounter(ctx)?, Vec::new());
    for round in rounds(&places) {
        let round: Vec<_> = round.into_iter().filter_map(|at| placed.get(at)).map(|(_, one)| *one).collect();
        for asked in [Asked::Again, Asked::No] {
            let alike = round.iter().filter(|one| one.1 == asked);
            let together: Vec<&Target> = alike.map(|one| &one.0).collect();
            failures.extend(mount_together(&together, &*mounter, &[], asked));
        }
    }
    Ok(failures)
}

/// Mounts those of the file systems, in an order in which they could be unmounted, that were mounted in folders which are gone,
/// and went with them. Failures are printed.
pub fn mount_lost(names: &[String], target: &Target, ctx: &mut Ctx) {
    let lost = |name: &&String| !stands(&Target { name: (*name).clone(), ..target.clone() });
    let lost: Vec<String> = names.iter().filter(lost).cloned().collect();
    mount_in_turn(&lost, ctx);
}

/// Mounts the file systems again, in the reverse of this order, in which they were unmounted. Failures are printed.
pub fn mount_in_turn(names: &[String], ctx: &mut Ctx) {
    let names: Vec<String> = names.iter().rev().cloned().collect();
    let failures = mount_again(&names, ctx);
    warn(&failures, ctx);
}

/// Prints failures that do not end the command.
pub fn warn(failures: &[Failure], ctx: &mut Ctx) {
    failures.iter().filter_map(Failure::message).for_each(|why| ctx.warn(why));
}
