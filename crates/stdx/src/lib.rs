//! What std lacks: aligned shared buffers, bit fields, range sets, seeded randomness, clocks.

mod buf;
pub mod clock;
pub mod rng;

pub use buf::{AlignedBuf, Buf};
