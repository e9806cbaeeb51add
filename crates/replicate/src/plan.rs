//! Plans the streams to send, from both sides' states alone.
//!
//! Parents come before children, origins before clones. For a dataset the target may have: nothing (a full stream of the
//! oldest snapshot, or a stream from its origin, then increments), a partial receive (it goes on, and the plan is made
//! anew), or snapshots, of which the newest common one is the base; when the source lacks the target's newest snapshot, a
//! bookmark of it serves. A step that would lose data of the target is a problem, or with `force` a rollback.
//!
//! Snapshots are known by their guids, origins of clones in the whole target: a promotion at the source moves snapshots from one
//! dataset to another, and the target keeps them where they were received.

use std::collections::BTreeSet;

use crate::Job;
use crate::look::{Dataset, Tree};

/// The base of an incremental stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Base {
    /// A full stream.
    Nothing,
    /// `@name`, `#name`, or the whole name of an origin.
    On(String),
}

/// One change of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// A partial receive goes on; `creates`: that of a new dataset.
    Resume { token: String, creates: bool },
    /// The target's dataset returns to a snapshot.
    Rollback { to: String },
    /// A snapshot is sent. `origin` is that of a clone at the target, `creates` whether the dataset is new there.
    Send { base: Base, to: String, origin: Option<String>, creates: bool, raw: bool },
}

/// A change of one dataset, by its name relative to the roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub dataset: String,
    pub act: Act,
}

/// How a dataset of the target stands to that of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stand {
    /// The target lacks it.
    Missing,
    /// It has a partial receive.
    Partial,
    /// The newest common snapshot: its guid and creation, how many newer ones the source has.
    Common { guid: u64, creation: u64, behind: usize },
    /// Nothing can be sent until the problem is solved.
    Stuck(String),
    /// The source has no snapshot of it.
    Nothing,
}

/// The steps to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    /// Datasets and their problems.
    pub problems: Vec<(String, String)>,
}

/// Plans a job. `target` is `None` when it does not exist.
pub(crate) fn plan(job: &Job, source: &Tree, target: Option<&Tree>) -> Plan {
    let mut plan = Plan::default();
    let mut failed: BTreeSet<&str> = BTreeSet::new();
    for relative in order(job, source) {
        let Some(from) = source.datasets.get(relative) else { continue };
        let to = target.and_then(|target| target.datasets.get(relative));
        let parent = relative.rsplit_once('/').map(|(parent, _)| parent);
        if to.is_none() && parent.is_some_and(|parent| failed.contains(parent)) {
            plan.problems.push((relative.to_owned(), "its parent is not at the target".to_owned()));
            failed.insert(relative);
            continue;
        }
        let one = One { job, source, target, planned: &plan, relative, from, to };
        match one.steps() {
            Ok(mut steps) => plan.steps.append(&mut steps),
            Err(problem) => {
                plan.problems.push((relative.to_owned(), problem));
                failed.insert(relative);
            }
        }
    }
    plan
}

/// How all datasets of a job stand.
pub(crate) fn stands(job: &Job, source: &Tree, target: Option<&Tree>) -> Vec<(String, Stand)> {
    let planned = Plan::default();
    let stand = |relative: &str| {
        let from = source.datasets.get(relative)?;
        let to = target.and_then(|target| target.datasets.get(relative));
        Some((
            relative.to_owned(),
            One { job, source, target, planned: &planned, relative, from, to }.stand(),
        ))
    };
    order(job, source).into_iter().filter_map(stand).collect()
}

