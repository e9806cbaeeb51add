//! Facts about ZFS shared by the engine and the commands: one table for each enumeration, no I/O.
//!
//! | module | holds |
//! |---|---|
//! | [`features`] | feature flags |
//! | [`version`] | pool and file system versions |
//! | [`vdev`] | kinds and states of vdevs, states of pools |
//! | [`props`] | properties of datasets, pools and vdevs |
//! | [`status`] | the health of a pool, in `zpool`'s words |
//! | [`names`] | rules for names |
//! | [`units`] | numbers for people |
//! | [`draid`] | permutation maps and names of distributed-spare RAID |

pub mod draid;
pub mod features;
pub mod health;
pub mod names;
pub mod props;
pub mod status;
pub mod units;
pub mod vdev;
pub mod version;
