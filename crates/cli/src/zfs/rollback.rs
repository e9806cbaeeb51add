//! `zfs rollback`.

use clap::Args;
use engine::dsl::Dataset;
use engine::dsl::props::bookmarks::bookmarks;
use engine::dsl::props::names::dataset_name;

use super::mount::with_unmounted;
use super::target::Target;
use crate::ctx::Ctx;
use crate::session::why;
use crate::verb::{Exit, Failure, Outcome, Verb};

/// Take a dataset back to a snapshot.
#[derive(Debug, Args)]
pub struct Rollback {
    /// Destroy newer snapshots and bookmarks.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Destroy clones of newer snapshots, too.
    #[arg(short = 'R')]
    pub clones: bool,
    /// Unmount clones that are in use.
    #[arg(short = 'f')]
    pub force: bool,
    /// The snapshot.
    pub snapshot: String,
}

impl Verb for Rollback {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let Some((name, _)) = self.snapshot.split_once('@') else {
            let what = "operation not applicable to datasets of this type";
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
        let clones = clones_of(&newer)?;
        drop(quiet);
        self.refuse(&newer, &marks, &clones)?;
        let names: Vec<String> = newer.iter().rev().map(|s| s.name.clone()).collect();
        let (dataset, to) = (name.to_owned(), self.snapshot.clone());
        with_unmounted(&target, &[name.to_owned()], true, ctx, |ctx| {
            let done = ctx.change(&target.pool, move |tasks, _| {
                clones.iter().try_for_each(|clone| tasks.destroy(clone, false))?;
                for snapshot in &names {
                    tasks.destroy_snapshots(&[snapshot.as_str()], false)?;
                }
                marks.iter().try_for_each(|mark| tasks.destroy_bookmark(mark))?;
                tasks.rollback(&dataset, Some(&to))
            });
            done.map_err(|e| Failure::cannot("rollback", name, why(&e)))
        })?;
        Ok(Exit::OK)
    }
}

impl Rollback {
    fn refuse(&self, newer: &[&Dataset], marks: &[String], clones: &[String]) -> Result<(), Failure> {
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
                clones.to_vec(),
            )
        } else {
            return Ok(());
        };
        let text =
            format!("cannot rollback to '{}': {what}\nuse {option}:\n{}", self.snapshot, list.join("\n"));
        Err(Failure::failed(text))
    }
}

fn clones_of(snapshots: &[&Dataset]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for snapshot in snapshots {
        let Some(zap) = snapshot.dsl.zap(snapshot.phys.next_clones_obj)? else { continue };
        for number in zap.to_vec()?.iter().filter_map(|entry| entry.value.first()) {
            let name = dataset_name(&snapshot.dsl, number)?;
            all.extend(name.split('@').next().map(str::to_owned));
        }
    }
    Ok(all)
}
