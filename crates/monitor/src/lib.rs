//! Statistics of the cache and of intent logs: `arcstat`, `arc_summary`, `zilstat`, their counters in the format that other
//! programs parse, and the settings of the daemon.

pub mod arc_summary;
pub mod arcstat;
mod columns;
pub mod kstat;
mod number;
pub mod tunables;
mod zil;
pub mod zilstat;
