//! `zfs snapshot`.

use std::collections::BTreeMap;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::settings;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::Kind;
use engine::dsl::Dir;
use engine::dsl::props::PropValue;
use zcommon::names::{check_component, check_entity, check_snapshot};
use zcommon::props::{DatasetTypes, PropName};

/// One command takes snapshots of one pool, and one of each dataset.
const ONE_BY_ONE: &str = "cannot create snapshots : multiple snapshots of same fs not allowed";
/// Maximum attempts of a snapshot: each time at least one other of the same dataset is created.
const TRIES: u32 = 10_000;

/// Create snapshots; those of one pool are created atomically.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// Create snapshots of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Set a user property; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// Snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub names: Vec<String>,
}

impl Verb for Snapshot {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let settings = settings::split(&self.props).map_err(Failure::failed)?;
        let mut by_pool: BTreeMap<String, (Target, Vec<String>)> = BTreeMap::new();
        for name in &self.names {
            // The usage suffices.
            let (dataset, snap) = name.split_once('@').ok_or_else(|| Failure::usage(""))?;
            let (target, heads) = self.heads(dataset, ctx).map_err(with_usage)?;
            let entry = by_pool.entry(target.pool.name()).or_insert_with(|| (target, Vec::new()));
            entry.1.extend(heads.iter().map(|dir| format!("{}@{snap}", dir.name)));
        }
        let done = take_all(by_pool, settings, ctx);
        let several = self.recurse || self.names.len() > 1;
        done.map(|()| Exit::OK).map_err(|failure| match failure {
            Failure::Failed(why) if several => Failure::Failed(format!("{why}\nno snapshots were created")),
            other => other,
        })
    }
}

impl Snapshot {
    /// The datasets that a name stands for.
    fn heads(&self, dataset: &str, ctx: &mut Ctx) -> Result<(Target, Vec<Dir>), Failure> {
        check_entity(dataset).map_err(|e| Failure::cannot("open", dataset, e))?;
        let target = Target::of(dataset, ctx)?;
        target.dataset()?;
        let heads = if self.recurse { finished(&target)? } else { vec![target.dir()?] };
        Ok((target, heads))
    }
}

/// As in OpenZFS the synopsis follows when a dataset cannot be opened.
fn with_usage(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(why) => Failure::usage(why),
        other => other,
    }
}

fn take_all(
    by_pool: BTreeMap<String, (Target, Vec<String>)>,
    settings: Vec<(String, String)>,
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    for name in by_pool.values().flat_map(|(_, names)| names) {
        let part = name.split_once('@').map_or("", |(_, part)| part);
        let checked = check_snapshot(name).and_then(|()| check_component(part));
        checked.map_err(|e| Failure::cannot("create snapshot", name, e))?;
    }
    let settings = user_props(settings)?;
    if by_pool.len() > 1 {
        return Err(Failure::failed(ONE_BY_ONE));
    }
    for (target, mut names) in by_pool.into_values() {
        names.sort();
        names.dedup();
        let of = |name: &String| name.split('@').next().unwrap_or_default().to_owned();
        if names.windows(2).any(|pair| matches!(pair, [a, b] if of(a) == of(b))) {
            return Err(Failure::failed(ONE_BY_ONE));
        }
        take(&target, names, &settings, ctx)?;
    }
    Ok(())
}

/// The settings of snapshots, which have user properties only.
fn user_props(settings: Vec<(String, String)>) -> Result<Vec<(String, PropValue)>, Failure> {
    let checked = settings.into_iter().map(|(name, value)| match PropName::parse(&name) {
        Some(PropName::User(_)) => {
            settings::of_dataset(&name, &value, DatasetTypes::SNAPSHOT, settings::When::New)
        }
        _ => Err("this property can not be modified for snapshots".to_owned()),
    });
    let checked: Result<Vec<_>, String> = checked.collect();
    checked.map_err(|why| Failure::failed(format!("cannot create snapshots : {why}")))
}

/// The datasets at and below the target, without those whose receive is unfinished and all below them.
#[doc(alias = "zfs_snapshot_cb")]
fn finished(target: &Target) -> Result<Vec<Dir>, Failure> {
    let tree = target.tree()?;
    let _quiet = target.pool.quiet();
    let mut unfinished: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for dir in tree {
        let is_below =
            |above: &String| dir.name.strip_prefix(above.as_str()).is_some_and(|r| r.starts_with('/'));
        if unfinished.iter().any(is_below) {
            continue;
        }
        match dir.head()?.is_inconsistent() {
            true => unfinished.push(dir.name),
            false => all.push(dir),
        }
    }
    Ok(all)
}

/// Takes snapshots in one txg.
fn take(
    target: &Target,
    names: Vec<String>,
    settings: &[(String, PropValue)],
    ctx: &mut Ctx,
) -> Result<(), Failure> {
    let done = of_its_own_group(|| {
        let (wanted, props) = (names.clone(), settings.to_vec());
        ctx.change(&target.pool, move |tasks, _| {
            let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let props: Vec<(&str, PropValue)> =
                props.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
            tasks.snapshot(&names, &props)
        })
    });
    done.map_err(|e| {
        let there = if e.kind() == Kind::Exists { existing(target, &names) } else { Vec::new() };
        if !there.is_empty() {
            let lines = there.iter().map(|n| format!("cannot create snapshot '{n}': dataset already exists"));
            return Failure::failed(lines.collect::<Vec<_>>().join("\n"));
        }
        let name = e.place().dataset.clone().unwrap_or_default();
        let name = names.iter().find(|n| n.split('@').next() == name.split('@').next());
        let name = name.or(names.first()).cloned().unwrap_or_default();
        Failure::cannot("create snapshot", name, why(&e))
    })
}

/// The snapshots that exist, each of which OpenZFS names.
fn existing<'a>(target: &Target, names: &'a [String]) -> Vec<&'a str> {
    let exists = |name: &&String| Target { name: (*name).clone(), ..target.clone() }.exists();
    names.iter().filter(exists).map(String::as_str).collect()
}

/// Makes a snapshot, once more when another of the same dataset was made in the same txg: as OpenZFS does, until it
/// is the only one.
#[doc(alias = "dsl_sync_task")]
pub(crate) fn of_its_own_group<T>(mut take: impl FnMut() -> engine::Result<T>) -> engine::Result<T> {
    let mut tries = 1;
    loop {
        match take() {
            Err(e) if e.kind() == Kind::Again && tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_tried_again_for_as_long_as_others_are_first() {
        let mut others = 99;
        let done = of_its_own_group(|| {
            others -= 1;
            if others > 0 { Err(engine::Error::new(Kind::Again, "another was first")) } else { Ok(()) }
        });
        assert!(done.is_ok());
    }
}
