//! `-B`: a snapshot as a send stream.

use crate::ctx::Ctx;
use crate::verb::{Failure, Outcome};
use crate::zdb::target::Session;

/// Writes the stream to standard output.
pub fn run(_session: &Session, _objset: &str, _ctx: &mut Ctx) -> Outcome {
    Err(Failure::failed("zdb: send streams can't be made yet"))
}
