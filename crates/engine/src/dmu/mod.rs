//! The data management unit: object sets, their objects, and the objects' blocks.
//!
//! An object set is an array of dnodes, itself stored in the blocks of a *meta dnode*. A dnode references its
//! object's blocks through `nlevels - 1` levels of indirect blocks. All reads go through the cache; a pointer is
//! checked against the level and size required by its position before it is followed.

mod births;
mod blocks;
pub mod content;
pub mod dirty;
pub mod edit;
mod new_object;
mod object;
mod objset;
pub mod prefetch;
pub mod range_lock;
pub mod tx;

pub(crate) use blocks::Dense;
pub use blocks::{Blocks, Stuck};
pub use content::{Content, Span, Unreadable};
pub use dirty::{Handle, LiveObjset};
pub use new_object::NewObject;
pub use object::{Extent, Object, Passes};
pub use objset::{Objset, SpecialObject};
pub use tx::Tx;
