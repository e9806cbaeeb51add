//! `zfs snapshot`.

use std::collections::BTreeMap;

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::Kind;
use engine::dsl::Dir;
use engine::dsl::props::PropValue;
use zcommon::names::{check_component, check_snapshot};
use zcommon::props::{PropName, is_user_property};

use crate::settings;

/// One command takes snapshots of one pool, and one of each dataset.
const ONE_BY_ONE: &str = "cannot create snapshots : multiple snapshots of same fs not allowed";
/// Maximum attempts of a snapshot: each time at least one other of the same dataset is created.
const TRIES: u32 = 10_000;

/// Create snapshots, all of a pool's at the same moment.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// Of everything below, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// A user property; may be repeated.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    pub props: Vec<String>,
    /// Snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub names: Vec<String>,
}

impl Verb for Snapshot {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let settings = self.settings()?;
        let mut by_pool: BTreeMap<String, (Target, Vec<String>)> = BTreeMap::new();
        for name in &self.names {
            let cannot = |what: String| Failure::cannot("create snapshot", name, what);
            let Some((dataset, snap)) = name.split_once('@') else {
                // The usage suffices.
                return Err(Failure::usage(""));
            };
            check_snapshot(name).and_then(|()| check_component(snap)).map_err(|e| cannot(e.to_string()))?;
            let target = Target::of(dataset, ctx)?;
            target.dataset()?;
            let heads = if self.recurse { finished(&target)? } else { vec![target.dir()?] };
            let entry = by_pool.entry(target.pool.name()).or_insert_with(|| (target.clone(), Vec::new()));
            for dir in heads {
                let whole = format!("{}@{snap}", dir.name);
                check_snapshot(&whole).map_err(|e| Failure::cannot("create snapshot", &whole, e))?;
                entry.1.push(whole);
            }
        }
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
        Ok(Exit::OK)
    }
}

impl Snapshot {
    fn settings(&self) -> Result<Vec<(String, PropValue)>, Failure> {
        let mut all = Vec::new();
        for (name, value) in settings::split(&self.props).map_err(Failure::failed)? {
            if !matches!(PropName::parse(&name), Some(PropName::User(_))) || !is_user_property(&name) {
                let what = format!("cannot create snapshots: invalid property '{name}'");
                return Err(Failure::failed(what));
            }
            all.push((name, PropValue::Text(value)));
        }
        Ok(all)
    }
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
        let name = e.place().dataset.clone().unwrap_or_default();
        let name = names.iter().find(|n| n.split('@').next() == name.split('@').next());
        let name = name.or(names.first()).cloned().unwrap_or_default();
        let what = match e.kind() {
            Kind::Exists => "dataset already exists".to_owned(),
            _ => why(&e),
        };
        Failure::cannot("create snapshot", name, what)
    })
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
