//! The built daemon, killed by SIGKILL at any moment while processes work on its mounts.
//!
//! ```text
//!  script   what a process does, all of it from a seed: also what must be in its directory after each operation
//!  worker   a process that does it, and notes in a file how far it came
//!  ledger   what a worker noted, and whether what is found after a kill is one of the states that it may be in
//!  bench    daemon, pool, datasets
//!  rounds   start, work, kill, start again, look
//! ```
//!
//! Nothing here is exactly repeatable: when the kill comes among the operations is up to the machine.

mod bench;
mod ledger;
mod rounds;
mod script;
mod worker;

pub use bench::Layout;
pub use rounds::{Course, Plan, run};
pub use worker::{Worker, serve};
