//! `zfs hold` and `zfs release`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Failure, Outcome, Verb, each};
use engine::dsl::write::names::find_snapshot;
use engine::{Error, Kind};

/// Hold snapshots, so that they cannot be destroyed.
#[derive(Debug, Args)]
pub struct Hold {
    /// Hold the snapshots of this name of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// Without effect, as in OpenZFS.
    #[arg(short = 't', hide = true)]
    pub temporary: bool,
    /// The tag of the hold.
    pub tag: String,
    /// Snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub names: Vec<String>,
}

/// Remove holds from snapshots.
#[derive(Debug, Args)]
pub struct Release {
    /// Release the snapshots of this name of all descendants, too.
    #[arg(short = 'r')]
    pub recurse: bool,
    /// The tag of the hold.
    pub tag: String,
    /// Snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    pub names: Vec<String>,
}

impl Verb for Hold {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        if self.tag.starts_with('.') {
            return Err(Failure::usage("tag may not start with '.'"));
        }
        each(&self.names, ctx, |name, ctx| held(name, &self.tag, self.recurse, true, ctx))
    }
}

impl Verb for Release {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        each(&self.names, ctx, |name, ctx| held(name, &self.tag, self.recurse, false, ctx))
    }
}

fn held(name: &str, tag: &str, recurse: bool, hold: bool, ctx: &mut Ctx) -> Result<(), Failure> {
    let Some((dataset, snap)) = name.split_once('@') else {
        return Err(Failure::failed(format!("'{name}' is not a snapshot")));
    };
    let target = Target { name: dataset.to_owned(), ..Target::of(dataset, ctx)? };
    let dirs = if recurse { target.tree()? } else { vec![target.dir()?] };
    let names: Vec<String> = dirs.iter().map(|dir| format!("{}@{snap}", dir.name)).collect();
    let names: Vec<String> = match recurse {
        true => names.into_iter().filter(|name| target.view.dsl.dataset(name).is_ok()).collect(),
        false => names,
    };
    let action = if hold { "hold snapshot" } else { "release hold from snapshot" };
    if names.is_empty() {
        return Err(Failure::cannot(action, name, "dataset does not exist"));
    }
    let (all, word, first) = (names, tag.to_owned(), name.to_owned());
    let done = ctx.change(&target.pool, move |tasks, _| {
        let mut chosen = Vec::new();
        for name in &all {
            let (_, number) = find_snapshot(&tasks.at, tasks.pool, name)?;
            let zap = tasks.at.dataset(number)?.userrefs_obj;
            match zap != 0 && tasks.at.zap_word(zap, word.as_str())?.is_some() {
                true if hold => return Err(Error::new(Kind::Exists, "the tag").in_dataset(name)),
                is_held if is_held != hold => chosen.push(name),
                // Below the first dataset some may have been made, or released, since.
                _ => {}
            }
        }
        // All or none of them get the hold; it is released where it is.
        if chosen.is_empty() {
            return Err(Error::new(Kind::NotFound, "the tag").in_dataset(&first));
        }
        chosen.into_iter().try_for_each(|name| match hold {
            true => tasks.hold(name, &word),
            false => tasks.release(name, &word),
        })
    });
    done.map_err(|e| {
        let what = match e.kind() {
            Kind::Exists => "tag already exists on this dataset".to_owned(),
            Kind::NotFound if !hold && target.view.dsl.dataset(name).is_ok() => {
                "no such tag on this dataset".to_owned()
            }
            Kind::TooLong => "tag too long".to_owned(),
            _ => why(&e),
        };
        Failure::cannot(action, e.place().dataset.as_deref().unwrap_or(name), what)
    })
}
