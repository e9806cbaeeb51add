//! The tests of mounts, with requests over io_uring: see `bench`. Skipped where the kernel does not offer it.
#![allow(clippy::duplicate_mod, reason = "each file of tests brings its own")]

#[path = "clone.rs"]
mod clone;
#[path = "direct.rs"]
mod direct;
#[path = "live.rs"]
mod live;
#[path = "ranges.rs"]
mod ranges;
#[path = "rollback.rs"]
mod rollback;
#[path = "tmpfile.rs"]
mod tmpfile;
