//! `zfs destroy`: file systems, volumes, snapshots and bookmarks, with their dependents.

use std::collections::HashSet;
use std::io::Write;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::Kind;
use engine::dsl::props::names::dataset_name;
use engine::dsl::props::written::freed_with;
use engine::dsl::write::destroy::HELD;
use engine::dsl::write::{DestroyOutcome, Tasks};
use engine::dsl::{Dataset, Dir};
use zcommon::units::nicebytes;

use super::dependents::Dependents;
use super::destroy_rest::destroy_rest;
use super::remount::{Left, mount_again, unmount_all, warn};
use crate::delegated::may_destroy;

/// Destroy datasets.
#[derive(Debug, Args)]
pub struct Destroy {
    /// Destroy all children, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Destroy all dependents, too, including clones outside of the tree.
    #[arg(short = 'R')]
    pub clones: bool,
    /// Forcibly unmount file systems. As in OpenZFS on Linux, this has no effect.
    #[arg(short = 'f')]
    pub force: bool,
    /// Destroy nothing; with -v, list the datasets.
    #[arg(short = 'n')]
    pub dry: bool,
    /// Print parsable output.
    #[arg(short = 'p')]
    pub parsable: bool,
    /// Print the destroyed datasets.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Mark snapshots that are in use for deferred destruction.
    #[arg(short = 'd')]
    pub defer: bool,
    /// A file system, volume, bookmark, or snapshots: `fs@a`, `fs@a,b`, `fs@a%c`.
    #[arg(value_name = "DATASET")]
    pub name: String,
}

/// One thing to destroy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Snapshot(String),
    Head(String),
}

impl Step {
    pub(super) fn name(&self) -> &str {
        match self {
            Step::Snapshot(name) | Step::Head(name) => name,
        }
    }
}

impl Verb for Destroy {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.name.contains('@') {
            return self.snapshots(ctx);
        }
        if self.name.contains('#') {
            return self.bookmark(ctx);
        }
        self.head(ctx)
    }
}

impl Destroy {
    fn head(&self, ctx: &mut Ctx) -> Outcome {
        if self.defer {
            return Err(Failure::cannot("open", &self.name, "missing '@' delimiter in snapshot name"));
        }
        let target = Target::of(&self.name, ctx)?;
        let dataset = target.dataset()?;
        if !self.name.contains('/') && !self.recurse && !self.clones {
            let what = format!(
                "operation does not apply to pools\nuse 'zfs destroy -r {0}' to destroy all datasets in the pool\nuse 'zpool destroy {0}' to destroy the pool itself",
                self.name
            );
            return Err(Failure::cannot("destroy", &self.name, what));
        }
        let mut plan = Plan::new(&target, false);
        let dir = target.dir()?;
        let quiet = target.pool.quiet();
        plan.head(&dir)?;
        drop(quiet);
        // A pool's own file system stays.
        let root = !self.name.contains('/');
        let dependents: Vec<Step> =
            plan.steps.iter().filter(|step| step.name() != self.name).cloned().collect();
        self.refuse_dependents(&dataset, &dependents)?;
        let steps = if root { dependents } else { plan.steps };
        let of_one = |a: &Step, b: &Step| both_snapshots(a, b) && owner(a) == owner(b);
        // OpenZFS lists the oldest snapshot of a dataset first.
        let shown: Vec<Step> = steps.chunk_by(of_one).flat_map(|run| run.iter().rev()).cloned().collect();
        self.say(&shown, ctx)?;
        self.carry_out(&target, steps, &plan.held, ctx)
    }

    /// Without the option that allows it, nothing goes that was not named.
    fn refuse_dependents(&self, head: &Dataset, dependents: &[Step]) -> Result<(), Failure> {
        let below = |step: &&Step| is_at_or_below(step.name(), &self.name);
        let outside: Vec<&Step> = dependents.iter().filter(|step| !below(step)).collect();
        let inside = dependents.len() > outside.len();
        let kind = match head.kind() {
            Ok(engine::dsl::DatasetKind::Volume) => "volume",
            _ => "filesystem",
        };
        let (what, option, list): (_, _, Vec<&str>) = if inside && !self.recurse && !self.clones {
            let mut names = Vec::new();
            Dependents::of(dependents).list(&self.name, &mut names);
            ("children", "-r", names)
        } else if !outside.is_empty() && !self.clones {
            let mut names: Vec<&str> = outside.iter().map(|step| step.name()).collect();
            names.sort_unstable();
            ("dependent clones", "-R", names)
        } else {
            return Ok(());
        };
        let list = list.join("\n");
        let text = format!("{kind} has {what}\nuse '{option}' to destroy the following datasets:\n{list}");
        Err(Failure::cannot("destroy", &self.name, text))
    }

