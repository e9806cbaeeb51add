//! Traversals of an object set: every block pointer once, in an order in which a later traversal can continue, and
//! the blocks read in device order when asked.
//!
//! - [`tree`]: the order, the skipped parts, reading ahead; for visitors from roots to leaves and from leaves to roots;
//! - [`resume`]: the place where an earlier traversal stopped;
//! - [`walk`]: from the root down, past damage: verification, the leak check, scrub and resilver;
//! - `log`: intent logs, as such a walk meets them;
//! - [`reader`]: many blocks read in device order.
//!
//! Streams, the search for redacted blocks, and the freeing of destroyed datasets are visitors of [`tree`] themselves. The caller
//! chooses the object sets and their order.

mod log;
pub mod reader;
pub(crate) mod resume;
pub(crate) mod tree;
pub(crate) mod walk;

pub(crate) use walk::dataset;
pub(crate) use walk::{Births, Paused};
pub use walk::{Places, ReferenceKind, SPILL, Stop, Visit, Visitor, Walk};
