//! A daemon of a test's own, run from the binary that was just built.

use std::ops::Deref;
use std::path::Path;

#[allow(unused_imports, reason = "each test file uses its own part")]
pub use testkit::live::Run;

/// [`testkit::live::Live`] with this binary.
pub struct Live(testkit::live::Live);

impl Live {
    pub fn new() -> Self {
        Self(testkit::live::Live::new(Path::new(env!("CARGO_BIN_EXE_aquifer"))))
    }
}

impl Deref for Live {
    type Target = testkit::live::Live;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
