//! Walks over a whole pool: visits every block pointer once, reads each block's bytes on request, and compares the
//! blocks with the space maps.
//!
//! - [`traverse`]: the order of blocks, and which of them count (a block that several snapshots share is visited
//!   once, in the oldest of them);
//! - [`lists`]: unreferenced blocks that are still to be freed;
//! - [`stats`]: blocks, bytes and sizes by type and level;
//! - [`space`]: comparison of each block's locations with the space maps: leaks, double use;
//! - [`account`]: all of these together;
//! - `removal`: copies made by a removal in progress;
//! - [`damage`]: damage of structures that can be derived from the blocks: space maps, dedup tables, clone
//!   tables;
//! - [`rebuild`]: derives them;
//! - [`verify`]: reads every block in device order, and reports damage.
//!
//! Unreadable blocks are reported to the visitor and skipped with everything below them; a walk never stops at
//! damage.

pub mod account;
pub(crate) mod bitmap;
pub(crate) mod clones;
pub mod damage;
pub mod lists;
pub mod rebuild;
mod removal;
pub mod space;
pub(crate) mod space_maps;
pub mod stats;
pub mod traverse;
pub mod verify;

pub use crate::traverse::reader;

pub use stats::BlockStats;
pub use traverse::{ReferenceKind, Stop, Visit, Visitor, traverse};
