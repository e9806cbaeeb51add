//! What the cache does: `arcstat`, `arc_summary`, and the counters behind them in the form that others parse.

pub mod arc_summary;
pub mod arcstat;
mod columns;
pub mod kstat;
mod number;
