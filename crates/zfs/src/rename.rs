//! `zfs rename`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::{NOT_OF_THIS_TYPE, Target};
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::Kind;
use engine::dsl::write::names::find;
use zcommon::names::{check_component, check_entity, check_nesting, nesting};
use zcommon::props::DatasetTypes;

use super::create::{make_ancestors, most_nested};
use super::mount::{LEGACY, mountpoint};
use super::remount::{Left, mount_again, mounted_below, unmount_all, warn};

/// Rename a dataset.
#[derive(Debug, Args)]
pub struct Rename {
    /// Create missing parent datasets.
    #[arg(short = 'p')]
    pub parents: bool,
    /// Rename the snapshots of this name of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Do not remount file systems.
    #[arg(short = 'u')]
    pub unmounted: bool,
    /// Forcibly unmount file systems.
    #[arg(short = 'f')]
    pub force: bool,
    /// The current name.
    pub old: String,
    /// The new name.
    pub new: String,
}

impl Verb for Rename {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        self.check()?;
        let target = Target::of(&self.old, ctx)?;
        if self.old.contains('#') {
            return Err(Failure::cannot("rename", &self.old, "bookmarks can't be renamed"));
        }
        if (self.unmounted || self.parents) && self.old.contains('@') {
            return Err(Failure::cannot("open", &self.old, "snapshot delimiter '@' is not expected here"));
        }
        if self.unmounted && target.types()? == DatasetTypes::VOLUME {
            return Err(Failure::cannot("open", &self.old, NOT_OF_THIS_TYPE));
        }
        target.dataset()?;
        if self.old == self.new {
            return Ok(Exit::OK);
        }
        match self.old.split_once('@') {
            Some((dataset, snap)) => self.snapshot(dataset, snap, &target, ctx),
            None => self.head(&target, ctx),
        }
    }
}

impl Rename {
    /// Refuses options that contradict each other.
    fn check(&self) -> Result<(), Failure> {
        match () {
            () if self.recurse && self.parents => {
                Err(Failure::usage("-p and -r options are mutually exclusive"))
            }
            () if self.unmounted && self.parents => {
                Err(Failure::usage("-u and -p options are mutually exclusive"))
            }
            () if self.recurse && !self.old.contains('@') => {
                Err(Failure::usage("source dataset for recursive rename must be a snapshot"))
            }
            () => Ok(()),
        }
    }

    fn head(&self, target: &Target, ctx: &mut Ctx) -> Outcome {
        let to = |what: &str| Failure::cannot("rename to", &self.new, what);
        check_entity(&self.new).map_err(|e| to(&e.to_string()))?;
        if self.new.contains(['@', '#']) {
            return Err(to("snapshot delimiter '@' is not expected here"));
        }
        if !self.old.contains('/') || !self.new.contains('/') {
            return Err(to("datasets must be within same pool"));
        }
        let pool = self.new.split('/').next().unwrap_or_default();
        if ctx.pool_of(&self.new).is_none() {
            let why = ctx.why_no_pool_of(pool, format!("no such pool '{pool}'"));
            return Err(Failure::cannot("create", &self.new, why));
        }
        if self.new.split('/').next() != self.old.split('/').next() {
            return Err(to("datasets must be within same pool"));
        }
        if self.new.strip_prefix(&self.old).is_some_and(|rest| rest.starts_with('/')) {
            return Err(to("New dataset name cannot be a descendant of current dataset name"));
        }
        let (deeper, most) = (nesting(&self.new) > nesting(&self.old), most_nested(ctx)?);
        for below in target.tree()? {
            let rest = below.name.strip_prefix(&self.old).unwrap_or_default();
            let whole = format!("{}{rest}", self.new);
            let nested = || if deeper { check_nesting(&whole, most) } else { Ok(()) };
            check_entity(&whole).and_then(|()| nested()).map_err(|e| to(&e.to_string()))?;
            for snapshot in target.snapshots(&below)? {
                check_entity(&format!("{whole}@{snapshot}")).map_err(|e| to(&e.to_string()))?;
            }
        }
        let at = Target { name: self.new.clone(), ..target.clone() };
        let parent = self.new.rsplit_once('/').map(|(parent, _)| parent).unwrap_or_default();
        if target.view.dsl.dataset(parent).is_err() {
            if !self.parents {
                return Err(Failure::cannot("create", &self.new, "parent does not exist"));
            }
            make_ancestors(&self.new, &at, true, ctx)?;
        }
        // As in OpenZFS mounts stay where their place does not follow from the name.
        let stay = self.unmounted || matches!(mountpoint(target)?.as_str(), LEGACY | "none");
        let names = if stay { Vec::new() } else { mounted_below(&target.pool, &self.old) };
        let left = if stay { Left::default() } else { Left::by(target, names.iter().chain([&self.old])) };
        let unmounted = unmount_all(target, &names, self.force, ctx)?;
        let done = self.change(target, ctx);
        if done.is_ok() {
            left.remove();
            if stay {
                target.pool.mounts.renamed(&self.old, &self.new);
                self.tell_mounts(target, ctx);
            }
        }
        // File systems that were mounted are mounted again, at the places of their new names.
        let now = |name: &String| match (&done, name.strip_prefix(&self.old)) {
            (Ok(()), Some(rest)) => format!("{}{rest}", self.new),
            _ => name.clone(),
        };
        let again: Vec<String> = unmounted.iter().map(now).collect();
        let failures = mount_again(&again, ctx);
        warn(&failures, ctx);
        done?;
        Ok(if failures.is_empty() { Exit::OK } else { Exit::FAILED })
    }