    fn snapshots(&self, ctx: &mut Ctx) -> Outcome {
        let (dataset, spec) = self.name.split_once('@').unwrap_or_default();
        let target = Target { name: dataset.to_owned(), ..Target::of(dataset, ctx)? };
        target.dataset()?;
        let dirs = if self.recurse || self.clones { target.tree()? } else { vec![target.dir()?] };
        let mut plan = Plan::new(&target, true);
        let (mut named, mut refusals) = (Vec::new(), Vec::new());
        let quiet = target.pool.quiet();
        for dir in &dirs {
            for snapshot in chosen(&dir.head()?, spec)? {
                let before = plan.steps.len();
                plan.snapshot(&snapshot)?;
                refusals.extend(clones_first(&snapshot.name, plan.steps.get(before..).unwrap_or_default()));
                named.push(snapshot.name);
            }
        }
        drop(quiet);
        if plan.steps.is_empty() {
            let what = "could not find any snapshots to destroy; check snapshot names.";
            return Err(Failure::failed(what));
        }
        if !refusals.is_empty() && !self.clones && !self.defer {
            return Err(Failure::failed(refusals.join("\n")));
        }
        let clones = plan.clones.clone();
        let keep = |step: &Step| {
            self.clones
                || matches!(step, Step::Snapshot(name) if !clones.iter().any(|c| is_at_or_below(name, c)))
        };
        let steps: Vec<Step> = plan.steps.into_iter().filter(keep).collect();
        self.say(&steps, ctx)?;
        self.say_reclaimed(&target, &named, ctx)?;
        self.carry_out(&target, steps, &plan.held, ctx)
    }

    fn bookmark(&self, ctx: &mut Ctx) -> Outcome {
        let refused =
            [(self.dry, "dryrun"), (self.defer, "defer destroy"), (self.recurse || self.clones, "recursive")];
        if let Some((_, what)) = refused.iter().find(|(given, _)| *given) {
            return Err(Failure::MinusOne(format!("{what} is not supported with bookmark")));
        }
        let missing = || Failure::failed(format!("bookmark '{}' does not exist.", self.name));
        let target = Target::of(&self.name, ctx).map_err(|e| match e.is_no_dataset(&self.name) {
            true => missing(),
            false => e,
        })?;
        target.dir().map_err(|_| missing())?;
        let name = self.name.clone();
        let done = ctx.change(&target.pool, move |tasks, _| tasks.destroy_bookmark(&name));
        done.map_err(|e| match e.kind() {
            Kind::NotFound => missing(),
            _ => Failure::cannot("destroy", &self.name, why(&e)),
        })?;
        Ok(Exit::OK)
    }

    fn carry_out(&self, target: &Target, steps: Vec<Step>, held: &HashSet<String>, ctx: &mut Ctx) -> Outcome {
        if self.dry || steps.is_empty() {
            return Ok(Exit::OK);
        }
        let mut allowed = HashSet::new();
        for step in &steps {
            if allowed.insert(step.name().split('@').next().unwrap_or_default())
                | matches!(step, Step::Head(_))
                && !may_destroy(step.name(), ctx)?
            {
                return Err(match step {
                    Step::Snapshot(_) => Failure::failed("cannot destroy snapshots: permission denied"),
                    Step::Head(_) => refused(step, &engine::Error::new(Kind::Denied, "permission denied")),
                });
            }
        }
        let held = |name: &str| !self.defer && held.contains(name);
        if !self.name.contains('@') && (self.recurse || self.clones) {
            return destroy_rest(target, steps, held, ctx);
        }
        let (steps, stop) = before_used(target, steps, held)?;
        if let Some(why) = stop.as_ref().filter(|_| steps.is_empty()) {
            return Err(Failure::failed(why));
        }
        let heads = heads_of(&steps);
        let unmounted = unmount_all(target, &heads, false, ctx)?;
        let left = Left::by(target, &heads);
        let done = destroy_all(target, steps, self.defer, ctx);
        if done.is_ok() {
            // The folder of a file system that stays after all is in use, or is created again.
            left.remove();
        }
        if !matches!(done, Ok(None)) {
            let failures = mount_again(&unmounted, ctx);
            warn(&failures, ctx);
        }
        match done {
            Ok(None) => stop.map_or(Ok(Exit::OK), |why| Err(Failure::failed(why))),
            Ok(Some((steps, e))) => Err(refused(&step_of(&e, &steps, &self.name), &e)),
            Err(e) => Err(refused(&step_of(&e, &[], &self.name), &e)),
        }
    }

