//! `-b`, `-c`: every block of the pool, counted and checked.

use super::target::Session;
use crate::ctx::Ctx;
use crate::verb::{Failure, Outcome};

/// Counts (`-b`…) and checks (`-c`, `-cc`) the blocks of the session's pool.
pub fn run_blocks(_session: &Session, _ctx: &mut Ctx) -> Outcome {
    Err(Failure::failed("zdb: not supported yet: block statistics"))
}
