//! Walks over an object set: every block pointer once, in an order in which a later walk can continue, and
//! the blocks read in device order when asked.
//!
//! - [`walk`]: the order, its bounds by birth, pauses;
//! - `log`: intent logs, as a walk meets them;
//! - [`reader`]: many blocks read in device order.
//!
//! Serves verification, the leak check, scrub and resilver. The caller chooses the object sets and their
//! order. An unreadable block is reported to the visitor and skipped with everything below it.

mod log;
pub mod reader;
pub(crate) mod walk;

pub(crate) use walk::dataset;
pub(crate) use walk::{Births, Paused};
pub use walk::{Origin, Places, SPILL, Stop, Visit, Visitor, Walk};