    /// Lists the datasets and snapshots.
    fn say(&self, steps: &[Step], ctx: &mut Ctx) -> Result<(), Failure> {
        for step in steps {
            match (self.parsable, self.verbose) {
                (true, _) => writeln!(ctx.out, "destroy\t{}", step.name())?,
                (false, true) => writeln!(ctx.out, "{} destroy {}", self.lead(), step.name())?,
                (false, false) => {}
            }
        }
        Ok(())
    }

    /// Prints the space reclaimed by the named snapshots; OpenZFS prints none for other datasets.
    fn say_reclaimed(&self, target: &Target, named: &[String], ctx: &mut Ctx) -> Result<(), Failure> {
        match (self.parsable, self.verbose) {
            (true, _) => writeln!(ctx.out, "reclaim\t{}", reclaimed(target, named)?)?,
            (false, true) => {
                writeln!(ctx.out, "{} reclaim {}", self.lead(), nicebytes(reclaimed(target, named)?))?;
            }
            (false, false) => {}
        }
        Ok(())
    }

    fn lead(&self) -> &'static str {
        if self.dry { "would" } else { "will" }
    }
}

/// The refusal to destroy a snapshot before its clones, from the steps of its destroy.
fn clones_first(snapshot: &str, steps: &[Step]) -> Option<String> {
    let (_, dependents) = steps.split_last()?;
    let names: Vec<&str> = dependents.iter().map(Step::name).collect();
    let text = format!(
        "cannot destroy '{snapshot}': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\n{}",
        names.join("\n")
    );
    (!names.is_empty()).then_some(text)
}

/// Bytes that only these snapshots refer to, what neighbours share included.
#[doc(alias = "lzc_snaprange_space")]
fn reclaimed(target: &Target, snapshots: &[String]) -> Result<u64, Failure> {
    let _quiet = target.pool.quiet();
    let opened = snapshots.iter().map(|name| target.view.dsl.dataset(name));
    let mut all: Vec<Dataset> = opened.collect::<engine::Result<_>>()?;
    all.sort_by_key(|snapshot| (snapshot.phys.dir_obj, snapshot.phys.creation_txg));
    let mut bytes: u64 = 0;
    for run in all.chunk_by(|a, b| a.phys.next_snap_obj == b.number) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            bytes = bytes.saturating_add(freed_with(first, last)?.used);
        }
    }
    Ok(bytes)
}

/// The file systems and volumes among the steps.
pub(super) fn heads_of(steps: &[Step]) -> Vec<String> {
    steps.iter().filter(|step| matches!(step, Step::Head(_))).map(|step| step.name().to_owned()).collect()
}

/// Obstacles to the destruction of snapshots: holds, and mounts unless they go with their file system.
pub(super) struct Uses<'a, F> {
    target: &'a Target,
    /// Those that are destroyed, too: the use of their snapshots ends with their unmount.
    heads: HashSet<String>,
    held: F,
}

impl<'a, F: Fn(&str) -> bool> Uses<'a, F> {
    pub(super) fn new(target: &'a Target, steps: &[Step], held: F) -> Self {
        Self { target, heads: heads_of(steps).into_iter().collect(), held }
    }

    /// Why a step cannot be done; `None` for file systems and volumes.
    pub(super) fn of(&self, step: &Step) -> Result<Option<String>, Failure> {
        let Step::Snapshot(name) = step else { return Ok(None) };
        if (self.held)(name) {
            return Ok(Some(why_held(name)));
        }
        let mounts = &self.target.pool.mounts;
        let stays_behind = name.split_once('@').is_some_and(|(head, _)| !self.heads.contains(head));
        if stays_behind || mounts.at(name).is_some() {
            let guid = Target { name: name.to_owned(), ..self.target.clone() }.dataset()?.phys.guid;
            if mounts.uses_snapshot(name, guid) {
                return Ok(Some(format!("cannot destroy snapshot {name}: dataset is busy")));
            }
        }
        Ok(None)
    }
}

/// Returns the steps that can run before snapshots that are held or in use, and the reasons to stop there: as in OpenZFS
/// snapshots are destroyed together or not at all, and each that cannot be is named; descendants are destroyed before them, and
/// no file system is unmounted whose snapshots stay.
fn before_used(
    target: &Target,
    mut steps: Vec<Step>,
    held: impl Fn(&str) -> bool,
) -> Result<(Vec<Step>, Option<String>), Failure> {
    let uses = Uses::new(target, &steps, held);
    let (mut together, mut reasons) = (0, Vec::new());
    for (index, step) in steps.iter().enumerate() {
        if matches!(step, Step::Head(_)) {
            if !reasons.is_empty() {
                break;
            }
            together = index + 1;
        }
        reasons.extend(uses.of(step)?);
    }
    if reasons.is_empty() {
        return Ok((steps, None));
    }
    steps.truncate(together);
    Ok((steps, Some(reasons.join("\n"))))
}

