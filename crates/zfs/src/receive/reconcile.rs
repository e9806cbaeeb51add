//! Packages of `send -R -i` and `-I`: datasets and snapshots that the sender renamed, promoted or destroyed
//! since the last package are renamed, promoted and, with `-F`, destroyed here.
//!
//! Datasets and snapshots of both sides are matched by the guids of snapshots. A pass makes the changes that
//! are possible; a change may enable others, so passes repeat while they make progress. Names that are taken
//! meanwhile are bridged by temporary ones, `recv-PID-N`.
//!
//! Each change is a verb of its own (`zfs destroy -d`, `zfs rename`, `zfs promote`) with its mounts and messages, and
//! with its permissions for users other than the owner.
//!
//! Differs from OpenZFS: a dataset at the top without any snapshot of the package is left alone instead of destroyed, and
//! children are destroyed before their parents.
//!
//! Source: `recv_incremental_replication`, libzfs_sendrecv.c, OpenZFS 2.4.

use std::collections::BTreeSet;
use std::io::Write;

use clikit::ctx::Ctx;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Verb};
use engine::dsl::Dir;
use engine::dsl::props::names::dataset_name;
use nvpair::{NvList, NvValue};

use super::Receive;
use super::package::Package;
use super::props::{Stage, apply};
use crate::clone::Promote;
use crate::delegated::{Need, are_given, destroys, promoted, renames};
use crate::destroy::Destroy;
use crate::rename::Rename;

/// Bound on passes: a rename may need one to reach a temporary name and one to leave it, at each level of names.
const PASSES: usize = 64;

/// A dataset here.
#[derive(Debug)]
struct Local {
    name: String,
    /// Name, guid and creation txg of its snapshots.
    snapshots: Vec<(String, u64, u64)>,
    /// Guid of the parent's snapshot that the package builds on; 0: none.
    parent_from: u64,
    /// Guid of the snapshot that it is a clone of; 0: none.
    origin: u64,
}

/// Reconciles the datasets at and below `top` with a package.
pub(super) struct Reconcile<'r> {
    verb: &'r Receive,
    package: &'r Package,
    top: String,
    /// The snapshot that the package builds on, behind the `@`.
    from: String,
    /// Number of temporary names used.
    temporary: u32,
}

/// Result of a pass.
#[derive(Debug, Default)]
struct Pass {
    again: bool,
    progress: bool,
    /// Guids of destroyed snapshots and datasets.
    destroyed: BTreeSet<u64>,
}

impl Pass {
    fn did(&mut self, done: bool) {
        self.progress |= done;
        self.again |= !done;
    }
}

impl<'r> Reconcile<'r> {
    /// For a package that builds on snapshots `from`, received into `top`.
    pub(super) fn new(verb: &'r Receive, package: &'r Package, top: String, from: String) -> Self {
        Self { verb, package, top, from, temporary: 0 }
    }

    /// Changes names and datasets. Returns whether all is as on the sending side, as far as it was asked for.
    ///
    /// # Errors
    /// If the datasets here cannot be read, or the output is closed.
    pub(super) fn run(&mut self, ctx: &mut Ctx) -> Result<bool, Failure> {
        for _ in 0..PASSES {
            if !Target::of(&self.top, ctx)?.exists() {
                return Ok(true);
            }
            let all = self.local(ctx)?;
            let pass = self.pass(&all, ctx)?;
            if !(pass.again && pass.progress) {
                return Ok(!pass.again);
            }
            self.say("another pass:", ctx)?;
        }
        Ok(false)
    }

    fn say(&self, what: &str, ctx: &mut Ctx) -> Result<(), Failure> {
        if self.verb.verbose {
            writeln!(ctx.out, "{what}")?;
        }
        Ok(())
    }

    /// The datasets here, children before their parents, so that a tree can be destroyed in one pass.
    fn local(&self, ctx: &mut Ctx) -> Result<Vec<Local>, Failure> {
        let target = Target::of(&self.top, ctx)?;
        let tree = target.tree()?;
        let _quiet = target.pool.quiet();
        let from_of = |dir: &Dir| -> Result<u64, Failure> {
            Ok(dir.head()?.snapshot(&self.from)?.map_or(0, |snapshot| snapshot.phys.guid))
        };
        let mut all = Vec::new();
        for dir in tree {
            let snapshots = dir.head()?.snapshots()?.into_iter().map(|snapshot| {
                let part = snapshot.name.split_once('@').map_or("", |(_, part)| part).to_owned();
                (part, snapshot.phys.guid, snapshot.phys.creation_txg)
            });
            let parent = dir.name.rsplit_once('/').filter(|_| dir.name != self.top);
            let parent_from = match parent {
                Some((parent, _)) => from_of(&target.view.dsl.dir(parent)?)?,
                None => 0,
            };
            // Datasets that are no clones have the pool's hidden snapshot as their origin.
            let origin = match dir.phys.origin_obj {
                0 => None,
                number => Some(dataset_name(&dir.dsl, number)?).filter(|name| !name.contains('$')),
            };
            let origin = origin.map(|name| target.view.dsl.dataset(&name)).transpose()?;
            let origin = origin.map_or(0, |origin| origin.phys.guid);
            all.push(Local { name: dir.name.clone(), snapshots: snapshots.collect(), parent_from, origin });
        }
        all.reverse();
        Ok(all)
    }

