//! Vdevs: the tree of devices, and how a block at an offset of a top-level vdev is read from it.
//!
//! A top-level vdev turns a read of `[offset, offset + size)` into reads of its children by a
//! [`plan::ReadPlan`]: a state machine without I/O that returns the next reads, takes their results, judges
//! candidates by the block's checksum, and ends with the bytes and a list of the copies that were bad. The
//! zio layer drives it over real devices; a test drives it over vectors.
//!
//! A write becomes writes of its children by a [`write_plan::WritePlan`], which needs no steps: parity is
//! computed, everything is written at once, and the plan decides whether the block survives the writes that
//! failed.

mod batch;
mod compare;
pub mod config;
mod doubt;
pub mod draid;
pub mod draid_rows;
pub(crate) mod dtl;
mod gather;
pub(crate) mod health;
pub mod indirect;
pub mod label;
pub(crate) mod label_moved;
mod lanes;
pub mod leaf;
pub mod least;
pub mod mirror;
mod mirror_sectors;
mod parity_rows;
pub(crate) mod physical;
pub mod plan;
pub(crate) mod probe;
pub mod queue;
pub mod raidz;
pub(crate) mod raidz_expand;
mod reads;
pub(crate) mod repair;
mod search;
pub(crate) mod sit_out;
pub mod stats;
mod stripe;
mod stripe_plan;
pub mod top;
pub mod tree;
mod window;
pub(crate) mod write;
pub mod write_plan;
mod writes;

#[cfg(test)]
mod label_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod repair_tests;
#[cfg(test)]
mod stripe_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod write_tests;
