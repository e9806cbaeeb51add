//! `zfs rollback`. A file system that is mounted stays mounted ([`daemon::mounts::Mount::rollback`]).
//!
//! Differs from OpenZFS: checks that none of the newer snapshots and clones is in use before it destroys the
//! first of them. OpenZFS destroys those that it can, and then does not roll back.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::Dataset;
use engine::dsl::props::bookmarks::bookmarks;
use engine::dsl::write::Hooks;
use engine::{Error, Kind};
use zcommon::features::Feature;

use super::destroy::{Plan, Step, destroy_all, is_held};
use super::mount::unmount;
use super::remount::{mount_in_turn, mount_lost, mounted_below, with_unmounted};
use crate::delegated::may_destroy;

/// Roll a dataset back to a snapshot.
#[derive(Debug, Args)]
pub struct Rollback {
    /// Destroy newer snapshots and bookmarks.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Destroy clones of newer snapshots, too.
    #[arg(short = 'R')]
    pub clones: bool,
    /// Forcibly unmount clones that are destroyed.
    #[arg(short = 'f')]
    pub force: bool,
    /// The snapshot.
    pub snapshot: String,
}

impl Verb for Rollback {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let Some((name, _)) = self.snapshot.split_once('@') else {
            let what = "missing '@' delimiter in snapshot name";
            return Err(Failure::cannot("open", &self.snapshot, what));
        };
        let target = Target::of(&self.snapshot, ctx)?;
        let snapshot = target.dataset()?;
        let head = Target { name: name.to_owned(), ..target.clone() }.dataset()?;
        let since = snapshot.phys.creation_txg;
        let quiet = target.pool.quiet();
        let all = head.snapshots()?;
        let newer: Vec<&Dataset> = all.iter().filter(|s| s.phys.creation_txg > since).collect();
        let marks = bookmarks(&head)?;
        let marks: Vec<String> = marks
            .iter()
            .filter(|b| b.phys.creation_txg > since)
            .map(|b| format!("{name}#{}", b.name))
            .collect();
        let mut plan = Plan::new(&target, true);
        newer.iter().rev().try_for_each(|snapshot| plan.snapshot(snapshot))?;
        let steps = plan.steps;
        let used = in_use(&target, &steps)?;
        drop(quiet);
        self.refuse(&newer, &marks, &steps)?;
        for name in steps.iter().map(Step::name).chain(marks.iter().map(String::as_str)) {
            if !may_destroy(name, ctx)? {
                return Err(Failure::cannot("destroy", name, "permission denied"));
            }
        }
        if !used.is_empty() {
            return Err(Failure::failed(used.iter().map(|name| busy(name)).collect::<Vec<_>>().join("\n")));
        }
        let clones = self.unmount_clones(&target, &steps, ctx)?;
        let inside = mounted_below(&target.pool, name);
        let done = self.carry_out(&target, (name, steps, marks), ctx);
        match done {
            Ok(_) => mount_lost(&inside, &target, ctx),
            Err(_) => mount_in_turn(&clones, ctx),
        }
        done
    }
}

impl Rollback {
    /// Destroys newer snapshots and their clones, and rolls back.
    fn carry_out(
        &self,
        target: &Target,
        (name, steps, marks): (&str, Vec<Step>, Vec<String>),
        ctx: &mut Ctx,
    ) -> Outcome {
        let failed = |e: Error| match e.place().dataset.as_deref() {
            Some(used) if e.kind() == Kind::Busy && used != name => Failure::failed(busy(used)),
            _ => Failure::cannot("rollback", name, why(&e)),
        };
        let mounts = &target.pool.mounts;
        let mut work = Some((steps, marks));
        let mut take = |ctx: &mut Ctx| {
            work.take().map_or(Ok(()), |(steps, marks)| self.task(target, name, steps, marks, ctx))
        };
        if mounts.at(name).is_none() {
            return take(ctx).map(|()| Exit::OK).map_err(failed);
        }
        match mounts.rollback(name, &self.snapshot, Box::new(|| take(ctx))) {
            Ok(()) => Ok(Exit::OK),
            // Nothing was asked for yet.
            Err(e) if e.kind() == Kind::Unsupported => {
                let work = |ctx: &mut Ctx| take(ctx).map_err(failed);
                let ((), failures) = with_unmounted(target, &[name.to_owned()], true, ctx, work)?;
                failures.into_iter().next().map_or(Ok(Exit::OK), Err)
            }
            Err(e) => Err(failed(e)),
        }
    }

