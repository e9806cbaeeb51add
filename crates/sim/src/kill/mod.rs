//! Kills the built daemon with SIGKILL at any moment while processes work on its mounts.
//!
//! ```text
//!  script   the operations of a process, from a seed, with the expected content of its directory after each
//!  worker   a process that runs them, and records its progress in a file
//!  ledger   a worker's records, and the check of the state after a kill against them
//!  bench    daemon, pool, datasets
//!  rounds   start, work, kill, restart, check
//! ```
//!
//! Runs are not exactly repeatable: the moment of the kill among the operations depends on the machine.

mod bench;
mod ledger;
mod rounds;
mod script;
mod worker;

pub use bench::Layout;
pub use rounds::{KillCourse, KillPlan, run};
pub use worker::{Worker, serve};
