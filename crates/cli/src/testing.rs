//! Runs command lines inside tests.

use clikit::testing::Run;

use crate::multicall;

/// Runs a command line and captures both streams.
pub fn captured(argv: &[&str]) -> Run {
    clikit::testing::captured(|ctx| multicall::run(argv.iter().map(Into::into).collect(), ctx))
}