/// Destroys in the order of the steps, a bounded number of file systems and volumes in each txg: the changes
/// of a txg are in memory until they are written. Consecutive snapshots share one txg. Returns the steps that
/// failed, and why, when others had been done before.
///
/// # Errors
/// Why the first step failed: nothing was changed.
pub(super) fn destroy_all(
    target: &Target,
    mut steps: Vec<Step>,
    defer: bool,
    ctx: &mut Ctx,
) -> engine::Result<Option<(Vec<Step>, engine::Error)>> {
    let all = steps.len();
    match destroy_next(target, &mut steps, defer, ctx) {
        Ok(()) => Ok(None),
        Err(e) if steps.len() == all => Err(e),
        Err(e) => {
            let failed = steps.chunk_by(both_snapshots).next().unwrap_or_default().to_vec();
            Ok(Some((failed, e)))
        }
    }
}

/// Does what [`destroy_all`] does, and takes the steps that are done out of `steps`.
///
/// # Errors
/// Why the first of the remaining steps failed.
pub(super) fn destroy_next(
    target: &Target,
    steps: &mut Vec<Step>,
    defer: bool,
    ctx: &mut Ctx,
) -> engine::Result<()> {
    while !steps.is_empty() {
        let given = steps.get(..first_txg(steps)).unwrap_or_default().to_vec();
        let ended = ctx.change(&target.pool, move |tasks, _| destroy_some(tasks, &given, defer));
        let Ended { done, marked, failed } = ended?;
        steps.drain(..done.min(steps.len()));
        if let Some(e) = failed {
            return Err(e);
        }
        if let Some(number) = marked {
            target.pool.spa()?.dsl().free_contents(number)?;
        }
    }
    Ok(())
}

/// File systems and volumes that one txg destroys.
const HEADS: usize = 500;

/// Steps of the next txg.
fn first_txg(steps: &[Step]) -> usize {
    let mut heads = 0;
    let full = steps.iter().position(|step| {
        heads += usize::from(matches!(step, Step::Head(_)));
        heads == HEADS
    });
    full.map_or(steps.len(), |last| last + 1)
}

/// Result of a task.
struct Ended {
    /// Steps done.
    done: usize,
    /// The next step's dataset is to be emptied first.
    marked: Option<u64>,
    /// Why the next steps failed.
    failed: Option<engine::Error>,
}

/// Destroys in the order of the steps, up to one that fails or that is to be emptied first.
///
/// # Errors
/// Why the first step failed: the task has changed nothing.
fn destroy_some(tasks: &Tasks<'_>, steps: &[Step], defer: bool) -> engine::Result<Ended> {
    let mut ended = Ended { done: 0, marked: None, failed: None };
    for together in steps.chunk_by(both_snapshots) {
        let names: Vec<&str> = together.iter().map(Step::name).collect();
        let done = match together {
            [Step::Head(name)] => tasks.begin_destroy(name),
            _ => tasks.destroy_snapshots(&names, defer).map(|()| DestroyOutcome::Destroyed),
        };
        match done {
            Ok(DestroyOutcome::Destroyed) => ended.done += together.len(),
            Ok(DestroyOutcome::Marked(number)) => {
                ended.marked = Some(number);
                break;
            }
            Err(e) if ended.done == 0 => return Err(e),
            Err(e) => {
                ended.failed = Some(e);
                break;
            }
        }
    }
    Ok(ended)
}

/// Snapshots that follow one another are destroyed together: all or none of them.
fn both_snapshots(a: &Step, b: &Step) -> bool {
    matches!((a, b), (Step::Snapshot(_), Step::Snapshot(_)))
}

/// The step that an error is about.
pub(super) fn step_of(e: &engine::Error, steps: &[Step], asked: &str) -> Step {
    let named = e.place().dataset.clone();
    let name = named.or_else(|| steps.first().map(|step| step.name().to_owned()));
    let name = name.unwrap_or_else(|| asked.to_owned());
    if name.contains('@') { Step::Snapshot(name) } else { Step::Head(name) }
}

pub(super) fn refused(step: &Step, e: &engine::Error) -> Failure {
    match step {
        Step::Snapshot(name) if e.kind() == Kind::Busy && e.what() == HELD => Failure::failed(why_held(name)),
        Step::Snapshot(name) if e.kind() == Kind::Exists => {
            Failure::failed(format!("cannot destroy snapshot {name}: snapshot is cloned"))
        }
        Step::Snapshot(name) => Failure::failed(format!("cannot destroy snapshot {name}: {}", why(e))),
        Step::Head(name) => Failure::cannot("destroy", name, why(e)),
    }
}

