//! The engine in a world that can be stopped at any write.
//!
//! ```text
//!  actor     random steps on a pool ([`file_ops`], [`volume_ops`], [`dataset_ops`]), and the [`model`] of the expected state
//!    │
//!  crash     the steps run over disks that record every write and flush; images that a power cut could have left
//!    │       must open, must match the model after some step no older than the last promise, and must have no
//!    │       lost or leaked block
//!  simulate  the steps run while disks fail, lie and return, the pool fills up, and the machine is switched off:
//!    │       all reads must always be correct
//!  full      pools of every layout are filled to the last byte by every kind of operation, and emptied
//!  content   bytes of a file, without its holes
//!  timeline  the state after each step, and the promises
//!  keys      those of encrypted datasets
//!  kill      a real daemon, killed while processes work on its mounts
//!  jobs      a real daemon, with odd changes in the midst of its pool's jobs
//!  disk, image, world
//!  files, power, tree    pools on files of this machine, with power cuts: for the demo and benchmarks
//! ```
//!
//! Everything except `kill` and `jobs` follows from one seed: clock, guids, threads (there are none) and faults, so a failure
//! replays exactly.

pub mod actor;
pub mod check;
pub mod content;
pub mod crash;
mod dataset_ops;
pub mod disk;
mod file_ops;
pub mod files;
pub mod fill_ops;
pub mod fill_tasks;
pub mod fill_volume;
pub mod full;
pub mod image;
pub mod jobs;
pub mod keys;
pub mod kill;
pub mod model;
pub mod power;
mod promise;
pub mod simulate;
mod timeline;
pub mod tree;
mod volume_ops;
pub mod world;
