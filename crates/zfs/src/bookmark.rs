//! `zfs bookmark`.

use clap::Args;
use clikit::ctx::Ctx;
use clikit::session::why;
use clikit::target::Target;
use clikit::verb::{Exit, Failure, Outcome, Verb};
use engine::dsl::props::bookmarks::bookmarks;
use engine::{Error, Kind};
use zcommon::names::{check_bookmark, check_snapshot};

/// Create a bookmark of a snapshot or bookmark.
#[derive(Debug, Args)]
pub struct Bookmark {
    /// A snapshot or bookmark.
    #[arg(value_name = "SNAPSHOT|BOOKMARK")]
    pub source: String,
    /// The new bookmark; `#NAME` suffices.
    #[arg(value_name = "BOOKMARK")]
    pub name: String,
}

impl Verb for Bookmark {
    fn run(self, ctx: &mut Ctx) -> Outcome {
        let (source, name) = self.names()?;
        let target = open(&source, ctx)?;
        let cannot = |what: &str| Failure::cannot("create bookmark", &name, what);
        check_bookmark(&name).map_err(|_| cannot("invalid argument"))?;
        if pool_of(&name) != pool_of(&source) {
            return Err(cannot("bookmark is in a different pool"));
        }
        let (new, from) = (name.clone(), source);
        ctx.change(&target.pool, move |tasks, _| tasks.bookmark(&new, &from))
            .map_err(|e| cannot(&reason(&e)))?;
        Ok(Exit::OK)
    }
}

impl Bookmark {
    /// The source's and the bookmark's whole names: one of them may leave out the dataset that the other has.
    pub fn names(&self) -> Result<(String, String), Failure> {
        let (source, name) = (&self.source, &self.name);
        if !source.contains(['@', '#']) {
            return Err(Failure::usage(format!("invalid source name '{source}': must contain a '@' or '#'")));
        }
        if !name.contains('#') {
            return Err(Failure::usage(format!("invalid bookmark name '{name}': must contain a '#'")));
        }
        let short = |word: &str| word.starts_with(['@', '#']);
        if short(source) && short(name) {
            let text = "either source or bookmark must be specified as full dataset paths";
            return Err(Failure::usage(text));
        }
        let whole = |word: &str, other: &str| match short(word) {
            true => format!("{}{word}", dataset_of(other)),
            false => word.to_owned(),
        };
        Ok((whole(source, name), whole(name, source)))
    }
}

fn dataset_of(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or_default()
}

fn pool_of(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or_default()
}

/// The source, which must exist.
fn open(source: &str, ctx: &mut Ctx) -> Result<Target, Failure> {
    // Like a name that can't be meant, a source that is not there is answered with the usage.
    let usage = |e: Failure| e.message().map_or_else(|| Failure::usage(""), Failure::usage);
    let cannot = |what: &str| usage(Failure::cannot("open", source, what));
    if source.contains('@') {
        check_snapshot(source).map_err(|e| cannot(&e.to_string()))?;
        let target = Target::of(source, ctx).map_err(usage)?;
        target.dataset().map_err(usage)?;
        return Ok(target);
    }
    check_bookmark(source).map_err(|e| cannot(&e.to_string()))?;
    let target = Target::of(source, ctx).map_err(usage)?;
    let head = Target { name: dataset_of(source).to_owned(), ..target.clone() };
    let head = head.dataset().map_err(|_| cannot("dataset does not exist"))?;
    let _quiet = target.pool.quiet();
    let known = bookmarks(&head)?.iter().any(|b| source.split_once('#').is_some_and(|(_, n)| n == b.name));
    if known { Ok(target.clone()) } else { Err(cannot("no such pool or dataset")) }
}

fn reason(e: &Error) -> String {
    match e.kind() {
        Kind::Exists => "bookmark exists".to_owned(),
        Kind::Invalid if e.what().contains("history") => {
            "source is not an ancestor of the new bookmark's dataset".to_owned()
        }
        Kind::Invalid => "invalid argument".to_owned(),
        Kind::Unsupported => "bookmark feature not enabled".to_owned(),
        _ => why(e),
    }
}