fn why_held(name: &str) -> String {
    format!("cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders.")
}

/// Whether a snapshot has holds.
pub(super) fn is_held(snapshot: &Dataset) -> engine::Result<bool> {
    let holds = snapshot.dsl.zap(snapshot.phys.userrefs_obj)?.map(|zap| zap.to_vec()).transpose()?;
    Ok(holds.is_some_and(|holds| !holds.is_empty()))
}

/// The file system or volume of a step.
pub(super) fn owner(step: &Step) -> &str {
    step.name().split('@').next().unwrap_or_default()
}

pub(super) fn is_at_or_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// The snapshots of a head that `a`, `a,b` or `a%c` means, oldest first.
fn chosen(head: &Dataset, spec: &str) -> Result<Vec<Dataset>, Failure> {
    let all = head.snapshots()?;
    let part =
        |snapshot: &Dataset| snapshot.name.split_once('@').map(|(_, s)| s.to_owned()).unwrap_or_default();
    let mut picked = HashSet::new();
    for word in spec.split(',') {
        let Some((first, last)) = word.split_once('%') else {
            picked.extend(head.snapshot(word)?.as_ref().map(part));
            continue;
        };
        let place = |wanted: &str| all.iter().position(|snapshot| part(snapshot) == wanted);
        let from = if first.is_empty() { Some(0) } else { place(first) };
        let to = if last.is_empty() { all.len().checked_sub(1) } else { place(last) };
        let (Some(from), Some(to)) = (from, to) else { continue };
        picked.extend(all.iter().skip(from).take((to + 1).saturating_sub(from)).map(part));
    }
    Ok(all.into_iter().filter(|snapshot| picked.contains(&part(snapshot))).collect())
}

/// The steps of a destroy, in a possible order.
pub(super) struct Plan<'a> {
    target: &'a Target,
    pub(super) steps: Vec<Step>,
    seen: HashSet<u64>,
    /// Snapshots were named, no file systems.
    only_snapshots: bool,
    /// Clones that go with their origin.
    clones: Vec<String>,
    /// Snapshots that have holds.
    held: HashSet<String>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(target: &'a Target, only_snapshots: bool) -> Self {
        let (steps, seen, held) = (Vec::new(), HashSet::new(), HashSet::new());
        Self { target, steps, seen, only_snapshots, clones: Vec::new(), held }
    }

    /// Everything below a directory, its snapshots, then itself. As in OpenZFS a hidden child is reached only as the clone
    /// of a snapshot: `%recv`, the state of an interrupted incremental receive.
    fn head(&mut self, dir: &Dir) -> Result<(), Failure> {
        if !self.seen.insert(dir.phys.head_dataset_obj) {
            return Ok(());
        }
        for (part, number) in dir.children()? {
            let child = Dir::open(&dir.dsl, number, format!("{}/{part}", dir.name))?;
            if !child.is_internal() {
                self.head(&child)?;
            }
        }
        let head = dir.head()?;
        for snapshot in head.snapshots()?.iter().rev() {
            self.snapshot(snapshot)?;
        }
        self.steps.push(Step::Head(dir.name.clone()));
        Ok(())
    }

    /// A snapshot, after the clones of it.
    pub(super) fn snapshot(&mut self, snapshot: &Dataset) -> Result<(), Failure> {
        if !self.seen.insert(snapshot.number) {
            return Ok(());
        }
        let clones = match snapshot.dsl.zap(snapshot.phys.next_clones_obj)? {
            Some(zap) => zap.to_vec()?.iter().filter_map(|entry| entry.value.first()).collect(),
            None => Vec::new(),
        };
        for number in clones {
            // The clone itself, or its first snapshot.
            let name = dataset_name(&snapshot.dsl, number)?;
            let name = name.split('@').next().unwrap_or_default().to_owned();
            let dir = self.target.view.dsl.dir(&name)?;
            // Naming a snapshot names none of its clones, wherever they are.
            let named = !self.only_snapshots && is_at_or_below(&name, &self.target.name);
            if !named && !self.seen.contains(&dir.phys.head_dataset_obj) {
                self.clones.push(name);
            }
            self.head(&dir)?;
        }
        if is_held(snapshot)? {
            self.held.insert(snapshot.name.clone());
        }
        self.steps.push(Step::Snapshot(snapshot.name.clone()));
        Ok(())
    }
}
