//! The engine in a world that can be stopped at any write.
//!
//! A workload runs over [`disk::Disk`]s that remember every write and flush. [`crash::survive`] then goes through that
//! record and checks images that a power cut could have left: each must open, hold what had been promised to be
//! durable, and have no block lost or leaked. Everything follows from one seed: clock, guids, threads (there are none)
//! and faults, so a failure replays exactly.

pub mod crash;
pub mod disk;
pub mod files;
pub mod image;
pub mod power;
pub mod tree;
pub mod workload;
pub mod world;