    fn pass(&mut self, all: &[Local], ctx: &mut Ctx) -> Result<Pass, Failure> {
        let (mut pass, package) = (Pass::default(), self.package);
        for local in all {
            let Some(sent) = local.snapshots.iter().find_map(|(_, guid, _)| package.find(*guid)) else {
                self.destroy_dataset(local, &mut pass, ctx)?;
                continue;
            };
            let origin = sent.dataset.u64("origin").unwrap_or(0);
            if local.origin != origin {
                if is_before(origin, local.origin, all) {
                    let (name, verb) = (&local.name, Promote { name: local.name.clone() });
                    self.say(&format!("promoting {}", local.name), ctx)?;
                    pass.progress |= self.step(|ctx| promoted(name, ctx), verb, ctx)?;
                }
                // Its snapshots may be those of another dataset now.
                pass.again = true;
                continue;
            }
            let (from, last) = self.snapshots(local, &mut pass, ctx)?;
            if from == 0 {
                let (name, from) = (&local.name, &self.from);
                let what = format!("local fs {name} does not have fromsnap ({from} in stream)");
                self.say(&format!("{what}; must have been deleted locally; ignoring"), ctx)?;
                continue;
            }
            // The first snapshots may belong to a clone that the sender has promoted.
            self.rename_dataset(local, last.unwrap_or(sent.dataset), all, &mut pass, ctx)?;
        }
        Ok(pass)
    }

    /// A dataset that the sender does not have.
    fn destroy_dataset(&mut self, local: &Local, pass: &mut Pass, ctx: &mut Ctx) -> Result<(), Failure> {
        if !self.verb.force || local.name == self.top {
            return Ok(());
        }
        for (part, ..) in &local.snapshots {
            let name = format!("{}@{part}", local.name);
            let done = self.destroy(&name, local.name.len() + 1, ctx)?;
            pass.did(done);
        }
        let done = self.destroy(&local.name, self.top.len() + 1, ctx)?;
        pass.did(done);
        pass.destroyed.extend(local.snapshots.iter().map(|(_, guid, _)| *guid));
        Ok(())
    }

    /// Snapshots that the sender has renamed or destroyed, and their properties. Returns the guid of the one that the
    /// package builds on (0: there is none), and the sender's dataset of the last one.
    fn snapshots(
        &mut self,
        local: &Local,
        pass: &mut Pass,
        ctx: &mut Ctx,
    ) -> Result<(u64, Option<&'r NvList>), Failure> {
        let (mut from, mut last, package) = (0, None, self.package);
        for (part, guid, _) in &local.snapshots {
            let name = format!("{}@{part}", local.name);
            let Some(sent) = package.find(*guid) else {
                if self.verb.force {
                    let done = self.destroy(&name, local.name.len() + 1, ctx)?;
                    pass.did(done);
                    pass.destroyed.insert(*guid);
                }
                continue;
            };
            let props = sent.dataset.nvlist("snapprops").and_then(|all| all.nvlist(&sent.snapshot));
            if let Some(props) = props {
                let target = Target::of(&name, ctx)?;
                // As OpenZFS, which ignores properties that cannot be set here.
                let notes = apply((&name, Stage::Whole), Some(props), None, &target, ctx).unwrap_or_default();
                for note in notes {
                    writeln!(ctx.err, "{note}")?;
                }
            }
            if sent.snapshot != *part {
                let new = format!("{}@{}", local.name, sent.snapshot);
                let done = self.rename(&name, Some(new), local.name.len() + 1, ctx)?;
                pass.did(done);
            }
            if sent.snapshot == self.from {
                from = *guid;
            }
            last = Some(sent.dataset);
        }
        Ok((from, last))
    }