/// The datasets of a job: parents first, origins before their clones.
fn order<'a>(job: &Job, source: &'a Tree) -> Vec<&'a str> {
    let names = source.datasets.keys().map(String::as_str);
    let mut left: Vec<&str> = names.filter(|relative| !job.leaves_out(relative)).collect();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let mut all = Vec::new();
    while !left.is_empty() {
        let waits = |relative: &str| {
            let needs = |other: &str| left.contains(&other) && !done.contains(other) && other != relative;
            let parent = relative.rsplit_once('/').map(|(parent, _)| parent);
            let origin = source.datasets.get(relative).and_then(|dataset| dataset.origin.as_deref());
            let origin = origin.and_then(|origin| relative_to(&source.root, origin)).map(|(of, _)| of);
            parent.is_some_and(needs) || origin.is_some_and(needs)
        };
        let ready: Vec<&str> = left.iter().copied().filter(|relative| !waits(relative)).collect();
        // A clone above its origin, after a promotion: one of them has to be first.
        let ready = if ready.is_empty() { left.clone() } else { ready };
        left.retain(|relative| !ready.contains(relative));
        done.extend(&ready);
        all.extend(ready);
    }
    all
}

/// Splits `root/a@s` into `/a` and `s`.
fn relative_to<'a>(root: &str, snapshot: &'a str) -> Option<(&'a str, &'a str)> {
    let (dataset, name) = snapshot.split_once('@')?;
    let relative = dataset.strip_prefix(root)?;
    (relative.is_empty() || relative.starts_with('/')).then_some((relative, name))
}

/// One dataset of a plan.
struct One<'a> {
    job: &'a Job,
    source: &'a Tree,
    target: Option<&'a Tree>,
    /// The steps before it.
    planned: &'a Plan,
    relative: &'a str,
    from: &'a Dataset,
    to: Option<&'a Dataset>,
}

/// The base of the first stream of a dataset that the target lacks.
enum First {
    /// A full stream.
    Nothing,
    /// A snapshot of the dataset, by its place among them: the target has it in another dataset, and the new one becomes a clone
    /// of it.
    Own { at: usize, whole: String, is_encrypted: bool },
    /// The origin: its whole name at the source and at the target. `is_encrypted`: the target's, as far as that is known.
    Origin { base: String, whole: String, is_encrypted: Option<bool> },
    /// The origin comes with a partial receive that goes on first.
    Later,
}

/// The newest snapshot that both sides know.
struct Common {
    guid: u64,
    createtxg: u64,
    creation: u64,
    /// `@name` or `#name` at the source.
    base: String,
    /// Its name at the target.
    at_target: String,
    /// Whether the target has newer snapshots.
    is_last: bool,
}

