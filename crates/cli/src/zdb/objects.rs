//! `-d`, `-N`, `-i`: datasets and objects; `-O`, `-r`: by path; `-B`: as a stream.

use super::target::Session;
use crate::ctx::Ctx;
use crate::verb::{Failure, Outcome};

fn missing(what: &str) -> Failure {
    Failure::failed(format!("zdb: not supported yet: {what}"))
}

/// `-d`/`-i` of a whole pool: the MOS, then every dataset.
pub fn run_pool(_session: &Session, _ctx: &mut Ctx) -> Outcome {
    Err(missing("datasets and objects"))
}

/// One dataset (`Target::Dataset`), or the MOS when objects are named after a pool, with `session.rest`
/// as objects and ranges.
pub fn run_objset(_session: &Session, _ctx: &mut Ctx) -> Outcome {
    Err(missing("datasets and objects"))
}

/// `zdb POOL/DATASET#BOOKMARK`.
pub fn run_bookmark(_session: &Session, _name: &str, _ctx: &mut Ctx) -> Outcome {
    Err(missing("bookmarks"))
}

/// `-O DATASET PATH`; the session is open on the dataset, `session.rest` holds the path.
pub fn run_lookup(_session: &Session, _ctx: &mut Ctx) -> Outcome {
    Err(missing("objects by path"))
}

/// `-r DATASET PATH DESTINATION`.
pub fn run_copy(_session: &Session, _ctx: &mut Ctx) -> Outcome {
    Err(missing("copying a file out"))
}

/// `-B POOL/OBJSET [FLAGS]`: `objset` is what follows the pool's name.
pub fn run_backup(_session: &Session, _objset: &str, _ctx: &mut Ctx) -> Outcome {
    Err(missing("streams"))
}