    /// A dataset that has another name or parent on the sender's side.
    fn rename_dataset(
        &mut self,
        local: &Local,
        sent: &NvList,
        all: &[Local],
        pass: &mut Pass,
        ctx: &mut Ctx,
    ) -> Result<(), Failure> {
        let Some(NvValue::String(sent_name)) = sent.get("name") else { return Ok(()) };
        let sent_name = sent_name.to_string_lossy().into_owned();
        let parent = sent.u64("parentfromsnap").unwrap_or(0);
        let moved = parent != 0 && local.parent_from != 0 && parent != local.parent_from;
        if moved && pass.destroyed.contains(&local.parent_from) {
            // The parent must be looked up again.
            (pass.progress, pass.again) = (true, true);
            return Ok(());
        }
        let last = |name: &str| name.rfind('/').and_then(|at| name.get(at..)).map(str::to_owned);
        let (here, there) = (last(&local.name), last(&sent_name));
        let is_prefix = self.verb.without_pool || self.verb.last_part;
        let renamed =
            (is_prefix || local.name != self.top) && here.is_some() && there.is_some() && here != there;
        let Some(there) = there.filter(|_| moved || renamed) else { return Ok(()) };
        let has = |local: &&Local| local.snapshots.iter().any(|(_, guid, _)| *guid == parent);
        // The new parent may be a dataset of this package that is still to be received.
        let new = all.iter().find(has).map(|parent| format!("{}{there}", parent.name));
        if new.is_none() {
            self.say(&format!("local fs {} new parent not found", local.name), ctx)?;
        }
        let done = self.rename(&local.name, new, self.top.len() + 1, ctx)?;
        pass.did(done);
        Ok(())
    }

    /// Destroys a dataset or snapshot; one that is in use gets a temporary name. `kept`: bytes of the name that stay.
    fn destroy(&mut self, name: &str, kept: usize, ctx: &mut Ctx) -> Result<bool, Failure> {
        self.say(&format!("attempting destroy {name}"), ctx)?;
        let verb = Destroy {
            recurse: false,
            clones: false,
            force: false,
            dry: false,
            parsable: false,
            verbose: false,
            defer: name.contains('@'),
            name: name.to_owned(),
        };
        let done = self.step(|ctx| destroys(name, (false, false), ctx), verb, ctx)?;
        if done {
            self.say("success", ctx)?;
        }
        if done && !Target::of(name, ctx)?.exists() {
            return Ok(true);
        }
        self.rename(name, None, kept, ctx)
    }

    /// Renames to `new`, or to a temporary name, which counts as a failure. `kept`: bytes of the name that stay.
    fn rename(
        &mut self,
        old: &str,
        new: Option<String>,
        kept: usize,
        ctx: &mut Ctx,
    ) -> Result<bool, Failure> {
        if let Some(new) = new {
            self.say(&format!("attempting rename {old} to {new}"), ctx)?;
            if self.rename_one(old, new, ctx)? {
                self.say("success", ctx)?;
                return Ok(true);
            }
        }
        let is_temporary = old.get(kept..).is_some_and(|rest| rest.starts_with("recv-"));
        if !is_temporary && let Some(head) = old.get(..kept) {
            self.temporary += 1;
            let new = format!("{head}recv-{}-{}", std::process::id(), self.temporary);
            self.say(&format!("failed - trying rename {old} to {new}"), ctx)?;
            if !self.rename_one(old, new, ctx)? {
                self.say("failed - will try again on next pass", ctx)?;
            }
        }
        Ok(false)
    }

    fn rename_one(&self, old: &str, new: String, ctx: &mut Ctx) -> Result<bool, Failure> {
        let (parents, recurse, unmounted, force) = (false, false, false, false);
        let verb = Rename { parents, recurse, unmounted, force, old: old.to_owned(), new: new.clone() };
        self.step(|ctx| renames(old, &new, (parents, recurse, force), ctx), verb, ctx)
    }

    /// Runs a verb that needs these permissions of users other than the owner. Returns whether it succeeded.
    fn step(
        &self,
        needs: impl FnOnce(&mut Ctx) -> Result<Vec<Need>, Failure>,
        verb: impl Verb,
        ctx: &mut Ctx,
    ) -> Result<bool, Failure> {
        if let Some(delegated) = ctx.session()?.delegated.clone()
            && !needs(ctx).and_then(|needs| are_given(needs, &delegated, ctx)).unwrap_or(false)
        {
            return Ok(false);
        }
        match verb.run(ctx) {
            Err(Failure::Interrupted) => Err(Failure::Interrupted),
            done => Ok(done.is_ok_and(|exit| exit == Exit::OK)),
        }
    }
}

/// Whether a dataset with origin `local` has to be promoted to have origin `sent` (0: none): the sender's origin is none, or
/// older.
#[doc(alias = "created_before")]
fn is_before(sent: u64, local: u64, all: &[Local]) -> bool {
    let born = |guid| all.iter().flat_map(|local| &local.snapshots).find(|(_, g, _)| *g == guid).map(|s| s.2);
    match (sent, local) {
        (_, 0) => false,
        (0, _) => true,
        _ => born(sent).zip(born(local)).is_some_and(|(sent, local)| sent < local),
    }
}
