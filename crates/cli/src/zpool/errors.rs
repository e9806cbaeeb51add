//! Damage that the pool itself has recorded.

use std::collections::BTreeSet;

use engine::dsl::props::names::dataset_name;
use engine::spa::Pool;
use engine::spa::errlog::errors;

use crate::ctx::Ctx;
use crate::output::status::KnownErrors;

/// The pool's error logs: how many blocks, or with `list` the objects that they are in.
pub fn known_errors(pool: &Pool, list: bool, ctx: &mut Ctx) -> KnownErrors {
    let mut notes = Vec::new();
    let found = errors(pool, &mut notes);
    notes.iter().for_each(|note| ctx.warn(format!("{}: error log: {note}", pool.name)));
    if !list {
        return KnownErrors::Count(u64::try_from(found.len()).unwrap_or(u64::MAX));
    }
    let objects: BTreeSet<(u64, u64)> = found.iter().map(|e| (e.objset, e.object)).collect();
    KnownErrors::Listed(objects.into_iter().map(|(objset, object)| name(pool, objset, object)).collect())
}

/// `tank/home:<0x2a>`
fn name(pool: &Pool, objset: u64, object: u64) -> String {
    match objset {
        0 => format!("<metadata>:<0x{object:x}>"),
        _ => match dataset_name(&pool.dsl, objset) {
            Ok(dataset) => format!("{dataset}:<0x{object:x}>"),
            Err(_) => format!("<0x{objset:x}>:<0x{object:x}>"),
        },
    }
}
