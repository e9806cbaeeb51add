//! Statistics of the cache and of intent logs: `arcstat`, `arc_summary`, `zilstat`, and their counters in the format that other programs parse.

pub mod arc_summary;
pub mod arcstat;
mod columns;
pub mod kstat;
mod number;
mod zil;
pub mod zilstat;
