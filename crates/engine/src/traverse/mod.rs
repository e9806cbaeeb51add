//! Walks over an object set: every block pointer once, in an order in which a later walk can go on, and the blocks read
//! in device order when asked.
//!
//! - [`walk`]: the order, its bounds by birth, pauses;
//! - `log`: intent logs, as a walk meets them;
//! - [`reader`]: many blocks read in device order.
//!
//! Serves verification, the leak check, scrub and resilver. Which object sets there are and in which order they are met is
//! the caller's business. What can't be read is told to the visitor and left out with all that hangs from it.

mod log;
pub mod reader;
pub mod walk;

pub use walk::{Births, Origin, Paused, Places, SPILL, Stop, Visit, Visitor, Walk, dataset};
