//! Additions to std: aligned shared buffers, bit fields, range sets, free space by size, seeded randomness,
//! clocks, secrets.

mod buf;
pub mod clock;
pub mod os;
mod range_set;
pub mod rng;
mod secret;
mod shelf;
mod sized_ranges;
pub mod wake;

pub use buf::{AlignedBuf, Buf};
pub use range_set::RangeSet;
pub use secret::{Secret, Wiped, scrub_stack};
pub use sized_ranges::SizedRanges;
