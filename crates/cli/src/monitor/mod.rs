//! Cache statistics: `arcstat`, `arc_summary`, and their counters in the format that other programs parse.

pub mod arc_summary;
pub mod arcstat;
mod columns;
pub mod kstat;
mod number;