    fn task(
        &self,
        target: &Target,
        name: &str,
        steps: Vec<Step>,
        marks: Vec<String>,
        ctx: &mut Ctx,
    ) -> engine::Result<()> {
        let (dataset, to) = (name.to_owned(), self.snapshot.clone());
        let steps = self.empty_clones(target, steps, ctx)?;
        ctx.change(&target.pool, move |tasks, _| {
            tasks.check_unused(&steps.iter().map(Step::name).collect::<Vec<_>>())?;
            steps.iter().try_for_each(|step| match step {
                Step::Snapshot(name) => tasks.destroy_snapshots(&[name], false),
                Step::Head(name) => tasks.destroy(name, false),
            })?;
            marks.iter().try_for_each(|mark| tasks.destroy_bookmark(mark))?;
            tasks.rollback(&dataset, Some(&to))
        })
    }

    /// Runs the destroy steps in tasks of their own if there are clones and the pool can't free their trees
    /// in later txgs: large ones are then emptied first. Returns the steps that are left.
    fn empty_clones(&self, target: &Target, steps: Vec<Step>, ctx: &mut Ctx) -> engine::Result<Vec<Step>> {
        let has_clones = steps.iter().any(|step| matches!(step, Step::Head(_)));
        if !has_clones || target.pool.spa()?.feature(Feature::AsyncDestroy).is_some() {
            return Ok(steps);
        }
        let names: Vec<String> = steps.iter().map(|step| step.name().to_owned()).collect();
        ctx.change(&target.pool, move |tasks, _| {
            tasks.check_unused(&names.iter().map(String::as_str).collect::<Vec<_>>())
        })?;
        match destroy_all(target, steps, false, ctx)? {
            None => Ok(Vec::new()),
            Some((_, why)) => Err(why),
        }
    }

    /// Unmounts clones that will be destroyed, all of them or none. Returns those that were mounted.
    #[doc(alias = "rollback_destroy_dependent")]
    fn unmount_clones(&self, target: &Target, steps: &[Step], ctx: &mut Ctx) -> Result<Vec<String>, Failure> {
        let mut gone = Vec::new();
        for step in steps {
            let Step::Head(name) = step else { continue };
            if target.pool.mounts.at(name).is_none() {
                continue;
            }
            if let Err(failure) = unmount(&target.pool, name, self.force) {
                mount_in_turn(&gone, ctx);
                return Err(failure);
            }
            gone.push(name.clone());
        }
        Ok(gone)
    }

    fn refuse(&self, newer: &[&Dataset], marks: &[String], steps: &[Step]) -> Result<(), Failure> {
        let is_newer = |step: &Step| newer.iter().any(|snapshot| snapshot.name == step.name());
        let clones: Vec<String> =
            steps.iter().filter(|step| !is_newer(step)).map(|step| step.name().to_owned()).collect();
        let names: Vec<String> = newer.iter().map(|s| s.name.clone()).chain(marks.iter().cloned()).collect();
        let (what, option, list) = if !names.is_empty() && !self.recurse && !self.clones {
            (
                "more recent snapshots or bookmarks exist",
                "'-r' to force deletion of the following snapshots and bookmarks",
                names,
            )
        } else if !clones.is_empty() && !self.clones {
            (
                "clones of previous snapshots exist",
                "'-R' to force deletion of the following clones and dependents",
                clones,
            )
        } else {
            return Ok(());
        };
        let text =
            format!("cannot rollback to '{}': {what}\nuse {option}:\n{}", self.snapshot, list.join("\n"));
        Err(Failure::failed(text))
    }
}

/// Snapshots with holds or open mounts.
fn in_use(target: &Target, steps: &[Step]) -> Result<Vec<String>, Failure> {
    let mut used = Vec::new();
    for step in steps {
        let Step::Snapshot(name) = step else { continue };
        let snapshot = target.view.dsl.dataset(name)?;
        if is_held(&snapshot)? || target.pool.mounts.uses_snapshot(name, snapshot.phys.guid) {
            used.push(name.clone());
        }
    }
    Ok(used)
}

fn busy(name: &str) -> String {
    format!("cannot destroy '{name}': dataset is busy")
}
