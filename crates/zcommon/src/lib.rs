//! What the engine and the commands both have to know about ZFS: one table for each enumeration, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`features`] | feature flags |
//! | [`version`] | pool and file system versions |
//! | [`vdev`] | kinds and states of vdevs, states of pools |
//! | [`draid`] | permutation maps and names of distributed-spare RAID |

pub mod draid;
pub mod features;
pub mod vdev;
pub mod version;
