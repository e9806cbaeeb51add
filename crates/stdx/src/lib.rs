//! What std lacks: aligned shared buffers, bit fields, range sets, free space by size, seeded randomness, clocks.

mod buf;
pub mod clock;
pub mod os;
mod range_set;
pub mod rng;
mod shelf;
mod sized_ranges;

pub use buf::{AlignedBuf, Buf};
pub use range_set::RangeSet;
pub use sized_ranges::SizedRanges;
