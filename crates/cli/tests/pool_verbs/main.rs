//! Operations on whole pools and their vdevs, from the command line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod create;
mod import;
#[path = "../live/mod.rs"]
mod live;
mod refusals;
mod vdevs;
