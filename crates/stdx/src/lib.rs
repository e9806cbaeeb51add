//! What std lacks: aligned shared buffers, bit fields, range sets, seeded randomness, clocks.

mod buf;
pub mod clock;
mod range_set;
pub mod rng;
mod shelf;

pub use buf::{AlignedBuf, Buf};
pub use range_set::RangeSet;
