//! Changes of datasets that fill a pool, one kind each, and their removal.

use std::sync::Arc;

use engine::dsl::props::PropValue;
use engine::dsl::write::props::SettingSource;
use engine::spa::Spa;
use engine::{Kind, Result};
use ondisk::ObjsetType;
use zpl::write::create_fs;

use crate::actor::is_refusal;
use crate::world::{POOL, new_fs};

/// A kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// File systems.
    Create,
    /// Snapshots, with properties.
    Snapshot,
    /// User properties, each with another name.
    UserProperty,
    /// Bookmarks.
    Bookmark,
    /// Holds of one snapshot.
    Hold,
    /// Clones.
    Clone,
    /// Clones, each promoted, which makes the file system before a clone of it.
    Promote,
    /// Rollbacks to a snapshot that is made for it.
    Rollback,
    /// Renames, each to a longer name.
    Rename,
}

/// All of them.
pub const TASKS: [Task; 9] = [
    Task::Create,
    Task::Snapshot,
    Task::UserProperty,
    Task::Bookmark,
    Task::Hold,
    Task::Clone,
    Task::Promote,
    Task::Rollback,
    Task::Rename,
];

/// The created datasets and properties.
#[derive(Debug, Default)]
pub struct Made {
    datasets: Vec<String>,
    snapshots: Vec<String>,
    holds: Vec<String>,
    families: Vec<Family>,
    named: u64,
}

/// A file system with a snapshot and maybe a clone of that.
#[derive(Debug)]
struct Family {
    number: u64,
    is_promoted: bool,
}

impl Family {
    /// Names of the file system, its clone, and the file system that has the snapshot.
    fn names(&self) -> [String; 3] {
        let [base, clone] = ["f", "g"].map(|kind| format!("{POOL}/{kind}{}", self.number));
        let owner = if self.is_promoted { clone.clone() } else { base.clone() };
        [base, clone, owner]
    }

    /// Its datasets and snapshots, in the order in which they can be destroyed.
    fn in_order(&self) -> [String; 3] {
        let [base, clone, owner] = self.names();
        let snapshot = format!("{owner}@{FIRST}");
        if self.is_promoted { [base, snapshot, clone] } else { [clone, snapshot, base] }
    }
}

fn create(spa: &Arc<Spa>, name: &str) -> Result<()> {
    let (made, fs) = (name.to_owned(), new_fs(&spa.pool.env));
    spa.dsl_task(move |tasks| {
        tasks.create(&made, ObjsetType::Zfs, 0, &mut |live, tx| create_fs(&live.objset, tx, &fs)).map(|_| ())
    })
}

/// The snapshot that gets bookmarks, holds and clones.
const FIRST: &str = "first";

impl Made {
    fn first(&mut self, spa: &Arc<Spa>) -> Result<String> {
        let name = format!("{POOL}@{FIRST}");
        if !self.snapshots.contains(&name) {
            let made = name.clone();
            spa.dsl_task(move |tasks| tasks.snapshot(&[&made], &[]))?;
            self.snapshots.push(name.clone());
        }
        Ok(name)
    }

    /// Makes one change; all of it is on disk on return.
    pub fn step(&mut self, spa: &Arc<Spa>, task: Task) -> Result<()> {
        self.named += 1;
        let long = "x".repeat(3000);
        let number = self.named;
        match task {
            Task::Create => {
                let name = format!("{POOL}/d{number}");
                create(spa, &name)?;
                self.datasets.push(name);
            }
            Task::Snapshot => {
                let name = format!("{POOL}@t{number}");
                let made = name.clone();
                spa.dsl_task(move |tasks| tasks.snapshot(&[&made], &[("user:text", PropValue::Text(long))]))?;
                self.snapshots.push(name);
            }
            Task::UserProperty => spa.dsl_task(move |tasks| {
                let name = format!("user:{number}");
                tasks.set(POOL, &[(name.as_str(), Some(PropValue::Text(long)))], SettingSource::Local)
            })?,
            Task::Bookmark => {
                let from = self.first(spa)?;
                spa.dsl_task(move |tasks| tasks.bookmark(&format!("{POOL}#b{number}"), &from))?;
            }
            Task::Hold => {
                let (of, tag) = (self.first(spa)?, format!("{number}{}", "h".repeat(200)));
                let held = tag.clone();
                spa.dsl_task(move |tasks| tasks.hold(&of, &held))?;
                self.holds.push(tag);
            }
            Task::Clone => {
                let (of, name) = (self.first(spa)?, format!("{POOL}/c{number}"));
                let made = name.clone();
                spa.dsl_task(move |tasks| tasks.clone_snapshot(&of, &made))?;
                self.datasets.push(name);
            }
            Task::Promote | Task::Rollback => self.family(spa, task)?,
            Task::Rename => {
                let Some(old) = self.datasets.pop() else { return self.step(spa, Task::Create) };
                let (from, new) = (old.clone(), format!("{POOL}/r{number}{}", "r".repeat(150)));
                let to = new.clone();
                let done = spa.dsl_task(move |tasks| tasks.rename(&from, &to));
                self.datasets.push(if done.is_ok() { new } else { old });
                done?;
            }
        }
        Ok(())
    }

    /// A file system that is rolled back, or whose clone is promoted.
    fn family(&mut self, spa: &Arc<Spa>, task: Task) -> Result<()> {
        let mut family = Family { number: self.named, is_promoted: false };
        let [base, clone, _] = family.names();
        create(spa, &base)?;
        let snapshot = format!("{base}@{FIRST}");
        let steps = || {
            let of = snapshot.clone();
            spa.dsl_task(move |tasks| tasks.snapshot(&[&of], &[]))?;
            if task == Task::Rollback {
                return spa.dsl_task(move |tasks| tasks.rollback(&base, Some(&snapshot)));
            }
            let made = clone.clone();
            spa.dsl_task(move |tasks| tasks.clone_snapshot(&snapshot, &made))?;
            spa.dsl_task(move |tasks| tasks.promote(&clone))
        };
        let done = steps();
        family.is_promoted = task == Task::Promote && done.is_ok();
        self.families.push(family);
        done
    }

    /// Whether nothing exists.
    pub fn is_empty(&self) -> bool {
        self.datasets.is_empty() && self.snapshots.is_empty() && self.families.is_empty()
    }

    /// Destroys everything, which is never refused.
    pub fn destroy(&mut self, spa: &Arc<Spa>) -> Result<()> {
        let first = format!("{POOL}@{FIRST}");
        for tag in std::mem::take(&mut self.holds) {
            let of = first.clone();
            spa.dsl_task(move |tasks| tasks.release(&of, &tag))?;
        }
        for name in std::mem::take(&mut self.families).iter().flat_map(Family::in_order) {
            match spa.dsl_task(move |tasks| tasks.destroy(&name, false)) {
                // A step of it was refused.
                Err(e) if e.kind() == Kind::NotFound => {}
                done => done?,
            }
        }
        for name in std::mem::take(&mut self.datasets).into_iter().chain(std::mem::take(&mut self.snapshots))
        {
            spa.dsl_task(move |tasks| tasks.destroy(&name, false))?;
        }
        Ok(())
    }

    /// Repeats one kind until it is refused or was done `most` times; returns the count, and whether it was
    /// refused.
    pub fn fill(&mut self, spa: &Arc<Spa>, task: Task, most: u64) -> Result<(u64, bool)> {
        for done in 0..most {
            match self.step(spa, task) {
                Ok(()) => {}
                Err(e) if is_refusal(&e) => return Ok((done, true)),
                Err(e) => return Err(e),
            }
        }
        Ok((most, false))
    }
}
