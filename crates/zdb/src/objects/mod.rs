//! `-d`, `-N`, `-i`: datasets and objects; `-O`, `-r`: by path; `-B`: as a stream.
//!
//! ```text
//! dump      output and verbosity; numbers
//! pool      the MOS and every dataset, then features   objset    one object set
//! object    one object: row, flags, viewer             viewers   type → viewer of the content
//! tree      indirect blocks and segments               zap, dsl, bpobj, files, …   the viewers
//! intent    the intent log                             ranges    objects and ranges in the operands
//! lookup    -O and -r                                  backup    -B
//! ```
//!
//! Unreadable parts are reported on standard error, and the rest is printed.

mod backup;
mod bookmarks;
mod bpobj;
mod deadlist;
mod dsl;
mod dtl;
mod dump;
mod files;
mod intent;
mod lookup;
mod object;
mod objset;
mod pool;
mod ranges;
mod records;
mod refcounts;
mod tree;
mod view;
mod viewers;
mod zap;
mod zap_stats;

use clikit::ctx::Ctx;
use clikit::verb::{Exit, Outcome};

use super::target::{Session, Target};
use dump::Dump;
use view::View;

/// `-d`/`-i` of a whole pool: the MOS, then every dataset.
pub fn run_pool(session: &Session, ctx: &mut Ctx) -> Outcome {
    pool::run(&mut Dump::new(session, ctx))
}

/// One dataset (`Target::Dataset`), or the MOS if objects follow a pool name, with `session.rest` as objects and
/// ranges.
pub fn run_objset(session: &Session, ctx: &mut Ctx) -> Outcome {
    let wanted = ranges::parse_all(&session.rest)?;
    let mut dump = Dump::new(session, ctx);
    dump.unlocked()?;
    let mut view = match &session.target {
        Target::Dataset(dataset) => View::dataset(&mut dump, dataset)?,
        _ => View::mos(&session.pool),
    };
    if wanted.is_empty() {
        objset::print(&mut dump, &mut view)?;
    } else {
        objset::print_ranges(&mut dump, &mut view, &wanted)?;
    }
    Ok(dump.exit)
}

/// `zdb POOL/DATASET#BOOKMARK`.
pub fn run_bookmark(session: &Session, name: &str, ctx: &mut Ctx) -> Outcome {
    bookmarks::one(&mut Dump::new(session, ctx), name)?;
    Ok(Exit::OK)
}

/// `-O DATASET PATH`; the session is open on the dataset, `session.rest` holds the path.
pub fn run_lookup(session: &Session, ctx: &mut Ctx) -> Outcome {
    lookup::show(session, ctx)
}

/// `-r DATASET PATH DESTINATION`.
pub fn run_copy(session: &Session, ctx: &mut Ctx) -> Outcome {
    lookup::copy(session, ctx)
}

/// `-B POOL/OBJSET [FLAGS]`: `objset` is the part after the pool's name.
pub fn run_backup(session: &Session, objset: &str, ctx: &mut Ctx) -> Outcome {
    backup::run(session, objset, ctx)
}