impl One<'_> {
    fn common(&self) -> Option<Common> {
        let to = self.to?;
        let snapshots = self.from.snapshots.iter().map(|s| (s.guid, s.createtxg, format!("@{}", s.name)));
        let bookmarks = self.from.bookmarks.iter().map(|b| (b.guid, b.createtxg, format!("#{}", b.name)));
        // A snapshot is preferred to its bookmark.
        let all = bookmarks.chain(snapshots).filter(|(guid, ..)| to.by_guid(*guid).is_some());
        let (guid, createtxg, base) = all.max_by_key(|(_, createtxg, _)| *createtxg)?;
        let at = to.by_guid(guid)?;
        let is_last = to.snapshots.last().is_some_and(|last| last.guid == guid);
        Some(Common { guid, createtxg, creation: at.creation, base, at_target: at.name.clone(), is_last })
    }

    fn stand(&self) -> Stand {
        match self.common() {
            _ if self.from.snapshots.is_empty() => Stand::Nothing,
            _ if self.to.is_some_and(|to| to.token.is_some()) => Stand::Partial,
            Some(common) => {
                let newer = self.from.snapshots.iter().filter(|s| s.createtxg > common.createtxg);
                let behind = newer.count();
                match self.lost(&common).filter(|_| behind > 0) {
                    Some(problem) => Stand::Stuck(problem),
                    None => Stand::Common { guid: common.guid, creation: common.creation, behind },
                }
            }
            None if self.to.is_none() => Stand::Missing,
            None => Stand::Stuck(self.no_common()),
        }
    }

    fn no_common(&self) -> String {
        "it exists at the target without a common snapshot: rename or destroy it there".to_owned()
    }

    /// Describes the data that the target would lose.
    fn lost(&self, common: &Common) -> Option<String> {
        let at = &common.at_target;
        if !common.is_last {
            return Some(format!("the target has newer snapshots than the common one, @{at}"));
        }
        let written = self.to.map_or(0, |to| to.written);
        (written > 0).then(|| format!("the target was changed since @{at} ({written} bytes written)"))
    }

    fn raw(&self) -> bool {
        match self.job.raw {
            crate::Raw::Always => true,
            crate::Raw::Never => false,
            // A target received decrypted continues so.
            crate::Raw::WhenEncrypted => self.from.is_encrypted && self.to.is_none_or(|to| to.is_encrypted),
        }
    }

    fn step(&self, act: Act) -> Step {
        Step { dataset: self.relative.to_owned(), act }
    }

    fn send(&self, base: Base, to: &str) -> Step {
        let (to, raw) = (to.to_owned(), self.raw());
        self.step(Act::Send { base, to, origin: None, creates: false, raw })
    }

    fn steps(&self) -> Result<Vec<Step>, String> {
        if let Some((to, token)) = self.to.and_then(|to| Some((to, to.token.clone()?))) {
            let creates = to.snapshots.is_empty();
            return Ok(vec![self.step(Act::Resume { token, creates })]);
        }
        let Some(newest) = self.from.snapshots.last() else {
            return match self.to {
                // Something below it may have snapshots, and needs it.
                None => Err("it has no snapshot".to_owned()),
                Some(_) => Ok(Vec::new()),
            };
        };
        let Some(_) = self.to else { return self.first() };
        let common = self.common().ok_or_else(|| self.no_common())?;
        let newer = self.from.snapshots.iter().filter(|snapshot| snapshot.createtxg > common.createtxg);
        let names: Vec<&str> = match self.job.newest {
            true => {
                (newest.createtxg > common.createtxg).then_some(newest.name.as_str()).into_iter().collect()
            }
            false => newer.map(|snapshot| snapshot.name.as_str()).collect(),
        };
        let mut steps = Vec::new();
        if let Some(lost) = self.lost(&common).filter(|_| !names.is_empty()) {
            if !self.job.force {
                return Err(format!("{lost}: --force rolls it back"));
            }
            steps.push(self.step(Act::Rollback { to: common.at_target.clone() }));
        }
        self.chain(&mut steps, common.base, &names);
        Ok(steps)
    }

    /// Increments from `base` on.
    fn chain(&self, steps: &mut Vec<Step>, mut base: String, names: &[&str]) {
        for name in names {
            steps.push(self.send(Base::On(base), name));
            base = format!("@{name}");
        }
    }

    /// The target lacks the dataset.
    fn first(&self) -> Result<Vec<Step>, String> {
        let mut names: Vec<&str> =
            self.from.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
        let first = match self.shared() {
            Some(shared) => shared,
            None => self.origin()?,
        };
        let own = self.raw();
        let (base, origin, raw) = match first {
            First::Later => return Ok(Vec::new()),
            First::Nothing => (Base::Nothing, None, own),
            First::Own { at, whole, is_encrypted } => {
                let base = names.drain(..=at).next_back().map(|name| format!("@{name}"));
                (base.map_or(Base::Nothing, Base::On), Some(whole), self.raw_onto(Some(is_encrypted)))
            }
            First::Origin { base, whole, is_encrypted } => {
                (Base::On(base), Some(whole), self.raw_onto(is_encrypted))
            }
        };
        if self.job.newest {
            names.drain(..names.len().saturating_sub(1));
        }
        let Some((first, rest)) = names.split_first() else { return Ok(Vec::new()) };
        let to = (*first).to_owned();
        let mut steps = vec![self.step(Act::Send { base, to, origin, creates: true, raw })];
        self.chain(&mut steps, format!("@{first}"), rest);
        Ok(steps)
    }

    /// Whether a clone is sent as it is on disk: its origin at the target was received so.
    fn raw_onto(&self, is_encrypted: Option<bool>) -> bool {
        match self.job.raw {
            crate::Raw::WhenEncrypted => self.raw() && is_encrypted != Some(false),
            _ => self.raw(),
        }
    }

    /// A snapshot that the target has, by its guid: the dataset and the whole name. `of` is looked at first.
    fn at_target(&self, guid: u64, of: &str) -> Option<(&Dataset, String)> {
        let target = self.target?;
        let named = target.datasets.get_key_value(of).into_iter();
        named.chain(&target.datasets).find_map(|(relative, dataset)| {
            let name = &dataset.by_guid(guid)?.name;
            Some((dataset, format!("{}@{name}", target.whole(relative))))
        })
    }

    /// The newest snapshot that the target has in another dataset and that is not the last one here. Only snapshots up to one
    /// with clones at the source count: after a promotion the dataset that had them is a clone of this one.
    fn shared(&self) -> Option<First> {
        let snapshots = &self.from.snapshots;
        let origins: Vec<&str> =
            self.source.datasets.values().filter_map(|dataset| dataset.origin.as_deref()).collect();
        let whole = |name: &str| format!("{}@{name}", self.source.whole(self.relative));
        let last =
            snapshots.iter().rposition(|snapshot| origins.contains(&whole(&snapshot.name).as_str()))?;
        let end = (last + 1).min(snapshots.len().saturating_sub(1));
        snapshots.iter().enumerate().take(end).rev().find_map(|(at, snapshot)| {
            let (dataset, whole) = self.at_target(snapshot.guid, self.relative)?;
            Some(First::Own { at, whole, is_encrypted: dataset.is_encrypted })
        })
    }

    /// The origin of a clone whose origin is in the tree, too, and is at the target or will be.
    fn origin(&self) -> Result<First, String> {
        let origin = self.from.origin.as_deref();
        let Some((of, name)) = origin.and_then(|origin| relative_to(&self.source.root, origin)) else {
            return Ok(First::Nothing);
        };
        let original = self.source.datasets.get(of).filter(|_| !self.job.leaves_out(of));
        let original = original.and_then(|of| of.snapshots.iter().find(|snapshot| snapshot.name == name));
        let Some(original) = original else { return Ok(First::Nothing) };
        let base = format!("{}@{name}", self.source.whole(of));
        if let Some((dataset, whole)) = self.at_target(original.guid, of) {
            return Ok(First::Origin { base, whole, is_encrypted: Some(dataset.is_encrypted) });
        }
        let of_origin = || self.planned.steps.iter().filter(|step| step.dataset == of);
        let comes = |step: &Step| matches!(&step.act, Act::Send { to, .. } if to == name);
        if of_origin().any(comes) {
            let whole = format!("{}{of}@{name}", self.job.target.dataset);
            return Ok(First::Origin { base, whole, is_encrypted: None });
        }
        if of_origin().any(|step| matches!(step.act, Act::Resume { .. })) {
            return Ok(First::Later);
        }
        match self.planned.problems.iter().any(|(dataset, _)| dataset == of) {
            true => Err(format!("its origin {base} is not at the target")),
            false => Ok(First::Nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::{Bookmark, Snapshot};
    use crate::place::Place;

    fn snapshots(names: &[(&str, u64)]) -> Vec<Snapshot> {
        let all = names.iter().enumerate();
        all.map(|(at, (name, guid))| {
            let at = 10 + u64::try_from(at).unwrap();
            Snapshot { name: (*name).to_owned(), guid: *guid, createtxg: at, creation: at, userrefs: 0 }
        })
        .collect()
    }

    fn dataset(names: &[(&str, u64)]) -> Dataset {
        Dataset { snapshots: snapshots(names), ..Dataset::default() }
    }

    fn tree(root: &str, all: Vec<(&str, Dataset)>) -> Tree {
        let datasets = all.into_iter().map(|(name, dataset)| (name.to_owned(), dataset)).collect();
        Tree { root: root.to_owned(), datasets }
    }

    fn job() -> Job {
        Job::new("j", Place::parse("s/a", None).unwrap(), Place::parse("t/a", None).unwrap())
    }

    /// The plan in short: `/x +one` full, `/x @one>two`, `/x rollback one`, `/x resume`.
    fn short(plan: &Plan) -> Vec<String> {
        let act = |step: &Step| match &step.act {
            Act::Resume { creates: true, .. } => "resume new".to_owned(),
            Act::Resume { .. } => "resume".to_owned(),
            Act::Rollback { to } => format!("rollback {to}"),
            Act::Send { base: Base::Nothing, to, .. } => format!("+{to}"),
            Act::Send { base: Base::On(base), to, origin, .. } => {
                format!("{base}>{to}{}", origin.as_ref().map(|o| format!(" of {o}")).unwrap_or_default())
            }
        };
        plan.steps.iter().map(|step| format!("{} {}", step.dataset, act(step))).collect()
    }

    const ABC: [(&str, u64); 3] = [("a", 1), ("b", 2), ("c", 3)];

    #[test]
    fn a_new_target_gets_all_snapshots_and_an_old_one_what_it_lacks() {
        let source = tree("s/a", vec![("", dataset(&ABC)), ("/x", dataset(&[("b", 22)]))]);
        let whole = plan(&job(), &source, None);
        assert_eq!(short(&whole), [" +a", " @a>b", " @b>c", "/x +b"]);
        let newest = Job { newest: true, ..job() };
        assert_eq!(short(&plan(&newest, &source, None)), [" +c", "/x +b"]);
        let target = tree("t/a", vec![("", dataset(&[("other-name", 2)])), ("/x", dataset(&[("b", 22)]))]);
        assert_eq!(short(&plan(&job(), &source, Some(&target))), [" @b>c"]);
        let target = tree("t/a", vec![("", dataset(&ABC)), ("/x", dataset(&[("b", 22)]))]);
        assert_eq!(plan(&job(), &source, Some(&target)), Plan::default());
    }

    #[test]
    fn a_bookmark_is_a_base_when_its_snapshot_is_gone() {
        let mut from = dataset(&ABC[2..]);
        from.bookmarks.push(Bookmark { name: "m".to_owned(), guid: 2, createtxg: 9 });
        let (source, target) = (tree("s/a", vec![("", from)]), tree("t/a", vec![("", dataset(&ABC[..2]))]));
        assert_eq!(short(&plan(&job(), &source, Some(&target))), [" #m>c"]);
    }

    #[test]
    fn losses_of_the_target_are_a_problem_or_forced() {
        let source = tree("s/a", vec![("", dataset(&ABC)), ("/x", dataset(&[("b", 22)]))]);
        let mut changed = dataset(&ABC[..2]);
        changed.written = 512;
        let newer = dataset(&[("a", 1), ("mine", 99)]);
        for (to, wanted) in [(changed, [" rollback b", " @b>c"]), (newer, [" rollback a", " @a>b"])] {
            let target = tree("t/a", vec![("", to), ("/x", dataset(&[("b", 22)]))]);
            let found = plan(&job(), &source, Some(&target));
            assert!(found.steps.is_empty() && found.problems.len() == 1, "{found:?}");
            assert!(matches!(stands(&job(), &source, Some(&target))[0].1, Stand::Stuck(_)));
            let forced = plan(&Job { force: true, ..job() }, &source, Some(&target));
            assert_eq!(short(&forced)[..2], wanted);
        }
        // Nothing in common: never forced; its missing descendants can't be sent either.
        let target = tree("t/a", vec![("", dataset(&[("a", 77)]))]);
        let found = plan(&Job { force: true, ..job() }, &source, Some(&target));
        assert_eq!((short(&found), found.problems.len()), (vec![], 2));
        // A change without anything to send is no problem.
        let mut changed = dataset(&ABC);
        changed.written = 512;
        let target = tree("t/a", vec![("", changed), ("/x", dataset(&[("b", 22)]))]);
        assert_eq!(plan(&job(), &source, Some(&target)), Plan::default());
    }

    #[test]
    fn a_partial_receive_goes_on_first() {
        let source = tree("s/a", vec![("", dataset(&ABC))]);
        for (names, wanted) in [(&[][..], " resume new"), (&ABC[..1], " resume")] {
            let partial = Dataset { token: Some("1-x".to_owned()), ..dataset(names) };
            let target = tree("t/a", vec![("", partial)]);
            assert_eq!(short(&plan(&job(), &source, Some(&target))), [wanted]);
        }
    }

    #[test]
    fn clones_follow_their_origins() {
        let mut clone = dataset(&[("k", 5)]);
        clone.origin = Some("s/a/z@b".to_owned());
        let source =
            tree("s/a", vec![("", dataset(&ABC[..1])), ("/clone", clone), ("/z", dataset(&[("b", 8)]))]);
        let wanted = [" +a", "/z +b", "/clone s/a/z@b>k of t/a/z@b"];
        assert_eq!(short(&plan(&job(), &source, None)), wanted);
        // An origin with a partial receive comes first, and one that cannot come is a problem.
        let partial = Dataset { token: Some("1-x".to_owned()), ..Dataset::default() };
        let target = tree("t/a", vec![("", dataset(&ABC[..1])), ("/z", partial)]);
        assert_eq!(short(&plan(&job(), &source, Some(&target))), ["/z resume new"]);
        let target = tree("t/a", vec![("", dataset(&ABC[..1])), ("/z", dataset(&[("b", 99)]))]);
        assert_eq!(plan(&job(), &source, Some(&target)).problems.len(), 2);
        // An origin that does not come: a full stream.
        let job = Job { exclude: vec!["z".to_owned()], newest: true, ..job() };
        assert_eq!(short(&plan(&job, &source, None)), [" +a", "/clone +k"]);
    }

    #[test]
    fn a_promotion_at_the_source_costs_no_full_stream() {
        let clone_of = |origin: &str, names: &[(&str, u64)]| Dataset {
            origin: Some(origin.to_owned()),
            ..dataset(names)
        };
        let root = || ("", dataset(&[("r", 9)]));
        // The original is a clone now and has another name; its origin stays where the target received it.
        let source = || {
            let promoted = dataset(&[("a", 1), ("k", 5)]);
            tree("s/a", vec![root(), ("/clone", promoted), ("/new", clone_of("s/a/clone@a", &ABC[1..]))])
        };
        let there = dataset(&ABC);
        let target =
            tree("t/a", vec![root(), ("/old", there), ("/clone", clone_of("t/a/old@a", &[("k", 5)]))]);
        let wanted = ["/new s/a/clone@a>b of t/a/old@a", "/new @b>c"];
        assert_eq!(short(&plan(&job(), &source(), Some(&target))), wanted);
        // The clone was promoted before its first copy.
        let target = tree("t/a", vec![root(), ("/new", dataset(&ABC))]);
        assert_eq!(short(&plan(&job(), &source(), Some(&target))), ["/clone @a>k of t/a/new@a"]);
        let newest = Job { newest: true, ..job() };
        assert_eq!(short(&plan(&newest, &source(), Some(&target))), ["/clone @a>k of t/a/new@a"]);
    }

    #[test]
    fn encrypted_datasets_are_sent_raw_unless_the_target_is_not() {
        let mut from = dataset(&ABC);
        from.is_encrypted = true;
        let source = tree("s/a", vec![("", from)]);
        let raw = |plan: Plan| matches!(plan.steps[0].act, Act::Send { raw: true, .. });
        assert!(raw(plan(&job(), &source, None)));
        assert!(!raw(plan(&Job { raw: crate::Raw::Never, ..job() }, &source, None)));
        let target = tree("t/a", vec![("", dataset(&ABC[..1]))]);
        assert!(!raw(plan(&job(), &source, Some(&target))));
    }
}
