//! Walks over a whole pool: every block pointer once, each block's bytes when asked, and what the
//! space maps say of them.
//!
//! - [`traverse`]: the order in which blocks are met, and which of them count (a block that several
//!   snapshots share is met once, in the oldest of them);
//! - [`lists`]: blocks that nothing refers to any more but that wait to be freed;
//! - [`stats`]: blocks, bytes and sizes by type and level;
//! - [`space`]: each block's places held against the space maps: leaks, double use;
//! - [`account`]: all of these together;
//! - `removal`: copies that a removal under way has made;
//! - [`verify`]: every block read in device order, and the damage told.
//!
//! What can't be read is told to the visitor and left out with all that hangs from it; nothing here
//! stops at damage.

pub mod account;
pub mod bitmap;
pub mod clones;
pub mod lists;
mod removal;
pub mod space;
pub mod space_maps;
pub mod stats;
pub mod traverse;
pub mod verify;

pub use crate::traverse::reader;

pub use stats::BlockStats;
pub use traverse::{Origin, Stop, Visit, Visitor, traverse};