    /// Renames the file system or volume.
    fn change(&self, target: &Target, ctx: &mut Ctx) -> Result<(), Failure> {
        let (old, new) = (self.old.clone(), self.new.clone());
        let done = ctx.change(&target.pool, move |tasks, _| tasks.rename(&old, &new));
        done.map_err(|e| match e.kind() {
            Kind::Denied => {
                let what = "cannot move encrypted child outside of its encryption root";
                Failure::cannot("rename", &self.old, what)
            }
            _ => Failure::cannot("rename", &self.old, why(&e)),
        })
    }

    /// Tells mounts that stayed of the properties that they inherit at their new place. The rename stands even if that fails.
    #[doc(alias = "dsl_prop_notify_all")]
    fn tell_mounts(&self, target: &Target, ctx: &mut Ctx) {
        for (at, e) in target.pool.mounts.settings_changed(&self.new) {
            ctx.warn(Failure::cannot("remount", at.display(), e.what()).message().unwrap_or_default());
        }
    }

    fn snapshot(&self, dataset: &str, snap: &str, target: &Target, ctx: &mut Ctx) -> Outcome {
        let to = |what: &str| Failure::cannot("rename to", &self.new, what);
        let new = match self.new.split_once('@') {
            Some(("", part)) => part,
            Some((other, part)) if other == dataset => part,
            Some(_) => return Err(to("snapshots must be part of same dataset")),
            None if !self.new.contains('/') => self.new.as_str(),
            None => return Err(to("missing '@' delimiter in snapshot name")),
        };
        let checked = check_component(new).and_then(|()| check_entity(&format!("{dataset}@{new}")));
        checked.map_err(|e| to(&e.to_string()))?;
        let above = Target { name: dataset.to_owned(), ..target.clone() };
        let dirs = if self.recurse { above.tree()? } else { vec![above.dir()?] };
        let names: Vec<String> = dirs.into_iter().map(|dir| dir.name).collect();
        let (part, old, recurse) = (new.to_owned(), snap.to_owned(), self.recurse);
        let done = ctx.change(&target.pool, move |tasks, _| {
            let is_there = |name: &str| find(&tasks.at, tasks.pool, name).is_ok();
            let has = |name: &&String| !recurse || is_there(&format!("{name}@{old}"));
            let names: Vec<&String> = names.iter().filter(has).collect();
            let all: Vec<String> = names.iter().map(|name| format!("{name}@{old}")).collect();
            tasks.rename_snapshots(&all.iter().map(String::as_str).collect::<Vec<_>>(), &part)
        });
        done.map_err(|e| match e.kind() {
            Kind::Exists if self.recurse => Failure::cannot(
                "rename",
                &self.old,
                "a child dataset already has a snapshot with the new name",
            ),
            _ => Failure::cannot("rename", &self.old, why(&e)),
        })?;
        Ok(Exit::OK)
    }
}
