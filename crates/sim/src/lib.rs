//! The engine in a world that can be stopped at any write.
//!
//! ```text
//!  actor     random steps on a pool ([`file_ops`], [`volume_ops`], [`dataset_ops`]), and the [`model`] of what must be there after each
//!    │
//!  crash     the steps run over disks that remember every write and flush; images that a power cut could have left
//!    │       must open, be as the model was after some step that is not older than the last promise, and have no
//!    │       block lost or leaked
//!  simulate  the steps run while disks fail, lie and come back, the pool fills up, and the machine is switched off:
//!    │       what is read must always be right
//!  full      pools of every layout are filled to the last byte by every kind of operation, and emptied
//!  content   bytes of a file, without its holes
//!  past      what was there after each step, and what was promised
//!  keys      those of encrypted datasets
//!  kill      a real daemon, killed while processes work on its mounts
//!  disk, image, world
//!  files, power, tree    pools on files of this machine, that lose their power: for the demo and benchmarks
//! ```
//!
//! Everything but `kill` follows from one seed: clock, guids, threads (there are none) and faults, so a failure replays
//! exactly.

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
pub mod full;
pub mod image;
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
