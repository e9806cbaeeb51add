//! Pools that the daemon owns, driven by the built binary and judged by zdb.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod datasets;
mod devices;
#[path = "../live/mod.rs"]
mod live;
mod process;
