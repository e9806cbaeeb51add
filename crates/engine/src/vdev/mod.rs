//! Vdevs: the tree of devices, and how a block at an offset of a top-level vdev is read from it.
//!
//! A top-level vdev turns a read of `[offset, offset + size)` into reads of its children by a
//! [`plan::ReadPlan`]: a state machine without I/O that says what to read next, takes the results,
//! judges candidates by the block's checksum, and ends with the bytes and a list of the copies that
//! were bad. The zio layer drives it over real devices; a test drives it over vectors.

mod blend;
mod board;
mod compare;
pub mod config;
pub mod draid;
mod gather;
pub mod indirect;
pub mod leaf;
pub mod mirror;
pub mod plan;
pub mod queue;
pub mod raidz;
pub mod raidz_expand;
mod search;
mod stripe;
mod stripe_plan;
pub mod top;
pub mod tree;
mod window;

#[cfg(test)]
mod stripe_tests;
#[cfg(test)]
mod testing;
